"""Answers as plain text: aligned, with units, at most 80 columns wide unless a name is longer."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from perfmodel.cli.titles import title

if TYPE_CHECKING:
    from perfmodel.explanation import Explanation
    from perfmodel.prediction import Candidate, Prediction, Ranking, Rejected
    from perfmodel.problems import Problem
    from perfmodel.tiling.config import TileConfig

WIDTH = 80
LABEL = 11
RIVALS = 5
REJECTED_SHOWN = 10

LIMITER_WORDS = {
    "tensor": "matrix units",
    "fma": "ordinary arithmetic",
    "sfu": "special functions",
    "issue": "instructions issued",
    "dram": "memory bandwidth",
    "l2": "L2 bandwidth",
    "smem": "shared memory bandwidth",
    "latency": "memory latency that too few loads in flight leave exposed",
    "launch": "launch overhead",
}


def prediction_text(prediction: Prediction, ranking: Ranking | None = None) -> str:
    """Return the answer of ``perfmodel predict``; ``ranking`` if the config was left to us."""
    parts = [*_title_lines(prediction), *_summary(prediction)]
    if ranking is not None and len(ranking.candidates) > 1:
        parts += [
            "",
            "rivals",
            *_candidate_lines(ranking.candidates[1 : RIVALS + 1], ranking.problem),
        ]
        parts += [_found_line(ranking), *_unsure_lines(ranking)]
    return "\n".join([*parts, *note_lines(prediction.notes)])


def ranking_text(ranking: Ranking, rejected: Sequence[tuple[Rejected, str]] | None = None) -> str:
    """Return the answer of ``perfmodel rank``.

    Args:
        ranking: candidates as far as they are to be shown.
        rejected: those of the user's own list, each with one nearby that fits; the many of the
            whole space are counted by reason instead.
    """
    lines = [*_title_lines(ranking), *_basis_lines(ranking), ""]
    lines += _candidate_lines(ranking.candidates, ranking.problem)
    shown = len(ranking.candidates)
    if shown < ranking.considered:
        lines.append(f"{shown} of {ranking.considered:,} candidates; --all for the rest")
    lines += _unsure_lines(ranking)
    lines += ["", "best", f"  {config_text(ranking.best, ranking.problem)}"]
    if ranking.rejected and rejected is None:
        lines += ["", *_rejected_counts(ranking.rejected)]
    elif ranking.rejected:
        lines += ["", *_rejected_list(ranking.rejected, rejected or ())]
    return "\n".join([*lines, *note_lines(ranking.notes)])


def explanation_text(explanation: Explanation) -> str:
    """Return the answer of ``perfmodel explain``."""
    prediction = explanation.prediction
    return "\n".join(
        [
            *_title_lines(prediction),
            *_summary(prediction),
            *_breakdown_lines(explanation),
            *_schedule_lines(explanation),
            *_learned_lines(explanation),
            *_room_lines(explanation),
            *_change_lines(explanation),
            *note_lines(prediction.notes),
        ]
    )


def config_text(config: TileConfig, problem: Problem) -> str:
    """Return the configuration as ``--config`` takes it: what the kernels of ``problem`` read."""
    unread = _unread(problem)
    optional = {"split_k": 1, "num_ctas": 1, "maxnreg": None}
    return ",".join(
        f"{name}={value}"
        for name, value in config.to_dict().items()
        if optional.get(name, "") != value and name not in unread
    )


def tile_text(config: TileConfig, problem: Problem) -> str:
    """Return the configuration in short, for a table."""
    from perfmodel.families import legality  # noqa: PLC0415 - start-up time
    from perfmodel.tiling.config import PARAMETERS  # noqa: PLC0415 - as above

    unread = _unread(problem)
    return legality.tile_text(config, [name for name in PARAMETERS if name not in unread])


def _unread(problem: Problem) -> set[str]:
    from perfmodel.families import family_of  # noqa: PLC0415 - start-up time
    from perfmodel.families.library import has_tile  # noqa: PLC0415 - start-up time
    from perfmodel.tiling.config import PARAMETERS  # noqa: PLC0415 - start-up time

    return set(PARAMETERS) - set(family_of(problem).parameters) if has_tile(problem) else set()


def time_text(us: float) -> str:
    """Return a time with its unit, to about four digits."""
    for limit, unit, scale in ((1e4, "us", 1.0), (1e7, "ms", 1e-3), (math.inf, "s", 1e-6)):
        if us < limit:
            value = us * scale
            digits = 2 if value < 10 else 1 if value < 1000 else 0
            return f"{value:,.{digits}f} {unit}"
    return "never"


def share_text(share: float) -> str:
    """Return a share in per cent."""
    percent = 100 * share
    if 0 < percent < 0.1:
        return "under 0.1 %"
    return f"{percent:.1f} %" if percent < 10 else f"{percent:.0f} %"


def _summary(prediction: Prediction) -> list[str]:
    low, high = (time_text(us) for us in prediction.interval_us)
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    interval = f"{100 * prediction.coverage:.0f} % interval {low} to {high}"
    lines = [
        "",
        _line("latency", f"{time_text(prediction.latency_us)}  ({interval})"),
        _line(
            "rate",
            f"{_rate_text(prediction.tflops)}, {share_text(prediction.share_of_peak)} of peak",
        ),
        _line("limiter", f"{prediction.limiter} ({LIMITER_WORDS[prediction.limiter]})"),
    ]
    if prediction.waves is not None and prediction.occupancy is not None:
        ctas = f"{prediction.occupancy} CTA{'s' if prediction.occupancy > 1 else ''} per SM"
        lines.append(_line("schedule", f"{_waves_text(prediction.waves)} waves, {ctas}"))
    lines += _basis_lines(prediction)
    if prediction.config is not None:
        lines += ["config", f"  {config_text(prediction.config, prediction.problem)}"]
    return lines


def _title_lines(answer: Prediction | Ranking) -> list[str]:
    """A product's sizes fit in one line; lists of lengths may not."""
    text = title(answer.problem, answer.gpu)
    if answer.problem.family == "gemm":
        return [text]
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _basis_lines(answer: Prediction | Ranking) -> list[str]:
    text: str = answer.basis
    if answer.model is not None:
        text += f", model {answer.model}"
    if answer.expected_error is not None:
        text += f", held-out error {share_text(answer.expected_error)}"
    return wrapped("basis".ljust(LABEL), text)


