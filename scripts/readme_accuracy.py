"""Write the README's accuracy tables from the output of ``perfmodel evaluate ... --json``.

Usage: python scripts/readme_accuracy.py RECORDS.json [RECORDS.json ...]

The tables replace what stands between the two ``accuracy`` markers of README.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- accuracy:begin -->", "<!-- accuracy:end -->"

# Per protocol: what is shown of it, as (metric, k, heading).
PICKS = (("pick_mean", 1, "top-1"), ("pick_p5", 1, "p5"), ("pick_mean", 3, "top-3"))
ERROR = (("error_mean", None, "error"), ("error_median", None, "median"))
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
    "intervals": (("coverage90", None, "inside 90 %"), ("width90", None, "median width")),
}


OURS, PHYSICS = "perfmodel", "analytic"


def is_shown(protocol: str, cell: str, who: str) -> bool:
    """Whether a row is worth its line: the rest is in the command's own output."""
    if protocol == "legality":
        return cell == "all"
    if protocol == "intervals":
        return who == OURS
    if protocol in ("gemm-fewshot", "gemm-suites"):
        return who in (OURS, PHYSICS) and cell != "all"
    if protocol.startswith("grid"):
        return who == OURS or (cell == "all" and who != "roofline")
    return cell != "all"


def main(paths: list[str]) -> None:
    """Read the records and rewrite the section."""
    records = [record for path in paths for record in json.loads(Path(path).read_text())]
    text = README.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    body = "\n\n".join(
        table(protocol, [r for r in records if r["protocol"] == protocol])
        for protocol in SHOWN
        if any(r["protocol"] == protocol for r in records)
    )
    README.write_text(f"{head}{BEGIN}\n\n{body}\n\n{END}{tail}")


def table(protocol: str, records: list[dict[str, object]]) -> str:
    """Return one protocol as a Markdown table: a row a cell and contender."""
    columns = SHOWN[protocol]
    records = [r for r in records if r["dtype"] is None]
    found = {(r["cell"], r["who"], r["metric"], r["k"], r["budget"]): r["value"] for r in records}
    rows = []
    for cell, who, budget in dict.fromkeys((r["cell"], r["who"], r["budget"]) for r in records):
        values = [
            found.get((cell, who, metric, k, budget), found.get((cell, who, metric, None, budget)))
            for metric, k, _ in columns
        ]
        if all(value is None for value in values) or not is_shown(protocol, str(cell), str(who)):
            continue
        label = f"{cell}, {budget} problems" if budget is not None else str(cell)
        shown = [cell_text(v, c[0]) for v, c in zip(values, columns, strict=True)]
        rows.append("| " + " | ".join([label, str(who), *shown]) + " |")
    heading = "| `" + protocol + "` | who | " + " | ".join(c[2] for c in columns) + " |"
    rule = "|---|---|" + "---:|" * len(columns)
    return "\n".join([heading, rule, *rows])


def cell_text(value: object, metric: str) -> str:
    """Return a figure as people read it: shares of time as per cent, quality as a fraction."""
    if not isinstance(value, int | float):
        return "-"
    if metric.startswith("error") or metric in ("coverage90", "width90") or "rejected" in metric:
        return f"{100 * value:.1f} %"
    if metric.startswith("trials"):
        return f"{value:.1f}"
    return f"{value:.4f}"


if __name__ == "__main__":
    main(sys.argv[1:])
