"""One HTML file that needs nothing else: text, tables, and pictures inside it.

It reads at the width of a phone: pictures shrink to the screen, tables scroll by themselves.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from perfmodel.files import atomic_path
from perfmodel.report.scatter import figure_class

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 68rem; padding: 1rem;
  color: #1a1a1a; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 0; flex: 1 1 20rem; max-width: 34rem; }
img { width: 100%; height: auto; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.25rem 0.7rem; border-bottom: 1px solid #ddd; text-align: left;
  white-space: nowrap; }
caption { text-align: left; font-weight: bold; padding-top: 1rem; }
@media (max-width: 40rem) { table { font-size: 0.78rem; } th, td { padding: 0.2rem 0.3rem; }
  td:first-child { white-space: normal; } }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
"""

FIGURE_INCHES = (4.4, 3.6)
DOTS_PER_INCH = 160


@dataclass(frozen=True)
class Picture:
    """A drawn figure: the stem of its file name, what it shows, and its PNG."""

    name: str
    shows: str
    png: bytes

    def html(self) -> str:
        """Return it as an element with the picture inside."""
        data = base64.b64encode(self.png).decode("ascii")
        return (
            f'<figure><img alt="{escape(self.shows)}" src="data:image/png;base64,{data}"></figure>'
        )


@dataclass(frozen=True)
class Table:
    """Rows under a head; ``numbers`` are columns that are flush right, ``caption`` is the title."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    caption: str = ""

    def html(self) -> str:
        """Return it as an element that scrolls by itself."""
        lines = [self._row("th", self.head), *(self._row("td", row) for row in self.rows)]
        if self.caption:
            lines.insert(0, f"<caption>{escape(self.caption)}</caption>")
        return "\n".join(['<div class="table"><table>', *lines, "</table></div>"])

    def _row(self, cell: str, values: Sequence[str]) -> str:
        number = ' class="number"'
        cells = [
            f"<{cell}{number if at in self.numbers else ''}>{escape(value)}</{cell}>"
            for at, value in enumerate(values)
        ]
        return f"<tr>{''.join(cells)}</tr>"


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, pictures and tables, in that order."""

    title: str
    text: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()

    def html(self) -> str:
        """Return it as HTML."""
        parts = [f"<h2>{escape(self.title)}</h2>", *(f"<p>{escape(t)}</p>" for t in self.text)]
        if self.pictures:
            figures = "\n".join(picture.html() for picture in self.pictures)
            parts.append(f'<div class="figures">\n{figures}\n</div>')
        return "\n".join([*parts, *(table.html() for table in self.tables)])


def draw(name: str, shows: str, paint: Callable[[Any], None]) -> Picture:
    """Return what ``paint`` draws on a figure.

    Raises:
        NotInstalledError: matplotlib is missing.
    """
    figure = figure_class()(figsize=FIGURE_INCHES, layout="constrained")
    paint(figure)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return Picture(name, shows, png.getvalue())


def page(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the whole file."""
    body = "\n".join(section.html() for section in sections)
    paragraphs = "\n".join(f"<p>{escape(text)}</p>" for text in lead)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{paragraphs}
{body}
</body>
</html>
"""


def write_page(text: str, path: Path, pictures: Sequence[Picture], png_dir: Path | None) -> None:
    """Write the file and, into ``png_dir``, each picture; each whole or not at all.

    Raises:
        CacheFolderError: a file cannot be written.
    """
    with atomic_path(path, "--out FILE") as part:
        part.write_text(text, encoding="utf-8")
    for picture in pictures if png_dir is not None else ():
        with atomic_path(Path(png_dir or ".") / f"{picture.name}.png", "--png DIR") as part:
            part.write_bytes(picture.png)
