from __future__ import annotations

import subprocess
import sys

import pytest

import perfmodel

HEAVY = {"torch", "triton", "xgboost", "pandas", "pyarrow", "sklearn", "tuner"}


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport sys; print('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {line.partition(".")[0] for line in done.stderr.splitlines()}


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import perfmodel").isdisjoint(HEAVY | {"numpy", "typer", "rich"})


def test_predicting_loads_nothing_heavy() -> None:
    code = """
from perfmodel.cli.app import main
gemm = "gemm --m 64 --n 64 --k 64 --dtype bf16 --gpu h100-sxm5".split()
import warnings; warnings.simplefilter("ignore")
for command in ("predict", "rank", "explain"):
    assert main([command, *gemm]) == 0
"""
    assert loaded_by(code).isdisjoint(HEAVY)


@pytest.mark.parametrize("name", perfmodel.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(perfmodel, name).__name__ == name
    assert name in dir(perfmodel)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="predictt"):
        perfmodel.predictt  # noqa: B018 - the access is what is tested
    assert perfmodel.__version__
