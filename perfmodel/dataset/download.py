"""Verified downloads that continue where the last attempt stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import IO

from perfmodel.dataset.registry import SourceFile
from perfmodel.errors import CorruptFileError, RunFailedError
from perfmodel.files import cannot_write

_BLOCK = 1 << 16
_TIMEOUT_S = 30.0


class _NetworkError(Exception):
    """What went wrong on the way to the server, as opposed to on our disk."""


def download(file: SourceFile, path: Path, advance: Callable[[int], None]) -> None:
    """Download ``file`` to ``path`` and check its sha256; ``path`` appears only when it is right.

    An interrupted download is kept beside ``path`` as ``NAME.part`` and continued by the next call.

    Raises:
        RunFailedError: the server cannot be reached or refuses.
        CorruptFileError: what arrived has another sha256 (both are in the message).
        CacheFolderError: the folder cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _continue(file, part, advance)
        found = sha256_of(part)
        if found != file.sha256:
            part.unlink()
            raise CorruptFileError(
                f"{file.url} arrived truncated or altered: its sha256 is {found}, "
                f"expected {file.sha256}; nothing was kept"
            )
        part.replace(path)
    except _NetworkError as error:
        raise RunFailedError(
            f"cannot download {file.url}: {error}; try again to continue where it stopped, or give "
            "a mirror folder with --mirror DIR"
        ) from error
    except OSError as error:
        part.unlink(missing_ok=True)  # a full disk gets its space back
        raise cannot_write(path, error) from error


def sha256_of(path: Path) -> str:
    """Return the file's sha256 in hex, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _continue(file: SourceFile, part: Path, advance: Callable[[int], None]) -> None:
    have = part.stat().st_size if part.is_file() else 0
    if have > file.size_bytes:
        have = 0
    if have == file.size_bytes:
        advance(have)
        return
    with _answer(file.url, have) as (stream, continued):
        if not continued:  # the whole file comes: start over
            have = 0
        advance(have)
        with part.open("ab" if have else "wb") as kept:
            while block := _block(stream):
                have += len(block)
                if have > file.size_bytes:
                    break  # longer than stated: the checksum will refuse it
                kept.write(block)
                advance(len(block))
    if have < file.size_bytes:
        raise _NetworkError(f"the server closed after {have} of {file.size_bytes} bytes")


@contextmanager
def _answer(url: str, start: int) -> Iterator[tuple[IO[bytes], bool]]:
    """Open ``url`` from byte ``start``; whether the server does begin there is the second value."""
    from http.client import HTTPException  # noqa: PLC0415 - slow to import, needed only here
    from urllib.request import Request, urlopen  # noqa: PLC0415 - as above

    headers = {"Range": f"bytes={start}-"} if start else {}
    try:
        answer = urlopen(Request(url, headers=headers), timeout=_TIMEOUT_S)
    except (OSError, HTTPException) as error:  # HTTP statuses and refusals are OSErrors here
        raise _NetworkError(str(error)) from error
    with answer:
        yield answer, answer.status == HTTPStatus.PARTIAL_CONTENT


def _block(stream: IO[bytes]) -> bytes:
    from http.client import HTTPException  # noqa: PLC0415 - as above

    try:
        return stream.read(_BLOCK)
    except (OSError, HTTPException) as error:
        raise _NetworkError(str(error) or type(error).__name__) from error
