"""Rows of arrays that are read a block at a time: of mapped files, and of Zarr."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.corpus.limits import refuse_shape
from gmkcf_dask.corpus.matrices import read_npy_header
from gmkcf_dask.corpus.read import UNREADABLE
from gmkcf_dask.errors import GmkcfError, InputError


@dataclass(frozen=True)
class RowArray:
    """A matrix whose rows are read when they are wanted.

    Attributes
    ----------
    source : array
        Of NumPy, mapped from a file, or of Zarr.
    name : str
        What messages call it.
    """

    source: Any
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(int, self.source.shape))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What rows are read as: float32 stays, all else becomes float64."""
        return np.dtype("f4") if self.source.dtype == np.float32 else np.dtype("f8")

    def __getitem__(self, rows: slice) -> npt.NDArray[np.floating[Any]]:
        try:
            return np.ascontiguousarray(self.source[rows], self.dtype)
        except GmkcfError:
            raise
        except UNREADABLE as error:
            raise unreadable(self.name, error) from error


def is_row_array(given: object) -> bool:
    """Whether rows are to be read from a file: of a mapped array, or one of Zarr."""
    if isinstance(given, np.ndarray):
        return isinstance(given, np.memmap) or isinstance(given.base, np.memmap)
    return type(given).__module__.partition(".")[0] == "zarr" and hasattr(given, "shape")


def unreadable(name: str, error: BaseException) -> InputError:
    """The error for an array that cannot be read."""
    cause = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
    return InputError(f"{name} cannot be read ({cause}): check that it is complete")


def refuse_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Refuse what is no matrix of real numbers, or has more rows than could be used."""
    if dtype.kind not in "biuf":
        raise InputError(f"the array is not numeric (dtype {dtype}): save real numbers.")
    refuse_shape(shape)


def map_npy(path: Path) -> npt.NDArray[Any]:
    """The array of an .npy file, mapped; pickles are never loaded."""
    refuse_array(*read_npy_header(path))
    mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped
