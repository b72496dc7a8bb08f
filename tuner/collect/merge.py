"""Shards of one plan become one measurement table: no duplicates, nothing torn, gated."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.dataset.schema import SCHEMA_VERSION, TableInfo, conform
from perfmodel.errors import CorruptFileError, MissingDataError, ResumeMismatchError, RunFailedError
from tuner.collect.plan_file import Item, Plan
from tuner.collect.shard import Header, Row, Shard, read_shard, shard_files

if TYPE_CHECKING:
    import pandas as pd

IMPORTER = "collected"
IMPORTER_VERSION = 1

METHODS: Mapping[str, tuple[str | None, str | None]] = {
    "events": ("events", "cold"),  # tuner.measure.timer flushes the L2 before each launch
    "do_bench": ("events", "cold"),  # triton.testing.do_bench flushes the L2 before each launch
    "cuda_graph": ("cuda_graph", None),
    "steady-cold": (None, "cold"),
    "steady-warm": (None, "warm"),
}
"""By the name of a timing protocol: how it times, where that is not for each row to say, and the
state that it leaves the L2 in."""

SAME_EVERYWHERE = ("plan", "protocol", "schema", "gpu", "compiler", "kernels")
"""What all shards of a table agree on; drivers may differ by host, and each row keeps its own."""


@dataclass(frozen=True)
class Merged:
    """The rows of a plan in its order, where there is one, and what was found on the way."""

    plan: Plan
    header: Header
    rows: Mapping[str, tuple[Row, Header]]  # by key
    shards: Sequence[Shard]
    duplicates: int

    @property
    def missing(self) -> list[Item]:
        """Items without a row."""
        return [item for item in self.plan.items if item.key not in self.rows]

    @property
    def torn(self) -> int:
        """Shards whose last line was cut short."""
        return sum(shard.torn > 0 for shard in self.shards)

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Rows by how they ended."""
        return Counter(row.outcome.value for row, _ in self.rows.values())


def gather(plan: Plan, folder: Path) -> Merged:
    """Read every shard of a plan in ``folder``.

    A measurement that was made twice, as a fleet does with stragglers, counts once: that of the
    first shard by name.

    Raises:
        MissingDataError: there are no shards.
        ResumeMismatchError: they were not measured under the same conditions.
        CorruptFileError: a shard is damaged, or holds what the plan does not ask for.
    """
    shards = [read_shard(path) for path in shard_files(folder)]
    shards = [shard for shard in shards if shard.header is not None]
    if not shards:
        raise MissingDataError(
            f"{folder} has no shards; measure them: perfmodel collect run PLAN --out {folder}"
        )
    first = shards[0]
    assert first.header is not None
    known = {item.key: item for item in plan.items}
    rows: dict[str, tuple[Row, Header]] = {}
    duplicates = 0
    for shard in shards:
        assert shard.header is not None
        _require_same(plan, first, shard)
        for row in shard.rows:
            item = known.get(row.key)
            if item is None or item.number != row.item:
                raise CorruptFileError(
                    f"{shard.path}: row {row.item} ({row.key}) is not of this plan; "
                    "merge it with the plan that it was measured for"
                )
            duplicates += row.key in rows
            rows.setdefault(row.key, (row, shard.header))
    return Merged(plan, first.header, rows, shards, duplicates)


def table_of(merged: Merged, *, partial: bool = False) -> tuple[pd.DataFrame, TableInfo]:
    """Return the gated measurement table and what it says of itself.

    Args:
        merged: the rows.
        partial: leave out what is not measured yet instead of refusing.

    Raises:
        RunFailedError: some of the plan is not measured yet.
    """
    from perfmodel.dataset.quality import apply_gates  # noqa: PLC0415 - start-up time

    missing = merged.missing
    if missing and not partial:
        raise RunFailedError(
            f"{len(missing):,} of {len(merged.plan.items):,} measurements are missing, the first "
            f"of {missing[0].problem.origin}; run the shards to their end, or merge what there is "
            "with --partial"
        )
    frame, report = apply_gates(raw_frame(merged))
    info = TableInfo(
        source=f"collected-{merged.plan.gpu}",
        files={
            "plan": merged.plan.digest,
            **{shard.path.name: _sha256(shard.path) for shard in merged.shards},
        },
        importer=IMPORTER,
        importer_version=IMPORTER_VERSION,
        gates=report.to_dict(),
        schema_version=SCHEMA_VERSION,
    )
    return conform(frame).to_pandas(), info


def raw_frame(merged: Merged) -> pd.DataFrame:
    """Return one row a measurement, in the plan's order, ungated.

    Where it comes from is told by the plan, so that the table of an interrupted run is that of an
    undisturbed one.
    """
    import pandas as pd  # noqa: PLC0415 - start-up time

    records = []
    for item in merged.plan.items:
        found = merged.rows.get(item.key)
        if found is not None:
            records.append(_record(item, *found, merged.plan))
    frame = pd.DataFrame.from_records(records)
    frame["distinct_us"] = frame["distinct_us"].astype(object)
    return frame


def _record(item: Item, row: Row, header: Header, plan: Plan) -> dict[str, Any]:
    name, _, version = header.protocol.rpartition("-")
    method, l2_state = METHODS.get(name, (None, None))
    samples = sorted(set(row.samples_us))
    return {
        "family": item.problem.family,
        **item.problem.values,
        **item.config.values,
        "config_extras": _json_values(item.config.extras),
        "config_known": True,
        "kernel": item.problem.kernel,
        "backend": "triton",
        "library": "perfmodel",
        "compiler_version": header.compiler,
        "kernel_source_hash": header.kernels.get(item.problem.kernel),
        "is_library": False,
        "selection": "full",
        "distinct_us": samples,
        "raw_rows": 1,
        "samples": len(row.samples_us) or None,
        "latency_statistic": "median_of_distinct",
        "timing_method": method,
        "protocol_version": int(version) if version.isdigit() else None,
        "l2_state": l2_state,
        "outcome": row.outcome.value,
        "outcome_reason": row.reason,
        "device_source": header.device,
        "gpu": header.gpu,
        "device_inferred": False,
        "driver_version": header.driver,
        **row.clocks,
        "source": f"collected-{plan.gpu}",
        "source_file": f"plan-{plan.digest[:12]}",
        "source_sha256": plan.digest,
        "source_row": item.number,
    }


def _json_values(extras: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    import json  # noqa: PLC0415 - only where there are any

    return [(k, json.dumps(v)) for k, v in sorted(extras.items())] if extras else None


def _require_same(plan: Plan, first: Shard, shard: Shard) -> None:
    assert first.header is not None
    assert shard.header is not None
    if shard.header.plan != plan.digest:
        raise ResumeMismatchError(
            f"{shard.path} belongs to plan {shard.header.plan[:12]}, and this plan is "
            f"{plan.digest[:12]}; give the plan that was measured, or another folder"
        )
    for name in SAME_EVERYWHERE:
        here, there = getattr(shard.header, name), getattr(first.header, name)
        if here != there:
            raise ResumeMismatchError(
                f"{shard.path} was measured with {name} {here!r}, and {first.path} with "
                f"{there!r}; their times cannot be in one table: measure one of them again"
            )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
