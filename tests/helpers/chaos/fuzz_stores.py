"""Malformed files of stores and checkpoints: refused in a sentence, or what was there before.

An example, two small stores and the checkpoints of fits that were broken off, is made once. A case
is one file of it, changed; its name `NUMBER.CHOICE.KIND` says which. Every file is there three
times among the choices: as it is after the change, and twice with its digests made right again, for
who can write a store can also compute a digest, and what lies behind these checks has to hold as
well.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from helpers.faulty import AS_PAPER

STORE, FACTORED = "s.zarr", "t.zarr"
STORES = {STORE: "rbf_0.5,rbf_1,cosine", FACTORED: "local,cosine"}
"""Kernels of the stores of an example: in tiles, and with factors; fits are on the first."""
FITS = {
    "gmkcf": ("--tol", "0", "--max-iter", "3", "--n-init", "3", *AS_PAPER),
    "kcf": ("--tol", "0", "--max-iter", "4", "--n-init", "2", *AS_PAPER, "--solver", "accelerated"),
    "rmkkm": ("--max-iter", "5", "--n-init", "2"),
    "kkm": ("--n-init", "6"),
}
"""By method, options that give it some states to be kept."""
CODES = (0, 2, 3, 4, 5)
"""With which a command may end, whatever it meets in a store or a checkpoint."""


# --- the example ------------------------------------------------------------------------------


def make_example(folder: Path) -> None:
    """Small stores, and a run folder for each method that was broken off in the middle."""
    from gmkcf_dask.compute.runner import Runner
    from gmkcf_dask.corpus.model import Corpus
    from gmkcf_dask.kernels.specs import resolve_kernels
    from gmkcf_dask.store.build import build_store
    from gmkcf_dask.store.request import KernelRequest

    rng = np.random.default_rng(0)
    n, d = 24, 6
    X = rng.random((n, d)) * (rng.random((n, d)) < 0.6)
    X[:, 0] += 0.1
    names = tuple(f"doc-{i}" for i in range(n))
    corpus = Corpus(sparse.csr_array(X), names, tuple("ab" * (n // 2)), tuple("uvwxyz"))
    for name, kernels in STORES.items():
        request = KernelRequest(corpus, resolve_kernels(kernels))
        build_store(folder / name, request, Runner(scheduler="synchronous"), block=10)
    for method in FITS:
        _break_off(folder, method)


class _BrokenOff(Exception):
    pass


def _break_off(folder: Path, method: str) -> None:
    """Leave a run in its second half, where one restart has ended if that is how it goes."""
    from gmkcf_dask.results.checkpoints import RunCheckpoints

    def keep(self: RunCheckpoints, state: dict[str, Any]) -> None:
        original(self, state)
        kept.append(state)
        if len(kept) == stop:
            raise _BrokenOff

    original, kept, stop = RunCheckpoints.keep, [], 0
    RunCheckpoints.keep = keep  # type: ignore[method-assign]
    try:
        _fit(folder, method)
        kept, stop = [], len(kept) - 1
        assert stop > 1, f"{method} has too few states"
        shutil.rmtree(folder / method)
        _fit(folder, method)
    finally:
        RunCheckpoints.keep = original  # type: ignore[method-assign]


def _fit(folder: Path, method: str, *more: str) -> int:
    how = ("-k", "3", "--seed", "3", "--checkpoint-every", "1", *FITS[method])
    out = ("--method", method, "--out", str(folder / method))
    return _command("fit", str(folder / STORE), *how, *out, *more)


def _command(*words: str) -> int:
    """Exit code of a command; what is no exit goes through, except what breaks an example off."""
    from click.testing import CliRunner

    from gmkcf_dask.cli import main

    place = () if words[0] == "info" else ("--cluster", "threads", "--workers", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = CliRunner().invoke(main, [*words, *place])
    if not isinstance(found.exception, SystemExit | _BrokenOff | None):
        raise found.exception
    assert found.exit_code in CODES or isinstance(found.exception, _BrokenOff), found.output
    return found.exit_code


def victims(example: Path) -> dict[str, list[Path]]:
    """By kind, the files of an example, as paths inside it."""
    found = {
        ".zarr.json": (file for name in STORES for file in (example / name).rglob("zarr.json")),
        ".manifest": [example / name / "manifest.json" for name in STORES],
        ".checkpoint": [p for p in example.glob("*/checkpoint/*") if p.is_file()],
    }
    return {kind: sorted(p.relative_to(example) for p in files) for kind, files in found.items()}


def valid_store_files(example: Path) -> dict[str, list[bytes]]:
    """By kind, the content for every choice: all files, three times."""
    return {
        kind: [(example / file).read_bytes() for file in files] * 3
        for kind, files in victims(example).items()
    }


# --- reading a case ---------------------------------------------------------------------------


class Examples:
    """An example to put cases into, and what reading it gives while it is whole."""

    def __init__(self, example: Path) -> None:
        self.path = example
        self.victims = victims(example)
        self.valid = valid_store_files(example)
        self.stores = {name: _read_store(example / name) for name in STORES}
        self.states = {
            method: [_only(example / method / "checkpoint", name) for name in "01"]
            for method in FITS
        }

    def read(self, case: Path, *, whole_way: bool = False) -> str:
        """'read' or 'refused'; anything but a typed error goes through and is a failure."""
        _, choice, kind = case.name.split(".", 2)
        files = self.victims[f".{kind}"]
        again, which = divmod(int(choice), len(files))
        with self._changed(files[which], case.read_bytes(), whole_way) as victim:
            return _KINDS[f".{kind}"](self, victim, again, whole_way)

    @contextmanager
    def _changed(self, file: Path, content: bytes, anything: bool) -> Iterator[Path]:
        """The example with one file changed, and whole again after `anything` was done to it."""
        if file.parts[0] in STORES and not anything:  # it was read, and copies take longer
            whole = (self.path / file).read_bytes()
            try:
                (self.path / file).write_bytes(content)
                yield self.path / file
            finally:
                (self.path / file).write_bytes(whole)
            return
        part = self.path / file.parts[0]
        with tempfile.TemporaryDirectory() as scratch:
            kept = shutil.copytree(part, Path(scratch, "kept"))
            try:
                (self.path / file).write_bytes(content)
                yield self.path / file
            finally:
                shutil.rmtree(part)
                shutil.copytree(kept, part)


def _read_metadata(example: Examples, victim: Path, again: int, whole_way: bool) -> str:
    then = _commands_on_store if whole_way else _nothing
    return _opened(example, victim, then, same_manifest=True)


def _read_manifest(example: Examples, victim: Path, again: int, whole_way: bool) -> str:
    from gmkcf_dask.store.manifest import sealed

    found = _tree(victim.read_bytes())
    if again and found is not None:
        victim.write_bytes(sealed(found))
    then = _commands_on_store if whole_way else _nothing
    return _opened(example, victim, then, same_manifest=not again)


def _opened(
    example: Examples, victim: Path, then: Callable[[Path], object], *, same_manifest: bool
) -> str:
    """Open the victim's store and read all of it: what was there, or a sentence."""
    from gmkcf_dask.errors import GmkcfError

    name = victim.relative_to(example.path).parts[0]
    path, (whole, expected) = example.path / name, example.stores[name]
    try:
        manifest, content = _read_store(path)
    except GmkcfError as error:
        then(path)
        return refused(error)
    assert manifest == whole or not same_manifest, "another manifest was read"
    for name, values in content.items():
        # a manifest that was sealed again may leave kernels out, but not change them
        assert values == expected[name], f"other values of {name} were read"
    then(path)
    return "read"


