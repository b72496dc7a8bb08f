"""Shards: a torn end is cut off, damage elsewhere is refused, other conditions are refused."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import (
    CorruptFileError,
    OutputFullError,
    ResumeMismatchError,
    SchemaMismatchError,
)
from tuner.collect import shard as module
from tuner.collect.shard import Header, Row, ShardWriter, read_shard

HEADER = Header("p" * 64, "events-1", 1, "h100-sxm5", "NVIDIA H100", "570.1", "triton 3.7.1",
                {"gemm": "abc"})  # fmt: skip


def row(number: int) -> Row:
    return Row(number, f"{number:016x}", Outcome.OK, (1.5 + number, 2.25), wall_s=0.01)


def written(path: Path, count: int = 5) -> bytes:
    with ShardWriter(path, HEADER) as writer:
        for number in range(count):
            writer.append(row(number))
    return path.read_bytes()


def test_what_is_appended_reads_back(tmp_path: Path) -> None:
    failed = Row(9, "k9", Outcome.CRASHED, reason='it said "no"\n', clocks={"power_after_w": 1.5})
    with ShardWriter(tmp_path / "s", HEADER) as writer:
        writer.append(row(1))
        assert len(read_shard(tmp_path / "s").rows) == 1  # at once, not on closing
        writer.append(failed)
    found = read_shard(tmp_path / "s")
    assert found.header == HEADER
    assert found.rows == (row(1), failed)
    assert found.torn == 0


@given(st.data())
def test_a_file_cut_anywhere_gives_whole_rows_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "s"
    whole = written(path)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    before = read_shard(path)
    assert before.rows == tuple(row(n) for n in range(len(before.rows)))
    with ShardWriter(path, HEADER) as writer:
        for number in range(len(writer.done), 5):
            writer.append(row(number))
    assert path.read_bytes() == whole


def test_a_torn_end_of_zeros_is_cut_off(tmp_path: Path) -> None:
    whole = written(tmp_path / "s")
    (tmp_path / "s").write_bytes(whole + bytes(300))
    assert len(read_shard(tmp_path / "s").rows) == 5
    ShardWriter(tmp_path / "s", HEADER).close()
    assert (tmp_path / "s").read_bytes() == whole


def test_damage_in_the_middle_is_refused_with_its_line(tmp_path: Path) -> None:
    whole = bytearray(written(tmp_path / "s"))
    at = whole.index(b'"samples_us":[3')
    whole[at + 14] = ord("4")
    (tmp_path / "s").write_bytes(bytes(whole))
    with pytest.raises(CorruptFileError, match="line 4 is damaged"):
        read_shard(tmp_path / "s")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("schema", 2, "schema 1, and this run has 2"),
        ("protocol", "events-2", "protocol 'events-1', and this run has 'events-2'"),
        ("driver", "580.2", "driver '570.1', and this run has '580.2'"),
        ("device", "NVIDIA H200", "device 'NVIDIA H100', and this run has 'NVIDIA H200'"),
        ("gpu", "h200-sxm", "GPU 'h100-sxm5', and this run has 'h200-sxm'"),
        ("compiler", None, "compiler 'triton 3.7.1', and this run has None"),
        ("kernels", {"gemm": "def"}, "kernel sources"),
        ("plan", "q" * 64, "plan"),
    ],
)
def test_other_conditions_are_refused_with_both_values(
    tmp_path: Path, name: str, value: object, words: str
) -> None:
    whole = written(tmp_path / "s")
    with pytest.raises(ResumeMismatchError, match="cannot be mixed") as caught:
        ShardWriter(tmp_path / "s", replace(HEADER, **{name: value}))
    assert words in str(caught.value)
    assert (tmp_path / "s").read_bytes() == whole


def test_a_shard_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ShardWriter(tmp_path / "s", replace(HEADER, version=2)):
        pass
    with pytest.raises(SchemaMismatchError, match="version 2, and this perfmodel reads version 1"):
        read_shard(tmp_path / "s")


def test_a_full_disk_leaves_no_half_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first write takes half of the line, as a nearly full disk does; the next one fails."""
    whole = written(tmp_path / "s", 3)
    real, calls = os.pwrite, []

    def full(file: int, data: bytes, at: int) -> int:
        calls.append(at)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[: len(data) // 2], at)

    with ShardWriter(tmp_path / "s", HEADER) as writer:
        monkeypatch.setattr(module.os, "pwrite", full)
        with pytest.raises(OutputFullError, match="No space left on device; its 3 rows are safe"):
            writer.append(row(3))
    assert (tmp_path / "s").read_bytes() == whole
