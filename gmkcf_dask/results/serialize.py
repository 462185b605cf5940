"""Trees of numbers, strings and arrays as two files: JSON, and an npz file of the arrays.

Nothing is ever pickled, and no array is believed to be larger than the file that holds it.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import tokenize
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_ARRAY = "array:"
DAMAGE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    EOFError,
    OSError,
    RecursionError,
    NotImplementedError,  # parts of zip that Python does not read
    SyntaxError,  # this and the next from headers of arrays
    tokenize.TokenError,
    zipfile.BadZipFile,
)
"""What reading a file that is not as it was written can end in."""


def read_arrays(content: bytes) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an npz file that was written without compression."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        # stored as they are, so no array can be larger than the file that claims to hold it
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or _claimed(archive, entry) > len(content):
                raise ValueError("its arrays are larger than their file")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _claimed(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    """Bytes an array says it has."""
    with archive.open(entry) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("its arrays have another format")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return math.prod(shape) * int(dtype.itemsize)


def pack(value: Any, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    """A tree that JSON can hold; arrays are put aside under a name."""

    def put_aside(array: npt.NDArray[Any]) -> str:
        name = f"a{len(arrays)}"
        arrays[name] = array
        return _ARRAY + name

    return _json_tree(value, put_aside)


def jsonable(value: Any) -> Any:
    """A tree as JSON would give it back; arrays by their shape and digest."""
    return _json_tree(
        value, lambda array: f"{array.shape} {digest(np.ascontiguousarray(array).tobytes())}"
    )


def _json_tree(value: Any, of_array: Callable[[npt.NDArray[Any]], str]) -> Any:
    if isinstance(value, np.ndarray):
        return of_array(value)
    if isinstance(value, Mapping):
        return {str(key): _json_tree(part, of_array) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json_tree(part, of_array) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def unpack(value: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """The tree again; tuples have become lists."""
    if isinstance(value, str) and value.startswith(_ARRAY):
        return arrays[value.removeprefix(_ARRAY)]
    if isinstance(value, dict):
        return {key: unpack(part, arrays) for key, part in value.items()}
    if isinstance(value, list):
        return [unpack(part, arrays) for part in value]
    return value


def dump(body: Mapping[str, Any]) -> bytes:
    """As JSON."""
    # the same text for the same content, so that a digest can be taken again
    return json.dumps(body, indent=1, sort_keys=True).encode()


def seal(body: Mapping[str, Any]) -> bytes:
    """As JSON with its digest."""
    return dump({"digest": digest(dump(body)), **body})


def check_seal(body: dict[str, Any], message: str) -> None:
    """Take the digest off a sealed body; ValueError with the message where it does not match."""
    if body.pop("digest") != digest(dump(body)):
        raise ValueError(message)


def digest(content: bytes) -> str:
    """Of the content of a file."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def short_error(error: Exception) -> str:
    """An error in a few words: those of archives can quote whole files."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 100 else f"{text[:97]}..."
