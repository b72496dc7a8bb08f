from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.cli.app import main

SQUARE = ["--m", "4096", "--n", "4096", "--k", "4096", "--dtype", "bf16", "--gpu", "h100-sxm5"]

pytestmark = pytest.mark.usefixtures("shipped")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["rank", "gemm", *SQUARE, *args])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_list_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert "candidates; --all for the rest" in out
    assert "rejected: " in out
    assert "shared memory per block" in out
    assert "  block_m=" in out
    assert max(map(len, out.splitlines())) <= 80
    assert out.isascii()


def test_the_number_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*args: str) -> int:
        _, out, _ = run(capsys, *args)
        return sum(line.lstrip()[:1].isdigit() and " g8 " in line for line in out.splitlines())

    assert rows() == 10
    assert rows("--top", "3") == 3
    assert rows("--all") > 1000


def test_the_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found) == [
        "schema", "family", "problem", "gpu", "basis", "model", "expected_error",
        "ordered_by", "notes", "considered", "unsure", "candidates", "rejected",
    ]  # fmt: skip
    assert found["schema"] == "perfmodel.ranking/1"
    assert found["considered"] == len(found["candidates"]) > 1000
    times = [c["latency_us"] for c in found["candidates"]]
    assert times == sorted(times)
    assert set(found["rejected"][0]) == {"config", "position", "reasons"}
    assert set(found["rejected"][0]["reasons"][0]) == {"limit", "needed", "available", "change"}
    few = json.loads(run(capsys, "--json", "--top", "2")[1])
    assert few["candidates"] == found["candidates"][:2]


OWN = [
    {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "num_warps": 8, "num_stages": 3},
    {"kwargs": {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}, "num_warps": 4, "maxnreg": None},
    {"block_m": 256, "block_n": 256, "block_k": 128, "num_warps": 8, "num_stages": 5},
]
CSV = (
    "block_m,block_n,block_k,num_warps,num_stages,maxnreg\n"
    "128,128,64,8,3,\n64,64,32,4,3,\n256,256,128,8,5,\n"
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("own.json", json.dumps(OWN)),
        ("own.jsonl", "\n".join(map(json.dumps, OWN)) + "\n\n"),
        ("own.csv", CSV),
        ("own.CSV", "\ufeff" + CSV),
    ],
)
def test_ones_own_list(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    code, out, err = run(capsys, "--configs", str(path), "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [c["position"] for c in found["candidates"]] == [0, 1]
    assert found["candidates"][0]["config"]["num_warps"] == 8
    assert [r["position"] for r in found["rejected"]] == [2]


# HW10: a config that does not fit is no error; HW3: what to lower, and one that fits.
def test_what_does_not_fit_is_listed_once_with_a_way_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps(OWN))
    code, out, err = run(capsys, "--configs", str(path))
    assert (code, err) == (0, "")
    assert "rejected: 1\n" in out
    assert "256x256x128 g8 w8 s5" in out
    assert "limit 232,448" in out
    assert "lower num_stages" in out.replace("\n    ", " ")
    assert "nearest that fits: block_m=" in out
    assert "error:" not in out


# HW1: where none can run it says so, and why of each.
def test_a_list_of_which_none_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps(OWN[2:]))
    code, out, err = run(capsys, "--configs", str(path), "--gpu", "t4", "--dtype", "fp16")
    assert (code, out) == (2, "")
    assert err.startswith("error: no usable config: none of 1 can run on t4: 256x256x128")


def test_parameters_of_ones_own_kernel(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps([{"block_m": 64, "WARP_SPECIALIZE": True}]))
    code, _, err = run(capsys, "--configs", str(path))
    assert code == 2
    assert "entry 1: unknown config key 'WARP_SPECIALIZE'" in err
    assert "--keep-extras" in err
    code, out, _ = run(capsys, "--configs", str(path), "--keep-extras", "--json")
    assert json.loads(out)["candidates"][0]["config"]["WARP_SPECIALIZE"] is True
    assert code == 0


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("own.txt", "", "ends in .json, .jsonl, .csv"),
        ("own.json", "", "not JSON at line 1"),
        ("own.json", '[{"block_m": 64},\n{"block_m": ]', "not JSON at line 2"),
        ("own.json", "{}", "give a list of objects"),
        ("own.json", "[]", "lists no configs"),
        ("own.json", "[3]", "entry 1: 3 is not an object"),
        ("own.json", '[{"kwargs": 3}]', "kwargs is 3"),
        ("own.json", "[" * 100_000, "nested too deep"),
        ("own.json", '[{"block_m": 64, "BLOCK_M": 32}]', "block_m is given twice"),
        ("own.json", '[{"block_mm": 64}]', "did you mean 'block_m'?"),
        ("own.json", '[{"block_m": 64.5}]', "block_m is 64.5"),
        ("own.json", '[{"block_m": -64}]', "block_m is -64"),
        ("own.jsonl", '{"block_m": 64}\n{"block_m"', "not JSON at line 2"),
        ("own.csv", "block_m,block_n\n64,64,64\n", "line 2: more values than the header"),
        ("own.csv", "block_m\nwide\n", "line 2: block_m is 'wide'"),
        ("own.csv", "block_m\n", "lists no configs"),
    ],
)
def test_lists_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    code, out, err = run(capsys, "--configs", str(path))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_files_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00\x80")
    (tmp_path / "folder.csv").mkdir()
    for name, message in (
        ("absent.json", "No such file"), ("folder.csv", "directory"), ("binary.json", "UTF-8"),
    ):  # fmt: skip
        code, out, err = run(capsys, "--configs", str(tmp_path / name))
        assert (code, out) == (2, "")
        assert message in err


def test_top_and_all_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--top", "3", "--all")[0] == 2
    assert run(capsys, "--top", "0")[0] == 2
