"""Secrets never leave: they are struck out of errors, printed addresses and result files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_WORDS = r"(?:key|secret|token|password)"
# of a storage account what stands before the @ is a container
_USER_INFO = re.compile(r"(?<=://)(?<!abfs://)[^\s/@]+@")
# name=value and name: value, also with a longer name such as aws_secret_access_key; words of a
# sentence ("turkey: check the path") and parts of paths ("runs/key=5") are none
_NAME = rf"(?<![\w/.\\-])(?:[\w-]*[_-]{_WORDS}|apikey|secret|token|password)['\"]?\s*(?:=\s*|:\s+)"
_KEY = r"(?<![\w/.\\-])key\s*=\s*|(?<=['\"])key['\"]\s*:\s*"
_ASSIGNED = re.compile(rf"(?i)({_NAME}|{_KEY})(['\"]?)([^\s'\"&;,]+)(?=['\"&;,\s]|$)")
_WORD_AT_END = re.compile(rf"(?i)(?:^|[_-]){_WORDS}s?$")


def without_user_info(text: str) -> str:
    """The text without user names and passwords inside URLs.

    >>> without_user_info("gmkcf plan x.npy --cluster tls://ann:pw@host:8786")
    'gmkcf plan x.npy --cluster tls://***@host:8786'
    >>> without_user_info("abfs://container@account/runs")
    'abfs://container@account/runs'
    """
    return _USER_INFO.sub(f"{HIDDEN}@", text)


def redacted(text: str) -> str:
    """The text without user-info of URLs and without values of keys, secrets, tokens, passwords.

    >>> redacted("tls://ann:pw@host:8786 with token=abc")
    'tls://***@host:8786 with token=***'
    """
    return _ASSIGNED.sub(rf"\1\2{HIDDEN}", without_user_info(text))


def redacted_tree(value: Any) -> Any:
    """The same for everything inside nested mappings and lists, before they become JSON.

    Only texts can be secrets: numbers under such a name are weights of a kernel called so.

    >>> redacted_tree({"store": "s3://a:b@c/d", "api_key": "x", "token": 0.5})
    {'store': 's3://***@c/d', 'api_key': '***', 'token': 0.5}
    """
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if _is_secret(name, held) else redacted_tree(held)
            for name, held in value.items()
        }
    if isinstance(value, list | tuple):
        return [redacted_tree(held) for held in value]
    return value


def _is_secret(name: object, held: object) -> bool:
    return isinstance(held, str) and bool(_WORD_AT_END.search(str(name)))
