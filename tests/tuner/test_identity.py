from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.tiling.config import PARAMETERS, TileConfig
from tuner.identity import arguments_text, config_text, device_text, kernel_hash, space_text
from tuner.measure.device import DeviceIdentity

triton = pytest.importorskip("triton")
tl = triton.language

PLAIN = """
import triton
import triton.language as tl

SCALE: tl.constexpr = tl.constexpr(3)

@triton.jit
def deeper(x):
    return x * 2

@triton.jit
def helper(x):
    return deeper(x) + SCALE

@triton.jit
def kernel(a_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(a_ptr + offsets, helper(tl.load(a_ptr + offsets)), mask=offsets < n)
"""


def hash_of(folder: Path, source: str, name: str = "kernels") -> str:
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return kernel_hash(module.kernel)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    offsets = tl", "    # a comment\n\n    offsets = tl"),
        ("def kernel(a_ptr, n, BLOCK", "def kernel(  a_ptr,\n      n, BLOCK"),
        ("    return deeper(x) + SCALE", '    """Say what."""\n    return (deeper(x) + SCALE)'),
        ("import triton\n", "import triton\n\n\n\nunrelated = 5\n"),
    ],
    ids=["comment", "whitespace", "docstring and brackets", "moved in its file"],
)
def test_what_means_the_same_has_the_same_hash(tmp_path, old, new):
    """Stock Triton 3.6.0 hashes the text and its line number: a comment loses every timing."""
    assert old in PLAIN
    assert hash_of(tmp_path, PLAIN) == hash_of(tmp_path, PLAIN.replace(old, new, 1), "edited")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mask=offsets < n", "mask=offsets <= n"),
        ("return deeper(x) + SCALE", "return deeper(x) - SCALE"),
        ("return x * 2", "return x * 4"),
        ("tl.constexpr(3)", "tl.constexpr(4)"),
        ("def kernel(a_ptr, n, BLOCK: tl.constexpr)", "def kernel(a_ptr, n, BLOCK)"),
        ("@triton.jit\ndef kernel", "@triton.jit(do_not_specialize=['n'])\ndef kernel"),
        ("@triton.jit\ndef helper", "@triton.jit(noinline=True)\ndef helper"),
        ("n, BLOCK: tl.constexpr)", "n, BLOCK: tl.constexpr = 16)"),
    ],
    ids=[
        "body", "callee", "callee of a callee", "constant", "annotation", "option",
        "option of a callee", "default",
    ],
)  # fmt: skip
def test_what_means_something_else_has_another_hash(tmp_path, old, new):
    assert old in PLAIN
    assert hash_of(tmp_path, PLAIN) != hash_of(tmp_path, PLAIN.replace(old, new, 1), "edited")


