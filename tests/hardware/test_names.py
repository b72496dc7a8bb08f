"""Names as users and drivers write them: exact, ambiguous, or unknown."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import AmbiguousGpuError, UnknownGpuError, UsageError
from perfmodel.hardware.catalog import gpu_names, list_gpus, load_gpu, resolve
from perfmodel.hardware.names import name_key


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("h100-sxm5", "h100-sxm5"),
        ("H100-SXM5", "h100-sxm5"),
        ("h100 sxm", "h100-sxm5"),
        ("h100_sxm5", "h100-sxm5"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5"),
        ("  nvidia h100 80gb hbm3\n", "h100-sxm5"),
        ("NVIDIA\N{NO-BREAK SPACE}H100 80GB HBM3", "h100-sxm5"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("A100-SXM-80GB", "a100-sxm4-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("A10", "a10"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A30", "a30"),
        ("tesla t4", "t4"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA H200", "h200-sxm"),
        ("h200", "h200-sxm"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("b300", "b300"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-workstation"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("mi250x", "mi250x"),
        ("Intel(R) Arc(TM) Pro B60 Graphics", "arc-pro-b60"),
        ("Intel® Arc™ Pro B60", "arc-pro-b60"),
    ],
)
def test_names_that_mean_one_device(written: str, meant: str) -> None:
    assert resolve(written) == meant
    assert load_gpu(written).name == meant


@pytest.mark.parametrize(
    ("written", "candidates"),
    [
        ("h100", {"h100-sxm5", "h100-pcie", "h100-nvl"}),
        ("NVIDIA H100", {"h100-sxm5", "h100-pcie", "h100-nvl"}),
        ("h100-80gb", {"h100-sxm5", "h100-pcie"}),
        ("a100", {"a100-sxm4-80gb", "a100-sxm4-40gb", "a100-pcie-80gb", "a100-pcie-40gb"}),
        ("A100-80GB", {"a100-sxm4-80gb", "a100-pcie-80gb"}),
        ("a100-sxm4", {"a100-sxm4-80gb", "a100-sxm4-40gb"}),
        ("rtx-pro-6000", {"rtx-pro-6000-server", "rtx-pro-6000-workstation"}),
    ],
)
def test_names_that_fit_several_list_them_all(written: str, candidates: set[str]) -> None:
    with pytest.raises(AmbiguousGpuError) as caught:
        load_gpu(written)
    listed = re.search(r"any of (.*?):", str(caught.value))
    assert listed is not None
    assert set(listed.group(1).split(", ")) == candidates


@pytest.mark.parametrize(
    "written",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 3070 Ti",
        "NVIDIA A10G",
        "A100X",
        "NVIDIA A800-SXM4-80GB",
        "NVIDIA H200 NVL",
        "NVIDIA H20-3e",
        "NVIDIA H100 80GB HBM2e",
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "Quadro RTX 6000",
        "GRID A100-40C",
        "NVIDIA A10-24Q",
        "Tesla V100-PCIE-32GB",
        "AMD Instinct MI50/MI60",
        "AMD Instinct MI300A",
        "AMD Instinct MI210",
        "../specs/h100-sxm5",
        "specs/h100-sxm5",
        "h100-sxm5\x00",
        "H\N{FULLWIDTH DIGIT ONE}00 L",
        "显卡",
        "100",
        "a",
        "nvidia",
        "geforce",
        "h100-sxm5" * 100,
    ],
)
def test_everything_else_is_unknown_never_a_guess(written: str) -> None:
    with pytest.raises(UnknownGpuError) as caught:
        load_gpu(written)
    assert "h100-sxm5" in str(caught.value)  # what is known is listed
    assert "FILE.toml" in str(caught.value)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("written", ["", " ", "\t\n"])
def test_an_empty_name_says_so(written: str) -> None:
    with pytest.raises(UnknownGpuError, match="empty"):
        load_gpu(written)


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090"),
        ("h100-sxm6", "h100-sxm5"),
        ("b3000", "b300"),
        ("mi300", "mi300x"),
        ("NVIDIA A10G", "a10"),
    ],
)
def test_unknown_names_are_answered_with_the_closest(written: str, near: str) -> None:
    with pytest.raises(UnknownGpuError, match=rf"closest: [^)]*\b{near}\b"):
        load_gpu(written)


@pytest.mark.parametrize(
    "written", ["MIG 1g.10gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A100-SXM4-40GB MIG 3g"]
)
def test_a_mig_slice_needs_a_file_of_its_own(written: str) -> None:
    with pytest.raises(UnknownGpuError, match=r"MIG slice.*file of its own.*--gpu FILE\.toml"):
        load_gpu(written)


def test_the_whole_device_is_offered_as_the_slice_s_base() -> None:
    with pytest.raises(UnknownGpuError, match='base = "h100-sxm5"'):
        load_gpu("NVIDIA H100 80GB HBM3 MIG 1g.10gb")


def answer(name: str) -> str | UsageError:
    try:
        return resolve(name)
    except UsageError as error:
        return error


def test_every_declared_name_resolves_to_its_device() -> None:
    for gpu in list_gpus():
        for name in (gpu.name, *gpu.driver_names):
            assert resolve(name) == gpu.name
        for alias in gpu.aliases:
            found = answer(alias)
            assert found == gpu.name or (
                isinstance(found, AmbiguousGpuError) and gpu.name in str(found)
            )


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_any_text_resolves_or_is_a_usage_error(written: str) -> None:
    found = answer(written)
    assert found in gpu_names() or isinstance(found, UsageError)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(gpu_names()),
    st.text(alphabet="abcdefgh0123456789", min_size=1, max_size=4),
)
def test_a_word_added_to_a_name_never_means_the_same_device(name: str, word: str) -> None:
    longer = f"{name} {word}"
    declared = {name_key(n) for gpu in list_gpus() for n in (*gpu.driver_names, *gpu.aliases)}
    assert answer(longer) != name or name_key(longer) in declared