def _read_store(path: Path) -> tuple[Any, dict[str, bytes]]:
    """Manifest, and the bytes of tiles, vectors, factors, features and names, by what it is."""
    from gmkcf_dask.errors import DataWarning
    from gmkcf_dask.store.kernel_store import KernelStore

    with warnings.catch_warnings():
        # a manifest without statistics or digests is that of an earlier version, which is warned of
        warnings.filterwarnings("ignore", "(?s).*made by an earlier version", DataWarning)
        store = KernelStore.open(path)
    content: dict[str, bytes] = {}
    for number in range(len(store.names)):
        # the tiles that stand for a kernel, under their own name
        name = store.names[store.manifest.stored[number]]
        for t in range(store.tiling.n_tiles):
            content[f"tile {t} of {name}"] = store.reader.raw(number, t).tobytes()
        content[f"diagonal of {name}"] = store.diagonal(number).tobytes()
    if store.manifest.n_features:
        rows = store.features().rows(slice(0, store.n_samples))
        # as they are stored: a manifest may claim more columns than memory could hold
        assert sparse.issparse(rows)
        parts = (rows.indptr, rows.indices, rows.data)
        content["features"] = b"".join(np.asarray(part).tobytes() for part in parts)
    for name in store.manifest.factors:
        content[f"factor {name}"] = store.factors().read(name).tobytes()
    for what in ("ids", "labels", "terms"):
        content[what] = repr(store.strings(what)).encode()
    store.norms()
    store.duplicates()
    return store.manifest, content


