"""Pages that stand alone: one HTML file with its pictures inside."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2.5rem auto;
  padding: 0 1.2rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
p.lead { color: #555; margin-top: 0; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { text-align: left; padding: .35rem .7rem; border-bottom: 1px solid #e4e4e4; }
td.number, th.number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
figure { margin: 1.4rem 0; } img { max-width: 100%; height: auto; }
figcaption { color: #555; font-size: .92rem; }
.scroll { overflow-x: auto; }
"""


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; `numeric` tells which columns to set flush right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()

    def to_text(self) -> str:
        """Return the table for a terminal."""
        widths = [max(len(r[i]) for r in [self.headings, *self.rows]) for i in range(self._width)]
        lines = [
            "  ".join(
                cell.rjust(width) if i in self.numeric else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in [self.headings, *self.rows]
        ]
        rule = "  ".join("─" * width for width in widths)
        return "\n".join([lines[0], rule, *lines[1:]])

    def to_html(self) -> str:
        """Return the table for a page."""

        def row(cells: Sequence[str], tag: str) -> str:
            marks = [' class="number"' if i in self.numeric else "" for i in range(self._width)]
            filled = "".join(
                f"<{tag}{mark}>{html.escape(cell)}</{tag}>"
                for cell, mark in zip(cells, marks, strict=True)
            )
            return f"<tr>{filled}</tr>"

        body = "\n".join(row(cells, "td") for cells in self.rows)
        head = row(self.headings, "th")
        return (
            f'<div class="scroll"><table><thead>{head}</thead>'
            f"<tbody>\n{body}\n</tbody></table></div>"
        )

    @property
    def _width(self) -> int:
        return len(self.headings)


@dataclass(frozen=True)
class Picture:
    """A matplotlib figure with the title and the sentence that belong to it."""

    name: str
    title: str
    caption: str
    figure: Any

    def to_png(self) -> bytes:
        """Return the picture as a PNG file's content."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
        return buffer.getvalue()


def page(title: str, lead: str, sections: Sequence[tuple[str, Table | Picture]]) -> str:
    """Return one self-contained HTML page."""
    parts = []
    for heading, content in sections:
        parts.append(f"<h2>{html.escape(heading)}</h2>")
        if isinstance(content, Table):
            parts.append(content.to_html())
        else:
            encoded = base64.b64encode(content.to_png()).decode()
            parts.append(
                f'<figure><img alt="{html.escape(content.title)}" '
                f'src="data:image/png;base64,{encoded}">'
                f"<figcaption>{html.escape(content.caption)}</figcaption></figure>"
            )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f'<h1>{html.escape(title)}</h1><p class="lead">{html.escape(lead)}</p>'
        + "\n".join(parts)
        + "</body></html>\n"
    )
