"""Archives that are carried to another machine."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

CARRY = Path(__file__).parents[3] / "scripts" / "carry.py"


def unpack(archive: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(CARRY), "unpack", str(archive), str(folder)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def pack(archive: Path, name: str, kind: bytes = tarfile.REGTYPE) -> None:
    with tarfile.open(archive, "w:xz") as content:
        member = tarfile.TarInfo(name)
        member.type, member.size = kind, 0 if kind != tarfile.REGTYPE else 5
        member.linkname = "/etc/passwd"
        content.addfile(member, io.BytesIO(b"hello") if kind == tarfile.REGTYPE else None)


def test_a_file_comes_out_where_it_is_wanted(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar.xz", "key/kernel.cubin")
    done = unpack(tmp_path / "a.tar.xz", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out" / "key" / "kernel.cubin").read_bytes() == b"hello"


@pytest.mark.parametrize(
    ("name", "kind"), [("../escaped", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)]
)
def test_what_would_lie_elsewhere_is_refused_by_name(
    tmp_path: Path, name: str, kind: bytes
) -> None:
    pack(tmp_path / "a.tar.xz", name, kind)
    done = unpack(tmp_path / "a.tar.xz", tmp_path / "out")
    assert done.returncode != 0
    assert name in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "escaped").exists()
