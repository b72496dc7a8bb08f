"""What a session leaves: a parquet file a step, none too large to carry, and a short table."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.dataset import schema
from perfmodel.dataset.outcome import Outcome
from perfmodel.errors import DataError, PerfmodelError
from perfmodel.files import atomic_path
from perfmodel.wording import counted
from tuner.collect.merge import Merged, gather, table_of
from tuner.collect.plan_file import load_plan
from tuner.collect.session.correctness import read_lines
from tuner.collect.session.rehearsal import NAME as REHEARSAL
from tuner.collect.session.steps import TIMED, plan_path

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

FILE_BYTES_MAX = 16 * 10**6
FILES_MAX = 8

RECORDS = {"correctness": "checked.jsonl", "ceilings": "ceilings.jsonl"}
"""The rows of the steps that time no plan."""

PICK_CONFIGS_MIN = 5
"""Configurations of a problem that ran, from which on a pick says something."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class StepEnd:
    """How a step ended: done, stopped, failed or dropped; and what it left."""

    name: str
    state: str
    reason: str | None
    seconds: float
    rows: int = 0
    ok: int = 0
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def line(self) -> str:
        """Return one line for a terminal."""
        why = f"  {self.reason}" if self.reason and self.state != "done" else ""
        return (
            f"{self.name:<12} {self.state:<8} {self.rows:>7,} {self.ok:>7,} "
            f"{self.seconds:>9.1f}{why}"
        )


HEADING = f"{'step':<12} {'state':<8} {'rows':>7} {'ok':>7} {'seconds':>9}"


def write_step(out: Path, work: Path, end: StepEnd, *, rehearse: bool) -> StepEnd:
    """Write what a step left, and return its end with what that is.

    Trouble is a note: it never costs the other steps theirs.
    """
    prefix = f"{REHEARSAL}-" if rehearse else ""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if end.name in TIMED:
            return _timings(out, work, end, prefix)
        return _records(out, work, end, prefix)
    except (PerfmodelError, OSError, ValueError, KeyError) as error:
        return replace(end, notes=(*end.notes, f"not written: {error}"))


def write_summary(
    out: Path, ends: Sequence[StepEnd], about: Mapping[str, Any], started: float, say: Say
) -> None:
    """Write and say the short table; ``summary.json`` holds the same for programs."""
    lines = [f"{about['device']}, {time.time() - started:,.0f} s of {60 * about['minutes']:,.0f}"]
    lines += [HEADING, *(end.line() for end in ends)]
    for end in ends:
        lines += [f"{end.name}: {note}" for note in end.notes]
    text = "\n".join(lines) + "\n"
    record = {**about, "steps": [asdict(end) for end in ends]}
    for name, content in (("summary.txt", text), ("summary.json", json.dumps(record, indent=2))):
        with atomic_path(out / name, "--out DIR") as partial:
            partial.write_text(content, encoding="utf-8")
    say(text.rstrip())


def _records(out: Path, work: Path, end: StepEnd, prefix: str) -> StepEnd:
    import pyarrow as pa  # noqa: PLC0415 - start-up time

    rows = read_lines(work / end.name / RECORDS[end.name])
    if not rows:
        return end
    flat = [{k: json.dumps(v) if isinstance(v, dict) else v for k, v in r.items()} for r in rows]
    files = _write(pa.Table.from_pylist(flat), out, f"{prefix}{end.name}")
    ok = sum(row["outcome"] == Outcome.OK.value for row in rows)
    notes = _wrong(rows) if end.name == "correctness" else _reached(rows)
    return replace(end, rows=len(rows), ok=ok, files=files, notes=(*end.notes, *notes))


def _timings(out: Path, work: Path, end: StepEnd, prefix: str) -> StepEnd:
    folder = work / end.name
    if not any(folder.glob("shard-*.jsonl")):
        return end
    merged = gather(load_plan(plan_path(work, end.name)), folder)
    frame, info = table_of(merged, partial=True)
    if prefix:
        frame["source"], info = REHEARSAL, replace(info, source=REHEARSAL)
    files = _write_table(frame, info, out, f"{prefix}{end.name}")
    ok = int((frame["outcome"] == Outcome.OK.value).sum())
    missing = len(merged.missing)
    notes = [f"{missing:,} of {len(merged.plan.items):,} planned were not reached"] * bool(missing)
    notes += _failures(frame) + _first_predictions(merged)
    return replace(end, rows=len(frame), ok=ok, files=files, notes=(*end.notes, *notes))


