"""Where stores and runs lie: local paths, or prefixes of an object store given by URL.

All that is asked of an object store is here, a handful of calls of fsspec. Credentials and
endpoints come from the environment or from fsspec's own configuration files, never from a URL.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, cast
from urllib.parse import unquote

from gmkcf_dask.errors import InputError, StorageError, StorageRefused

_NEEDS = {
    "s3": ("s3fs", "pip install 'gmkcf-dask[s3]'"),
    "gs": ("gcsfs", "pip install gcsfs universal-pathlib"),
    "gcs": ("gcsfs", "pip install gcsfs universal-pathlib"),
    "az": ("adlfs", "pip install adlfs universal-pathlib"),
    "abfs": ("adlfs", "pip install adlfs universal-pathlib"),
    "memory": ("fsspec", "pip install fsspec universal-pathlib"),
}
"""By scheme, the package that knows it and how to get it."""
_LIBRARY_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("aiohttp", "ClientError"),
    ("http.client", "HTTPException"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("azure.core.exceptions", "AzureError"),
)
"""What these packages raise beside OSError."""
_NO_BUCKET = "NoSuchBucket"
_ATTEMPTS = 4  # of one request, by botocore, with growing pauses
_ROUNDS = 2  # of these, by s3fs
AHEAD_REQUESTS = 64
"""Requests for tiles that one process has in flight at most, ahead of their use."""
_CONNECTIONS = AHEAD_REQUESTS + 32  # and one for each thread that reads or writes something else


def location(given: str | os.PathLike[str]) -> Path:
    """A path of this machine, or of an object store where a URL was given.

    What is returned for a URL is not a `pathlib.Path` but has its ways of making other paths; what
    is there is for `files` to find out.

    >>> location("runs/1"), location("file:///srv/runs/1")
    (PosixPath('runs/1'), PosixPath('/srv/runs/1'))
    """
    if not is_location(given):
        spelled = os.fspath(given) if isinstance(given, os.PathLike) else None
        if not isinstance(spelled, str):
            raise InputError(f"{given!r} is not a path: give a path or a URL as str")
        return location(spelled)
    if isinstance(given, Path):
        if given.parts and given.parts[0].removesuffix(":") in _NEEDS and given.parts[0][-1] == ":":
            raise InputError(
                f"{given} was a URL before it became a path, which takes a slash away: give it as "
                "text"
            )
        return given
    if getattr(given, "storage_options", None):
        raise InputError(
            f"{given} carries options of its own: give the URL alone, and options and credentials "
            "through the environment or fsspec's configuration, where workers find them too"
        )
    text = str(given)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Path(text)
    if scheme == "file":
        if not rest.startswith("/"):
            raise InputError(f"{text} names a host: give file:///PATH, or the path alone")
        return Path(unquote(rest))
    if scheme not in _NEEDS:
        raise InputError(
            f"{text}: stores and runs can be on local paths and at s3://, gs://, az:// or abfs:// "
            f"addresses, not at {scheme}://"
        )
    rest = rest.rstrip("/")
    parts = rest.split("/")
    if "@" in parts[0] and scheme != "abfs":
        raise InputError(
            f"{text} holds credentials: give them through the environment or fsspec's "
            "configuration instead"
        )
    if len(parts) < 2 or {"", ".", ".."} & set(parts) or set(rest) & set("?#*[]\\\n\r"):
        raise InputError(
            f"{text} cannot be the place of a store or a run: give {scheme}://BUCKET/NAME, without "
            "empty names, dots alone, or any of ? # * [ ] \\"
        )
    _require(scheme)
    from upath import UPath

    return cast(Path, UPath(f"{scheme}://{rest}"))


def is_location(value: object) -> bool:
    """Whether a value is a path or a URL, as text or as an object."""
    return isinstance(value, str | PurePath) or type(value).__module__.partition(".")[0] == "upath"


def is_remote(path: str | Path) -> bool:
    """Whether a location is in an object store."""
    return "://" in path if isinstance(path, str) else not isinstance(path, PurePath)


def _require(scheme: str) -> None:
    package, install = _NEEDS[scheme]
    for name in (package, "upath"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise InputError(f"{scheme}:// addresses need {name}: {install}") from error


# the file system


def filesystem(path: str | Path, *, asynchronous: bool = False) -> Any:
    """The fsspec file system of a remote location, one for all threads of this process.

    fsspec itself would make one, and open connections, for every thread.
    """
    scheme = str(path).partition("://")[0]
    return _filesystem(scheme, asynchronous, os.getpid())


@lru_cache(maxsize=16)
def _filesystem(scheme: str, asynchronous: bool, pid: int) -> Any:
    import fsspec
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    # a listing that is remembered would hide what others wrote meanwhile
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    if scheme == "s3":
        options |= _s3_options(fsspec.config.conf.get("s3", {}))
    plain = not fsspec.get_filesystem_class(scheme).async_impl
    if asynchronous and not plain:
        options["asynchronous"] = True
    fs = fsspec.filesystem(scheme, **options)
    if scheme == "s3":
        # it repeats what botocore repeated, and reading a body repeats both: bounded to minutes
        fs.retries = _ROUNDS
    if asynchronous and plain:
        return AsyncFileSystemWrapper(fs, asynchronous=True)
    return fs


def _s3_options(configured: dict[str, Any]) -> dict[str, Any]:
    """Options of s3fs, given its part of fsspec's configuration."""
    from aiobotocore.session import AioSession
    from botocore.handlers import add_expect_header

    session = AioSession(profile=configured.get("profile"))
    # aiohttp waits for a "100 Continue" without end, whatever the time limits are
    session.unregister("before-call.s3", add_expect_header)
    retries = {"mode": "standard", "total_max_attempts": _ATTEMPTS}
    return {
        "session": session,
        "config_kwargs": {
            "retries": retries,
            "max_pool_connections": _CONNECTIONS,  # botocore's own limit is 10
            **configured.get("config_kwargs", {}),
        },
        "max_concurrency": 1,  # else every GET is preceded by a HEAD
    }


