"""What a store says about itself, in lines."""

from __future__ import annotations

from pathlib import Path

from gmkcf_dask.errors import redacted
from gmkcf_dask.kernels.factored import PRODUCTS
from gmkcf_dask.kernels.gram import COARSEST_CODES, COARSEST_FLOATS, gram_spec, table_error
from gmkcf_dask.kernels.tiles import ResolvedKernel
from gmkcf_dask.kernels.tiling import STORED_BYTES, Precision
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.lock import holder
from gmkcf_dask.store.manifest import FactorRecord, GramRecord, KernelRecord, Manifest
from gmkcf_dask.system.html import block, paragraph, table, text
from gmkcf_dask.system.units import human_bytes


def describe_store(path: Path) -> list[str]:
    """Samples, kernels, sizes, state, versions and who writes into it. Reads no tile."""
    store = KernelStore(path, Manifest.read(path))
    m = store.manifest
    lines = [
        f"samples    {m.n_samples:,}",
        f"features   {_features(m)}",
        f"precision  {m.precision}",
        *_layout(m),
        f"tiles      {_tiles(m)}; {_state(m)}",
        f"on disk    {human_bytes(store.stored_bytes())}",
        f"writer     {holder(path) or 'none'}",
        f"store id   {m.store_id}",
        "made with  " + ", ".join(f"{name} {version}" for name, version in m.versions.items()),
        f"kernels    {len(m.kernel_names)}",
    ]
    stands = dict(zip(m.names, m.stored_as or m.names, strict=True))
    width = max(map(len, m.kernel_names))
    errors = _errors(m)
    for record in m.kernels:
        other = stands[record.name]
        facts = [record.normalization, record.scaling, *_statistics(record)]
        if record.name not in m.formulas:
            facts.append("passed in, cannot be computed again")
        if m.gram is not None and record.name in m.own_names:
            facts.append("tiles of its own")
        if record.name in errors:
            facts.append(f"errors up to {errors[record.name]:.1e}")
        if other != record.name:
            facts.append(f"tiles of {other} stand for it")
        lines.append(f"  {record.name:<{width}}  {', '.join(facts)}")
    lines += [f"  {one.name:<{width}}  factored, {_factor_facts(m, one)}" for one in m.factored]
    lines += [f"nearly the same: {sentence}" for sentence in store.duplicates()]
    return lines


def in_short(store: KernelStore) -> str:
    """One line for a console: a manifest has one entry for every tile."""
    m = store.manifest
    state = "" if m.complete else ", incomplete"
    path = redacted(str(store.path))
    return f"KernelStore({path!r}, {m.n_samples:,} samples, {len(m.kernel_names)} kernels{state})"


def in_html(store: KernelStore) -> str:
    """The same in brief, for notebooks: state, size and kernels. Asks the store for nothing."""
    m = store.manifest
    entry = len(set(m.own_stored)) * STORED_BYTES[m.precision]
    entry += 0 if m.gram is None else m.gram.matrix.itemsize
    size = human_bytes(len(m.tiles_done) * m.block_size**2 * entry)
    layout = {} if m.gram is None else {"layout": f"gram: {_kept(m.gram)}"}
    facts = {
        "samples": f"{m.n_samples:,}",
        "features": _features(m),
        **layout,
        "tiles": f"{_tiles(m)}, {m.precision}, {size} before compression",
        "state": _state(m),
    }
    rows = [(text(name, quiet=True), text(value)) for name, value in facts.items()]
    stands = dict(zip(m.names, m.stored_as or m.names, strict=True))
    kernels = [
        (
            text(record.name),
            text(record.normalization),
            text(record.scaling),
            text("" if record.sigma is None else f"{record.sigma:.6g}"),
            text(_stored_as(m, record.name, stands[record.name])),
        )
        for record in m.kernels
    ]
    heads = ("kernel", "normalization", "scaling", "sigma", "")
    notes = [paragraph(f"nearly the same: {sentence}") for sentence in store.duplicates()]
    return block(
        f"KernelStore {redacted(str(store.path))}", table(rows), table(kernels, heads), *notes
    )


