"""What is wanted: which kernels of which data, with every option that changes their values."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from uuid import uuid4

import numpy as np

from gmkcf_dask.corpus.model import Corpus, Matrix, row_blocks
from gmkcf_dask.errors import DataWarning, InputError
from gmkcf_dask.kernels.factored import FOR_CLUSTERS, PRODUCTS, FactorKind
from gmkcf_dask.kernels.features import ArrayFeatures, Features, NoFeatures, squared_norms
from gmkcf_dask.kernels.gram import (
    GramMatrix,
    diagonal_values,
    gram_for,
    is_function_of_gram,
)
from gmkcf_dask.kernels.products import ProductKind, allow_products, possible_products
from gmkcf_dask.kernels.specs import (
    LAYOUTS,
    NORMALIZATIONS,
    SCALINGS,
    FunctionKernel,
    GivenFactor,
    Heat,
    KernelSpec,
    Layout,
    Local,
    LocalSet,
    Normalization,
    Precomputed,
    Scaling,
    TileSpec,
    check_matrix,
    check_names,
    check_option,
    is_thin,
    local_kernels_for,
)
from gmkcf_dask.kernels.statistics import refuse_extreme, refuse_tiny
from gmkcf_dask.kernels.tiles import ResolvedKernel, resolve_options
from gmkcf_dask.kernels.tiling import STORED_BYTES, Precision
from gmkcf_dask.store.factors import FactorRequest
from gmkcf_dask.store.manifest import (
    FactorOptions,
    FactorRecord,
    GramRecord,
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
    layout : {"each", "gram", "auto"}
        Whether kernels that are functions of inner products have an array each, or are evaluated
        from one for all of them; auto chooses that where there are several.
    products : bool
        Whether linear and cosine may be factored, see `kernels.products`; not in stores that have
        tiles of them.
    """

    corpus: Corpus | None
    specs: tuple[KernelSpec, ...]
    normalization: Normalization = "unit"
    scaling: Scaling = "minmax"
    precision: Precision = "float32"
    block: int | None = None
    merge_duplicates: float = 0.0
    max_clusters: int = MAX_CLUSTERS
    products: bool = True
    layout: Layout = "each"

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", self._expanded())
        if not 0.0 <= self.merge_duplicates < 1.0:
            raise InputError(
                f"merge_duplicates must be a tolerance from 0 to 1, not {self.merge_duplicates}"
            )
        check_option("normalization", self.normalization, NORMALIZATIONS)
        check_option("scaling", self.scaling, SCALINGS)
        check_option("precision", self.precision, tuple(STORED_BYTES))
        check_option("layout", self.layout, LAYOUTS)
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
        if self.layout == "gram":
            self._refuse_layout()
        for_tiles = tuple(spec for spec in self.specs if isinstance(spec, TileSpec))
        if self.corpus is not None and for_tiles:
            refuse_tiny(self.corpus.X, self._with_options(for_tiles), self.precision)
        if self.corpus is not None and {"local", "heat"} & set(self.factored.values()):
            refuse_extreme(self.corpus.X)
        if not for_tiles:
            self._refuse_tile_options()
        elif self.factored:
            self._tell_of_tile_options()

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

    def _refuse_layout(self) -> None:
        """Refuse layout gram where it cannot be had."""
        others = [spec.name for spec in self.tiled if not is_function_of_gram(spec)]
        if others:
            raise InputError(
                f"kernel {others[0]} is no function of inner products, and layout gram is for "
                "those alone: use layout auto, where it has tiles of its own"
            )
        if self.merge_duplicates:
            raise InputError(
                "merge_duplicates is for kernels in tiles of their own, and those of layout gram "
                "have none: leave it out, or use layout each"
            )

    def _tile_options(self) -> list[str]:
        """Options of tiles that change their values and are not at their defaults."""
        defaults = {
            "normalization": "unit",
            "scaling": "minmax",
            "merge_duplicates": 0.0,
            "precision": "float32",
        }
        given = {name: getattr(self, name) for name in defaults}
        return [f"{name}={given[name]!r}" for name in defaults if given[name] != defaults[name]]

    def _refuse_tile_options(self) -> None:
        """Options of tiles have no meaning where all kernels are factored."""
        others = [] if self.block is None else [f"block size {self.block}"]
        others += ["layout='gram'"] if self.layout == "gram" else []
        for option in (*self._tile_options(), *others):
            raise InputError(
                f"{option} has no meaning for the kernels {', '.join(self.names)}: leave it out, "
                "or choose other kernels such as paper12"
            )

    def _tell_of_tile_options(self) -> None:
        """Some kernels have such options and others do not."""
        given = self._tile_options()
        others = [name for name, kind in self.factored.items() if kind not in PRODUCTS]
        if given and others:
            own = ", ".join(name for name in self.names if name not in others)
            warnings.warn(
                f"{' and '.join(given)} is for {own} alone: {', '.join(others)} have no such "
                "option",
                DataWarning,
                stacklevel=4,
            )

    def for_clusters(self, n_clusters: int) -> KernelRequest:
        """The same with columns for so many clusters, if there are fewer."""
        if n_clusters <= self.max_clusters:
            return self
        return replace(self, max_clusters=n_clusters)

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
        return self._with_options(self.tiled)

    def _with_options(self, specs: Sequence[TileSpec]) -> tuple[ResolvedKernel, ...]:
        return tuple(resolve_options(s, self.normalization, self.scaling) for s in specs)

    @cached_property
    def _products(self) -> dict[str, ProductKind]:
        """Linear and cosine kernels that are factored, by name."""
        if self.corpus is None or not self.products:
            return {}
        kinds = possible_products(
            self.specs, self.normalization, self.precision, self.merge_duplicates
        )
        allowed = kinds and allow_products(self.corpus.X, tuple(kinds.values()), self.scaling)
        return kinds if allowed else {}

    @property
    def tiled(self) -> tuple[TileSpec, ...]:
        """Kernels whose entries are computed tile by tile."""
        tiles = (spec for spec in self.specs if isinstance(spec, TileSpec))
        return tuple(spec for spec in tiles if spec.name not in self._products)

    @cached_property
    def gram(self) -> GramMatrix | None:
        """What kernels are evaluated from; None where each has tiles of its own."""
        layout = "each" if self.merge_duplicates else self.layout
        X = None if self.corpus is None else self.corpus.X
        gram = gram_for(self.kernels, X, self.precision, layout)
        if gram is not None and X is not None:
            self._refuse_overflow(X)
        return gram

    def _refuse_overflow(self, X: Matrix) -> None:
        """Refuse kernels that a fit cannot hold; those in tiles are refused with their tiles."""
        kernels = [
            kernel
            for kernel in self.kernels
            if is_function_of_gram(kernel.spec) and kernel.normalization == kernel.scaling == "none"
        ]
        if not kernels:
            return
        wide = self.precision == "float64"
        limit = float(np.finfo(np.float64 if wide else np.float32).max)
        with np.errstate(over="ignore"):
            longest = np.array([max(squared_norms(X[rows]).max() for rows in row_blocks(X))])
            for kernel in kernels:
                # no entry is larger than the largest k(x,x)
                if not float(diagonal_values(kernel, longest, None)[0]) <= limit:
                    raise InputError(
                        f"kernel {kernel.name} overflows {self.precision}: scale the features "
                        f"down, or use normalization unit{'' if wide else ' or precision float64'}"
                    )

    @property
    def in_gram(self) -> tuple[TileSpec, ...]:
        """Kernels that are evaluated from the Gram matrix."""
        if self.gram is None:
            return ()
        return tuple(spec for spec in self.tiled if is_function_of_gram(spec))

    @property
    def factored(self) -> dict[str, FactorKind]:
        """Factored kernels by name, and what kind of factor they have."""
        return factor_kinds(self.specs, self._products)

    @property
    def limits_clusters(self) -> bool:
        """Whether the columns of a factor depend on the largest number of clusters."""
        return any(kind in FOR_CLUSTERS for kind in self.factored.values())

    def as_stored(self, manifest: Manifest) -> KernelRequest:
        """The same request for a store that may have tiles where a new one would have factors."""
        in_tiles = set(manifest.names) & set(self._products)
        changes: dict[str, Any] = {"products": False} if in_tiles else {}
        if self.layout == "auto" and not self.merge_duplicates:
            alone = all(map(is_function_of_gram, self.tiled))
            if manifest.gram is None:
                changes["layout"] = "each"
            elif alone:  # auto takes it for several only
                changes["layout"] = "gram"
        return replace(self, **changes) if changes else self

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
            factored=tuple(self._record(name, kind) for name, kind in self.factored.items()),
            factor_options=FactorOptions(self.max_clusters) if self.factored else None,
            gram=None if self.gram is None else GramRecord.of(self.gram),
        )

    def _record(self, name: str, kind: FactorKind) -> FactorRecord:
        if kind in PRODUCTS:
            return FactorRecord(name, kind, self.normalization, self.scaling)
        Z: Any = self.factors.given.get(name)
        return FactorRecord(name, kind, columns=int(Z.shape[1]) if is_thin(Z) else None)


def factor_kinds(
    specs: Sequence[KernelSpec], products: Mapping[str, ProductKind] | None = None
) -> dict[str, FactorKind]:
    """Factored kernels by name, and what kind of factor they have; `products` are those of X."""
    kinds: dict[type, FactorKind] = {Local: "local", Heat: "heat", GivenFactor: "given"}
    found: dict[str, FactorKind] = {}
    for spec in specs:
        if type(spec) in kinds:
            found[spec.name] = kinds[type(spec)]
        elif products and spec.name in products:
            found[spec.name] = products[spec.name]
    return found
