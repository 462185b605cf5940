"""Secrets never leave: they are struck out of errors, printed addresses and result files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_WORDS = r"(?:key|secret|token|password)"
_USER_INFO = re.compile(r"(?<=://)[^\s/@]+@")
# name=value and name: value, also with a longer name such as aws_secret_access_key
_ASSIGNED = re.compile(
    rf"(?i)(\b[\w-]*{_WORDS}['\"]?\s*(?:=\s*|:\s+))(['\"]?)([^\s'\"&;,]+)(?=['\"&;,\s]|$)"
)
_WORD_AT_END = re.compile(rf"(?i)(?:^|[_-]){_WORDS}s?$")


def redacted(text: str) -> str:
    """The text without user-info of URLs and without values of keys, secrets, tokens, passwords.

    >>> redacted("tls://ann:pw@host:8786 with token=abc")
    'tls://***@host:8786 with token=***'
    """
    return _ASSIGNED.sub(rf"\1\2{HIDDEN}", _USER_INFO.sub(f"{HIDDEN}@", text))


def redacted_tree(value: Any) -> Any:
    """The same for everything inside nested mappings and lists, before they become JSON.

    >>> redacted_tree({"store": "s3://a:b@c/d", "api_key": 5, "kernel": "rbf_1"})
    {'store': 's3://***@c/d', 'api_key': '***', 'kernel': 'rbf_1'}
    """
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if _WORD_AT_END.search(str(name)) else redacted_tree(held)
            for name, held in value.items()
        }
    if isinstance(value, list | tuple):
        return [redacted_tree(held) for held in value]
    return value
