"""Every error and warning a user can meet, each with one clear sentence.

The sentence says what is wrong, where, and what to do; `exit_code` is the command line's.
"""

from __future__ import annotations

import re
import unicodedata
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


def visible(text: str, keep: str = "") -> str:
    r"""The text with every control, format and line-breaking character escaped, but those kept.

    These are all that Python does not print (ANSI escapes, new lines, bidirectional overrides,
    halves of characters); spaces of any width stay.

    >>> visible("a\x1b[2J\nb\u202e.txt")
    'a\\x1b[2J\\nb\\u202e.txt'
    """
    if text.isprintable():
        return text
    return "".join(
        c
        if c.isprintable() or c in keep or unicodedata.category(c) == "Zs"
        else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


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
            name: HIDDEN
            if isinstance(item, str) and _WORD_AT_END.search(str(name))
            else redacted_tree(item)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redacted_tree(item) for item in value]
    return value


class GmkcfError(Exception):
    r"""Base of all errors raised on purpose by this package.

    Secrets in the sentence are struck out, and control characters in it are escaped.

    >>> InputError("no answer from tcp://ann:pw@host:8786")
    InputError('no answer from tcp://***@host:8786')
    >>> print(InputError("there is no file a\x1b[2J.npy"))
    there is no file a\x1b[2J.npy
    """

    exit_code = 2

    def __init__(self, *sentence: object) -> None:
        super().__init__(
            *(visible(redacted(part)) if isinstance(part, str) else part for part in sentence)
        )


class InputError(GmkcfError, ValueError):
    """The input, an option or an output path cannot be used as it is."""


class HopelessError(GmkcfError):
    """The same run would end here again, however often: there is nothing to resume.

    Only this drops checkpoints. Whatever else ends a fit may be over the next time.
    """


class HopelessInputError(HopelessError, InputError):
    """Found while fitting: the kernels or options of this run cannot be used as they are."""


class DamagedCheckpointError(InputError):
    """What a checkpoint holds cannot be where a run like this one stood."""


class PlanRefused(GmkcfError, MemoryError):
    """The work does not fit the memory or disk it was given."""

    exit_code = 3


class DiskRefused(PlanRefused):
    """The work needs more disk than is free, which is known before it begins."""


class StoreError(GmkcfError, ValueError):
    """A store is incomplete, of another format, or made from other data or parameters."""


class DamagedStoreError(StoreError):
    """Part of a store is missing, unreadable, or not what was written."""

    exit_code = 4


class DamagedInputError(DamagedStoreError):
    """A description of the samples in a store is damaged; kernels do not depend on it."""


class StoreGoneError(DamagedStoreError):
    """A store was removed or replaced by another one while it was used."""


class DamagedModelError(DamagedStoreError):
    """Part of a saved model is missing, unreadable, or not what was written."""


class StoreBusyError(StoreError):
    """Somebody else writes into the store, or was killed while doing so."""

    exit_code = 6


class DiskFullError(GmkcfError, OSError):
    """The disk of a store has no room left; what is there is kept, and work can resume later."""

    exit_code = 3


class ScratchError(GmkcfError, OSError):
    """Fused kernels cannot be kept on disk now; the iterations until then are."""

    exit_code = 5


class StorageError(GmkcfError):
    """An object store does not answer, or not as it should; what is there is kept.

    Not an OSError on purpose: where one of these means that part of a store is damaged or missing,
    trouble on the way to it must not.
    """

    exit_code = 5


class StorageRefused(StorageError):
    """An object store does not know us, our rights or the bucket."""

    exit_code = 2


class NotPositiveError(HopelessError, ArithmeticError):
    """The objective fell below zero: the fused kernel is too far from positive semi-definite."""


class NumericsError(GmkcfError, ArithmeticError):
    """Numbers of a run are no longer finite."""


class ClusterError(GmkcfError, ConnectionError):
    """The Dask scheduler cannot be reached or used."""


class BlindWorkersError(ClusterError):
    """Workers do not see the store, or cannot write to it."""


class ClusterLost(ClusterError):
    """Workers or the scheduler were lost during work, more often than work is tried again."""

    exit_code = 5
    retries = 3
    """How often the work is tried again before this is told."""


class WorkersKilled(ClusterLost):
    """A task took one worker after the other with it."""

    retries = 1  # Dask itself has tried it on several workers by then


class ClusterStalled(ClusterLost):
    """No task has finished for too long."""

    retries = 0  # 1 where some workers still answer


class UnfitWorker(ClusterLost):
    """A worker that joined late cannot do this work; the others continue without it."""

    retries = 0  # with the same workers
    worker: str | None = None
    """Its address, where it is known."""


class CheckpointError(GmkcfError, OSError):
    """A checkpoint cannot be written; the one before it is whole."""

    exit_code = 5


class DataWarning(UserWarning):
    """The data has a property worth knowing (empty documents, say); work continues."""


class ClusterWarning(UserWarning):
    """The cluster changed during work; results are the same, costs may not be."""


class SecurityWarning(UserWarning):
    """A file that others must not read can be read by them; work continues."""


class NumericsWarning(UserWarning):
    """A numerical guard was needed; the result is defined, but worth a look."""


class WeakClustersWarning(UserWarning):
    """The clusters of a fit are barely more similar than random groups; its results are written."""


class StoreWarning(UserWarning):
    """A store was in a state worth knowing (a writer was killed, say); work continues."""
