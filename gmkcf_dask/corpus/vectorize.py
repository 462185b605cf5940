"""Vectorize documents in two passes, in memory that does not grow with the texts.

Documents come in batches. The first pass counts the terms of each batch, wherever the runner works,
and keeps the counts in a file; the second, when document frequencies are known, weighs them row by
row in this process: arithmetic on arrays, a small part of the time. Features equal, bit by bit,
what scikit-learn's TfidfVectorizer makes of the whole, whatever the batches: terms get their
numbers in the order in which documents have them first, and rows are summed in that order.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from uuid import uuid4

import dask
import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.preprocessing import normalize

from gmkcf_dask.corpus.decode import page_text, replace_surrogates
from gmkcf_dask.corpus.limits import refuse_bytes, refuse_shape
from gmkcf_dask.corpus.text_options import TextOptions
from gmkcf_dask.errors import InputError
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.system.arrays import Floats
from gmkcf_dask.system.disk_space import disk_full_errors
from gmkcf_dask.system.temporary import run_folder, temporary_root
from gmkcf_dask.system.units import MIB, human_bytes

if TYPE_CHECKING:
    from gmkcf_dask.compute.runner import Runner

BATCH_CHARACTERS = 8 * MIB
"""Text of one batch, unless a single document has more."""
BATCH_DOCUMENTS = 20_000
IN_MEMORY_BYTES = 64 * MIB
"""Features that are larger stay in a file and are paged in as they are used."""
EXCERPT = 200
"""Characters of a document's beginning that are kept."""
_TERM_BYTES = 200
_INFO_BYTES = 800

Ints = npt.NDArray[np.int32]
Ints64 = npt.NDArray[np.int64]
_IDS, _COUNTS, _DATA, _COLUMNS = "ids", "counts", "data", "columns"


@dataclass
class ReadProgress:
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
class ReadContext:
    """Where batches are counted (in this process without a runner), and who listens."""

    runner: Runner | None = None
    listen: Listener = ignore


@dataclass(frozen=True, slots=True)
class Document:
    """One text to read; `page` marks HTML."""

    text: str
    id: object = None
    label: object = None
    title: object = None
    page: bool = False


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    """What is kept of a document besides its counts."""

    excerpt: str
    digest: bytes  # of the text with white space folded; empty where there is no text
    repaired: bool  # it, or its id, label or title, contained unreadable characters
    title: str | None  # of an HTML page


@dataclass(frozen=True)
class BatchCounts:
    """Terms of a batch of documents."""

    infos: tuple[DocumentInfo, ...]
    lengths: Ints64  # shape (n_batch,): different terms of each document
    ids: Ints  # shape (sum of lengths,): terms, document by document
    counts: Ints  # of the same shape: how often each term is there
    terms: tuple[str, ...] | None  # what ids stand for, in order; None for hashed columns


