"""What is wanted: which kernels of which data, with every option that changes their values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from uuid import uuid4

from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.features import ArrayFeatures, Features, NoFeatures
from gmkcf_dask.kernels.specs import (
    NORMALIZATIONS,
    SCALINGS,
    FunctionKernel,
    KernelSpec,
    Normalization,
    Precomputed,
    Scaling,
    check_matrix,
    check_names,
    check_option,
)
from gmkcf_dask.kernels.statistics import refuse_tiny
from gmkcf_dask.kernels.tiles import ResolvedKernel, resolve_options
from gmkcf_dask.kernels.tiling import STORED_BYTES, Precision
from gmkcf_dask.store.kernel_store import records
from gmkcf_dask.store.manifest import Manifest, corpus_digests, matrices_digest, package_versions


@dataclass(frozen=True)
class KernelRequest:
    """Which kernels are wanted of which data, with every option that changes their values.

    Parameters
    ----------
    corpus : Corpus or None
        None where every kernel is precomputed.
    specs : tuple of KernelSpec
    block : int or None
        Tile edge; None leaves the choice to the plan, and lets any existing store do.
    merge_duplicates : float
        Kernels of a store that differ nowhere by more than this share their tiles.
    """

    corpus: Corpus | None
    specs: tuple[KernelSpec, ...]
    normalization: Normalization = "unit"
    scaling: Scaling = "minmax"
    precision: Precision = "float32"
    block: int | None = None
    merge_duplicates: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.merge_duplicates < 1.0:
            raise InputError(
                f"merge_duplicates must be a tolerance from 0 to 1, not {self.merge_duplicates}"
            )
        check_option("normalization", self.normalization, NORMALIZATIONS)
        check_option("scaling", self.scaling, SCALINGS)
        check_option("precision", self.precision, tuple(STORED_BYTES))
        check_names(self.specs)
        for spec in self.precomputed:
            check_matrix(spec, self.n_samples)
        if self.corpus is not None:
            refuse_tiny(self.corpus.X, self.kernels, self.precision)

    @property
    def n_samples(self) -> int:
        if self.corpus is not None:
            return self.corpus.n_samples
        first = self.specs[0]
        assert isinstance(first, Precomputed)
        return int(first.matrix.shape[0])

    @property
    def kernels(self) -> tuple[ResolvedKernel, ...]:
        """Kernels with their options, statistics not yet known."""
        return tuple(resolve_options(s, self.normalization, self.scaling) for s in self.specs)

    @property
    def features(self) -> Features:
        if self.corpus is None:
            return NoFeatures(self.n_samples)
        return ArrayFeatures(self.corpus.X)

    @property
    def precomputed(self) -> tuple[Precomputed, ...]:
        return tuple(spec for spec in self.specs if isinstance(spec, Precomputed))

    @cached_property
    def inputs(self) -> dict[str, str]:
        """Digests of all that comes in."""
        inputs = {} if self.corpus is None else corpus_digests(self.corpus)
        if self.precomputed:
            inputs["precomputed kernels"] = matrices_digest(self.precomputed)
        return inputs

    def manifest(self, block: int) -> Manifest:
        """The manifest of a new store for this request."""
        reading = None if self.corpus is None else self.corpus.reading
        return Manifest(
            store_id=uuid4().hex,
            n_samples=self.n_samples,
            n_features=0 if self.corpus is None else self.corpus.n_features,
            block_size=block,
            precision=self.precision,
            kernels=records(self.kernels),
            inputs=self.inputs,
            versions=package_versions(),
            tiles_done=(),
            stored_as=(),
            merge_tolerance=self.merge_duplicates,
            text_options=None if reading is None else reading.options,
            formulas=tuple(
                s.name for s in self.specs if not isinstance(s, FunctionKernel | Precomputed)
            ),
        )
