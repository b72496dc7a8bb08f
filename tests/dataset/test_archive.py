from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path

import pytest

from perfmodel.dataset import archive
from perfmodel.dataset.archive import read_members
from perfmodel.errors import CorruptFileError


def write(path: Path, members: list[tuple[str | zipfile.ZipInfo, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members:
            made.writestr(name, content)
    return path


def test_members_come_in_name_order_and_others_are_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.zip", [("b/z.txt", b"2"), ("a.txt", b"1"), ("a.md", b"x"), ("b/", b"")]
    )
    assert list(read_members(path, r".*\.txt")) == [("a.txt", b"1"), ("b/z.txt", b"2")]


@pytest.mark.parametrize(
    "name", ["../x.txt", "/etc/x.txt", "a/../../x.txt", "..\\x.txt", "C:\\x.txt"]
)
def test_names_that_leave_the_archive_are_refused_before_anything_is_read(
    tmp_path: Path, name: str
) -> None:
    path = write(tmp_path / "a.zip", [("a.txt", b"1"), (name, b"2")])
    with pytest.raises(CorruptFileError, match="outside"):
        next(read_members(path, r".*\.txt"))


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("a.txt")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    path = write(tmp_path / "a.zip", [(link, b"/etc/passwd")])
    with pytest.raises(CorruptFileError, match="symbolic link"):
        list(read_members(path, r".*\.txt"))


def test_a_bomb_is_refused_unopened(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zip", [("a.txt", bytes(64 << 20))])
    with pytest.raises(CorruptFileError, match="bomb"):
        list(read_members(path, r".*\.txt"))


@pytest.mark.parametrize(
    ("cap", "value", "named"),
    [
        ("MEMBER_BYTES_MAX", 10, "at most"),
        ("TOTAL_BYTES_MAX", 25, "at most"),
        ("MEMBERS_MAX", 1, "members"),
    ],
)
def test_sizes_and_counts_are_capped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cap: str, value: int, named: str
) -> None:
    path = write(tmp_path / "a.zip", [("a.txt", b"x" * 20), ("b.txt", b"y" * 20)])
    monkeypatch.setattr(archive, cap, value)
    with pytest.raises(CorruptFileError, match=named):
        list(read_members(path, r".*\.txt"))


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        path = write(tmp_path / "a.zip", [("a.txt", b"1"), ("a.txt", b"2")])
    with pytest.raises(CorruptFileError, match="same name"):
        list(read_members(path, r".*\.txt"))


def test_a_header_that_lies_about_the_size_is_found_out(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr("a.txt", b"hello hello")
    content = bytearray(buffer.getvalue())
    at = content.rindex(b"PK\x01\x02")
    content[at + 24 : at + 28] = (5).to_bytes(4, "little")  # uncompressed size, central directory
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"a\.zip"):
        list(read_members(tmp_path / "a.zip", r".*\.txt"))


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_a_truncated_archive_is_corrupt(tmp_path: Path, kept: float) -> None:
    path = write(tmp_path / "a.zip", [("a.txt", bytes(range(256)) * 20)])
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(CorruptFileError, match=r"a\.zip"):
        list(read_members(path, r".*\.txt"))


def test_a_flipped_byte_is_found_by_the_crc(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zip", [(zipfile.ZipInfo("a.txt"), b"measured 1.25 ms")])
    content = path.read_bytes()
    path.write_bytes(content.replace(b"1.25", b"1.35"))
    with pytest.raises(CorruptFileError, match="CRC"):
        list(read_members(path, r".*\.txt"))
