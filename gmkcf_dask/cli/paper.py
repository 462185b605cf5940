"""Whether a store has the kernels that --paper is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gmkcf_dask.errors import InputError

if TYPE_CHECKING:
    from gmkcf_dask.store.kernel_store import KernelStore

PAPER_OPTIONS = {"normalization": "unit", "scaling": "minmax"}


def refuse_other_kernels(store: KernelStore) -> None:
    """Refuse a store whose kernels are not the twelve of the paper, made as there."""
    from gmkcf_dask.kernels.specs import PAPER12

    if store.kernel_names != tuple(spec.name for spec in PAPER12):
        raise InputError(
            f"{store.path} has the kernels {', '.join(store.kernel_names)}, not the twelve of the "
            "paper: build it with --paper, or leave --paper out"
        )
    different = [
        f"{name} {value} instead of {usual}"
        for name, usual in PAPER_OPTIONS.items()
        for value in dict.fromkeys(getattr(kernel, name) for kernel in store.manifest.kernels)
        if value != usual
    ]
    if different:
        raise InputError(
            f"{store.path} has the twelve kernels of the paper with {' and '.join(different)}: "
            "build it with --paper alone, or leave --paper out"
        )
