"""What is installed: which files, which dependencies, and what they must never do."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", r, maxsplit=1)[0].lower() for r in requirements}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Names of the built wheel's files, and the text of its metadata."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*build, "--directory", str(folder)], cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return {
            name: archive.read(name).decode() if name.endswith("METADATA") else ""
            for name in archive.namelist()
        }


def test_the_base_install_needs_no_gpu_stack_and_no_trainer() -> None:
    heavy = {"torch", "triton", "xgboost", "xgboost-cpu", "scikit-learn", "scipy", "ray"}
    assert names(PROJECT["dependencies"]).isdisjoint(heavy)
    assert names(PROJECT["dependencies"]) >= {"pandas", "pyarrow", "typer"}


def test_extras_bring_the_rest() -> None:
    extras = {extra: names(needs) for extra, needs in PROJECT["optional-dependencies"].items()}
    assert extras["triton"] == {"triton", "torch", "nvidia-ml-py"}
    assert extras["train"] == {"xgboost-cpu", "xgboost", "scikit-learn"}
    assert extras["fleet"] == {"ray", "submitit", "fsspec"}
    assert set(extras) == {"triton", "train", "fleet", "report", "bench", "dev"}


def test_a_wheel_holds_the_packages_with_their_data_and_types(wheel: dict[str, str]) -> None:
    tops = {name.partition("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"perfmodel", "tuner"}
    for name in (
        "perfmodel/py.typed",
        "tuner/py.typed",
        "perfmodel/dataset/registry.toml",
        "perfmodel/hardware/index.json",
        "perfmodel/hardware/specs/h100-sxm5.toml",
        "perfmodel/hardware/architectures/sm_90.toml",
        "perfmodel/models/gemm.json",
        "perfmodel/models/gemm.npz",
    ):
        assert name in wheel
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    (metadata,) = (text for name, text in wheel.items() if name.endswith("METADATA"))
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata


def test_the_datasets_folder_is_no_package(wheel: dict[str, str]) -> None:
    # Libraries that look for Hugging Face's `datasets` would take ours for it.
    assert not list((ROOT / "datasets").rglob("*.py"))
    assert not any(name.startswith("datasets") for name in wheel)
    code = "import importlib.util as u; raise SystemExit(u.find_spec('datasets') is not None)"
    if find_spec("datasets") is None:  # neither theirs nor, from an editable install, ours
        assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


def test_no_module_reads_or_writes_pickles() -> None:
    for path in sources("perfmodel", "tuner", "scripts"):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.Import):
                imported = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported = {(node.module or "").partition(".")[0]}
            else:
                imported = set()
            assert imported.isdisjoint(PICKLERS), f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("to_pickle", "read_pickle"), path


def test_installed_packages_alone_are_pinned_for_development() -> None:
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert not [pin for pin in pins if pin.startswith("-") or "://" in pin]  # no index options
    assert not [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.+]+", pin)]
    assert "torch==2.13.0" in pins
    extras = PROJECT["optional-dependencies"]
    wanted = set().union(*(names(extras[e]) for e in ("dev", "train", "report", "triton")))
    wanted |= names(PROJECT["dependencies"])
    assert wanted - {"perfmodel"} <= {re.split("[=<>]", pin)[0].lower() for pin in pins}
