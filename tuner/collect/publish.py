"""Put a merged table where others find it, with the registry entry that names it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from perfmodel.dataset import schema
from perfmodel.dataset.registry import load_registry
from perfmodel.errors import CorruptFileError, DataError, UsageError
from perfmodel.files import atomic_path
from tuner.collect.output import Output

BYTES_MAX = 16_000_000
"""Of one published file: a repository of source code carries no more."""


@dataclass(frozen=True)
class Entry:
    """What a registry says of a published table."""

    name: str
    title: str
    repository: str  # https://github.com/OWNER/REPO
    commit: str
    path: str  # of the table in the repository
    licence: str

    def text(self, family: str, sha256: str, size_bytes: int) -> str:
        """Return the entry as TOML, as ``datasets/registry.toml`` holds it."""
        owner, repository = self.repository.rstrip("/").split("/")[-2:]
        quoted = {
            "title": self.title, "family": family, "importer": "collected",
            "repository": self.repository.rstrip("/"), "commit": self.commit,
            "licence": self.licence,
        }  # fmt: skip
        address = (
            f"https://raw.githubusercontent.com/{owner}/{repository}/{self.commit}/{self.path}"
        )
        lines = [f"[datasets.{self.name}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in quoted.items()]
        lines += [
            "",
            f"[[datasets.{self.name}.files]]",
            f"address = {json.dumps(address)}",
            f"sha256 = {json.dumps(sha256)}",
            f"bytes = {size_bytes}",
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Published:
    """Where the table went, and its registry entry as TOML."""

    where: str
    sha256: str
    size_bytes: int
    rows: int
    entry: str | None


def publish(
    table: Path, to: str, *, entry: Entry | None = None, registry: Path | None = None
) -> Published:
    """Copy a table to a folder or an fsspec address, and enter it into a registry.

    Args:
        table: a merged measurement table.
        to: a folder, or an address such as ``s3://bucket/tables``.
        entry: what the registry is to say; without it the table is only copied.
        registry: the registry to add the entry to; without it the entry is only returned.

    Raises:
        MissingDataError, CorruptFileError, SchemaMismatchError: it is no measurement table.
        DataError: it is too large, of several families, or the registry has that name already.
    """
    frame = schema.read(table, ["family", "outcome"])
    families = sorted(set(frame["family"]))
    size = table.stat().st_size
    if size > BYTES_MAX:
        raise DataError(
            f"{table} has {size / 1e6:.1f} MB, and a published table at most "
            f"{BYTES_MAX / 1e6:.0f}; split the plan, and merge its parts by themselves"
        )
    if entry is not None and len(families) != 1:
        raise DataError(
            f"{table} holds {' and '.join(families) or 'no rows'}; a registry entry is of one "
            "family: plan and merge each by itself"
        )
    sha256 = hashlib.sha256(table.read_bytes()).hexdigest()
    text = None
    if entry is not None:
        text = entry.text(families[0], sha256, size)
        _validate(entry.name, text)
        if registry is not None:
            _add(registry, entry.name, text)
    output = Output(to)
    output.folder.mkdir(parents=True, exist_ok=True)
    name = f"{entry.name}.parquet" if entry is not None else table.name
    target = output.folder / name
    if target.resolve() != table.resolve():
        with atomic_path(target, "--to DIR") as partial:
            shutil.copyfile(table, partial)
    output.send(name, final=True)
    where = f"{to.rstrip('/')}/{name}" if output.is_remote else str(target)
    return Published(where, sha256, size, len(frame), text)


def _validate(name: str, text: str) -> None:
    """Refuse an entry that the registry's own reader would refuse."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise UsageError(f"name is {name!r}; use lower case words joined by hyphens")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "registry.toml"
        path.write_text(f"registry_version = 1\n\n{text}", encoding="utf-8")
        try:
            load_registry(path)
        except CorruptFileError as error:
            reason = str(error).replace(f"{path}: ", "")
            raise UsageError(f"the entry cannot be registered: {reason}") from error


def _add(registry: Path, name: str, text: str) -> None:
    if name in load_registry(registry):
        raise DataError(
            f"{registry} already has a dataset {name!r}; publish under another name, or take the "
            "old entry out"
        )
    content = registry.read_text(encoding="utf-8").rstrip("\n")
    with atomic_path(registry, "--registry FILE") as partial:
        partial.write_text(f"{content}\n\n{text}", encoding="utf-8")
        load_registry(partial)
