"""From a run folder and a file of new samples to a file of their clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy import sparse

from gmkcf_dask.cluster import LazyCluster
from gmkcf_dask.corpus import Corpus, read_corpus, warn_about_zero_rows
from gmkcf_dask.corpus.matrices import READERS
from gmkcf_dask.corpus.read import read_like
from gmkcf_dask.errors import InputError
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.pipeline.prediction import Prediction, predict, refuse_other_columns
from gmkcf_dask.pipeline.reading import text_runner
from gmkcf_dask.results.csv_cells import csv_lines, escaped_cell
from gmkcf_dask.results.finished_run import model_of_run
from gmkcf_dask.results.saved_model import Model, is_model, load_model
from gmkcf_dask.results.training import Training
from gmkcf_dask.store.features import StoredFeatures
from gmkcf_dask.store.files import check_writable, exists, is_no_folder, put_atomic

MATRICES = tuple(READERS)
_WITHOUT_WIDTH = (".svmlight", ".libsvm")


@dataclass(frozen=True)
class FileForm:
    """Where files have their texts and ids, and how they spell them; None is as the run's input."""

    text_column: str | None = None
    id_column: str | None = None
    encoding: str | None = None


@dataclass(frozen=True)
class Gathered:
    """New samples of one cluster: how many, and what it is called where its run tells."""

    label: int
    size: int
    name: str = ""


def check_out(path: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, a file that is there or cannot be written."""
    if exists(path) and not is_no_folder(path):
        raise InputError(f"{path} is a folder: give a file for the labels")
    if exists(path) and not overwrite:
        raise InputError(f"{path} is there already: choose another file or --overwrite")
    check_writable(path.parent, "the labels")


def place_newcomers(
    run: Path,
    new: str | Mapping[str, str],
    out: Path,
    form: FileForm,
    cluster: LazyCluster,
    listen: Listener = ignore,
    *,
    raw_ids: bool = False,
) -> list[Gathered]:
    """Write id, label and sureness of every new sample; returns the clusters they came into.

    `run` is a run folder or a saved model, `new` the path of the new samples, or those of their
    factors by name. With `raw_ids` ids are written as they are, also those that a spreadsheet
    program takes for a formula.
    """
    model = load_model(run) if is_model(run) else model_of_run(run)
    model.training.refuse_missing()
    if model.training.precomputed:
        raise InputError(
            f"the kernels of {run} were precomputed, so those of new samples have to be, too: use "
            "gmkcf_dask.load in Python, whose predict takes them"
        )
    ids, prediction = _placed(model, new, form, cluster, listen)
    put_atomic(out, as_csv(ids, prediction, raw_ids=raw_ids))
    counts = Counter(prediction.labels.tolist())
    clusters = model.insight.clusters if model.insight is not None else ()
    # a number again would say nothing
    names = {c.label: c.name for c in clusters if c.name != f"cluster {c.label}"}
    return [Gathered(label, counts[label], names.get(label, "")) for label in sorted(counts)]


def _placed(
    model: Model,
    new: str | Mapping[str, str],
    form: FileForm,
    cluster: LazyCluster,
    listen: Listener,
) -> tuple[tuple[str, ...], Prediction]:
    """Ids of new samples, and where they belong."""
    training = model.training
    if training.factors is not None and training.factors.given:
        prediction = predict(model, new if isinstance(new, Mapping) else [Path(new)], None, listen)
        return tuple(map(str, range(len(prediction.labels)))), prediction
    if not isinstance(new, str):
        raise InputError(
            f"NAME=FILE gives factors ({', '.join(new)}), but the run was not made from factors: "
            "give one file of new samples"
        )
    corpus = new_rows(training, new, form, cluster, listen)
    if corpus.reading is None:  # of texts it is said by name
        warn_about_zero_rows(corpus.X)
    stored = isinstance(training.features, StoredFeatures)
    resources = cluster.start(corpus.n_samples) if stored else None
    return corpus.ids, predict(model, corpus.X, resources, listen)


def new_rows(
    training: Training,
    path: str,
    form: FileForm,
    cluster: LazyCluster,
    listen: Listener = ignore,
) -> Corpus:
    """New samples as the training samples were read: the same columns, the same words."""
    name = Path(path).name.lower()
    if name.endswith(MATRICES):
        corpus = read_corpus(path)
        if name.endswith(_WITHOUT_WIDTH):
            corpus = _widened(corpus, training.n_features)
    elif training.damaged.keys() & {"reading", "terms"}:
        training.refuse_damaged("reading", "terms")
    elif training.reading is None:
        raise InputError(
            f"{path} holds texts, but the run's samples were not read from texts: give a matrix "
            f"with {training.n_features} columns"
        )
    else:
        with text_runner(path, training.reading.options, cluster) as runner:
            corpus = read_like(
                path,
                training.reading,
                training.terms,
                **asdict(form),
                runner=runner,
                listen=listen,
            )
    refuse_other_columns(corpus.n_features, training.n_features)
    return corpus


def _widened(corpus: Corpus, n_features: int) -> Corpus:
    """These files do not say how many columns there are: the last ones may be 0 in all rows."""
    X = corpus.X
    if isinstance(X, np.ndarray) or X.shape[1] >= n_features:
        return corpus
    parts = (X.data, X.indices, X.indptr)
    return Corpus(sparse.csr_array(parts, shape=(X.shape[0], n_features)), corpus.ids)


def as_csv(ids: tuple[str, ...], prediction: Prediction, *, raw_ids: bool = False) -> bytes:
    """Lines of id,label,sure; ids are escaped as in labels.csv unless they are to be raw."""
    cells = ids if raw_ids else map(escaped_cell, ids)
    sure = (f"{value:.4f}" for value in prediction.sure)
    rows = zip(cells, prediction.labels.tolist(), sure, strict=True)
    return (csv_lines([["id", "label", "sure"]]) + csv_lines(rows)).encode()
