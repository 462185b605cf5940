"""Text in a CSV file that a spreadsheet program must not take for a formula.

Programs that open a CSV file compute cells that begin with one of a few characters. Such a cell is
written with an apostrophe before it, as OWASP advises ("CSV injection"). So that reading it back
gives the very same text, a cell that begins with an apostrophe gets another one.
"""

from __future__ import annotations

from collections.abc import Iterable

MARK = "'"
_STARTS = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""What begins a formula, in the usual and the full width, and what programs skip before one."""


def escaped_cell(text: str) -> str:
    """The text as a cell that no program computes.

    >>> escaped_cell("=1+2"), escaped_cell("'a"), escaped_cell("a=1")
    ("'=1+2", "''a", 'a=1')
    """
    return MARK + text if text[:1] in _STARTS or text.startswith(MARK) else text


def cell_text(cell: str) -> str:
    """The text that `escaped_cell` made a cell of.

    >>> cell_text("'=1+2"), cell_text("''a"), cell_text("a=1")
    ('=1+2', "'a", 'a=1')
    """
    return cell.removeprefix(MARK)


def csv_lines(rows: Iterable[Iterable[object]]) -> str:
    r"""Rows as lines of a CSV file; also a lone carriage return is quoted, which `csv` leaves.

    >>> csv_lines([["id", "label"], ["a\rb", 1]])
    'id,label\n"a\rb",1\n'
    """
    return "".join(",".join(map(_quoted, row)) + "\n" for row in rows)


def _quoted(value: object) -> str:
    text = str(value)
    # spreadsheet programs may also part cells at semicolons, tabs and bars
    if not any(mark in text for mark in ',;|\t"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'
