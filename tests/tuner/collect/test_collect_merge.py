"""Merging, checking and publishing: one row a measurement, whatever a fleet did."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from perfmodel.dataset import schema
from perfmodel.dataset.outcome import Outcome
from perfmodel.dataset.quality import apply_gates
from perfmodel.dataset.registry import load_registry
from perfmodel.dataset.sources import importer
from perfmodel.errors import (
    CorruptFileError,
    DataError,
    MissingDataError,
    ResumeMismatchError,
    RunFailedError,
    UsageError,
)
from tuner.collect.bench import Bench
from tuner.collect.check import check
from tuner.collect.merge import gather, table_of
from tuner.collect.output import Output
from tuner.collect.plan_file import Plan
from tuner.collect.publish import Entry, publish
from tuner.collect.run import header_of, measure_one, run_shard
from tuner.collect.shard import Row, ShardWriter

from .conftest import H100, Watched, make_small_plan

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ENTRY = Entry("collected-h100", "GEMM tiles", "https://github.com/OWNER/REPO", COMMIT,
              "datasets/collected/h100.parquet", "Apache-2.0")  # fmt: skip


def frames_equal(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    lists = [list(a) == list(b) for a, b in zip(one.distinct_us, other.distinct_us, strict=True)]
    return all(lists) and one.drop(columns="distinct_us").equals(other.drop(columns="distinct_us"))


@pytest.fixture
def folder(plan: Plan, bench: Bench, tmp_path: Path) -> Path:
    run_shard(plan, bench, Output(tmp_path / "rows"))
    return tmp_path / "rows"


def test_the_table_is_the_same_however_the_plan_was_cut(
    plan: Plan, bench: Bench, folder: Path, tmp_path: Path
) -> None:
    for index in (3, 1, 2):
        run_shard(plan, bench, Output(tmp_path / "three"), index=index, count=3)
    one, _ = table_of(gather(plan, folder))
    three, info = table_of(gather(plan, tmp_path / "three"))
    assert frames_equal(one, three)
    assert set(info.files) == {"plan", *(f"shard-{i}-of-3.jsonl" for i in (1, 2, 3))}


def test_a_table_says_what_was_measured_and_how(plan: Plan, folder: Path, tmp_path: Path) -> None:
    frame, info = table_of(gather(plan, folder))
    schema.write(frame, tmp_path / "t.parquet", info)
    found = schema.read(tmp_path / "t.parquet")
    first = found.iloc[0]
    assert len(found) == len(plan.items)
    assert first["m"] == plan.problems[0].values["m"]
    assert first["gpu"] == "h100-sxm5"
    assert first["device_source"] == "NVIDIA H100 80GB HBM3"
    assert first["driver_version"] == "570.86.15"
    assert (first["timing_method"], first["l2_state"], first["protocol_version"]) == (
        "events", "cold", 1,
    )  # fmt: skip
    assert first["kernel_source_hash"] == "abc"
    failed = found[found["outcome"] == "out_of_resources"]
    assert len(failed) > 0
    assert failed["latency_us"].isna().all()
    assert (failed["outcome_reason"] == "failed when it was recorded").all()


def test_a_time_that_physics_forbids_is_implausible(plan: Plan, bench: Bench, folder: Path) -> None:
    item = plan.items[0]
    too_fast = Row(item.number, item.key, Outcome.OK, (1e-3,))
    with ShardWriter(folder / "shard-0-first.jsonl", header_of(plan, bench)) as writer:
        writer.append(too_fast)
    merged = gather(plan, folder)
    frame, _ = table_of(merged)
    assert merged.duplicates == 1
    assert frame["outcome"][0] == "implausible"
    assert not check(merged).sound


def test_what_is_missing_is_refused_or_left_out(plan: Plan, bench: Bench, tmp_path: Path) -> None:
    run_shard(plan, bench, Output(tmp_path), index=1, count=2)
    merged = gather(plan, tmp_path)
    with pytest.raises(RunFailedError, match=r"measurements are missing, .* --partial"):
        table_of(merged)
    frame, _ = table_of(merged, partial=True)
    assert len(frame) == len(plan.items) - len(merged.missing)
    report = check(merged)
    assert not report.sound
    assert report.missing == len(merged.missing) > 0


def test_shards_of_other_plans_devices_and_protocols_are_refused(
    plan: Plan, bench: Bench, folder: Path
) -> None:
    with pytest.raises(ResumeMismatchError, match="belongs to plan"):
        gather(make_small_plan(seed=5), folder)
    item = plan.items[0]
    other = replace(header_of(plan, bench), protocol="events-2")
    with ShardWriter(folder / "shard-2-of-2.jsonl", other) as writer:
        writer.append(measure_one(item, bench, plan))
    with pytest.raises(ResumeMismatchError, match=r"protocol 'events-2'.*'events-1'"):
        gather(plan, folder)


def test_drivers_may_differ_by_host_and_stay_with_their_rows(
    plan: Plan, bench: Bench, recorded: dict[str, float | Outcome], tmp_path: Path
) -> None:
    newer = replace(bench, device=Watched(recorded, replace(H100, driver="580.65")))
    run_shard(plan, bench, Output(tmp_path), index=1, count=2)
    run_shard(plan, newer, Output(tmp_path), index=2, count=2)
    frame, _ = table_of(gather(plan, tmp_path))
    assert set(frame["driver_version"]) == {"570.86.15", "580.65"}
    assert check(gather(plan, tmp_path)).drivers == ("570.86.15", "580.65")


def test_rows_of_no_item_are_refused(plan: Plan, bench: Bench, tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shard-1-of-1.jsonl", header_of(plan, bench)) as writer:
        writer.append(Row(0, "f" * 16, Outcome.OK, (1.0,)))
    with pytest.raises(CorruptFileError, match="not of this plan"):
        gather(plan, tmp_path)


def test_no_shards_says_how_to_measure(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="perfmodel collect run"):
        gather(plan, tmp_path)


def test_a_check_reports_failures_spread_and_the_plans_error(plan: Plan, folder: Path) -> None:
    report = check(gather(plan, folder))
    assert report.sound
    assert report.measured == len(plan.items)
    assert sum(report.outcomes.values()) == len(plan.items)
    assert report.reasons == {"failed when it was recorded": report.outcomes["out_of_resources"]}
    assert report.error_median == pytest.approx(0.2, abs=0.1)
    assert report.spread_median is None  # one sample each
    assert report.clocks_known == 0


def test_publishing_copies_the_table_and_enters_it_into_a_registry(
    plan: Plan, folder: Path, tmp_path: Path
) -> None:
    frame, info = table_of(gather(plan, folder))
    schema.write(frame, tmp_path / "t.parquet", info)
    registry = tmp_path / "registry.toml"
    registry.write_text("registry_version = 1\n", encoding="utf-8")
    done = publish(tmp_path / "t.parquet", str(tmp_path / "to"), entry=ENTRY, registry=registry)
    copied = tmp_path / "to" / "collected-h100.parquet"
    assert copied.read_bytes() == (tmp_path / "t.parquet").read_bytes()
    found = load_registry(registry)["collected-h100"]
    assert found.family == "gemm"
    assert found.files[0].sha256 == done.sha256
    assert found.files[0].size_bytes == copied.stat().st_size
    assert done.entry is not None
    assert tomllib.loads(done.entry)["datasets"]["collected-h100"]["importer"] == "collected"
    with pytest.raises(DataError, match="already has a dataset"):
        publish(tmp_path / "t.parquet", str(tmp_path / "to"), entry=ENTRY, registry=registry)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"commit": "main"}, "commit is 'main'; use 40 hex digits"),
        ({"name": "My Table"}, "lower case words"),
        ({"licence": ""}, "licence is ''"),
    ],
)
def test_an_entry_that_no_registry_would_take_is_refused(
    plan: Plan, folder: Path, tmp_path: Path, change: dict[str, str], words: str
) -> None:
    frame, info = table_of(gather(plan, folder))
    schema.write(frame, tmp_path / "t.parquet", info)
    with pytest.raises(UsageError, match=words):
        publish(tmp_path / "t.parquet", str(tmp_path / "to"), entry=replace(ENTRY, **change))
    assert not (tmp_path / "to").exists()


def test_a_published_table_is_imported_with_the_same_times(
    plan: Plan, folder: Path, tmp_path: Path
) -> None:
    frame, info = table_of(gather(plan, folder))
    schema.write(frame, tmp_path / "t.parquet", info)
    registry = tmp_path / "registry.toml"
    registry.write_text("registry_version = 1\n", encoding="utf-8")
    publish(tmp_path / "t.parquet", str(tmp_path / "to"), entry=ENTRY, registry=registry)
    dataset = load_registry(registry)["collected-h100"]
    module = importer(dataset.importer)
    assert hasattr(module, "read")
    advanced: list[int] = []
    found = module.read(dataset, [tmp_path / "to" / "collected-h100.parquet"], advanced.append)
    gated, _ = apply_gates(found)
    assert gated["latency_us"].equals(frame["latency_us"])
    assert gated["outcome"].equals(frame["outcome"])
    assert set(gated["source"]) == {"collected-h100"}
    assert sum(advanced) == dataset.size_bytes
