"""Reading zip members without trusting the archive: no escapes, no links, no bombs."""

from __future__ import annotations

import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from perfmodel.errors import CorruptFileError

MEMBERS_MAX = 10_000
MEMBER_BYTES_MAX = 1 << 30
TOTAL_BYTES_MAX = 4 << 30
RATIO_MAX = 200
"""Text tables of measurements compress 20 to 30 times; a bomb reaches 1,000."""

_ENCRYPTED = 0x1


def read_members(path: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each member whose whole name matches ``pattern``, in name order.

    Every member is checked before the first one is read; nothing is written to disk.

    Raises:
        CorruptFileError: not a zip, truncated, a wrong CRC, a name that leaves the folder, a link,
            an encrypted member, or sizes beyond the caps of this module.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            _check(path, infos)
            for info in sorted(infos, key=lambda i: i.filename):
                if info.is_dir() or not re.fullmatch(pattern, info.filename):
                    continue
                with archive.open(info) as member:
                    # One byte more than declared would show: the header's size is not trusted.
                    content = member.read(info.file_size + 1)
                if len(content) != info.file_size:
                    raise CorruptFileError(
                        f"{path}: member {info.filename!r} has {len(content)} bytes, "
                        f"its header says {info.file_size}"
                    )
                yield info.filename, content
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise CorruptFileError(f"{path} is not a sound zip archive: {error}") from error
    except OSError as error:
        raise CorruptFileError(f"{path} cannot be read: {error}") from error


def _check(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    if len(infos) > MEMBERS_MAX:
        raise CorruptFileError(f"{path} has {len(infos)} members; at most {MEMBERS_MAX} are read")
    names = [info.filename for info in infos]
    if len(set(names)) != len(names):
        raise CorruptFileError(f"{path} holds two members of the same name")
    total = 0
    for info in infos:
        where = f"{path}: member {info.filename!r}"
        parts = PurePosixPath(info.filename.replace("\\", "/")).parts
        if not parts or parts[0] == "/" or ".." in parts or ":" in parts[0]:
            raise CorruptFileError(f"{where} points outside the archive")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise CorruptFileError(f"{where} is a symbolic link; links are not followed")
        if info.flag_bits & _ENCRYPTED:
            raise CorruptFileError(f"{where} is encrypted")
        total += info.file_size
        if info.file_size > MEMBER_BYTES_MAX or total > TOTAL_BYTES_MAX:
            raise CorruptFileError(
                f"{where} unpacks to {info.file_size} bytes ({total} so far); at most "
                f"{MEMBER_BYTES_MAX} a member and {TOTAL_BYTES_MAX} an archive are read"
            )
        if info.file_size > RATIO_MAX * max(info.compress_size, 1) and info.file_size > 1 << 20:
            raise CorruptFileError(
                f"{where} unpacks {info.compress_size} bytes to {info.file_size}, more than "
                f"{RATIO_MAX} times; this looks like a zip bomb"
            )
