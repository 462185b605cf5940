"""From documents to features in two passes, in memory that does not grow with the texts.

Documents come in batches. The first pass counts the terms of each batch, wherever the runner works,
and keeps the counts in a file; the second, when document frequencies are known, weighs them row by
row in this process: arithmetic on arrays, a small part of the time. Features equal, bit by bit,
what scikit-learn's TfidfVectorizer makes of the whole, whatever the batches: terms get their
numbers in the order in which documents have them first, and rows are summed in that order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask
import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.preprocessing import normalize

from gmkcf_dask.corpus.counts import Counted, Document, Facts, count_batch
from gmkcf_dask.corpus.limits import refuse_bytes, refuse_shape
from gmkcf_dask.corpus.model import Floats
from gmkcf_dask.corpus.options import TextOptions
from gmkcf_dask.errors import DiskFullError, InputError
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.files import is_full
from gmkcf_dask.graph import Runner
from gmkcf_dask.plan import MIB

BATCH_CHARACTERS = 8 * MIB
"""Text of one batch, unless a single document has more."""
BATCH_DOCUMENTS = 20_000
IN_MEMORY_BYTES = 64 * MIB
"""Features that are larger stay in a file and are paged in as they are used."""
_TERM_BYTES = 200
_FACTS_BYTES = 800

Longs = npt.NDArray[np.int64]
_IDS, _COUNTS, _DATA, _COLUMNS = "ids", "counts", "data", "columns"


@dataclass
class Meter:
    """How much of the input has been read, in bytes or, where those are not known, documents."""

    total: int = 0
    done: int = 0
    unit: str = "documents"

    def event(self) -> StageProgress:
        if self.unit == "documents":
            return StageProgress("reading", self.done, max(self.total, self.done), 0, self.unit)
        done = min(self.done, self.total)
        whole = max(1, -(-self.total // MIB))
        return StageProgress("reading", done * whole // max(1, self.total), whole, done, self.unit)


@dataclass(frozen=True)
class Place:
    """Where batches are counted, and who hears how far they are."""

    runner: Runner = field(default_factory=lambda: Runner(scheduler="synchronous"))
    listen: Listener = ignore


@dataclass
class Vocabulary:
    """Terms by number, and how many documents and occurrences each has.

    A fixed one takes no new terms; those it does not know are left out.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    fixed: bool = False
    documents: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    occurrences: Floats = field(default_factory=lambda: np.zeros(0))

    def take(self, terms: tuple[str, ...]) -> Longs:
        """Numbers of terms; −1 for those that are not known."""
        numbers = self.numbers
        if self.fixed:
            return np.fromiter((numbers.get(t, -1) for t in terms), np.int64, len(terms))
        return np.fromiter(
            (numbers.setdefault(t, len(numbers)) for t in terms), np.int64, len(terms)
        )

    def count(self, ids: Longs, counts: npt.NDArray[np.int32]) -> None:
        """Take the entries of a batch into account."""
        n = len(self.numbers)
        documents = np.bincount(ids, minlength=n)
        occurrences: Floats = np.bincount(ids, counts, minlength=n).astype(np.float64)
        documents[: self.documents.size] += self.documents
        occurrences[: self.occurrences.size] += self.occurrences
        self.documents, self.occurrences = documents, occurrences


@dataclass(frozen=True)
class Counts:
    """What the first pass found; the entries themselves are in files of the spool.

    Attributes
    ----------
    lengths : ndarray of int64, shape (n_samples,)
        Entries of each document.
    batches : list of int
        Documents of each batch.
    """

    folder: Path
    facts: list[Facts]
    lengths: Longs
    batches: list[int]
    vocabulary: Vocabulary | None


@dataclass(frozen=True)
class Weights:
    """How counts become features.

    Attributes
    ----------
    columns : ndarray of int64, shape (n_numbers,), or None
        Column of each term by its number, −1 where it is left out; None where they are the same.
    idf : ndarray, shape (n_columns,), or None
    terms : tuple of str, length n_columns, or None
        Names of the columns.
    """

    n_columns: int
    sublinear: bool
    columns: Longs | None = None
    idf: Floats | None = None
    terms: tuple[str, ...] | None = None