def test_the_same_kernel_under_another_path_is_the_same(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    assert hash_of(tmp_path, PLAIN) == hash_of(tmp_path / "elsewhere", PLAIN, "other_module")


def test_heuristics_count_and_a_call_of_itself_ends(tmp_path):
    recursive = PLAIN.replace("return x * 2", "return kernel(x, x, 2)")
    assert hash_of(tmp_path, recursive) != hash_of(tmp_path, PLAIN, "other")
    even = PLAIN.replace(
        "@triton.jit\ndef kernel",
        "@triton.heuristics({'EVEN': lambda args: args['n'] % 2 == 0})\n@triton.jit\ndef kernel",
    )
    sources = (
        PLAIN, even, even.replace("% 2 == 0", "% 2 == 1"), even.replace("args['n']", "args['m']")
    )  # fmt: skip
    found = {hash_of(tmp_path, source, f"m{n}") for n, source in enumerate(sources)}
    assert len(found) == len(sources)


def test_what_a_factory_closes_over_counts(tmp_path):
    source = """
import triton
import triton.language as tl

def make(width):
    @triton.jit
    def kernel(a_ptr):
        tl.store(a_ptr, width)
    return kernel

kernel = make({width})
"""
    first, second = (hash_of(tmp_path, source.replace("{width}", w), f"w{w}") for w in "12")
    assert first != second


def zero(arguments):
    arguments["x"].zero_()


def one(arguments):
    arguments["x"].fill_(1)


FIELDS = {
    "kwargs": ({"BLOCK": 1}, {"BLOCK": 2}, {}, {"BLOCK": None}, {"BLOCK": True}, {"BLOCK": 1.0}),
    "num_warps": (4, 8),
    "num_stages": (3, 2),
    "num_ctas": (1, 2),
    "maxnreg": (None, 168),
    "pre_hook": (None, zero, one),
    "ir_override": (None, "a.ttgir", "b.ttgir"),
}


def test_ca3_the_fields_are_those_of_this_triton():
    """A field that Triton adds must be added here; the text takes note of it as it is."""
    assert set(vars(triton.Config({}))) == set(FIELDS)


@pytest.mark.parametrize("field", FIELDS)
def test_ca3_every_field_changes_the_key(field):
    """Stock Triton up to 3.6.0 leaves ``ir_override`` out of ``str(config)``, its disk key."""
    texts = []
    for value in FIELDS[field]:
        config = triton.Config({"BLOCK": 1})
        setattr(config, field, value)
        texts.append(config_text(config))
    assert len(set(texts)) == len(FIELDS[field])
    assert all(isinstance(json.loads(text), dict) for text in texts)


def test_ca3_a_field_of_a_later_triton_counts_and_its_absence_does_not():
    config, later = triton.Config({"BLOCK": 1}), triton.Config({"BLOCK": 1})
    later.warp_specialize = None
    assert config_text(config) == config_text(later)
    later.warp_specialize = True
    assert config_text(config) != config_text(later)


@pytest.mark.parametrize("name", [*PARAMETERS, "extras"])
def test_ca3_every_parameter_of_a_tile_changes_the_key(name):
    base = TileConfig()
    value = (("X", 1),) if name == "extras" else (getattr(base, name) or 0) * 2 + 1
    assert config_text(base) != config_text(dataclasses.replace(base, **{name: value}))


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.integers() | st.booleans(), max_size=5))
def test_the_order_of_parameters_does_not_count(parameters):
    backwards = dict(reversed(parameters.items()))
    assert config_text(triton.Config(parameters)) == config_text(triton.Config(backwards))


def test_values_of_any_kind_have_a_text_that_holds_in_another_process():
    config = triton.Config({"DTYPE": tl.float16, "SCALE": tl.constexpr(2), "F": float("inf")})
    text = config_text(config)
    assert " at 0x" not in text
    assert text == config_text(triton.Config(dict(config.kwargs)))
    assert text != config_text(triton.Config({**config.kwargs, "DTYPE": tl.bfloat16}))


class Tensor:
    def __init__(self, dtype: str, address: int) -> None:
        self.dtype, self.address = dtype, address

    def data_ptr(self) -> int:
        return self.address


def test_arguments_count_by_value_where_they_are_keys_else_by_what_is_specialised_on():
    def text(m=64, stride=128, dtype="torch.float16", address=256):
        return arguments_text({"M": m}, {"stride": stride, "a": Tensor(dtype, address)})

    assert text() == text(stride=256) == text(address=512)
    changed = [text(m=65), text(stride=1), text(stride=129), text(stride=2**40),
               text(dtype="torch.bfloat16"), text(address=258)]  # fmt: skip
    assert len({text(), *changed}) == len(changed) + 1


def test_keys_of_different_kinds_are_different():
    texts = {
        arguments_text({"x": x}) for x in (1, 1.0, True, "1", None, (1,), [1, 1], float("nan"))
    }
    assert len(texts) == 8


def test_a_set_of_candidates_is_told_by_its_members():
    assert space_text(["a", "b"]) == space_text(["b", "a", "a"]) != space_text(["a"])


def test_unknown_fields_of_a_device_are_told_from_known_ones():
    known = DeviceIdentity("GPU", "sm_90", None, 132, 85 * 10**9, 1980.0)
    names = ("sm_count", "memory_bytes", "clock_mhz")
    texts = {device_text(dataclasses.replace(known, **{name: None})) for name in names}
    assert len({device_text(known), *texts}) == 4