def _write_table(
    frame: pd.DataFrame, info: schema.TableInfo, out: Path, stem: str
) -> tuple[str, ...]:
    """Write a measurement table as one file, or as more where one would be too large."""

    def write(part: pd.DataFrame, path: Path) -> None:
        schema.write(part, path, info)

    return _parts(frame, len(frame), write, out, stem)


def _write(table: pa.Table, out: Path, stem: str) -> tuple[str, ...]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - start-up time

    def write(part: Any, path: Path) -> None:
        with atomic_path(path, "--out DIR") as partial:
            pq.write_table(part, partial, compression="zstd")

    return _parts(table, table.num_rows, write, out, stem)


def _parts(
    rows: Any, count: int, write: Callable[[Any, Path], None], out: Path, stem: str
) -> tuple[str, ...]:
    """Write rows in as few files as keep each small enough.

    Raises:
        DataError: that would be more files than may be carried.
    """
    for old in out.glob(f"{stem}*.parquet"):
        old.unlink()
    others = len(list(out.glob("*.parquet")))
    for parts in range(1, FILES_MAX - others + 1):
        bounds = np.linspace(0, count, parts + 1).astype(int)
        names = [f"{stem}.parquet"] if parts == 1 else [
            f"{stem}-{at + 1}-of-{parts}.parquet" for at in range(parts)
        ]  # fmt: skip
        for name, low, high in zip(names, bounds[:-1], bounds[1:], strict=True):
            write(rows[int(low) : int(high)], out / name)
        if all((out / name).stat().st_size <= FILE_BYTES_MAX for name in names):
            return tuple(names)
        for name in names:
            (out / name).unlink()
    raise DataError(
        f"{counted(count, 'row')} of {stem} take more than {FILE_BYTES_MAX / 1e6:.0f} MB a file in "
        f"{FILES_MAX - others} files; measure less at a time"
    )


def _wrong(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    bad = [row for row in rows if row["outcome"] != Outcome.OK.value]
    return [f"{row['name']}: {row['outcome']}: {row['reason']}" for row in bad]


def _reached(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The best of each ceiling, and what could not be tried."""
    best: dict[tuple[str, str | None, str], float] = {}
    for row in (r for r in rows if r["value"] is not None):
        key, value = (row["name"], row["dtype"], row["unit"]), float(row["value"])
        least = row["unit"] == "us"
        best[key] = min(best.get(key, value), value) if least else max(best.get(key, 0.0), value)
    found = [
        f"{name}{f' {dtype}' if dtype else ''} {value:,.4g} {unit}"
        for (name, dtype, unit), value in best.items()
    ]
    return found + [
        f"{row['name']} {row['dtype'] or ''}: {row['reason']}" for row in rows if row["reason"]
    ]


def _failures(frame: pd.DataFrame) -> list[str]:
    ends = Counter(str(o) for o in frame["outcome"] if o != Outcome.OK.value)
    return [f"did not run: {', '.join(f'{n:,} {o}' for o, n in ends.most_common())}"] * bool(ends)


def _first_predictions(merged: Merged) -> list[str]:
    """How the plan's predictions did against what was measured, and how its picks did."""
    by_problem: dict[int, list[tuple[float, float]]] = {}
    picked: dict[int, float] = {}
    for item in merged.plan.items:
        found = merged.rows.get(item.key)
        if found is not None and found[0].outcome.ran and found[0].samples_us:
            measured = float(np.median(found[0].samples_us))
            by_problem.setdefault(id(item.problem), []).append((item.config.expected_us, measured))
            if item.config is item.problem.configs[0]:
                picked[id(item.problem)] = measured
    pairs = np.array([pair for found in by_problem.values() for pair in found])
    if not len(pairs):
        return []
    error = np.abs(pairs[:, 0] / pairs[:, 1] - 1)
    notes = [
        f"predictions before any of this was known: median error {100 * np.median(error):.1f} % "
        f"over {counted(len(pairs), 'row')} of {len(by_problem):,} problems"
    ]
    shares = [
        min(measured for _, measured in found) / picked[problem]
        for problem, found in by_problem.items()
        if problem in picked and len(found) >= PICK_CONFIGS_MIN
    ]
    if shares:
        notes.append(
            f"the predictor's first pick reached on average {np.mean(shares):.3f} of the best "
            f"measured speed, over {counted(len(shares), 'problem')}"
        )
    return notes
