"""Where the store lies, and what its file system can be trusted with."""

from __future__ import annotations

import os
from pathlib import Path

from perfmodel.files import CACHE_VARIABLE, cache_dir

SHARED_VARIABLE = "PERFMODEL_SHARED_CACHE"
"""Environment variable that names a second cache folder, read after the user's own."""

FILE = "tuner-1.sqlite"
"""The number is the schema's: versions side by side never spoil each other's file."""

_NETWORK = (
    "nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "fuse.", "9p", "afs",
    "panfs", "wekafs", "pvfs", "orangefs", "drvfs", "virtiofs", "vboxsf",
)  # fmt: skip


def store_path(folder: str | Path | None = None) -> Path:
    """Return the store's file in a cache folder; by default the user's own.

    Raises:
        RuntimeError: there is no home folder to find the user's own in.
    """
    return cache_dir(folder) / FILE


def shared_path() -> Path | None:
    """Return the second, read-mostly tier's file, ``None`` where none is named."""
    named = os.environ.get(SHARED_VARIABLE, "").strip()
    return Path(named).expanduser() / FILE if named else None


def why_here() -> str:
    """Return what decided the location."""
    return CACHE_VARIABLE if os.environ.get(CACHE_VARIABLE) else "the user's cache folder"


def file_system(path: Path) -> str:
    """Return the type of file system that ``path`` is on, an empty string where nothing says."""
    at = os.path.realpath(path)
    best, found = "", ""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in mounts.splitlines():
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        folder = parts[1].replace("\\040", " ")
        inside = at == folder or at.startswith(folder.rstrip("/") + "/")
        if inside and len(folder) >= len(best):
            best, found = folder, parts[2]
    return found


def is_network(path: Path) -> bool:
    """Whether other machines may write there: then no shared memory may be relied on."""
    return file_system(path).startswith(_NETWORK)
