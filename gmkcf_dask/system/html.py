"""Small pieces of HTML for notebooks: tables, bars and lines, in the notebook's own colours.

Everything that comes from outside is escaped, no address is asked, and colours are those of the
page (`currentColor`), so that light and dark notebooks both can show them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_TEXT = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;color:inherit"
_CELL = "text-align:left;padding:1px 14px 1px 0;border:0;background:none;vertical-align:middle"
_QUIET = "opacity:.65"
_ACCENT = "#2a78d6"


def block(title: str, *parts: str) -> str:
    """A title and what belongs to it; the parts are HTML already.

    >>> "&lt;b&gt;" in block("<b>")
    True
    """
    head = f'<div style="font-weight:600;margin-bottom:3px">{escape(title)}</div>'
    return f'<div class="gmkcf" style="{_TEXT};margin:6px 0">{head}{"".join(parts)}</div>'


def table(rows: Iterable[Sequence[str]], heads: Sequence[str] = ()) -> str:
    """Rows of cells that are HTML already, see `text`; a single cell goes across two columns."""
    cells = "".join(f'<th style="{_CELL};font-weight:600;{_QUIET}">{escape(h)}</th>' for h in heads)
    lines = [f'<tr style="background:none">{cells}</tr>'] if heads else []
    for row in rows:
        across = ' colspan="2"' if len(row) == 1 else ""
        row_cells = "".join(f'<td{across} style="{_CELL}">{cell}</td>' for cell in row)
        lines.append(f'<tr style="background:none">{row_cells}</tr>')
    style = (
        "display:inline-table;border-collapse:collapse;margin:2px 26px 6px 0;border:0;"
        "vertical-align:top;font-size:13px;color:inherit"
    )
    return f'<table style="{style}"><tbody>{"".join(lines)}</tbody></table>'


def text(value: object, *, quiet: bool = False) -> str:
    """A value as text of a cell.

    >>> text("<script>")
    '&lt;script&gt;'
    """
    shown = escape(str(value))
    return f'<span style="{_QUIET}">{shown}</span>' if quiet else shown


def titled(lines: Iterable[str]) -> str:
    """Lines of a text as a table: a word or two before a colon are what a line is about.

    >>> titled(["disk: 3 MiB"]).count("<td")
    2
    """
    rows: list[tuple[str, ...]] = []
    for line in lines:
        about, colon, rest = line.partition(": ")
        short = colon and len(about) <= 24 and ";" not in about
        rows.append((text(about, quiet=True), text(rest)) if short else (text(line),))
    return table(rows)


def paragraph(sentence: str) -> str:
    """A line of its own."""
    return f'<div style="margin:2px 0">{escape(sentence)}</div>'


def bar(share: float, width: int = 120) -> str:
    """A bar for a share between 0 and 1."""
    length = width * min(max(share, 0.0), 1.0)
    return (
        f'<svg width="{width}" height="10" role="img" aria-label="{share:.0%}">'
        f'<rect x="0" y="1" width="{width}" height="8" rx="2" fill="currentColor" opacity="0.12"/>'
        f'<rect x="0" y="1" width="{length:.1f}" height="8" rx="2" fill="{_ACCENT}"/></svg>'
    )


def line_chart(values: Sequence[float], label: str, width: int = 220, height: int = 36) -> str:
    """A small line of numbers, without axes."""
    most = 200  # points; a line of that width shows no more
    step = max(1, -(-len(values) // most))
    kept = [*values[:-1:step], *values[-1:]]
    low, high = min(kept, default=0.0), max(kept, default=0.0)
    across = max(1, len(kept) - 1)
    spread = (high - low) or 1.0
    points = " ".join(
        f"{2 + (width - 8) * i / across:.1f},{3 + (height - 6) * (high - value) / spread:.1f}"
        for i, value in enumerate(kept)
    )
    end = points.split(" ")[-1].split(",") if points else ["2", "3"]
    return (
        f'<svg width="{width}" height="{height}" role="img" aria-label="{escape(label)}">'
        f'<polyline points="{points}" fill="none" stroke="{_ACCENT}" stroke-width="1.6" '
        f'stroke-linejoin="round"/><circle cx="{end[0]}" cy="{end[1]}" r="2.6" fill="{_ACCENT}"/>'
        "</svg>"
    )
