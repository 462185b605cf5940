"""Bytes and times: units, and how people read them."""

from __future__ import annotations

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def ceil_div(a: int, b: int) -> int:
    """Smallest integer not below a / b."""
    return -(-a // b)


def human_bytes(n: int) -> str:
    """Bytes as a person reads them.

    >>> human_bytes(3 * GIB // 2)
    '1.5 GiB'
    """
    for unit, name in ((GIB << 10, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if n >= unit:
            return f"{n / unit:.1f} {name}"
    return f"{n} B"


def human_time(milliseconds: int) -> str:
    """Milliseconds as a person reads them.

    >>> human_time(400), human_time(90_000), human_time(3 * 3_600_000)
    ('0.4 s', '1.5 min', '3.0 h')
    """
    days = 24 * 3_600_000
    for unit, name in ((2 * days, "days"), (3_600_000, "h"), (60_000, "min")):
        if milliseconds >= unit:
            return f"{milliseconds / (days if name == 'days' else unit):.1f} {name}"
    return f"{milliseconds / 1000:.{1 if milliseconds < 10_000 else 0}f} s"
