"""Predict on the paper's sets: training samples again, and samples that were held back.

For every seed GMKCF is fitted on all samples and, with the same seed, on a random 70 % of them.
`returned` is the share of all samples that predict, from kernels alone, gives the label they have;
`held` scores what the second model predicts for the other 30 %, `together` the labels that these
same samples have in the first, and `overall` all labels of the first. ACC, by the best map.
"""

import argparse
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask import pipeline
from gmkcf_dask.corpus import Corpus, read_corpus
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.methods.registry import make_method
from gmkcf_dask.pipeline import prediction
from gmkcf_dask.results.metrics import scores
from gmkcf_dask.results.saved_model import Model
from gmkcf_dask.results.training import Training, training_of_request
from gmkcf_dask.store.request import KernelRequest

HELD_SHARE = 0.3
LEAST_MEAN, LEAST_EACH, MOST_DIFFERENCE = 0.995, 0.99, 0.05
COLUMNS = ("returned", "held", "together", "overall")


@dataclass(frozen=True)
class Kernels:
    """Kernels of a set in memory, with what prediction needs."""

    stack: object
    training: Training


def kernels_of(corpus: Corpus, normalization: str) -> Kernels:
    request = KernelRequest(corpus, resolve_kernels("paper12"), normalization=normalization)
    stack, built = pipeline.build_dense(request)
    return Kernels(stack, training_of_request(request, built.kernels, built.norms))


def fitted(kernels: Kernels, method, seed: int) -> Model:
    (clustering,) = pipeline.fit(kernels.stack, method, [seed])
    return Model(method, clustering, kernels.training)


def one_seed(whole: Corpus, all_kernels: Kernels, method, normalization: str, seed: int) -> dict:
    """The four numbers of a seed."""
    model = fitted(all_kernels, method, seed)
    labels, known = model.clustering.labels, np.array(whole.labels)
    again = prediction.predict(model, whole.X).labels
    order = np.random.default_rng(seed).permutation(whole.n_samples)
    n_held = round(HELD_SHARE * whole.n_samples)
    held_out, kept = np.sort(order[:n_held]), np.sort(order[n_held:])
    part = Corpus(whole.X[kept], tuple(whole.ids[i] for i in kept))
    smaller = fitted(kernels_of(part, normalization), method, seed)
    new = prediction.predict(smaller, whole.X[held_out]).labels

    def acc(which, predicted) -> float:
        return scores(known[which].tolist(), predicted.tolist())["ACC"]

    return {
        "returned": float((again == labels).mean()),
        "held": acc(held_out, new),
        "together": acc(held_out, labels[held_out]),
        "overall": acc(slice(None), labels),
    }


def of_set(path: Path, options: argparse.Namespace) -> Iterator[dict]:
    corpus = read_corpus(path)
    assert corpus.labels is not None
    solver = {
        "solver": options.solver, "inner_iter": options.inner_iter, "v_steps": options.v_steps,
    }  # fmt: skip
    method = make_method("gmkcf", n_clusters=len(set(corpus.labels)), **solver)
    kernels = kernels_of(corpus, options.normalization)
    for seed in range(options.seeds):
        begin = time.perf_counter()
        agreement = one_seed(corpus, kernels, method, options.normalization, seed)
        if options.each:
            numbers = "  ".join(f"{name} {agreement[name]:.4f}" for name in COLUMNS)
            seconds = time.perf_counter() - begin
            print(f"  {path.stem} seed {seed}: {numbers}  ({seconds:.1f} s)", flush=True)
        yield agreement


def line_of(name: str, agreements: list[dict]) -> tuple[str, bool]:
    """A row of the table, and whether the set is within the bounds."""
    means = {column: float(np.mean([one[column] for one in agreements])) for column in COLUMNS}
    least = min(one["returned"] for one in agreements)
    difference = means["held"] - means["together"]
    right = (
        means["returned"] >= LEAST_MEAN
        and least >= LEAST_EACH
        and abs(difference) <= MOST_DIFFERENCE
    )
    cells = (
        f"{name:<6}", f"{len(agreements):>3}", f"{means['returned']:.4f}", f"{least:.4f}",
        f"{means['held']:.4f}", f"{means['together']:.4f}", f"{difference:+.4f}",
        f"{means['overall']:.4f}", "yes" if right else "NO",
    )  # fmt: skip
    return " | ".join(cells), right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    beside = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    parser.add_argument("--data", type=Path, default=os.environ.get("GMKCF_DATA", beside))
    parser.add_argument("--sets", default="bbc,tr31,k1b,webkb")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--normalization", default="unit")
    parser.add_argument("--solver", default="paper")
    parser.add_argument("--inner-iter", type=int, default=1)
    parser.add_argument("--v-steps", type=int, default=1)
    parser.add_argument("--each", action="store_true", help="a line for every seed")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    print(
        "set    | seeds | returned, mean | least | ACC held | together | difference | overall | ok"
    )
    everything = True
    for name in options.sets.split(","):
        line, right = line_of(name, list(of_set(Path(options.data) / f"{name}.mat", options)))
        everything = everything and right
        print(line, flush=True)
    return 0 if everything else 1


if __name__ == "__main__":
    raise SystemExit(main())
