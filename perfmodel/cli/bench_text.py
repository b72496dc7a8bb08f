"""A benchmark as text and as JSON: its number, and what the number is worth.

``perfmodel bench --json``, schema ``perfmodel.bench/1``: ``problem``, ``gpu``, ``device`` (as the
driver names it), ``kernel``, ``measured`` (what lay in the timed span), ``pretended`` (why it is no
measurement of a device, null if it is one), ``config``, ``measurement`` (as
`tuner.measure.measurement.Measurement.to_dict`), ``checked`` (whether the result was compared with
a float64 reference), ``tflops`` and ``gb_per_s`` (useful operations and compulsory bytes over the
median), ``prediction`` (as ``perfmodel predict --json``), ``ratio`` (measured over predicted), and
for several configurations ``standings`` and ``unsure``. Null stands for what is not known.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from perfmodel.cli.rendering import WIDTH, columns, config_text, note_lines, tile_text, time_text
from perfmodel.cli.titles import title

if TYPE_CHECKING:
    from tuner.benchmark.rig import Rig
    from tuner.benchmark.single import Benched
    from tuner.measure.measurement import Measurement
    from tuner.measure.nvml import Reading

LABEL = 11
UNKNOWN = "unknown"
ALONE = "the kernel alone: no launch overhead of the host, no flush"


def bench_record(found: Benched, rig: Rig) -> dict[str, Any]:
    """Return the documented JSON form."""
    identity = rig.device.identity
    return {
        "schema": "perfmodel.bench/1",
        "family": found.subject.problem.family,
        "problem": found.subject.problem.to_dict(),
        "gpu": found.subject.gpu.name,
        "device": {"name": identity.name, "driver": identity.driver},
        "kernel": found.subject.kernel.name,
        "measured": "kernel alone",
        "pretended": rig.about,
        "config": found.config.to_dict(),
        "measurement": found.measurement.to_dict(),
        "checked": None if found.checked is None else not found.checked,
        "tflops": found.tflops,
        "gb_per_s": found.gb_per_s,
        "prediction": found.prediction.to_dict(),
        "ratio": found.ratio,
        "unsure": found.unsure if found.standings else None,
        "standings": [
            {
                "config": found.configs[s.config].to_dict(),
                "outcome": s.outcome.value,
                "reason": s.reason,
                "median_us": s.median_us,
                "behind": s.behind,
                "error": s.error,
                "laps": s.laps,
                "predicted_us": found.predictions[s.config].latency_us,
            }
            for s in found.standings
        ],
    }


def bench_text(found: Benched, rig: Rig) -> str:
    """Return the answer of ``perfmodel bench``."""
    m, problem = found.measurement, found.subject.problem
    lines = textwrap.wrap(
        title(problem, found.subject.gpu.name), WIDTH, subsequent_indent="  ",
        break_on_hyphens=False,
    )  # fmt: skip
    lines.append("")
    if rig.about is not None:
        lines += _line("note", rig.about)
    if m.latency_us is None:
        lines += _line("outcome", f"{m.outcome.value}: {m.timing.reason or 'no reason given'}")
    else:
        lines += _line("time", f"{time_text(m.latency_us)}  ({_spread(m)})")
        lines += _line("rate", f"{found.tflops:,.1f} TFLOP/s, {found.gb_per_s:,.0f} GB/s of "
                               "compulsory traffic")  # fmt: skip
    lines += _line("predicted", _predicted(found))
    lines += _line("measured", f"{ALONE}; {found.subject.kernel.name}")
    lines += _line("protocol", _protocol(m))
    lines += _line("clocks", _clocks(m))
    lines += _line("throttle", f"{_slowed(m.before)} before, {_slowed(m.after)} after")
    lines += _line("drift", _drift(m))
    lines += _line("flags", _flags(m))
    lines += _line("result", _checked(found))
    identity = rig.device.identity
    lines += _line("device", f"{identity.name}, driver {identity.driver or UNKNOWN}")
    lines += ["config", f"  {config_text(found.config, problem)}"]
    if found.standings:
        lines += ["", *_standings(found)]
    return "\n".join([*lines, *note_lines(found.prediction.notes)])


def _line(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=label.ljust(LABEL), subsequent_indent=" " * LABEL,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _spread(m: Measurement) -> str:
    count = len(m.timing.samples_us)
    samples = f"{count:,} samples" if count > 1 else "1 sample, so no interval"
    if m.interval_us is None or m.protocol is None:
        return samples if count < 2 else f"{samples}, too few for an interval"
    low, high = (time_text(us) for us in m.interval_us)
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    least, greatest = (time_text(f(m.timing.samples_us)) for f in (min, max))
    return (
        f"{100 * m.protocol.confidence:.0f} % interval of the median {low} to {high}; {samples} "
        f"from {least} to {greatest}"
    )


def _predicted(found: Benched) -> str:
    prediction = found.prediction
    low, high = (time_text(us) for us in prediction.interval_us)
    text = (
        f"{time_text(prediction.latency_us)} ({100 * prediction.coverage:.0f} % interval {low} to "
        f"{high}), {prediction.basis}"
    )
    return text if found.ratio is None else f"{text}; measured / predicted = {found.ratio:.3f}"


def _protocol(m: Measurement) -> str:
    if m.protocol is None:
        return f"{m.timing.protocol}, as recorded"
    how = m.timing.method or "method not said"
    if m.timing.launches > 1:
        how += f", {m.timing.launches:,} launches a sample"
    again = f", taken {m.attempts} times" if m.attempts > 1 else ""
    return f"{m.protocol.name}: {how}, L2 {m.protocol.l2}, warmed up {m.warm_up_s:.2f} s{again}"


def _clocks(m: Measurement) -> str:
    parts = [
        _pair("SM", m.before.sm_clock_mhz, m.after.sm_clock_mhz, "MHz"),
        _pair("memory", m.before.memory_clock_mhz, m.after.memory_clock_mhz, "MHz"),
        _pair("heat", m.before.temperature_c, m.after.temperature_c, "C"),
        _pair("power", m.before.power_w, m.after.power_w, "W"),
    ]
    locked = {True: "locked", False: "not locked", None: "unknown whether locked"}
    return ", ".join([*parts, locked[m.clocks_locked]])


def _pair(name: str, before: float | None, after: float | None, unit: str) -> str:
    if before is None and after is None:
        return f"{name} {UNKNOWN}"
    first, last = (UNKNOWN if v is None else f"{v:.0f}" for v in (before, after))
    return f"{name} {first} -> {last} {unit}"


def _slowed(reading: Reading) -> str:
    return UNKNOWN if reading.throttle is None else reading.throttle or "none"


def _drift(m: Measurement) -> str:
    if m.drift is None:
        return "not looked for"
    taken = ", taken out of the time" if m.corrected_us else ""
    return f"{100 * m.drift:+.1f} % by a reference kernel{taken}"


def _flags(m: Measurement) -> str:
    from tuner.measure.measurement import FLAGS  # noqa: PLC0415 - start-up time

    return "; ".join(f"{name}: {FLAGS[name]}" for name in m.flags) or "none"


def _checked(found: Benched) -> str:
    if found.checked is None:
        return "not compared with a reference (--check)"
    return found.checked or "agrees with a float64 reference"


def _standings(found: Benched) -> list[str]:
    rows = [["#", "config", "us", "behind", "predicted", "ratio"]]
    for at, s in enumerate(found.standings, start=1):
        predicted = found.predictions[s.config].latency_us
        text = tile_text(found.configs[s.config], found.subject.problem)
        if s.median_us is None or s.behind is None:
            rows.append([str(at), text, s.outcome.value, "", f"{predicted:,.1f}", ""])
            continue
        error = f" +- {100 * (s.error or 0.0):.1f}" if at > 1 else ""
        behind = "" if at == 1 else f"{100 * s.behind:.1f}{error} %"
        rows.append([str(at), text, f"{s.median_us:,.2f}", behind, f"{predicted:,.1f}",
                     f"{s.median_us / predicted:.3f}"])  # fmt: skip
    lines = ["timed by turns", *columns(rows, (0, 2, 3, 4, 5))]
    if found.unsure > 1:
        lines.append(f"unsure: noise does not tell the first {found.unsure} apart")
    return lines