def _candidate_lines(candidates: Sequence[Candidate], problem: Problem) -> list[str]:
    unit = time_text(candidates[0].latency_us).split()[1]
    scale = {"us": 1.0, "ms": 1e-3, "s": 1e-6}[unit]
    rows = [
        [
            str(c.rank),
            tile_text(c.config, problem),
            _number(c.latency_us * scale),
            "" if c.rank == 1 else f"{100 * (c.slowdown - 1):.1f} %",
            c.limiter,
            "measured" if c.basis == "measured" else "",
        ]
        for c in candidates
    ]
    return columns([["#", "config", unit, "slower", "limiter", ""], *rows], right=(0, 2, 3))


def _found_line(ranking: Ranking) -> str:
    return f"the best of {ranking.considered:,} candidates; perfmodel rank shows more"


def _unsure_lines(ranking: Ranking) -> list[str]:
    if ranking.unsure < 2:
        return []
    return [f"unsure: any of the first {ranking.unsure:,} may be the best; time them to be sure"]


def _rejected_counts(rejected: Iterable[Rejected]) -> list[str]:
    counts = Counter(r.reasons[0].limit for r in rejected)
    rows = [[f"{count:,}", limit] for limit, count in counts.most_common()]
    return [f"rejected: {counts.total():,}, by the first limit they break", *columns(rows, (0,))]


def _rejected_list(
    rejected: Sequence[Rejected], explained: Sequence[tuple[Rejected, str]]
) -> list[str]:
    lines = [f"rejected: {len(rejected):,}"]
    for refused, near in explained:
        lines.append(f"  {refused.config}")
        lines += [line for r in refused.reasons for line in wrapped("    ", str(r))]
        if near:
            lines.append(f"    nearest that fits: {near}")
    if len(rejected) > len(explained):
        lines.append(f"  and {len(rejected) - len(explained):,} more; --json lists them all")
    return lines


def _breakdown_lines(explanation: Explanation) -> list[str]:
    latency = explanation.prediction.latency_us
    parts = sorted(explanation.prediction.breakdown_us.items(), key=lambda item: -item[1])
    rows = [[name, time_text(us), share_text(us / latency)] for name, us in parts if us > 0]
    return ["", "each resource by itself (they overlap)", *columns(rows, (1, 2))]


