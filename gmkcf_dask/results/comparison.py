"""Several methods on the same samples: what each found, and how far they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gmkcf_dask.methods.members import NO_CLUSTER, cluster_sizes
from gmkcf_dask.results.metrics import adjusted_rand
from gmkcf_dask.system.arrays import Floats, Labels
from gmkcf_dask.system.html import block, paragraph, table, text

MEASURES = ("ACC", "NMI", "purity", "ARI")
_EXPLAINED = (
    "c_: contrast in the kernels of a preset; apart: best silhouette; agree: mean agreement with "
    "the others; +: not converged"
)


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """One method with the settings of one preset.

    Attributes
    ----------
    method, preset : str
    labels : ndarray of int, shape (n,)
        −1 for a sample without a cluster.
    n_iter : int
    converged : bool
    seconds : float
        Of the fit alone: the kernels are made once for all. Where methods share passes over a
        kernel, a pass counts for each by its columns.
    contrast : dict of str to float or None
        By preset: how much closer samples of one cluster are than any two, in the mean of the
        kernels of that preset; see docs/algorithm.md. Labels of all methods are measured with the
        same kernels, so these numbers can be compared.
    silhouette : dict of str to float or None
        By preset: how clearly the clusters lie apart (Rousseeuw 1987), from squared distances in
        the mean of the kernels of that preset.
    scores : dict of str to float
        ACC, NMI, purity and ARI; empty where no labels are known.
    """

    method: str
    preset: str
    labels: Labels
    n_iter: int
    converged: bool
    seconds: float
    contrast: Mapping[str, float | None] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    silhouette: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Method and preset, such as gmkcf_local."""
        return f"{self.method}_{self.preset}"

    @property
    def n_clusters(self) -> int:
        """Clusters that have samples."""
        return int((cluster_sizes(self.labels, 1) > 0).sum())

    @property
    def largest(self) -> float:
        """Share of all samples in the largest cluster."""
        return float(cluster_sizes(self.labels, 1).max() / len(self.labels))

    @property
    def n_without_cluster(self) -> int:
        return int((self.labels == NO_CLUSTER).sum())


