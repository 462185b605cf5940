"""Render job scripts and manifests from the templates of this folder."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import jinja2

# what a shell leaves as it is but for variables, which are filled in on the node
_SHELL_WORD = re.compile(r"[\w@%+=:,./~${}-]{1,500}")


def render(template: str, **values: Any) -> str:
    """The text of a template; a value that is missing is an error.

    Every value that a user gives goes through a filter: `shell` or `words` (one word or several of
    a shell), `assigned` (a word in which variables are filled in), `yaml` (a scalar of YAML).
    """
    return _ENVIRONMENT.get_template(template).render(values)


_ENVIRONMENT = jinja2.Environment(  # noqa: S701  # neither HTML nor XML
    loader=jinja2.PackageLoader("gmkcf_dask.cluster.submit"),
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {
    "shell": lambda value: shlex.quote(str(value)),
    "words": shlex.join,
    "assigned": lambda value: value if _SHELL_WORD.fullmatch(value) else shlex.quote(value),
    # a text of JSON is a text of YAML, too
    "yaml": lambda value: json.dumps(str(value), ensure_ascii=False),
}
