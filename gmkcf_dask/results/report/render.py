"""report.html: one page that needs nothing but itself.

Words, clusters and bars are in the page as it is written; scripts inside it add the map, the table
and the charts. What strangers wrote (titles, terms, names) is text everywhere: escaped by the
template, put in as text by the scripts, and a policy in the page lets nothing else run or load.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gmkcf_dask.results.report.data import embedded_data, json_in_html
from gmkcf_dask.results.report.words import view
from gmkcf_dask.results.run_folder import REPORT
from gmkcf_dask.results.schemas import Insight
from gmkcf_dask.store.files import make_folder, put_atomic

_SCRIPTS = ("base.js", "lines.js", "heat.js", "map.js", "table.js", "start.js")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def render_report(insight: Insight) -> str:
    """One self-contained page of HTML.

    It has no lone surrogates, so that UTF-8 can hold it, whatever the names of documents are.
    """
    style = _file("report.css")
    # the scripts as one that leaves no names behind
    parts = "\n".join(_file(name) for name in _SCRIPTS)
    script = f'(() => {{\n"use strict";\n{parts}\n}})();'
    page: str = _template().render(
        insight=insight,
        view=view(insight),
        style=Markup(style),  # noqa: S704 both are files of this package
        script=Markup(script),  # noqa: S704
        style_digest=_digest(style),
        script_digest=_digest(script),
        data=Markup(json_in_html(embedded_data(insight))),  # noqa: S704 escaped for this very use
    )
    return page


def write_report(folder: Path, insight: Insight, name: str = REPORT) -> Path:
    """Write the page into a run folder, whole or not at all, and return where it is."""
    make_folder(folder, "the report")
    path = folder / name
    put_atomic(path, render_report(insight).encode())
    return path


# the page


@cache
def _template() -> Any:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    return environment.from_string(_file("report.html.jinja"))


def _printable(value: Any) -> Any:
    """Text without what is in no file, or would be an error in HTML."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return _UNPRINTABLE.sub("\ufffd", value)


@cache
def _file(name: str) -> str:
    return (files("gmkcf_dask.results.report") / "page" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """As a policy names what may run: it is that, to the last byte, or nothing."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