def _commands_on_store(path: Path) -> None:
    """Commands end with a code of ours."""
    _command("info", str(path))
    _command("verify", str(path))
    with tempfile.TemporaryDirectory() as out:
        _command("fit", str(path), "-k", "2", "--max-iter", "2", "--out", f"{out}/run")
    _command("repair", str(path))


def _nothing(path: Path) -> None:
    """For most cases reading is enough."""


def _read_checkpoint(example: Examples, victim: Path, again: int, whole_way: bool) -> str:
    """One of the two states that were written; sealed again, whatever a run can go on from."""
    from gmkcf_dask.errors import GmkcfError
    from gmkcf_dask.results.checkpoints import read_checkpoint

    folder, method = victim.parent, victim.parent.parent.name
    if again:
        seal_checkpoint(victim.with_suffix(""))
    if again == 2:  # nothing else to go on from
        for other in folder.iterdir():
            if other.stem != victim.stem:
                other.unlink()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = read_checkpoint(folder)
    except GmkcfError as error:
        if whole_way:
            _fit(example.path, method, "--resume")
        return refused(error)
    assert again or any(_same(found, one) for one in example.states[method]), "another state"
    if not whole_way:
        return "read"
    return "read" if _fit(example.path, method, "--resume") == 0 else "refused"


def seal_checkpoint(generation: Path) -> None:
    """Make the digests of a generation right again, if its JSON file still is one."""
    from gmkcf_dask.results.serialize import digest, dump

    text = generation.with_suffix(".json")
    body = _tree(text.read_bytes())
    if body is None:
        return
    body.pop("digest", None)
    if "arrays" in body:
        body["arrays"] = digest(generation.with_suffix(".npz").read_bytes())
    try:
        seal = digest(dump(body))
        text.write_bytes(dump({"digest": seal, **body}))
    except ValueError:  # half a character: such text cannot be written as UTF-8
        return


def _only(folder: Path, name: str) -> Any:
    """The state of one generation."""
    from gmkcf_dask.results.checkpoints import read_checkpoint

    with tempfile.TemporaryDirectory() as scratch:
        for suffix in ("json", "npz"):
            shutil.copy(folder / f"{name}.{suffix}", scratch)
        return read_checkpoint(Path(scratch))


def _same(one: Any, other: Any) -> bool:
    """Equal to the last bit, arrays included."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        same = (one.dtype, one.shape) == (other.dtype, other.shape)
        return same and one.tobytes() == other.tobytes()
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and _same(vars(one), vars(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


def _tree(content: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def refused(error: Exception) -> str:
    """An error of ours, if what it says is one sentence."""
    sentence = str(error)
    assert sentence, "an empty sentence"
    assert "\n" not in sentence, sentence
    assert "Traceback" not in sentence, sentence
    assert len(sentence) < 2000, f"{len(sentence)} characters: {sentence[:200]}"
    return "refused"


_KINDS: dict[str, Callable[[Examples, Path, int, bool], str]] = {
    ".zarr.json": _read_metadata,
    ".manifest": _read_manifest,
    ".checkpoint": _read_checkpoint,
}
KINDS = tuple(_KINDS)