def _schedule_lines(explanation: Explanation) -> list[str]:
    s, r, t = explanation.schedule, explanation.resources, explanation.traffic
    ctas = "1 CTA" if s.ctas == 1 else f"{s.ctas:,} CTAs"
    tail = "no tail"
    if s.tail_ctas:
        tail = f"tail of {s.tail_ctas:,}, {share_text(s.tail_fill)} of a wave"
    spill = f"spills {r.spill_bytes_per_thread} B" if r.spill_bytes_per_thread else "no spilling"
    traffic = f"{_bytes_text(t.dram_bytes)} from DRAM"
    if t.compulsory_bytes:
        traffic += f", {t.dram_bytes / t.compulsory_bytes:.2f} x the compulsory bytes"
    return [
        "",
        _line(
            "grid",
            f"{ctas} of {r.threads} threads, {s.iterations:,} trips each",
        ),
        _line(
            "waves", f"{_waves_text(s.waves)} on {s.sm_count} SMs: {s.full_waves:,} full, {tail}"
        ),
        _line("occupancy", f"{s.occupancy} per SM, limited by {s.occupancy_limiter}"),
        _line("shared mem", f"{r.smem_bytes:,} B of {r.smem_bytes_max:,} per CTA"),
        _line("registers", f"{r.registers_wanted} wanted, {r.registers} given; {spill}"),
        _line("traffic", traffic),
    ]


def _learned_lines(explanation: Explanation) -> list[str]:
    analytic = f"analytic {time_text(explanation.analytic_us)}"
    if not explanation.moved:
        return ["", _line("learned", f"no part in this; {analytic}")]
    rows = [[m.feature, f"{m.value:.3g}", f"x {m.factor:.3f}"] for m in explanation.moved]
    head = f"{analytic}, corrected x {explanation.correction:.3f}; moved most by"
    return ["", _line("learned", head), *columns(rows, (1, 2))]


def _room_lines(explanation: Explanation) -> list[str]:
    latency = explanation.prediction.latency_us
    lines = [""]
    if explanation.ceiling is not None:
        best, quantile = explanation.ceiling.latency_us, explanation.ceiling.quantile
        text = (
            f"{time_text(best)}, {latency / best:.2f} x faster: what the best "
            f"{share_text(1 - quantile)} of known ones of this kind reach"
        )
        lines += wrapped("ceiling".ljust(LABEL), text)
    floor = explanation.floor_us
    text = f"{time_text(floor)}, {latency / floor:.2f} x faster: peak rates, compulsory traffic"
    return [*lines, _line("bound", text)]


def _change_lines(explanation: Explanation) -> list[str]:
    if not explanation.changes:
        return ["", "what to change first: nothing found that gains 1 %"]
    lines = ["", "what to change first"]
    for change in explanation.changes:
        gain = f"  {time_text(change.latency_us).rjust(9)}  {change.speedup:.2f} x faster  "
        fits = len(gain) + len(change.what) <= WIDTH
        what = change.what if fits else re.sub(r",(?! )", ", ", change.what)
        lines += wrapped(gain, what)
    return lines


def note_lines(notes: Iterable[str]) -> list[str]:
    """Return the notes as lines of text, after an empty one."""
    lines = [line for note in notes for line in wrapped("note: ", note)]
    return ["", *lines] if lines else []


def _line(label: str, text: str) -> str:
    return label.ljust(LABEL) + text


def wrapped(head: str, text: str) -> list[str]:
    """Return ``text`` in lines after ``head``, the later ones indented as far."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Indent and align; ``right`` columns are flush right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def _number(value: float) -> str:
    return f"{value:,.{2 if value < 10 else 1}f}"


def _waves_text(waves: float) -> str:
    return "under 0.01" if 0 < waves < 0.01 else f"{waves:,.2f}"


def _rate_text(tflops: float) -> str:
    for unit, scale in (("TFLOP/s", 1.0), ("GFLOP/s", 1e3)):
        if tflops * scale >= 1:
            return f"{tflops * scale:,.{0 if tflops * scale >= 100 else 2}f} {unit}"
    return f"{tflops * 1e6:.3g} MFLOP/s" if tflops else "no products"


def _bytes_text(size: float) -> str:
    for unit, scale in (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if size < 1000 * scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size / 1e12:,.3g} TB"
