"""A user's own device file: what it may say, and what each mistake is answered with."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.errors import InvalidGpuSpecError
from perfmodel.hardware import specfile
from perfmodel.hardware.catalog import load_gpu
from perfmodel.hardware.fields import FIELDS
from perfmodel.hardware.gpu import Gpu

SMALL = """
product = "NVIDIA H100 SXM5 64GB"
architecture = "sm_90"
sm_count = 124
boost_clock_mhz = 1755
memory_bytes = 68_719_476_736
dram_bandwidth_gb_per_s = 2020
l2_bytes = 52_428_800
"""

SLICE = """
base = "NVIDIA H100 80GB HBM3"
sm_count = 16
memory_bytes = 10_737_418_240
dram_bandwidth_gb_per_s = 419
l2_bytes = 6_553_600
"""


@pytest.fixture
def write(tmp_path: Path):
    def _write(text: str, name: str = "mine.toml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def refused(path: Path | str) -> str:
    with pytest.raises(InvalidGpuSpecError) as caught:
        load_gpu(path)
    assert caught.value.exit_code == 2
    return str(caught.value)


def answer(path: Path) -> Gpu | InvalidGpuSpecError:
    try:
        return load_gpu(path)
    except InvalidGpuSpecError as error:
        return error


def test_a_device_of_a_known_architecture_needs_only_its_data_sheet(write) -> None:
    gpu = load_gpu(write(SMALL))
    assert (gpu.name, gpu.sm_count) == ("mine", 124)
    assert gpu.smem_per_block_optin_bytes == 232_448
    assert gpu.can("wgmma")
    assert gpu.tensor_tflops["bf16"] == pytest.approx(124 * 4096 * 1755e-6, rel=1e-6)
    assert gpu.plain_tflops["fp32"] == pytest.approx(124 * 256 * 1755e-6, rel=1e-6)
    assert gpu.source_of("sm_count") == "given in mine.toml"
    assert "boost_clock_mhz" in (gpu.source_of("tensor_tflops.bf16") or "")
    assert gpu.launch_overhead_us is None


def test_a_path_works_as_text_and_as_a_path(write) -> None:
    path = write(SMALL)
    assert load_gpu(str(path)) == load_gpu(path)


def test_a_slice_takes_the_rest_from_its_base(write) -> None:
    gpu, whole = load_gpu(write(SLICE, "h100-1g.10gb.toml")), load_gpu("h100-sxm5")
    assert gpu.name == "h100-1g.10gb"
    assert gpu.architecture == "sm_90"
    assert gpu.smem_per_block_optin_bytes == whole.smem_per_block_optin_bytes
    for dtype, peak in whole.tensor_tflops.items():
        assert gpu.tensor_tflops[dtype] == pytest.approx(peak * 16 / 132)
    assert gpu.plain_tflops["fp32"] == pytest.approx(whole.plain_tflops["fp32"] * 16 / 132)
    assert "scaled" in (gpu.source_of("tensor_tflops.bf16") or "")
    assert (gpu.driver_names, gpu.aliases) == ((), ())
    assert (gpu.memory_bus_bits, gpu.memory_clock_mhz) == (None, None)  # the whole device's pins


def test_a_power_cap_lowers_every_peak(write) -> None:
    gpu = load_gpu(write('base = "a100-sxm4-80gb"\nboost_clock_mhz = 1275\n'))
    assert gpu.tensor_tflops["bf16"] == pytest.approx(312 * 1275 / 1410)
    assert gpu.dram_bandwidth_gb_per_s == 2039
    assert gpu.source_of("dram_bandwidth_gb_per_s") == load_gpu("a100-sxm4-80gb").source_of(
        "dram_bandwidth_gb_per_s"
    )


def test_a_peak_that_is_given_is_kept(write) -> None:
    gpu = load_gpu(write('base = "h100-sxm5"\n[tensor_tflops]\nbf16 = 900\n'))
    assert gpu.tensor_tflops["bf16"] == 900
    assert gpu.tensor_tflops["fp16"] == 989.4
    assert gpu.source_of("tensor_tflops.bf16") == "given in mine.toml"
    assert "whitepaper" in (gpu.source_of("tensor_tflops.fp16") or "")


def test_a_table_of_rates_replaces_the_base_s(write) -> None:
    gpu = load_gpu(write(SMALL + "[tensor_flops_per_clock_per_sm]\nbf16 = 1024\n"))
    assert dict(gpu.tensor_flops_per_clock_per_sm) == {"bf16": 1024}
    assert set(gpu.tensor_tflops) == {"bf16"}


def test_a_capability_can_be_switched_off(write) -> None:
    gpu = load_gpu(write(SMALL + "[capabilities]\ntma = false\n"))
    assert (gpu.can("tma"), gpu.can("wgmma")) == (False, True)


def test_sources_are_optional_and_kept(write) -> None:
    gpu = load_gpu(write(SMALL + '[sources]\n"my data sheet" = ["sm_count", "l2_bytes"]\n'))
    assert gpu.source_of("sm_count") == "my data sheet"
    assert gpu.source_of("memory_bytes") == "given in mine.toml"


def test_a_shipped_file_can_be_named_by_its_path() -> None:
    assert load_gpu(specfile.SPECS / "h100-sxm5.toml") == load_gpu("h100-sxm5")


@pytest.mark.parametrize("missing", ["sm_count", "boost_clock_mhz", "memory_bytes", "l2_bytes"])
def test_a_missing_field_is_named(write, missing: str) -> None:
    text = "\n".join(line for line in SMALL.splitlines() if not line.startswith(missing))
    message = refused(write(text))
    assert f"missing {missing}" in message
    assert "mine.toml" in message


def test_all_missing_fields_are_named_at_once(write) -> None:
    message = refused(write('architecture = "sm_90"\n'))
    assert all(n in message for n in ("sm_count", "boost_clock_mhz", "memory_bytes", "l2_bytes"))


def test_without_an_architecture_the_fix_is_to_name_one(write) -> None:
    message = refused(write("sm_count = 8\n"))
    assert "architecture" in message
    assert "sm_90" in message


def test_an_unknown_architecture_is_answered_with_the_closest(write) -> None:
    message = refused(write(SMALL.replace("sm_90", "sm90")))
    assert "'sm_90'" in message
    assert "give them all" in message


@pytest.mark.parametrize(
    ("line", "closest"),
    [("sm_cout = 132", "sm_count"), ("l2_byte = 1", "l2_bytes"), ("bosst_clock_mhz = 1", "boost")],
)
def test_an_unknown_field_is_answered_with_the_closest(write, line: str, closest: str) -> None:
    message = refused(write(SMALL + line + "\n"))
    assert line.partition(" ")[0] in message
    assert closest in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sm_count", "0"), ("sm_count", "-132"), ("sm_count", "132.5"), ("sm_count", "1000000"),
        ("sm_count", "true"), ("sm_count", '"132"'), ("sm_count", "[132]"), ("sm_count", "nan"),
        ("boost_clock_mhz", "0"), ("boost_clock_mhz", "-1"), ("boost_clock_mhz", "nan"),
        ("boost_clock_mhz", "inf"), ("boost_clock_mhz", "1.83"), ("boost_clock_mhz", "1.83e9"),
        ("boost_clock_mhz", '"1830 MHz"'), ("boost_clock_mhz", "2026-01-01"),
        ("memory_bytes", "80"), ("memory_bytes", "8e10"), ("memory_bytes", "-1"),
        ("memory_bytes", "1" + "0" * 400), ("dram_bandwidth_gb_per_s", "0"),
        ("dram_bandwidth_gb_per_s", "3.35e12"), ("l2_bytes", "0"), ("l2_bytes", "50"),
        ("product", '""'), ("product", "7"),
    ],
)  # fmt: skip
def test_an_impossible_value_names_file_field_value_and_what_is_allowed(
    write, field: str, value: str
) -> None:
    kept = [line for line in SMALL.splitlines() if not line.startswith(field)]
    message = refused(write("\n".join([*kept, f"{field} = {value}"])))
    assert "mine.toml" in message
    assert f"{field} is " in message
    assert "; use " in message
    assert len(message) < 500


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("[tensor_tflops]\nbf16 = 1663\n", "not a sparse one"),
        ("[tensor_tflops]\nbf16 = 0\n", "tensor_tflops.bf16 is 0"),
        ("[tensor_tflops]\nbf17 = 900\n", "bf16"),
        ("[tensor_tflops]\nbf16 = '900'\n", "tensor_tflops.bf16"),
        ("tensor_tflops = 900\n", "[tensor_tflops]"),
        ("[capabilities]\nwgma = true\n", "wgmma"),
        ("[capabilities]\nwgmma = 1\n", "true or false"),
        ("vendor = 'nvidea'\n", "nvidia, amd, intel"),
        ("aliases = 'mine'\n", "a list of names"),
        ("aliases = ['']\n", "not empty"),
        ("base_clock_mhz = 1800\n", "at most boost_clock_mhz"),
        ("max_clock_mhz = 1000\n", "at least boost_clock_mhz"),
        ("smem_per_block_optin_bytes = 262144\n", "at most smem_per_sm_bytes"),
        ("smem_per_block_bytes = 232449\n", "at most smem_per_block_optin_bytes"),
        ("threads_per_sm = 1024\n", "warps_per_sm x warp_size"),
        ("memory_bus_bits = 5120\nmemory_clock_mhz = 2619\n", "dram_bandwidth_gb_per_s"),
        ("[sources]\n'me' = 'sm_count'\n", "list of field names"),
        ("[sources]\n'me' = ['sm_cout']\n", "sm_count"),
        ("sm_count = 8\n", "not valid TOML"),
        ("sm_count = \n", "not valid TOML"),
    ],
)
def test_contradictions_and_slips(write, extra: str, says: str) -> None:
    assert says in refused(write(SMALL + extra))


def test_a_base_must_be_one_known_device(write) -> None:
    assert "h100-pcie" in refused(write('base = "h100"\n'))
    assert "unknown GPU" in refused(write('base = "h1000"\n'))
    assert "base is 7" in refused(write("base = 7\n"))
    assert "that of its base" in refused(write('base = "h100-sxm5"\narchitecture = "sm_80"\n'))


def test_a_known_device_s_name_cannot_be_taken(write) -> None:
    assert "known device" in refused(write(SMALL, "h100-sxm5.toml"))
    assert "known device" in refused(write('name = "a10"\n' + SMALL))
    assert load_gpu(write('name = "mine-2"\n' + SMALL)).name == "mine-2"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "no such device file" in refused(tmp_path / "absent.toml")
    (tmp_path / "folder.toml").mkdir()
    assert "cannot read" in refused(tmp_path / "folder.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00\x01")
    assert "not a text file" in refused(tmp_path / "binary.toml")
    (tmp_path / "large.toml").write_text("#" * 2_000_000)
    assert "1 MiB" in refused(tmp_path / "large.toml")
    (tmp_path / "empty.toml").write_text("")
    assert "missing" in refused(tmp_path / "empty.toml")


def test_the_examples_of_the_documentation_work(write) -> None:
    examples: list[list[str]] = []
    for line in (specfile.__doc__ or "").splitlines():
        if re.match(r"    # \d\.", line):
            examples.append([])
        elif line.startswith("    ") and " = " in line:
            examples[-1].append(line.strip())
    whole, changed, _ = examples
    assert load_gpu(write("\n".join(whole), "whole.toml")).architecture == "sm_90"
    assert load_gpu(write("\n".join(changed), "changed.toml")).architecture == "sm_90"


NUMBERS = [f for f in FIELDS.values() if f.kind in ("int", "float") and f.required]


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(NUMBERS),
    st.one_of(
        st.integers(),
        st.floats(allow_nan=True, allow_infinity=True),
        st.booleans(),
        st.text(alphabet="abc 019", max_size=5),
    ),
)
def test_a_number_is_accepted_only_within_its_range(write, field, value) -> None:
    if isinstance(value, bool):
        shown = "true" if value else "false"
    elif isinstance(value, str):
        shown = f'"{value}"'
    elif isinstance(value, float) and not math.isfinite(value):
        shown = "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    else:
        shown = repr(value)
    kept = [line for line in SMALL.splitlines() if not line.startswith(f"{field.name} ")]
    path = write("\n".join([*kept, f"{field.name} = {shown}"]))
    found = answer(path)
    if isinstance(found, InvalidGpuSpecError):
        assert "mine.toml" in str(found)
    else:
        assert not isinstance(value, bool | str)
        assert field.low <= getattr(found, field.name) <= field.high


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_device_or_a_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidGpuSpecError, match=r"any\.toml"):
        load_gpu(path)