@contextmanager
def remote_errors(path: str | Path) -> Iterator[None]:
    """Trouble with an object store in one sentence; nothing for local paths.

    What is not there stays a FileNotFoundError, what is there already a FileExistsError.
    """
    if not is_remote(path):
        yield
        return
    try:
        yield
    except FileNotFoundError as error:
        if _code(error) == _NO_BUCKET:
            raise StorageRefused(f"the bucket of {path} does not exist: check the URL") from error
        raise
    except (FileExistsError, IsADirectoryError, NotADirectoryError):
        raise
    except PermissionError as error:
        raise StorageRefused(
            f"no permission to use {path} ({_short(error)}): check the credentials"
        ) from error
    except _trouble() as error:
        if "Credential" in type(error).__name__ or "Token" in type(error).__name__:
            raise StorageRefused(
                f"there are no credentials for {path} ({_short(error)}): set them in the "
                "environment, on workers too, or in fsspec's configuration"
            ) from error
        raise StorageError(
            f"the object store does not answer for {path} after several attempts "
            f"({_short(error)}): what is stored is kept, run the same command again later"
        ) from error


def _trouble() -> tuple[type[Exception], ...]:
    """What the packages that are loaded raise."""
    loaded = [(sys.modules[m], name) for m, name in _LIBRARY_ERRORS if m in sys.modules]
    return (OSError, *(getattr(module, name) for module, name in loaded))


def _short(error: BaseException) -> str:
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    return (text if len(text) <= 160 else f"{text[:157]}...") or type(error).__name__


# objects

_OTHER_THERE = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
"""How S3 says that a condition does not hold, or that somebody else is writing right now."""


def put_object(path: str | Path, content: bytes) -> None:
    """Write an object: a reader sees the old one or the new one, never a part."""
    with remote_errors(path):
        filesystem(path).pipe_file(str(path), content)


def put_new_object(path: Path, content: bytes) -> bool:
    """Write an object unless there is one already, which the object store itself decides."""
    with remote_errors(path):
        try:
            filesystem(path).pipe_file(str(path), content, mode="create")
        except FileExistsError:
            return False
        except OSError as error:  # not every server says which condition did not hold
            if _code(error) in _OTHER_THERE:
                return False
            raise
    return True


def put_same_object(path: Path, content: bytes, tag: str) -> bool:
    """Replace an object if it still is the one whose tag was seen.

    On S3 the object store itself decides; elsewhere there is a moment between looking and writing.
    """
    fs = filesystem(path)
    try:
        with remote_errors(path):
            if str(path).startswith("s3://"):
                fs.pipe_file(str(path), content, IfMatch=tag)
            elif object_tag(path) == tag:
                fs.pipe_file(str(path), content)
            else:
                return False
    except FileNotFoundError:
        return False
    except StorageError as error:
        if _code(error) in _OTHER_THERE:
            return False
        raise
    return True


def object_tag(path: Path) -> str:
    """What changes whenever an object is written anew."""
    with remote_errors(path):
        fs = filesystem(path)
        return str(fs.info(str(path)).get("ETag") or fs.ukey(str(path)))


