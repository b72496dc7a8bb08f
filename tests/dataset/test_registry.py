from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from perfmodel.dataset.registry import WheelFile, find, load_registry, registry_path
from perfmodel.dataset.sources import importer
from perfmodel.errors import CorruptFileError, DataError

ROOT = Path(__file__).resolve().parents[2]

GOOD = """
registry_version = 1
[datasets.some-name]
title = "t"
family = "gemm"
importer = "triton_grid"
repository = "https://github.com/o/r"
commit = "0123456789abcdef0123456789abcdef01234567"
licence = "MIT"
[[datasets.some-name.files]]
address = "https://raw.githubusercontent.com/o/r/0123456789abcdef0123456789abcdef01234567/a b.txt"
sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
bytes = 10
"""


def test_the_shipped_registry_names_an_importer_a_licence_and_checksums_for_each() -> None:
    registry = load_registry()
    assert {"autoheuristic-mm", "autoheuristic-mixedmm", "triton-grid-a100"} <= set(registry)
    for dataset in registry.values():
        assert importer(dataset.importer).VERSION >= 1
        assert dataset.licence
        assert dataset.size_bytes > 0
        for file in dataset.files:
            if isinstance(file, WheelFile):
                assert f"-{file.version}-" in file.name
            else:
                assert str(dataset.commit) in file.url
                assert file.url.startswith("https://raw.githubusercontent.com/")


def test_the_wheel_carries_the_registry_of_the_checkout() -> None:
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    included = packed["targets"]["wheel"]["force-include"]
    assert included["datasets/registry.toml"] == "perfmodel/dataset/registry.toml"
    assert registry_path().read_bytes() == (ROOT / "datasets/registry.toml").read_bytes()


def test_datasets_holds_no_code() -> None:
    assert not list((ROOT / "datasets").rglob("*.py"))


def test_spaces_are_quoted_in_the_address_and_kept_in_the_mirror(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(GOOD)
    (file,) = load_registry(tmp_path / "r.toml")["some-name"].files
    assert file.url.endswith("/a%20b.txt")
    assert file.mirror_path.parts == ("github.com", "o", "r", file.mirror_path.parts[3], "a b.txt")
    assert file.name == "a b.txt"


def test_a_table_of_several_names_its_entry() -> None:
    assert find("aiconfigurator-gemm") == find("aiconfigurator-moe")
    assert find("aiconfigurator-gemm").name == "aiconfigurator"


def test_an_unknown_name_offers_the_closest() -> None:
    with pytest.raises(DataError, match="did you mean 'autoheuristic-mm'"):
        find("autoheuristic_mm")


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("registry_version = 1", "registry_version = 2", "registry_version"),
        ('commit = "0123', 'commit = "zzzz', "commit"),
        ('licence = "MIT"', "", "licence"),
        ('licence = "MIT"', 'licence = "MIT"\nlicense = "MIT"', "license"),
        ("https://raw.githubusercontent.com/o/r/", "http://raw.githubusercontent.com/o/r/", "http"),
        ("https://raw.githubusercontent.com/o/r/", "https://elsewhere.example/o/r/", "elsewhere"),
        ("https://raw.githubusercontent.com/o/r/", "https://raw.githubusercontent.com/o/x/", "/x/"),
        ("a b.txt", "../../x", "climbs"),
        ("a b.txt", "%2e%2e/x", "climbs"),
        ("bytes = 10", "bytes = 0", "bytes"),
        ("bytes = 10", "bytes = 1.5", "bytes"),
        ('sha256 = "00', 'sha256 = "0g', "sha256"),
        ("some-name", "Some_Name", "Some_Name"),
        ("registry_version = 1", "registry_version = ", "TOML"),
    ],
)
def test_a_bad_field_is_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    assert old in GOOD
    (tmp_path / "r.toml").write_text(GOOD.replace(old, new))
    with pytest.raises(CorruptFileError, match=named):
        load_registry(tmp_path / "r.toml")


WHEEL = """
registry_version = 1
[datasets.wheel-name]
title = "t"
family = "mixed"
importer = "aiconfigurator"
kind = "wheel"
repository = "https://github.com/o/r"
licence = "MIT"
tables = ["gemm", "moe"]
[[datasets.wheel-name.files]]
project = "some-project"
version = "1.2.3"
name = "some_project-1.2.3-py3-none-any.whl"
sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
bytes = 10
"""


def test_a_wheel_is_named_by_project_and_version_without_an_address(tmp_path: Path) -> None:
    path = tmp_path / "registry.toml"
    path.write_text(WHEEL)
    dataset = load_registry(path)["wheel-name"]
    assert dataset.table_names == ("wheel-name-gemm", "wheel-name-moe")
    assert dataset.commit is None
    (file,) = dataset.files
    assert isinstance(file, WheelFile)
    assert (file.project, file.version) == ("some-project", "1.2.3")


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('version = "1.2.3"', 'version = "1.2.4"', "not that of a wheel"),
        ('project = "some-project"', "", "project"),
        ("bytes = 10", 'bytes = 10\naddress = "https://x"', "no address"),
        ('tables = ["gemm", "moe"]', 'tables = ["Gemm"]', "tables"),
        ('kind = "wheel"', 'kind = "egg"', "kind"),
        ('kind = "wheel"', "", "commit"),
    ],
)
def test_a_malformed_wheel_entry_is_refused(tmp_path: Path, old: str, new: str, named: str) -> None:
    path = tmp_path / "registry.toml"
    assert old in WHEEL
    path.write_text(WHEEL.replace(old, new))
    with pytest.raises(CorruptFileError, match=named):
        load_registry(path)
