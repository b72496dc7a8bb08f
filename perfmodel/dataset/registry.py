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
class Dataset:
    """One registry entry: what it is, who reads it, which files it needs."""

    name: str
    title: str
    family: str
    importer: str
    repository: str
    commit: str
    licence: str
    files: tuple[SourceFile, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes to download for all files."""
        return sum(f.size_bytes for f in self.files)


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
    """Return the entry called ``name``.

    Raises:
        DataError: no such entry; the message lists the names.
    """
    known = load_registry() if registry is None else registry
    if name not in known:
        raise DataError(
            f"unknown dataset {name!r}{closest(name, known)}; use one of: {', '.join(known)}"
        )
    return known[name]


def _dataset(name: str, entry: Mapping[str, Any], where: str) -> Dataset:
    texts = {
        key: _text(entry, key, where)
        for key in ("title", "family", "importer", "repository", "commit", "licence")
    }
    foreign = set(entry) - set(texts) - {"files"}
    if foreign:
        raise CorruptFileError(f"{where}: unknown field {sorted(foreign)[0]!r}")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise CorruptFileError(f"{where}: names are lower case words joined by hyphens")
    if not re.fullmatch(r"[0-9a-f]{40}", texts["commit"]):
        raise CorruptFileError(f"{where}: commit is {texts['commit']!r}; use 40 hex digits")
    listed = entry.get("files")
    if not isinstance(listed, list) or not listed:
        raise CorruptFileError(f"{where}: files is empty; list at least one")
    prefix = f"/{'/'.join(texts['repository'].split('/')[-2:])}/{texts['commit']}/"
    files = tuple(_file(item, prefix, where) for item in listed)
    return Dataset(name=name, files=files, **texts)


def _file(item: Mapping[str, Any], prefix: str, where: str) -> SourceFile:
    address, sha256 = _text(item, "address", where), _text(item, "sha256", where)
    size = item.get("bytes")
    parts = urlsplit(address)
    if parts.scheme != "https" or parts.netloc != _RAW_HOST or not parts.path.startswith(prefix):
        raise CorruptFileError(
            f"{where}: address {address!r} does not start with https://{_RAW_HOST}{prefix}"
        )
    if ".." in unquote(parts.path).split("/"):
        raise CorruptFileError(f"{where}: address {address!r} climbs out of its folder")
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise CorruptFileError(f"{where}: sha256 is {sha256!r}; use 64 hex digits")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise CorruptFileError(f"{where}: bytes is {size!r}; use a whole number of at least 1")
    return SourceFile(address=address, sha256=sha256, size_bytes=size)


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise CorruptFileError(f"{where}: {key} is {value!r}; use a text")
    return value