def get_object(path: str | Path, most: int) -> bytes:
    """An object of at most so many bytes, with one request.

    Raises a FileNotFoundError where it is not there, a ValueError where it has more bytes.
    """
    return _received(
        path, most, lambda: filesystem(path).cat_file(str(path), start=0, end=most + 1)
    )


def request_object(path: str, most: int) -> Future[bytes] | None:
    """Begin to fetch an object of at most so many bytes; `requested_object` waits for it.

    Cancelling drops the request. None where the file system is not asynchronous.
    """
    fs = filesystem(path)
    if not fs.async_impl:
        return None
    fetch = fs._cat_file(path, start=0, end=most + 1)
    return asyncio.run_coroutine_threadsafe(fetch, fs.loop)


def requested_object(path: str, most: int, request: Future[bytes] | None) -> bytes:
    """What `get_object` returns or raises, from a request that was made before, if there is one."""
    return get_object(path, most) if request is None else _received(path, most, request.result)


def _received(path: str | Path, most: int, receive: Callable[[], Any]) -> bytes:
    try:
        with remote_errors(path):
            content = receive()
    except StorageError as error:
        if _code(error) in _EMPTY:
            return b""
        raise
    if len(content) > most:
        raise ValueError(f"more than {most:,} bytes are too many for it")
    return bytes(content)


def find_objects(paths: Sequence[str | Path], most: int) -> list[bytes | None]:
    """Several objects at once, None for each that is not there.

    Of one with more than `most` bytes there is one byte more than that, and no end.
    """
    if not paths:
        return []
    with remote_errors(paths[0]):
        answers = filesystem(paths[0]).cat_ranges(
            [str(path) for path in paths],
            [0] * len(paths),
            [most + 1] * len(paths),
            on_error="return",
        )
    return [_content(path, answer) for path, answer in zip(paths, answers, strict=True)]


def _content(path: str | Path, answer: Any) -> bytes | None:
    if not isinstance(answer, BaseException):
        return bytes(answer)
    if _code(answer) in _EMPTY:
        return b""
    try:
        with remote_errors(path):
            raise answer
    except FileNotFoundError:
        return None


_EMPTY = ("InvalidRange", "416")
"""How S3 tells of an empty object: there are no bytes from the first one on."""


def _code(error: BaseException | None) -> str:
    """What S3 calls an error, at the bottom of the chain of its causes."""
    code = ""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            code = str(response.get("Error", {}).get("Code", ""))
        error = error.__cause__
    return code


def object_size(path: str | Path) -> int | None:
    """Bytes of an object; None where there is none, a prefix of others included."""
    info = _info(path)
    return None if info is None or info["type"] != "file" else int(info["size"])


def anything_at(path: Path) -> bool:
    """Whether there is an object, or others below it."""
    return _info(path) is not None


def _info(path: str | Path) -> dict[str, Any] | None:
    with remote_errors(path):
        try:
            return cast(dict[str, Any], filesystem(path).info(str(path)))
        except FileNotFoundError as error:
            if _code(error) == _NO_BUCKET:
                raise
            return None


def modified(path: Path) -> float:
    """When an object was written, by the object store's clock, in seconds."""
    with remote_errors(path):
        return float(filesystem(path).modified(str(path)).timestamp())


def names_below(path: Path) -> list[str]:
    """Names directly below a prefix; one request for every thousand of them."""
    with remote_errors(path):
        fs = filesystem(path)
        own = fs._strip_protocol(str(path))
        try:
            names = fs.ls(str(path), detail=False)
        except FileNotFoundError as error:
            if _code(error) == _NO_BUCKET:
                raise
            return []
    return [name.rstrip("/").rpartition("/")[2] for name in names if name.rstrip("/") != own]


def sizes_below(path: Path) -> dict[str, int]:
    """Bytes of every object below a prefix by its path from there; as many requests as that."""
    with remote_errors(path):
        fs = filesystem(path)
        own = fs._strip_protocol(str(path)) + "/"
        objects = fs.find(str(path), detail=True)
    return {name.removeprefix(own): int(i["size"]) for name, i in objects.items() if name != own}


def delete_objects(paths: Sequence[Path]) -> None:
    """Delete objects, a thousand with one request; those that are not there are no matter."""
    if not paths:
        return
    with remote_errors(paths[0]):
        fs = filesystem(paths[0])
        if len(paths) == 1 or not str(paths[0]).startswith("s3://"):
            for path in paths:
                try:
                    fs.rm_file(str(path))
                except FileNotFoundError as error:
                    if _code(error) == _NO_BUCKET:
                        raise
        else:
            fs.rm([str(path) for path in paths])  # says nothing of those it was refused
