"""What a store says about itself, in lines."""

from __future__ import annotations

from pathlib import Path

from gmkcf_dask.errors import redacted
from gmkcf_dask.kernels.tiling import STORED_BYTES
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.lock import holder
from gmkcf_dask.store.manifest import KernelRecord, Manifest
from gmkcf_dask.system.html import block, paragraph, table, text
from gmkcf_dask.system.units import human_bytes


def describe(path: Path) -> list[str]:
    """Samples, kernels, sizes, state, versions and who writes into it. Reads no tile."""
    store = KernelStore(path, Manifest.read(path))
    m, tiling = store.manifest, store.tiling
    done = "complete" if m.complete else "incomplete: the same build resumes it"
    lines = [
        f"samples    {m.n_samples:,}",
        f"features   {m.n_features:,}" if m.n_features else "features   none (precomputed kernels)",
        f"precision  {m.precision}",
        f"tiles      {len(m.tiles_done):,} of {tiling.n_tiles:,} per kernel, "
        f"{m.block_size}×{m.block_size}; {done}",
        f"on disk    {human_bytes(store.stored_bytes())}",
        f"writer     {holder(path) or 'nobody'}",
        f"store id   {m.store_id}",
        "made with  " + ", ".join(f"{name} {version}" for name, version in m.versions.items()),
        f"kernels    {len(m.kernels)}",
    ]
    stands = dict(zip(m.names, m.stored_as or m.names, strict=True))
    width = max(map(len, m.names))
    for record in m.kernels:
        other = stands[record.name]
        how = [record.normalization, record.scaling, *_statistics(record)]
        if record.name not in m.formulas:
            how.append("passed in, cannot be computed again")
        if other != record.name:
            how.append(f"tiles of {other} stand for it")
        lines.append(f"  {record.name:<{width}}  {', '.join(how)}")
    lines += [f"nearly the same: {sentence}" for sentence in store.duplicates()]
    return lines


def in_short(store: KernelStore) -> str:
    """One line for a console: a manifest has one entry for every tile."""
    m = store.manifest
    state = "" if m.complete else ", incomplete"
    path = redacted(str(store.path))
    return f"KernelStore({path!r}, {m.n_samples:,} samples, {len(m.kernels)} kernels{state})"


def in_html(store: KernelStore) -> str:
    """The same in brief, for notebooks: state, size and kernels. Asks the store for nothing."""
    m, tiling = store.manifest, store.tiling
    state = "complete" if m.complete else "incomplete: the same build resumes it"
    tile = m.block_size**2 * STORED_BYTES[m.precision]
    size = human_bytes(len(set(m.stored)) * len(m.tiles_done) * tile)
    facts = {
        "samples": f"{m.n_samples:,}",
        "features": f"{m.n_features:,}" if m.n_features else "none (precomputed kernels)",
        "tiles": f"{len(m.tiles_done):,} of {tiling.n_tiles:,} per kernel, {m.block_size}×"
        f"{m.block_size}, {m.precision}, {size} before compression",
        "state": state,
    }
    rows = [(text(name, quiet=True), text(value)) for name, value in facts.items()]
    stands = dict(zip(m.names, m.stored_as or m.names, strict=True))
    kernels = [
        (
            text(record.name),
            text(record.normalization),
            text(record.scaling),
            text("" if record.sigma is None else f"{record.sigma:.6g}"),
            text("" if stands[record.name] == record.name else f"stored as {stands[record.name]}"),
        )
        for record in m.kernels
    ]
    heads = ("kernel", "normalization", "scaling", "sigma", "")
    notes = [paragraph(f"nearly the same: {sentence}") for sentence in store.duplicates()]
    return block(
        f"KernelStore {redacted(str(store.path))}", table(rows), table(kernels, heads), *notes
    )


def _statistics(record: KernelRecord) -> list[str]:
    shown = {"sigma": record.sigma, "minimum": record.minimum, "maximum": record.maximum}
    return [f"{name} {value:.6g}" for name, value in shown.items() if value is not None]