def features_of(
    documents: Iterable[Document],
    options: TextOptions,
    place: Place,
    meter: Meter,
    vocabulary: Vocabulary | None,
    weigh: Callable[[Counts], Weights],
) -> tuple[sparse.csr_array, list[Facts], Weights]:
    """Both passes.

    Returns
    -------
    X : csr_array, shape (n_samples, n_columns)
        Rows of unit length, or of zeros; in files that have no name any more where it is large.
    facts : list of Facts, length n_samples
    weights : Weights
    """
    # files that are mapped live on without a name, until nobody uses them: nothing to clean up
    with (
        tempfile.TemporaryDirectory(prefix="gmkcf-texts-", ignore_cleanup_errors=True) as scratch,
        _told_when_full(scratch),
    ):
        folder = Path(scratch)
        counted = _count(folder, documents, options, place, meter, vocabulary)
        if not counted.batches:
            raise InputError("there are no documents (0 sample(s)): give at least one text.")
        weights = weigh(counted)
        return _weighed(counted, weights), counted.facts, weights


@contextmanager
def _told_when_full(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise DiskFullError(
            f"the disk of {Path(folder).parent} is full: counts of texts are kept there while they "
            "are read, set TMPDIR to a folder with more room."
        ) from error


# the first pass


def _count(
    folder: Path,
    documents: Iterable[Document],
    options: TextOptions,
    place: Place,
    meter: Meter,
    vocabulary: Vocabulary | None,
) -> Counts:
    facts: list[Facts] = []
    lengths: list[Longs] = []
    batches: list[int] = []
    place.listen(meter.event())
    with (folder / _IDS).open("wb") as ids_file, (folder / _COUNTS).open("wb") as counts_file:
        for window in _windows(_batched(documents), _window(place.runner)):
            for found in _run(partial(count_batch, options), window, place.runner):
                length, ids, counts = _numbered(found, vocabulary)
                ids.astype(np.int32).tofile(ids_file)
                counts.tofile(counts_file)
                facts += found.facts
                lengths.append(length)
                batches.append(length.size)
            _refuse_beyond_memory(len(facts), vocabulary)
            place.listen(meter.event())
    rows = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
    return Counts(folder, facts, rows, batches, vocabulary)


def _numbered(
    found: Counted, vocabulary: Vocabulary | None
) -> tuple[Longs, Longs, npt.NDArray[np.int32]]:
    """Lengths, ids and counts of a batch: ids of the whole corpus, without unknown terms."""
    if vocabulary is None or found.terms is None:
        return found.lengths, found.ids.astype(np.int64), found.counts
    ids, counts, lengths = vocabulary.take(found.terms)[found.ids], found.counts, found.lengths
    if vocabulary.fixed:
        known = ids >= 0
        rows = np.repeat(np.arange(lengths.size), lengths)[known]
        ids, counts = ids[known], counts[known]
        lengths = np.bincount(rows, minlength=lengths.size)
    else:
        vocabulary.count(ids, counts)
    return lengths, ids, counts


def _refuse_beyond_memory(n: int, vocabulary: Vocabulary | None) -> None:
    refuse_bytes(n * _FACTS_BYTES, f"the names and beginnings of {n:,} documents")
    terms = 0 if vocabulary is None else len(vocabulary.numbers)
    refuse_bytes(
        terms * _TERM_BYTES,
        f"a vocabulary of {terms:,} terms (without n-grams it is smaller, and hashing has none)",
    )


def _batched(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for n, document in enumerate(documents, start=1):
        refuse_shape((n,))
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _windows(batches: Iterable[list[Document]], most: int) -> Iterator[list[list[Document]]]:
    window: list[list[Document]] = []
    for batch in batches:
        window.append(batch)
        if len(window) == most:
            yield window
            window = []
    if window:
        yield window


def _window(runner: Runner) -> int:
    """Batches that are held at a time: enough to keep all workers at work."""
    if runner.client is None:
        return 1 if runner.scheduler == "synchronous" else runner.n_threads or 2
    return 2 * max(1, sum(size.threads for size in runner.workers().values()))


def _run(
    work: Callable[[list[Document]], Counted], window: list[list[Document]], runner: Runner
) -> list[Counted]:
    """One graph: the work on each batch, results in order."""

    def graph() -> Any:
        # names of our own: Dask would hash all a task holds for one
        tasks = [
            dask.delayed(
                runner.task(partial(work, batch)), name=f"gmkcf-read-{uuid4().hex}", traverse=False
            )(dask_key_name=f"gmkcf-count-{uuid4().hex}")
            for batch in window
        ]
        return dask.delayed(list)(tasks)

    return list(runner.retry(lambda: runner.compute(graph())))


# between the passes


def chosen_terms(counted: Counts, options: TextOptions) -> Weights:
    """Terms that are kept, in alphabetical order, and their weights; as scikit-learn does it."""
    assert counted.vocabulary is not None
    numbers, n = counted.vocabulary.numbers, counted.lengths.size
    terms = sorted(numbers)
    order = np.fromiter((numbers[term] for term in terms), np.int64, len(terms))
    documents = counted.vocabulary.documents[order]
    least, most = _bounds(options, n)
    kept = (documents <= most) & (documents >= least)
    if options.max_features is not None and kept.sum() > options.max_features:
        # ties are broken by the same sort of the same array of the same type
        ranked = (-counted.vocabulary.occurrences[order][kept]).argsort()[: options.max_features]
        where = np.flatnonzero(kept)[ranked]
        kept = np.zeros(len(terms), bool)
        kept[where] = True
    if not kept.any():
        raise InputError(
            f"no terms are left to describe the {n} documents: give texts with words, lower "
            "min_df, raise max_df or keep stop words."
        )
    columns = np.full(len(terms), -1, np.int64)
    columns[order[kept]] = np.arange(kept.sum())
    # smoothed as if one more document had every term
    idf = np.log((n + 1) / (documents[kept].astype(np.float64) + 1.0)) + 1.0
    names = tuple(term for term, keep in zip(terms, kept, strict=True) if keep)
    return Weights(len(names), options.sublinear_tf, columns, idf, names)


def _bounds(options: TextOptions, n: int) -> tuple[float, float]:
    """Documents a term must and may be in."""

    def documents(value: int | float) -> float:
        return value * n if isinstance(value, float) else value

    return documents(options.least_documents(n)), documents(options.max_df)


# the second pass


def _weighed(counted: Counts, weights: Weights) -> sparse.csr_array:
    folder, ends = counted.folder, np.cumsum(counted.batches)
    kept: list[Longs] = []
    with (
        (folder / _IDS).open("rb") as ids_file,
        (folder / _COUNTS).open("rb") as counts_file,
        (folder / _DATA).open("wb") as data_file,
        (folder / _COLUMNS).open("wb") as columns_file,
    ):
        for start, stop in zip((0, *ends[:-1]), ends, strict=True):
            lengths = counted.lengths[start:stop]
            entries = int(lengths.sum())
            ids = np.fromfile(ids_file, np.int32, entries)
            counts = np.fromfile(counts_file, np.int32, entries)
            rows = _rows(lengths, ids, counts, weights)
            rows.data.tofile(data_file)
            rows.indices.astype(np.int32).tofile(columns_file)
            kept.append(np.diff(rows.indptr).astype(np.int64))
    for name in (_IDS, _COUNTS):
        with suppress(OSError):
            (folder / name).unlink()
    return _assembled(folder, np.concatenate(kept), weights.n_columns)


def _rows(
    lengths: Longs, ids: npt.NDArray[np.int32], counts: npt.NDArray[np.int32], weights: Weights
) -> sparse.csr_array:
    """Weighted rows of unit length, shape (n_batch, n_columns)."""
    n = lengths.size
    starts = np.append(0, np.cumsum(lengths))
    width = weights.n_columns if weights.columns is None else weights.columns.size
    rows = sparse.csr_array((counts.astype(np.float64), ids, starts), shape=(n, max(1, width)))
    rows.sort_indices()  # the order in which scikit-learn sums
    if weights.columns is not None:
        columns = weights.columns[rows.indices]
        keep = columns >= 0
        starts = np.append(0, np.cumsum(keep))[rows.indptr]
        rows = sparse.csr_array((rows.data[keep], columns[keep], starts), (n, weights.n_columns))
    if weights.sublinear:
        np.log(rows.data, rows.data)
        rows.data += 1.0
    if weights.idf is not None:
        rows.data *= weights.idf[rows.indices]
    rows = sparse.csr_array(normalize(rows, copy=False))
    rows.sort_indices()
    return rows


def _assembled(folder: Path, lengths: Longs, n_columns: int) -> sparse.csr_array:
    starts = np.append(0, np.cumsum(lengths))
    entries = int(starts[-1])
    data = _loaded(folder / _DATA, np.float64, entries)
    columns = _loaded(folder / _COLUMNS, np.int32, entries)
    if entries > np.iinfo(np.int32).max:  # SciPy wants both kinds of indices alike
        columns = _widened(folder, columns)
    else:
        starts = starts.astype(np.int32)
    X = sparse.csr_array((data, columns, starts), shape=(lengths.size, n_columns))
    X.has_sorted_indices = X.has_canonical_format = True
    return X


def _widened(folder: Path, columns: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
    path = folder / "wide"
    with path.open("wb") as file:
        for first in range(0, columns.size, MIB):
            columns[first : first + MIB].astype(np.int64).tofile(file)
    return _loaded(path, np.int64, columns.size)


def _loaded(path: Path, dtype: Any, count: int) -> npt.NDArray[Any]:
    if count * 12 <= IN_MEMORY_BYTES:
        return np.fromfile(path, dtype, count)
    return np.memmap(path, dtype, "r", shape=(count,))