def tiles_in_words(m: Manifest) -> str:
    """How many kernels have tiles, and how many are evaluated from those of the Gram matrix."""
    parts = []
    if m.own_names:
        each = " each" if m.gram is None or len(set(m.own_stored)) > 1 else ""
        parts.append(f"{_kernels(len(set(m.own_stored)), m)} with {m.n_tiles:,} tiles{each}")
    if m.gram is not None:
        parts.append(
            f"a Gram matrix with {m.n_tiles:,} tiles, for {_kernels(len(m.formulas), m)} that "
            "have none"
        )
    return " and ".join(parts)


def _kernels(count: int, m: Manifest) -> str:
    return f"{count} kernel" + ("" if count == 1 and m.gram is not None else "s")


def _features(m: Manifest) -> str:
    if m.n_features:
        return f"{m.n_features:,}"
    return "none (factors)" if m.factored else "none (precomputed kernels)"


def _tiles(m: Manifest) -> str:
    edge, done = m.block_size, len(m.tiles_done)
    if not m.kernels:
        return "none, all kernels are factored"
    what = "kernel" if m.gram is None else "array"
    return f"{done:,} of {m.n_tiles:,} per {what}, {edge}×{edge}"


def _stored_as(m: Manifest, name: str, stands: str) -> str:
    if m.gram is not None and name in m.own_names:
        return "tiles of its own"
    return "" if stands == name else f"stored as {stands}"


def _layout(m: Manifest) -> list[str]:
    """What is stored of each pair of samples, and how kernels come from it."""
    if not m.kernels:
        return []
    if m.gram is None:
        return ["layout     each: every kernel has tiles of its own"]
    how = "tables" if m.gram.tabulated else "formulas"
    evaluated = f"{len(m.formulas)} kernel{'s' if len(m.formulas) > 1 else ''}"
    beside = f"; {', '.join(m.own_names)} beside it" if m.own_names else ""
    lines = [f"layout     gram: {_kept(m.gram)}, of which {how} give {evaluated}{beside}"]
    if STORED_BYTES[m.precision] < m.gram.matrix.itemsize:
        lines[0] += f" (less would not tell these kernels within {_limit(m.precision)})"
    if m.resolved and m.gram.content != "products":
        lines.append(f"distances  up to {m.gram.d_max:.6g}")
    return lines


def _limit(precision: Precision) -> str:
    return f"{COARSEST_CODES if precision == 'compact' else COARSEST_FLOATS:g}"


def _kept(gram: GramRecord) -> str:
    kept = {"codes": "a code of the distance", "distances": "the distance",
            "products": "the inner product"}  # fmt: skip
    return f"{kept[gram.content]} of each pair as {gram.dtype}"


def _errors(m: Manifest) -> dict[str, float]:
    """By kernel that is a table, the bound of the error of its values."""
    if m.gram is None or not (m.gram.tabulated and m.resolved):
        return {}
    records = (record for record in m.kernels if record.name in m.formulas)
    kernels = (ResolvedKernel(spec=gram_spec(one.name), **one.options) for one in records)
    return {kernel.name: table_error(m.gram.matrix, [kernel]) for kernel in kernels}


def _factor_facts(m: Manifest, one: FactorRecord) -> str:
    assert m.factor_options is not None
    if one.kind in PRODUCTS:
        return f"{one.normalization}, {one.scaling}: the features themselves"
    if one.kind == "given":
        return "passed in, cannot be computed again" + (", sparse rows" if one.columns else "")
    return f"for at most {m.factor_options.max_clusters} clusters"


def _state(m: Manifest) -> str:
    return "complete" if m.complete else "incomplete: the same build resumes it"


def _statistics(record: KernelRecord) -> list[str]:
    shown = {"sigma": record.sigma, "minimum": record.minimum, "maximum": record.maximum}
    return [f"{name} {value:.6g}" for name, value in shown.items() if value is not None]