@dataclass(frozen=True, eq=False)
class Comparison:
    """What several methods found on the same samples, and how far they agree.

    Attributes
    ----------
    runs : tuple of ComparedRun
        One for every method and preset.
    agreement : ndarray, shape (n_runs, n_runs)
        Adjusted Rand index between the labels of every two runs.
    n_samples, k, seed : int
    kernels : dict of str to tuple of str
        Names of the kernels of every preset.
    skipped : tuple of str
        One sentence for each preset or method that could not run.
    """

    runs: tuple[ComparedRun, ...]
    agreement: Floats
    n_samples: int
    k: int
    seed: int
    kernels: Mapping[str, tuple[str, ...]]
    skipped: tuple[str, ...] = ()

    @property
    def labels(self) -> dict[str, Labels]:
        """Labels by the names of the runs, such as gmkcf_local."""
        return {run.name: run.labels for run in self.runs}

    @property
    def mean_agreement(self) -> Floats:
        """Mean of the adjusted Rand indices with all other runs, shape (n_runs,)."""
        others = max(1, len(self.runs) - 1)
        return np.asarray((self.agreement.sum(axis=1) - np.diagonal(self.agreement)) / others)

    def lines(self) -> list[str]:
        """Two tables and what they say, for a terminal."""
        heads, rows = self._table()
        lines = [*_aligned([heads, *rows], left=2), _EXPLAINED]
        if len(self.runs) > 1:
            lines += ["", "agreement of every two (adjusted Rand index):"]
            lines += _aligned(self._agreement_rows(), left=2)
        return [*lines, "", *self.summary()]

    def summary(self) -> list[str]:
        """One sentence for each thing that stands out, and for each part that was skipped."""
        sentences = []
        if len(self.runs) > 1:
            sentences.append(self._best("most like the others", "agreement", self.mean_agreement))
        contrasts = [_mean_contrast(run) for run in self.runs]
        if max(contrasts) > -np.inf:
            sentences.append(self._best("clearest clusters", "mean contrast", contrasts))
        if self.runs[0].scores:
            known = [run.scores["NMI"] for run in self.runs]
            sentences.append(self._best("closest to the known labels", "NMI", known))
        return [*sentences, *(f"skipped: {sentence}" for sentence in self.skipped)]

    def _best(self, what: str, measure: str, values: Sequence[float] | Floats) -> str:
        """Which runs have the highest value, and those that are as good to two digits."""
        best = max(values)
        names = [
            run.name for run, value in zip(self.runs, values, strict=True) if best - value < 0.005
        ]
        return f"{what}: {', '.join(names)} ({measure} {best:.2f})"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        known = MEASURES if self.runs[0].scores else ()
        heads = ["", "run", "largest", *(f"c_{preset}" for preset in self.kernels)]
        heads += ["apart", "agree"]
        heads += [*known, "iter", "seconds"]
        rows = []
        for number, (run, mean) in enumerate(zip(self.runs, self.mean_agreement, strict=True), 1):
            apart = [value for value in run.silhouette.values() if value is not None]
            internal = [run.contrast.get(preset) for preset in self.kernels]
            internal.append(max(apart, default=None))
            rows.append(
                [
                    str(number),
                    run.name,
                    f"{run.largest:.0%}",
                    *("-" if value is None else f"{value:.2f}" for value in internal),
                    f"{mean:.2f}" if len(self.runs) > 1 else "-",
                    *(f"{run.scores[name]:.2f}" for name in known),
                    f"{run.n_iter}{'' if run.converged else '+'}",
                    f"{run.seconds:.2f}",
                ]
            )
        return heads, rows

    def _agreement_rows(self) -> list[list[str]]:
        numbers = [str(number) for number in range(1, len(self.runs) + 1)]
        rows = [["", "", *numbers]]
        for number, run, values in zip(numbers, self.runs, self.agreement, strict=True):
            rows.append([number, run.name, *(f"{value:.2f}" for value in values)])
        return rows

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return (
            f"Comparison({len(self.runs)} runs, {self.n_samples} samples, k={self.k}, "
            f"mean agreement {float(self.mean_agreement.mean()):.2f})"
        )

    def _repr_html_(self) -> str:
        heads, rows = self._table()
        parts = [table([[text(cell) for cell in row] for row in rows], heads)]
        parts.append(paragraph(_EXPLAINED))
        if len(self.runs) > 1:
            first, *others = self._agreement_rows()
            parts.append(paragraph("agreement of every two (adjusted Rand index)"))
            parts.append(table([[text(cell) for cell in row] for row in others], first))
        parts += map(paragraph, self.summary())
        title = f"{len(self.runs)} runs, {self.n_samples:,} samples, k = {self.k}"
        return block(title, *parts)

    def as_json(self) -> dict[str, Any]:
        """Plain values, as comparison.json contains them; labels are in files of their own."""
        return {
            "version": 1,
            "n_samples": self.n_samples,
            "k": self.k,
            "seed": self.seed,
            "kernels": {preset: list(names) for preset, names in self.kernels.items()},
            "runs": [
                {
                    "name": run.name,
                    "method": run.method,
                    "preset": run.preset,
                    "n_clusters": run.n_clusters,
                    "n_without_cluster": run.n_without_cluster,
                    "largest": run.largest,
                    "contrast": dict(run.contrast),
                    "silhouette": dict(run.silhouette),
                    "mean_agreement": float(mean),
                    "scores": dict(run.scores),
                    "n_iter": run.n_iter,
                    "converged": run.converged,
                    "seconds": round(run.seconds, 3),
                }
                for run, mean in zip(self.runs, self.mean_agreement, strict=True)
            ],
            "agreement": self.agreement.tolist(),
            "skipped": list(self.skipped),
        }

    def picture(self) -> bytes:
        """A PNG: the agreement of every two, and the scores. Needs the extra `[plot]`."""
        from gmkcf_dask.results.plots.compare import draw_comparison

        return draw_comparison(self)


def agreement_of(labelings: Sequence[Labels]) -> Floats:
    """The adjusted Rand index of every two labelings, shape (r, r)."""
    r = len(labelings)
    agreement = np.eye(r)
    for i in range(r):
        for j in range(i):
            agreement[i, j] = agreement[j, i] = adjusted_rand(labelings[i], labelings[j])
    return agreement


def _mean_contrast(run: ComparedRun) -> float:
    """Over the presets; −∞ where there is no telling."""
    values = [value for value in run.contrast.values() if value is not None]
    return sum(values) / len(values) if values else -np.inf


def _aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Rows as lines; the first columns begin at the left, the others end at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
