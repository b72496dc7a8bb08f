"""Outputs at fsspec addresses: rows reach them, and come back from them."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

import pytest

from perfmodel.errors import OutputLockedError, RunFailedError, UsageError
from tuner.collect.bench import Bench
from tuner.collect.merge import gather, table_of
from tuner.collect.output import Output
from tuner.collect.plan_file import Plan
from tuner.collect.run import run_shard

from .conftest import Watched

fsspec = pytest.importorskip("fsspec", reason="outputs elsewhere need fsspec")

SHARD = "shard-1-of-1.jsonl"


@pytest.fixture
def address() -> str:
    return f"memory://{uuid.uuid4().hex}/run"


def test_a_folder_is_itself_and_is_not_copied(tmp_path: Path) -> None:
    for address in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
        output = Output(address)
        assert (output.folder, output.is_remote) == (tmp_path, False)
        output.fetch("nothing")
        output.send("nothing", final=True)


def test_rows_reach_the_address_and_another_machine_goes_on_with_them(
    plan: Plan, bench: Bench, device: Watched, address: str, tmp_path: Path
) -> None:
    class PowerFailure(BaseException):
        pass

    def die() -> None:
        raise PowerFailure

    device.before = {8: die}
    with pytest.raises(PowerFailure):
        run_shard(plan, bench, Output(address, tmp_path / "one"))
    done = run_shard(plan, bench, Output(address, tmp_path / "other"))
    assert done.resumed == 7
    assert set(device.calls.values()) == {1}
    third = Output(address, tmp_path / "third")
    third.fetch_all()
    frame, _ = table_of(gather(plan, third.folder))
    assert len(frame) == len(plan.items)


def test_the_copy_with_more_rows_wins(
    plan: Plan, bench: Bench, device: Watched, address: str, tmp_path: Path
) -> None:
    output = Output(address, tmp_path)
    run_shard(plan, bench, output)
    files, root = fsspec.core.url_to_fs(address)
    whole = files.cat_file(f"{root}/{SHARD}")
    files.pipe_file(f"{root}/{SHARD}", whole[: len(whole) // 2])  # an older copy
    assert run_shard(plan, bench, output).measured == 0


def test_somebody_elses_run_at_the_address_is_named(
    plan: Plan, bench: Bench, address: str, tmp_path: Path
) -> None:
    files, root = fsspec.core.url_to_fs(address)
    holder = {"host": "node7", "pid": 11, "since": "noon", "at": time.time()}
    files.pipe_file(f"{root}/shard-1-of-1.holder.json", json.dumps(holder).encode())
    with pytest.raises(OutputLockedError, match="process 11 on node7, since noon"):
        run_shard(plan, bench, Output(address, tmp_path))
    holder["at"] = time.time() - 1000
    files.pipe_file(f"{root}/shard-1-of-1.holder.json", json.dumps(holder).encode())
    run_shard(plan, bench, Output(address, tmp_path))
    assert not files.exists(f"{root}/shard-1-of-1.holder.json")


def test_an_address_that_fails_is_tried_again_and_the_rows_stay_here(
    plan: Plan, bench: Bench, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.collect.run.SAVE_SECONDS", 0.0)
    output = Output(address, tmp_path)

    def broken(*_: object, **__: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(type(output._files), "put_file", broken)
    with pytest.raises(RunFailedError, match="no route to host; the rows are safe in"):
        run_shard(plan, bench, output)
    monkeypatch.undo()
    assert run_shard(plan, bench, output).measured == 0
    assert output._files.exists(f"{output._root}/{SHARD}")


def test_an_unknown_kind_of_address_is_an_error() -> None:
    with pytest.raises(UsageError, match="fsspec knows no 'nowhere'"):
        Output("nowhere://x/y")
