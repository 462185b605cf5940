"""What is wanted: which kernels of which data, with every option that changes their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from uuid import uuid4

import numpy as np

from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.factored import FactorKind
from gmkcf_dask.kernels.features import ArrayFeatures, Features, NoFeatures
from gmkcf_dask.kernels.specs import (
    NORMALIZATIONS,
    SCALINGS,
    FunctionKernel,
    GivenFactor,
    Heat,
    KernelSpec,
    Local,
    LocalSet,
    Normalization,
    Precomputed,
    Scaling,
    TileSpec,
    check_matrix,
    check_names,
    check_option,
    local_kernels_for,
)
from gmkcf_dask.kernels.statistics import refuse_extreme, refuse_tiny
from gmkcf_dask.kernels.tiles import ResolvedKernel, resolve_options
from gmkcf_dask.kernels.tiling import STORED_BYTES, Precision
from gmkcf_dask.store.factors import FactorRequest
from gmkcf_dask.store.manifest import (
    FactorOptions,
    FactorRecord,
    KernelRecord,
    Manifest,
    corpus_digests,
    factors_digest,
    matrices_digest,
    package_versions,
)

MAX_CLUSTERS = 50
"""Clusters that local kernels have columns for unless more are wanted."""


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
    max_clusters : int
        The largest number of clusters that local kernels have columns for.
    """

    corpus: Corpus | None
    specs: tuple[KernelSpec, ...]
    normalization: Normalization = "unit"
    scaling: Scaling = "minmax"
    precision: Precision = "float32"
    block: int | None = None
    merge_duplicates: float = 0.0
    max_clusters: int = MAX_CLUSTERS

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", self._expanded())
        if not 0.0 <= self.merge_duplicates < 1.0:
            raise InputError(
                f"merge_duplicates must be a tolerance from 0 to 1, not {self.merge_duplicates}"
            )
        check_option("normalization", self.normalization, NORMALIZATIONS)
        check_option("scaling", self.scaling, SCALINGS)
        check_option("precision", self.precision, tuple(STORED_BYTES))
        check_names(self.specs)
        if {"local", "heat"} <= set(self.factored.values()):
            raise InputError(
                "local_* and heat_* kernels have different neighbours: choose one of the two, or "
                "the set local, which suits the data"
            )
        if "heat" in self.factored.values() and not isinstance(
            None if self.corpus is None else self.corpus.X, np.ndarray
        ):
            raise InputError("heat_* kernels are for dense tables: choose local for other rows")
        for spec in self.precomputed:
            check_matrix(spec, self.n_samples)
        for given in self.given_factors:
            if given.factor.shape[0] != self.n_samples:
                raise InputError(
                    f"factor {given.name} has {given.factor.shape[0]} rows but there are "
                    f"{self.n_samples} samples: give one row per sample"
                )
        if self.corpus is not None and self.kernels:
            refuse_tiny(self.corpus.X, self.kernels, self.precision)
        if self.corpus is not None and {"local", "heat"} & set(self.factored.values()):
            refuse_extreme(self.corpus.X)
        if not self.kernels:
            self._refuse_tile_options()

    def _expanded(self) -> tuple[KernelSpec, ...]:
        """The specs, with the local kernels that suit the data for their set."""
        specs: list[KernelSpec] = []
        for spec in self.specs:
            if not isinstance(spec, LocalSet):
                specs.append(spec)
            elif self.corpus is None:
                raise InputError("local kernels are made from features: give features or texts")
            else:
                specs += local_kernels_for(self.corpus.X)
        return tuple(specs)

    def _refuse_tile_options(self) -> None:
        """Options of tiles have no meaning where all kernels are factored."""
        defaults = {"normalization": "unit", "scaling": "minmax", "merge_duplicates": 0.0}
        for name, default in defaults.items():
            if getattr(self, name) != default:
                raise InputError(
                    f"{name}={getattr(self, name)!r} has no meaning for the kernels "
                    f"{', '.join(spec.name for spec in self.specs)}: leave it out, or choose other "
                    "kernels such as paper12"
                )
        if self.precision == "compact":
            raise InputError(
                "precision='compact' is for kernels in tiles: leave it out, or choose other "
                "kernels such as paper12"
            )

    @property
    def n_samples(self) -> int:
        if self.corpus is not None:
            return self.corpus.n_samples
        first = self.specs[0]
        assert isinstance(first, Precomputed | GivenFactor)
        return int((first.matrix if isinstance(first, Precomputed) else first.factor).shape[0])

    @property
    def kernels(self) -> tuple[ResolvedKernel, ...]:
        """Kernels in tiles with their options, statistics not yet known."""
        return tuple(resolve_options(s, self.normalization, self.scaling) for s in self.tiled)

    @property
    def tiled(self) -> tuple[TileSpec, ...]:
        """Kernels whose entries are computed tile by tile."""
        return tuple(spec for spec in self.specs if isinstance(spec, TileSpec))

    @property
    def factored(self) -> dict[str, FactorKind]:
        """Factored kernels by name, and what kind of factor they have."""
        return factor_kinds(self.specs)

    @property
    def given_factors(self) -> tuple[GivenFactor, ...]:
        return tuple(spec for spec in self.specs if isinstance(spec, GivenFactor))

    @property
    def factors(self) -> FactorRequest:
        """The factored kernels, as they are built."""
        return FactorRequest(
            self.factored,
            0 if self.corpus is None else self.corpus.n_features,
            self.max_clusters,
            {spec.name: spec.factor for spec in self.given_factors},
        )

    @property
    def names(self) -> tuple[str, ...]:
        """All kernels, in the order of results: those in tiles first."""
        return (*(spec.name for spec in self.tiled), *self.factored)

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
        if self.given_factors:
            inputs["factors"] = factors_digest(self.given_factors)
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
            kernels=tuple(map(KernelRecord.of, self.kernels)),
            inputs=self.inputs,
            versions=package_versions(),
            tiles_done=(),
            stored_as=(),
            merge_tolerance=self.merge_duplicates,
            text_options=None if reading is None else reading.options,
            formulas=tuple(
                s.name for s in self.tiled if not isinstance(s, FunctionKernel | Precomputed)
            ),
            factored=tuple(FactorRecord(name, kind) for name, kind in self.factored.items()),
            factor_options=FactorOptions(self.max_clusters) if self.factored else None,
        )


def factor_kinds(specs: Sequence[KernelSpec]) -> dict[str, FactorKind]:
    """Factored kernels by name, and what kind of factor they have."""
    kinds: dict[type, FactorKind] = {Local: "local", Heat: "heat", GivenFactor: "given"}
    return {spec.name: kinds[type(spec)] for spec in specs if type(spec) in kinds}