@dataclass
class Vocabulary:
    """Terms by number, and how many documents and occurrences each has.

    A fixed one takes no new terms; those it does not know are left out.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    fixed: bool = False
    documents: Ints64 = field(default_factory=lambda: np.zeros(0, np.int64))
    occurrences: Floats = field(default_factory=lambda: np.zeros(0))

    def take(self, terms: tuple[str, ...]) -> Ints64:
        """Numbers of terms; −1 for those that are not known."""
        numbers = self.numbers
        if self.fixed:
            known = (numbers.get(term, -1) for term in terms)
        else:
            known = (numbers.setdefault(term, len(numbers)) for term in terms)
        return np.fromiter(known, np.int64, len(terms))

    def count(self, ids: Ints64, counts: Ints) -> None:
        """Take the entries of a batch into account."""
        n = len(self.numbers)
        documents = np.bincount(ids, minlength=n)
        occurrences: Floats = np.bincount(ids, counts, minlength=n).astype(np.float64)
        documents[: self.documents.size] += self.documents
        occurrences[: self.occurrences.size] += self.occurrences
        self.documents, self.occurrences = documents, occurrences


@dataclass(frozen=True)
class CorpusCounts:
    """Result of the first pass; the entries themselves are in files."""

    folder: Path
    infos: list[DocumentInfo]
    lengths: Ints64  # shape (n_samples,): entries of each document
    batches: list[int]  # documents of each batch
    vocabulary: Vocabulary | None


@dataclass(frozen=True)
class TermWeights:
    """How counts become features."""

    n_columns: int
    sublinear: bool
    columns: Ints64 | None = None
    """Shape (n_numbers,): column of each term by its number, −1 where it is left out; None where
    they are the same."""
    idf: Floats | None = None  # shape (n_columns,)
    terms: tuple[str, ...] | None = None  # names of the columns


def vectorize_documents(
    documents: Iterable[Document],
    options: TextOptions,
    context: ReadContext,
    progress: ReadProgress,
    vocabulary: Vocabulary | None,
    weigh: Callable[[CorpusCounts], TermWeights],
) -> tuple[sparse.csr_array, list[DocumentInfo], TermWeights]:
    """Both passes.

    The rows of X, shape (n_samples, n_columns), have unit length or are zeros. A large X is in
    files that have no name any more.
    """
    root, spool = temporary_root(), Spool()
    # files that are mapped live on without a name, until nobody uses them: nothing to clean up
    with disk_full_errors(root, _ADVICE, spool.needed), run_folder("texts", root) as folder:
        counted = _count(folder, documents, options, context, progress, vocabulary, spool)
        if not counted.batches:
            raise InputError("there are no documents (0 sample(s)): give at least one text.")
        weights = weigh(counted)
        return _apply_weights(counted, weights, spool), counted.infos, weights


_ADVICE = (
    "counts of texts are kept there while they are read: set TMPDIR to a folder with more room"
)


@dataclass
class Spool:
    """Bytes that both passes keep in temporary files, as far as they are known."""

    counted: int = 0
    share: float = 0.0  # of the input, that has been read

    def needed(self) -> str:
        """Counts take 8 bytes for each entry, features 12; what is not read yet is estimated."""
        known = 0 < self.share <= 1
        entries = self.counted / self.share if known else self.counted
        about = "about" if known else "more than"
        return f"reading these texts needs {about} {human_bytes(max(1, int(20 * entries)))}"


def _write(file: IO[bytes], values: npt.NDArray[Any]) -> None:
    # `tofile` does not say why it failed
    file.write(np.ascontiguousarray(values).data)


# the first pass


def _count(
    folder: Path,
    documents: Iterable[Document],
    options: TextOptions,
    context: ReadContext,
    progress: ReadProgress,
    vocabulary: Vocabulary | None,
    spool: Spool,
) -> CorpusCounts:
    infos: list[DocumentInfo] = []
    lengths: list[Ints64] = []
    batches: list[int] = []
    context.listen(progress.event())
    with (folder / _IDS).open("wb") as ids_file, (folder / _COUNTS).open("wb") as counts_file:
        waiting, size = _batches(documents), _window(context.runner)
        while window := list(itertools.islice(waiting, size)):
            for batch in _run(partial(count_batch, options), window, context.runner):
                length, ids, counts = _renumber(batch, vocabulary)
                spool.counted += ids.size
                spool.share = progress.done / progress.total if progress.total else 0.0
                _write(ids_file, ids.astype(np.int32))
                _write(counts_file, counts)
                infos += batch.infos
                lengths.append(length)
                batches.append(length.size)
            _refuse_beyond_memory(len(infos), vocabulary)
            context.listen(progress.event())
    rows = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
    return CorpusCounts(folder, infos, rows, batches, vocabulary)


def count_batch(options: TextOptions, documents: Sequence[Document]) -> BatchCounts:
    """Count the terms of a few documents."""
    texts, infos = [], []
    for document in documents:
        text, title = page_text(document.text) if document.page else (document.text, None)
        whole = replace_surrogates(text)
        texts.append(whole)
        words = whole.split()
        digest = hashlib.blake2b(" ".join(words).encode(), digest_size=16).digest()
        names = (document.id, document.label, document.title)
        repaired = whole != text or any(
            isinstance(name, str) and replace_surrogates(name) != name for name in names
        )
        excerpt = " ".join(words[:EXCERPT])[:EXCERPT]
        infos.append(DocumentInfo(excerpt, digest if words else b"", repaired, title))
    count = _hashed if options.features == "hashing" else _counted
    return BatchCounts(tuple(infos), *count(options, texts))


def _counted(
    options: TextOptions, texts: Iterable[str]
) -> tuple[Ints64, Ints, Ints, tuple[str, ...]]:
    analyze = options.analyzer()
    numbers: dict[str, int] = {}
    lengths, ids, counts = [], [], []
    for text in texts:
        occurrences = Counter(analyze(text))
        lengths.append(len(occurrences))
        ids.append(
            np.fromiter((numbers.setdefault(t, len(numbers)) for t in occurrences), np.int32)
        )
        counts.append(np.fromiter(occurrences.values(), np.int32, len(occurrences)))
    return np.array(lengths, np.int64), np.concatenate(ids), np.concatenate(counts), tuple(numbers)


def _hashed(options: TextOptions, texts: Sequence[str]) -> tuple[Ints64, Ints, Ints, None]:
    X = options.hasher().transform(texts)
    lengths = np.diff(X.indptr).astype(np.int64)
    return lengths, X.indices.astype(np.int32), X.data.astype(np.int32), None


def _renumber(batch: BatchCounts, vocabulary: Vocabulary | None) -> tuple[Ints64, Ints64, Ints]:
    """Lengths, ids and counts of a batch: ids of the whole corpus, without unknown terms."""
    if vocabulary is None or batch.terms is None:
        return batch.lengths, batch.ids.astype(np.int64), batch.counts
    ids, counts, lengths = vocabulary.take(batch.terms)[batch.ids], batch.counts, batch.lengths
    if vocabulary.fixed:
        known = ids >= 0
        rows = np.repeat(np.arange(lengths.size), lengths)[known]
        ids, counts = ids[known], counts[known]
        lengths = np.bincount(rows, minlength=lengths.size)
    else:
        vocabulary.count(ids, counts)
    return lengths, ids, counts


def _refuse_beyond_memory(n: int, vocabulary: Vocabulary | None) -> None:
    refuse_bytes(n * _INFO_BYTES, f"the names and beginnings of {n:,} documents")
    terms = 0 if vocabulary is None else len(vocabulary.numbers)
    refuse_bytes(
        terms * _TERM_BYTES,
        f"a vocabulary of {terms:,} terms (without n-grams it is smaller, and hashing has none)",
    )


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
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


def _window(runner: Runner | None) -> int:
    """Batches that are held at a time: enough to keep all workers at work."""
    if runner is None or runner.scheduler == "synchronous":
        return 1
    if runner.client is None:
        return runner.n_threads or 2
    return 2 * max(1, sum(size.threads for size in runner.workers().values()))


def _run(
    work: Callable[[list[Document]], BatchCounts],
    window: list[list[Document]],
    runner: Runner | None,
) -> list[BatchCounts]:
    """One graph: the work on each batch, results in order."""
    if runner is None:
        return [work(batch) for batch in window]

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


def select_terms(counted: CorpusCounts, options: TextOptions) -> TermWeights:
    """Terms that are kept, in alphabetical order, and their weights; as scikit-learn does it."""
    assert counted.vocabulary is not None
    numbers, n = counted.vocabulary.numbers, counted.lengths.size
    terms = sorted(numbers)
    order = np.fromiter((numbers[term] for term in terms), np.int64, len(terms))
    documents = counted.vocabulary.documents[order]
    least, most = (
        bound * n if isinstance(bound, float) else bound  # a share of the documents, or a count
        for bound in (
            options.least_documents(n),
            1.0 if options.max_df == "auto" else options.max_df,
        )
    )
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
    return TermWeights(len(names), bool(options.sublinear_tf), columns, idf, names)


# the second pass


def _apply_weights(counted: CorpusCounts, weights: TermWeights, spool: Spool) -> sparse.csr_array:
    folder, ends = counted.folder, np.cumsum(counted.batches)
    spool.share = 1.0
    kept: list[Ints64] = []
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
            _write(data_file, rows.data)
            _write(columns_file, rows.indices.astype(np.int32))
            kept.append(np.diff(rows.indptr).astype(np.int64))
    for name in (_IDS, _COUNTS):
        with suppress(OSError):
            (folder / name).unlink()
    return _assemble(folder, np.concatenate(kept), weights.n_columns)


def _rows(lengths: Ints64, ids: Ints, counts: Ints, weights: TermWeights) -> sparse.csr_array:
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


def _assemble(folder: Path, lengths: Ints64, n_columns: int) -> sparse.csr_array:
    starts = np.append(0, np.cumsum(lengths))
    entries = int(starts[-1])
    data = _load(folder / _DATA, np.float64, entries)
    columns = _load(folder / _COLUMNS, np.int32, entries)
    if entries > np.iinfo(np.int32).max:  # SciPy wants both kinds of indices alike
        with (folder / "wide").open("wb") as file:
            for first in range(0, entries, MIB):
                _write(file, columns[first : first + MIB].astype(np.int64))
        columns = _load(folder / "wide", np.int64, entries)
    else:
        starts = starts.astype(np.int32)
    X = sparse.csr_array((data, columns, starts), shape=(lengths.size, n_columns))
    X.has_sorted_indices = X.has_canonical_format = True
    return X


def _load(path: Path, dtype: Any, count: int) -> npt.NDArray[Any]:
    if count * 12 <= IN_MEMORY_BYTES:
        return np.fromfile(path, dtype, count)
    return np.memmap(path, dtype, "r", shape=(count,))
