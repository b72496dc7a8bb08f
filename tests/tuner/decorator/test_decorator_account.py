"""What `kernel.explain` prints fits a terminal, with the exact configurations at hand."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

import tuner
from tuner.deciding.accounting import Account, Fate, Row
from tuner.deciding.policy import Policy

WORDS = st.text(alphabet="abcXYZ_ 0123456789:,", min_size=1, max_size=60)
ROWS = st.builds(
    Row,
    position=st.integers(0, 9999),
    config=WORDS,
    fate=st.sampled_from(Fate),
    reason=st.none() | WORDS | st.just("long " * 60) | st.just("x" * 300),
    predicted_us=st.none() | st.floats(0, 1e9),
    measured_us=st.none() | st.floats(0, 1e9),
    chosen=st.booleans(),
    values=st.dictionaries(st.text("ABC_", min_size=1, max_size=40), WORDS, max_size=12),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(ROWS, max_size=6), st.lists(WORDS, max_size=2), WORDS)
def test_no_line_is_wider_than_a_terminal(rows, notes, problem):
    account = Account(
        "kernel", Policy.FULL, "device", tuple(rows), "by", problem=problem, notes=tuple(notes)
    )
    lines = str(account).splitlines()
    assert max(map(len, lines)) <= 120
    text = "".join(str(account).split())
    for row in rows:
        assert "".join((row.reason or "").split()) in text


def test_what_all_share_is_said_once_and_the_exact_text_is_kept(
    gemm_stub, gemm_configs, gemm_call, capsys
):
    kernel = tuner.autotune(
        gemm_configs, key=["M", "N", "K"], family="gemm", gpu="h100-sxm5", policy="model"
    )(gemm_stub)
    args, kwargs = gemm_call(4096)
    kernel.run(*args, **kwargs)
    account = kernel.explain(*args, **kwargs)
    text = capsys.readouterr().out
    assert text.count("GROUP_M") == 1
    assert text.count("num_warps") == 1
    header = next(line for line in text.splitlines() if "BLOCK_M" in line)
    assert header.split()[:4] == ["#", "BLOCK_M", "BLOCK_N", "BLOCK_K"]
    assert [row.config for row in account.rows] == [str(config) for config in gemm_configs]


def test_long_names_have_a_legend():
    names = [f"A_RATHER_LONG_PARAMETER_NAME_{i}" for i in range(6)]
    rows = tuple(
        Row(i, "text", Fate.TIMED, values={name: str(i + j) for j, name in enumerate(names)})
        for i in range(3)
    )
    text = str(Account("kernel", Policy.FULL, "device", rows, "timing"))
    assert f"f {names[5]}" in text
    assert max(map(len, text.splitlines())) <= 120
