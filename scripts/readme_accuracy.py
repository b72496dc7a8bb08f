"""Write the README's accuracy tables from the output of ``perfmodel evaluate ... --json``.

Usage: python scripts/readme_accuracy.py RECORDS.json [RECORDS.json ...]

The tables of each protocol replace what stands between its two markers in README.md; protocols
without records keep theirs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from perfmodel.evaluate.protocols import PROTOCOLS

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- accuracy of {}:begin -->", "<!-- accuracy of {}:end -->"

# Per protocol: what is shown of it, as (metric, k, heading).
PICKS = (("pick_mean", 1, "top-1"), ("pick_p5", 1, "p5"), ("pick_mean", 3, "top-3"))
ERROR = (("error_mean", None, "error"), ("error_median", None, "median"))
P90 = ("error_p90", None, "p90")
INTERVALS = (("coverage90", None, "inside 90 %"), ("width90", None, "median width"))
HITS = (("hit", 1, "first"), ("hit", 5, "in 5"))
SHOWN: dict[str, tuple[tuple[str, int | None, str], ...]] = {
    "gemm-kfold": (*ERROR, *PICKS),
    "gemm-suites": (*ERROR, *PICKS[:1]),
    "gemm-transfer": (*ERROR, *PICKS),
    "gemm-fewshot": (*ERROR[:1], *PICKS[:1]),
    "grid-loso": (*PICKS[:1], ("trials99", None, "trials to 99 %")),
    "grid-zero": (*PICKS[:1], ("pick_mean", 10, "top-10"), ("trials99", None, "trials to 99 %")),
    "legality": (
        ("illegal_rejected", None, "failures rejected"),
        ("legal_rejected", None, "successes rejected"),
    ),
    "intervals": INTERVALS,
    "replay": (*PICKS[:1], ("pick_p5", 1, "p5"), ("timed_mean", None, "timed")),
    "fp8-pipeweave": (*ERROR, P90),
    "shape-sites": (*ERROR, P90, *INTERVALS),
    "shape-logo": (*ERROR, P90, *INTERVALS),
    "attention-winners": (*HITS, ("hit", 10, "in 10"), *ERROR[:1]),
    "moe-near-best": HITS,
}
KINDS = {
    "16-bit": "", "gemm bf16": "products of bf16", "gemm fp8_e4m3": "products of fp8",
    "prefill bf16": "prefill attention", "decode bf16": "decode attention",
    "moe bf16": "Triton's fused MoE", "moe-up bf16": "its first product alone",
    "moe fp8_e4m3": "fused MoE of fp8",
}  # fmt: skip
"""Headings of protocols that hold several families: a table each."""


OPEN = ("gemm-kfold", "replay", "shape-logo", "attention-winners", "moe-near-best")
LIBRARY = ("fp8-pipeweave", "shape-sites", "shape-logo")
SPLIT = (*LIBRARY, "attention-winners", "moe-near-best")
BUDGET = {"gemm-fewshot": "{} problems", "replay": "at most {}"}
Row = dict[str, object]

OURS, PHYSICS, ALL = "perfmodel", "analytic", "all"


def is_shown(protocol: str, cell: str, who: str) -> bool:
    """Whether a row is worth its line: the rest is in the command's own output."""
    if protocol in ("gemm-fewshot", "gemm-suites"):
        return who in (OURS, PHYSICS) and cell != ALL
    if protocol.startswith("grid"):
        return who == OURS or (cell == ALL and who != "roofline")
    rules = {
        "legality": cell == ALL,
        "shape-sites": cell == ALL,
        "intervals": who == OURS,
        "replay": not cell.isdigit() and cell != ALL,
        "attention-winners": True,
        "moe-near-best": True,
    }
    return rules.get(protocol, who == OURS or cell == ALL if protocol in LIBRARY else cell != ALL)


def main(paths: list[str]) -> None:
    """Read the records and rewrite the section."""
    records = [record for path in paths for record in json.loads(Path(path).read_text())]
    text = README.read_text()
    for protocol in SHOWN:
        own = [r for r in records if r["protocol"] == protocol]
        if own:
            begin, end = (marker.format(protocol) for marker in (BEGIN, END))
            head, rest = text.split(begin)
            tail = rest.split(end)[1]
            text = f"{head}{begin}\n\n{section(protocol, own)}\n\n{end}{tail}"
    README.write_text(text)


def section(protocol: str, records: list[Row]) -> str:
    """Return a protocol's tables, folded away but for those that most people want."""
    body = "\n\n".join(tables(protocol, records))
    if protocol in OPEN:
        return body
    about = PROTOCOLS[protocol].about
    return f"<details><summary><code>{protocol}</code> {about}</summary>\n\n{body}\n\n</details>"


def tables(protocol: str, records: list[Row]) -> Iterator[str]:
    """Yield the tables of one protocol: one a family and type where it holds several."""
    if protocol not in SPLIT:
        whole = [r for r in records if r["dtype"] is None]
        if whole:
            yield table(protocol, f"`{protocol}`", whole)
        return
    for family, dtype in dict.fromkeys((r["family"], r["dtype"]) for r in records):
        own = [r for r in records if (r["family"], r["dtype"]) == (family, dtype)]
        kind = KINDS.get(f"{family} {dtype}", "")
        yield table(protocol, f"`{protocol}`" + (f", {kind}" if kind else ""), own)


def table(protocol: str, title: str, records: list[Row]) -> str:
    """Return a Markdown table: a row a cell and contender."""
    columns = SHOWN[protocol]
    found = {(r["cell"], r["who"], r["metric"], r["k"], r["budget"]): r["value"] for r in records}
    rows = []
    for cell, who, budget in dict.fromkeys((r["cell"], r["who"], r["budget"]) for r in records):
        values = [
            found.get((cell, who, metric, k, budget), found.get((cell, who, metric, None, budget)))
            for metric, k, _ in columns
        ]
        if all(value is None for value in values) or not is_shown(protocol, str(cell), str(who)):
            continue
        label = str(cell) if budget is None else f"{cell}, {BUDGET[protocol].format(budget)}"
        shown = [cell_text(v, c[0]) for v, c in zip(values, columns, strict=True)]
        rows.append("| " + " | ".join([label, str(who), *shown]) + " |")
    heading = f"| {title} | who | " + " | ".join(c[2] for c in columns) + " |"
    rule = "|---|---|" + "---:|" * len(columns)
    return "\n".join([heading, rule, *rows])


def cell_text(value: object, metric: str) -> str:
    """Return a figure as people read it: shares of time as per cent, quality as a fraction."""
    if not isinstance(value, int | float):
        return "-"
    if (
        metric.startswith("error")
        or metric in ("coverage90", "width90", "hit")
        or "rejected" in metric
    ):
        return f"{100 * value:.1f} %"
    if metric.startswith(("trials", "timed")):
        return f"{value:.1f}"
    return f"{value:.4f}"


if __name__ == "__main__":
    main(sys.argv[1:])
