"""Repair of a store: exactly what is damaged is computed again.

Kernels come from the features inside the store; the inputs themselves from the corpus, where a
build has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from gmkcf_dask.compute.build_tasks import run_batches, sweep_tiles
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.errors import DamagedStoreError, StoreGoneError
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.kernels.duplicates import DuplicateCandidates
from gmkcf_dask.kernels.factored import is_given
from gmkcf_dask.kernels.features import Features, NoFeatures
from gmkcf_dask.kernels.gram import GRAM, row_vectors
from gmkcf_dask.kernels.specs import KernelSpec, parse_kernel
from gmkcf_dask.kernels.statistics import GatherRowSums
from gmkcf_dask.store.digests import GRAM_TOLERANCE, TOLERANCE, Summary, TileTable
from gmkcf_dask.store.factors import FactorRequest, StoreArrays, bad_blocks, factor_stages
from gmkcf_dask.store.features import open_array, write_metadata
from gmkcf_dask.store.files import exists, is_file, put_atomic, remove, remove_tree
from gmkcf_dask.store.kernel_store import KernelStore, write_inputs
from gmkcf_dask.store.layout import METADATA, expected_metadata
from gmkcf_dask.store.lock import LockInfo, confirm, writing
from gmkcf_dask.store.manifest import (
    SUMMARY_BYTES,
    build_command,
    factors_command,
    package_versions,
    vector_digest,
)
from gmkcf_dask.store.object_storage import is_remote
from gmkcf_dask.store.preflight import refuse_blind_workers
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.scratch import sweep_scratch
from gmkcf_dask.store.tile_tasks import (
    WriteTiles,
    for_tasks,
    made_diagonal,
    resolved_kernels,
    write_diagonals,
)
from gmkcf_dask.store.verify import (
    Damage,
    features_hold,
    find_bad_tiles,
    find_damage,
    find_damage_beside_tiles,
    open_unchecked,
    summarize_tiles,
)
from gmkcf_dask.system.arrays import Floats
from gmkcf_dask.system.disk_space import disk_full_errors


@dataclass(frozen=True)
class Repair:
    """The damage of a store, and the store after its repair."""

    damage: Damage
    left: tuple[str, ...]
    """What could not be repaired, and why, one sentence each."""
    changed: int
    """Tiles that were made again but not to the same bits: other versions of the libraries or
    another kind of processor round differently."""
    lines: tuple[str, ...]
    """The damage in words."""
    store: KernelStore


def repair_store(
    path: Path, runner: Runner, listen: Listener = ignore, *, force: bool = False
) -> Repair:
    """Find all damage of a finished store and repair what can be repaired.

    `force` takes over the lock of a writer that is gone.
    """
    open_unchecked(path)  # where there is nothing to repair nothing is written, not even a lock
    advice = "make room and run the same command again"
    with disk_full_errors(path, advice), writing(path, force=force) as lock:
        # only now: until the lock was had somebody may have put another store there
        open_array.cache_clear()
        store = open_unchecked(path)
        sweep_scratch(path)
        refuse_blind_workers(runner, store.path, store.manifest.store_id, write=True)
        damage = find_damage(store, runner, listen)
        if not damage:
            return Repair(damage, (), 0, (), store)
        return repair_damage(store, damage, runner, listen, lock)


def repair_damage(
    store: KernelStore,
    damage: Damage,
    runner: Runner,
    listen: Listener,
    lock: LockInfo,
    request: KernelRequest | None = None,
) -> Repair:
    """Repair what can be repaired, and look whether it is.

    Parameters
    ----------
    request : KernelRequest, optional
        What the store was made from: then inputs are written again, what stores of an earlier
        format lack is added, and kernels that were passed in can be made again.
    """
    lines = tuple(damage.lines(store.manifest))
    left: list[str] = []
    confirm(store.path, lock)
    clear_places(store, damage)
    rewrite_metadata(store, damage)
    store, inputs = rewrite_inputs(store, damage, request, left)
    work = _Repairing(store, damage, runner, lock, request, inputs, left)
    work.repair_factors(listen)
    work.repair_norms()
    changed = work.repair_tiles(listen)
    work.repair_diagonals()
    if request is not None and not left:
        work.add_summaries()
    if not left:
        left += work.still_damaged()
    return Repair(damage, tuple(left), changed, lines, work.store)


def clear_places(store: KernelStore, damage: Damage) -> None:
    """Remove folders in the place of files, and files in the place of folders."""
    if is_remote(store.path):
        return
    reader = store.reader
    files = [store.path / bad.where / METADATA for bad in damage.metadata]
    files += [store.path / f"{name}.json" for name in damage.inputs]
    files += [Path(reader.file(bad.array, bad.t)) for bad in damage.tiles]
    for vector in damage.vectors:
        chunks = store.path / vector / "c"
        for folder in (chunks.parent.parent, chunks.parent):
            if is_file(folder):
                remove(folder)
        files += list(chunks.iterdir()) if chunks.is_dir() else []
    for file in files:
        for folder in reversed(file.parents[: len(file.relative_to(store.path).parts) - 1]):
            if is_file(folder):
                remove(folder)
        if file.is_dir():
            remove_tree(file, store.path)
    for vector in damage.vectors:
        if is_file(store.path / vector / "c"):
            remove(store.path / vector / "c")


def rewrite_inputs(
    store: KernelStore, damage: Damage, request: KernelRequest | None, left: list[str]
) -> tuple[KernelStore, tuple[str, ...]]:
    """Write damaged inputs again; returns those that are left."""
    wanted = list(damage.inputs)
    corpus = None if request is None else request.corpus
    if corpus is None:
        # whose zarr.json alone was damaged are whole again
        if "features" in wanted and store.manifest.features and features_hold(store):
            wanted.remove("features")
        # that there are no labels, say, is known without the input
        for name in wanted:
            if store.manifest.inputs.get(name) == "none":
                put_atomic(store.path / f"{name}.json", b"null")
        wanted = [name for name in wanted if store.manifest.inputs.get(name) != "none"]
        left += [
            f"{name} of the samples cannot be restored from the store: write them again from the "
            f"input with {build_command(store.path)}"
            for name in wanted
        ]
        return store, tuple(wanted)
    if not store.manifest.features and "features" not in wanted:
        wanted.append("features")  # of an earlier format: now with digests
    if not wanted:
        return store, ()
    if "features" in wanted and not is_remote(store.path):
        features = store.path / "features"
        if is_file(features):
            remove(features)
        remove_tree(features, store.path)
    manifest = write_inputs(store.path, store.manifest, corpus, wanted)
    manifest.write(store.path)
    open_array.cache_clear()
    return replace(store, manifest=manifest), ()


def rewrite_metadata(store: KernelStore, damage: Damage) -> None:
    """Write every zarr.json that is damaged, and its folder, as it has to be.

    Features without a chunk are left: only the input can bring them back.
    """
    expected = dict(expected_metadata(store.path, store.manifest))
    for bad in damage.metadata:
        if bad.where.startswith("features/") and not (
            # in format 3 the shape of features is not known
            store.manifest.features and exists(store.path / bad.where / "c")
        ):
            continue
        if bad.where in expected:
            write_metadata(store.path, bad.where, expected[bad.where])
    open_array.cache_clear()


@dataclass
class _Repairing:
    """Repair of kernels and vectors, from what they can be made from again."""

    store: KernelStore
    damage: Damage
    runner: Runner
    lock: LockInfo
    request: KernelRequest | None
    damaged_inputs: tuple[str, ...]
    """Inputs that are not what was written, and could not be written again."""
    left: list[str]
    """What could not be repaired, and why, one sentence each."""
    untrusted: set[str] = field(default_factory=set)
    """Norms that could not be repaired."""

    def __post_init__(self) -> None:
        if self.request is not None and self.request.precomputed:
            # matrices that were passed in live in this process, and so do their tasks
            self.task_runner = Runner(n_threads=self.runner.n_threads)
        else:
            self.task_runner = self.runner

    @property
    def specs(self) -> dict[str, KernelSpec]:
        """Kernels that can be computed, by name: formulas, or whatever was requested."""
        if self.request is not None:
            return {spec.name: spec for spec in self.request.tiled}
        return {name: parse_kernel(name) for name in self.store.manifest.formulas}

    @property
    def features(self) -> Features:
        if self.request is not None and self.request.corpus is None:
            return self.request.features
        if not self.store.manifest.n_features:
            return NoFeatures(self.store.n_samples)
        return self.store.features()

    def not_computable(self, array: str) -> str:
        """Why an array cannot be computed again, as the end of a sentence; empty where it can."""
        if array != GRAM and array not in self.specs:
            return (
                "cannot be computed again, because a matrix or function that was passed in is not "
                f"in the store: {self.rebuild_advice()}"
            )
        if "features" in self.damaged_inputs:
            command = build_command(self.store.path)
            return f"cannot be computed again without the features: run {command}"
        return ""

    def rebuild_advice(self) -> str:
        return f"remove {self.store.path} and build it again"

    def may_replace(self, old: bytes | None, new: bytes, size: int, tolerance: float) -> bool:
        """Whether values of other bits may stand for those they replace.

        All inputs must be what was written, and the summaries must agree. A store of an earlier
        format has none: there the input itself, in the hands of a build, must do.
        """
        if self.damaged_inputs or self.untrusted:
            return False
        if old is None:
            return self.request is not None
        return Summary.from_bytes(new).agrees(Summary.from_bytes(old), size, tolerance)

    def not_accepted(self) -> str:
        """Why values that were made again are not accepted, and what to do."""
        refused = "were computed again with other bits than before and not accepted"
        if self.damaged_inputs or self.untrusted or not self.store.manifest.tile_summaries:
            command = build_command(self.store.path)
            return f"{refused}, because not all inputs can be checked: run {command}"
        return (
            f"{refused}, because their statistics differ too: the libraries or the processor here "
            "compute something else, so build a new store at another path"
        )

    def repair_factors(self, listen: Listener) -> None:
        """Blocks of factored kernels again, by the stages that made them."""
        m = self.store.manifest
        if not self.damage.blocks:
            return
        if "features" in self.damaged_inputs:
            command = build_command(self.store.path)
            self.left.append(
                f"factors cannot be computed again without the features: run {command}"
            )
            return
        if self.request is not None:
            request = self.request.factors
        else:
            given = {name for name, _ in self.damage.blocks if is_given(name)}
            self.left += [
                f"factors/{name} was passed in and cannot be computed again: run "
                f"{factors_command(self.store.path)}"
                for name in sorted(given)
            ]
            if all(name in given for name, _ in self.damage.blocks):
                return
            assert m.factor_options is not None
            kinds = {r.name: r.kind for r in m.factored if r.kind != "given"}
            request = FactorRequest(kinds, m.n_features, m.factor_options.max_clusters)
        arrays = StoreArrays(
            self.store, self.task_runner, lambda: confirm(self.store.path, self.lock)
        )
        arrays.build(factor_stages(request, self.features, arrays), listen)
        self.store = arrays.store

    def repair_gram_rows(self) -> None:
        """Lengths of the samples, again from the features."""
        wanted = [where for where in self.damage.vectors if where.startswith("gram_rows/")]
        if not wanted:
            return
        if why := self.not_computable(GRAM):
            self.left += [f"{where} {why}" for where in wanted]
            return
        vectors = row_vectors(self.features)
        repaired = {w: vectors[w] for w in wanted if self._is_the_vector(w, vectors[w])}
        self.left += [f"{where} {self.not_accepted()}" for where in wanted if where not in repaired]
        confirm(self.store.path, self.lock)
        self.store.write_new_vectors(repaired)
        open_array.cache_clear()
        self._keep_vectors(repaired)

    def repair_norms(self) -> None:
        """Row sums of kernels normalised by degree, again by the sweep that made them."""
        self.repair_gram_rows()
        store, computable = self.store, set()
        for where in self.damage.vectors:
            folder, _, name = where.partition("/")
            if folder != "norms":
                continue
            if why := self.not_computable(name):
                self.left.append(f"{where} {why}")
                self.untrusted.add(name)
            else:
                computable.add(name)
        if not computable:
            return
        kernels = resolved_kernels(store, self.specs.values())
        gather = GatherRowSums(kernels)
        stats = sweep_tiles(gather, self.features, store.tiling, self.task_runner)
        repaired = {}
        for kernel, values in zip(kernels, stats.all_row_sums(), strict=True):
            name = kernel.name
            if name in computable and self._is_the_vector(f"norms/{name}", values):
                repaired[name] = values
            elif name in computable:
                self.left.append(f"norms/{name} {self.not_accepted()}")
                self.untrusted.add(name)
        confirm(store.path, self.lock)
        vectors = {f"norms/{name}": values for name, values in repaired.items()}
        store.write_new_vectors(vectors)
        open_array.cache_clear()
        self._keep_vectors(vectors)

    def _is_the_vector(self, name: str, values: Floats) -> bool:
        """Whether a vector that was made again is the one it replaces."""
        m = self.store.manifest
        if vector_digest(values) == m.vectors[name]:
            return True
        known = m.vector_summaries.get(name)
        return self.may_replace(
            None if known is None else bytes.fromhex(known),
            Summary.of(values).to_bytes(),
            values.size,
            TOLERANCE["float64"] * values.size,  # a sum of so many
        )

    def _keep_vectors(self, values: Mapping[str, Floats]) -> None:
        """Put the digests of vectors into the manifest; written only where one differs."""
        known = self.store.manifest.vectors
        if any(known.get(name) != vector_digest(vector) for name, vector in values.items()):
            self.store = self.store.with_vectors(values)

    def repair_tiles(self, listen: Listener) -> int:
        """Make damaged tiles again; returns how many came out with other bits."""
        wanted = self._tiles_to_make()
        if not wanted:
            return 0
        store, m, n_tiles = self.store, self.store.manifest, self.store.manifest.n_tiles
        write = WriteTiles(
            for_tasks(store),
            self.features,
            resolved_kernels(store, self.specs.values()),
            DuplicateCandidates({}, 1.0),
            {t: frozenset(names) for t, names in wanted.items()},
        )
        digests = TileTable(m.digests, n_tiles, m.digests)
        summaries = TileTable(m.tile_summaries, n_tiles, m.tile_summaries, SUMMARY_BYTES)
        changed: set[tuple[str, int]] = set()
        refused: Counter[str] = Counter()
        tiles = sorted(wanted)
        for batch in run_batches(write, tiles, store.tiling, self.task_runner, listen, "repair"):
            for written in batch:
                for (name, t), digest in written.digests.items():
                    if digests.get(name, t) == digest:
                        continue
                    new = written.summaries[name, t]
                    old = summaries.get(name, t) if name in m.tile_summaries else None
                    size = int(np.prod(store.tiling.shape(t)))
                    tolerance = TOLERANCE[m.precision]
                    if name == GRAM and m.gram is not None:
                        tolerance = GRAM_TOLERANCE[m.gram.dtype]
                    if not self.may_replace(old, new, size, tolerance):
                        refused[name] += 1
                        continue
                    changed.add((name, t))
                    digests.put(name, t, digest)
                    if old is not None:
                        summaries.put(name, t, new)
        why = self.not_accepted()
        self.left += [f"{_tiles(count)} of {_array(name)} {why}" for name, count in refused.items()]
        if changed:
            confirm(store.path, self.lock)
            self.store = store = store.with_manifest(
                digests=digests.as_text(m.digests),
                tile_summaries=summaries.as_text(m.tile_summaries),
                versions={**m.versions, **package_versions()},
            )
            # diagonals of kernels whose tiles came out with other bits
            names = sorted({name for name, _ in changed if name != GRAM})
            diagonals = {name: made_diagonal(store, name) for name in names}
            confirm(store.path, self.lock)
            self._keep_vectors(write_diagonals(store, diagonals))
        return len(changed)

    def _tiles_to_make(self) -> dict[int, set[str]]:
        """By tile, the arrays to make again; why others cannot be is said once per array."""
        by_array: dict[str, list[int]] = {}
        for bad in self.damage.tiles:
            by_array.setdefault(bad.array, []).append(bad.t)
        wanted: dict[int, set[str]] = {}
        for array, tiles in by_array.items():
            why = self.not_computable(array)
            if not why and array in self.untrusted:
                why = f"cannot be computed again without norms/{array}"
            if why:
                self.left.append(f"{_tiles(len(tiles))} of {_array(array)} {why}")
                continue
            for t in tiles:
                wanted.setdefault(t, set()).add(array)
        return wanted

    def repair_diagonals(self) -> None:
        store, m = self.store, self.store.manifest
        stands = dict(zip(store.names, m.stored_as or store.names, strict=True))
        for where in sorted(self.damage.vectors):
            folder, _, name = where.partition("/")
            if folder != "diagonals":
                continue
            try:
                values = made_diagonal(store, stands[name])
            except StoreGoneError:
                raise
            except DamagedStoreError:
                made_of = "the lengths of samples"
                if name in m.own_names:
                    made_of = "tiles of the kernel"
                why = f"cannot be computed while {made_of} are damaged"
                self.left.append(f"{where} {why}")
                continue
            if vector_digest(values) != m.vectors[where]:
                why = f"cannot be computed from the tiles of {stands[name]}"
                self.left.append(f"{where} {why}: {self.rebuild_advice()}")
                continue
            open_array.cache_clear()
            store.write_vector(where, values)

    def add_summaries(self) -> None:
        """Statistics of tiles and vectors, for a store of an earlier format."""
        store, m = self.store, self.store.manifest
        if m.tile_summaries and m.vector_summaries:
            return
        summaries = TileTable(m.digests, store.manifest.n_tiles, {}, SUMMARY_BYTES)
        summaries.update(summarize_tiles(store, range(store.manifest.n_tiles), self.runner))
        vectors = {name: store.vector(name) for name in m.vectors}
        confirm(store.path, self.lock)
        self.store = store.with_vectors(vectors, tile_summaries=summaries.as_text(m.digests))

    def still_damaged(self) -> list[str]:
        """What was repaired, looked at once more."""
        tiles = sorted({bad.t for bad in self.damage.tiles})
        again = find_bad_tiles(self.store, tiles, self.runner) if tiles else []
        arrays = {name for name, _ in self.damage.blocks}
        blocks = tuple((name, b) for name in arrays for b in bad_blocks(self.store, name))
        damage = replace(find_damage_beside_tiles(self.store), tiles=tuple(again), blocks=blocks)
        lines = damage.lines(self.store.manifest)
        return [f"{line} after it was written again" for line in lines]


def _array(name: str) -> str:
    return "the Gram matrix" if name == GRAM else f"kernel {name}"


def _tiles(count: int) -> str:
    return f"{count} tile{'s' if count > 1 else ''}"
