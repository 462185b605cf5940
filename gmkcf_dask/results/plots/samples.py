"""How samples lie to each other: the fused kernel by cluster, and a map."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from gmkcf_dask.corpus.matrices import read_npz
from gmkcf_dask.errors import InputError
from gmkcf_dask.methods.members import NO_CLUSTER
from gmkcf_dask.results.plots.base import (
    COLOURS,
    INK,
    MARKS,
    MOST_NAMED,
    QUIET,
    Display,
    check_fitted,
    colour_of,
    short_name,
)
from gmkcf_dask.results.plots.numbers import principal_plane, pushed_apart, with_room
from gmkcf_dask.results.run_folder import FACTORS, INSIGHT, labels_of_run
from gmkcf_dask.results.schemas import Insight, RunResult

_LETTER, _LINE = 6.5, 15.0
"""Width of a bold letter and height of a line of names, in points of type."""
_ROOM = 0.9
"""Of what axes have now; a layout may take the rest for their labels."""


class FusedKernelDisplay(Display):
    """The fused kernel with its samples ordered by cluster, as means over blocks of samples.

    Parameters
    ----------
    means : array-like, shape (g, g)
        Mean of each block.
    groups : sequence of int
        Samples of each group, in the order of the picture.
    labels : sequence of int
        Cluster of each group.

    Attributes
    ----------
    ax_, figure_ : of Matplotlib
    image_ : QuadMesh
    colorbar_ : Colorbar or None
    """

    def __init__(self, means: Any, groups: Sequence[int], labels: Sequence[int]) -> None:
        self.means = np.asarray(means, dtype=float)
        self.groups = tuple(int(size) for size in groups)
        self.labels = tuple(np.asarray(labels).tolist())
        g = len(self.groups)
        if self.means.shape != (g, g) or len(self.labels) != g or g == 0:
            raise InputError(
                f"means of shape {self.means.shape} do not fit {g} groups with {len(self.labels)} "
                "labels: give g×g means, g sizes and g labels"
            )

    @classmethod
    def from_blocks(
        cls,
        means: Any,
        groups: Sequence[int],
        labels: Sequence[int],
        *,
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Draw block means that are there already."""
        return cls(means, groups, labels).plot(ax, **kwargs)

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any = None, *, ax: Any = None, **kwargs: Any
    ) -> Self:
        """Draw a fitted estimator from what its `explain` finds, tile by tile.

        X, what it was fitted to, is needed where the estimator does not have that any more.
        """
        check_fitted(estimator, "labels_")
        return cls.from_insight(estimator.explain(X), ax=ax, **kwargs)

    @classmethod
    def _of_insight(cls, insight: Insight) -> Self:
        return cls(insight.fused.means, insight.fused.groups, insight.fused.labels)

    @classmethod
    def _of_result(cls, result: RunResult, folder: Path) -> Self:
        raise InputError(
            f"{folder} has no {INSIGHT}, which holds the block means of the fused kernel: run again"
        )

    def plot(
        self, ax: Any = None, *, cmap: str = "cividis", colorbar: bool = True, **kwargs: Any
    ) -> Self:
        """Draw; every block is as large as its share of the samples.

        Parameters
        ----------
        ax : of Matplotlib, optional
        cmap : str, default="cividis"
        colorbar : bool, default=True
        **kwargs : of `Axes.pcolormesh`
        """
        ax = self._axes(ax, (5.8, 4.8))
        edges = np.array([0, *accumulate(self.groups)])
        self.image_ = ax.pcolormesh(
            edges, edges, self.means, **{"cmap": cmap, "rasterized": True, **kwargs}
        )
        ax.set_aspect("equal")
        ax.invert_yaxis()
        starts = [
            i for i in range(len(self.labels)) if i == 0 or self.labels[i] != self.labels[i - 1]
        ]
        borders = [*(edges[i] for i in starts), edges[-1]]
        for border in borders[1:-1]:
            for line in (ax.axhline, ax.axvline):
                line(border, color="white", linewidth=1.0)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set_xlabel(f"samples by cluster ({edges[-1]:,})", color=INK)
        ax.set_ylabel("samples by cluster", color=INK)
        self.colorbar_ = None
        if colorbar:
            self.colorbar_ = ax.figure.colorbar(self.image_, ax=ax, shrink=0.86, pad=0.03)
            self.colorbar_.set_label("mean similarity, fused kernel", color=INK)
            self.colorbar_.outline.set_visible(False)
            self.colorbar_.ax.tick_params(length=3, colors=QUIET, labelsize=9, labelcolor=INK)
        if len(starts) <= MOST_NAMED:
            self._write_ticks(ax, borders, [str(self.labels[i]) for i in starts])
        return self

    def _write_ticks(self, ax: Any, borders: Sequence[float], names: list[str]) -> None:
        """The names of clusters along both sides, of small ones where there is room."""
        middles = [(a + b) / 2 for a, b in pairwise(borders)]
        sizes = [b - a for a, b in pairwise(borders)]
        # samples to a point of type; a layout may still make the square smaller
        scale = float(borders[-1]) / (_ROOM * min(_points(ax)))
        lengths = [scale * max(_LINE, _LETTER * len(name) + 3) for name in names]
        kept = with_room(middles, sizes, lengths)
        for ticks in (ax.set_xticks, ax.set_yticks):
            ticks([middles[i] for i in kept], [names[i] for i in kept])


class EmbeddingDisplay(Display):
    """A map of the samples: near ones are alike, colours and marks are clusters.

    Parameters
    ----------
    x, y : array-like, shape (n,)
    labels : array-like, shape (n,)
        Numbers or names; −1 is no cluster, and grey.
    names : mapping of label to str, optional
        What a cluster is called, its label otherwise.
    axes : (str, str)
        What the two directions are.

    Attributes
    ----------
    ax_, figure_ : of Matplotlib
    points_ : list of PathCollection
        One for each cluster, and a last one for samples without a cluster.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        labels: Any,
        names: Mapping[Any, str] | None = None,
        axes: tuple[str, str] = ("first direction of the map", "second direction of the map"),
    ) -> None:
        self.x, self.y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        self.labels = np.asarray(labels)
        self.names = dict(names or {})
        self.axes = axes
        if not len(self.x) == len(self.y) == len(self.labels):
            raise InputError("x, y and labels of a map must be equally long")
        if not len(self.x) or not self.x.ndim == self.y.ndim == self.labels.ndim == 1:
            raise InputError(
                "a map needs one x, one y and one label for each of at least one sample"
            )

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **kwargs: Any) -> Self:
        """Draw a fitted estimator: the two main directions of V_, or of embedding_."""
        check_fitted(estimator, "labels_")
        name = next((name for name in ("V", "embedding") if hasattr(estimator, f"{name}_")), None)
        if name is None:
            raise InputError(
                f"{type(estimator).__name__} has no representation of the samples to draw a map "
                "of: use GMKCF, KCF or one of the spectral methods"
            )
        plane, shares = principal_plane(getattr(estimator, f"{name}_"))
        axes = [
            f"{which} principal component of {name} ({share:.0%} of its variance)"
            for which, share in zip(("first", "second"), shares, strict=True)
        ]
        x, y = plane[:, 0], plane[:, 1]
        return cls(x, y, estimator.labels_, axes=(axes[0], axes[1])).plot(ax, **kwargs)

    @classmethod
    def _of_insight(cls, insight: Insight) -> Self:
        names = {cluster.label: cluster.name for cluster in insight.clusters}
        documents = insight.documents
        return cls(documents.x, documents.y, documents.labels, names)

    @classmethod
    def _of_result(cls, result: RunResult, folder: Path) -> Self:
        labels = [int(label) for label in labels_of_run(folder, result).values()]
        try:
            factors = read_npz(folder / FACTORS, ("V", "embedding"))
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise InputError(f"cannot read {folder / FACTORS}: {error}") from error
        if not factors:
            raise InputError(
                f"{folder} has no representation of the samples to draw a map of: use gmkcf, kcf "
                "or one of the spectral methods"
            )
        plane, _ = principal_plane(next(iter(factors.values())))
        return cls(plane[:, 0], plane[:, 1], labels)

    def plot(self, ax: Any = None, *, names: bool = True, **kwargs: Any) -> Self:
        """Draw.

        Parameters
        ----------
        ax : of Matplotlib, optional
        names : bool, default=True
            Write what a cluster is called into its middle, the largest first; a name that finds
            no room there is left out.
        **kwargs : of `Axes.scatter`
        """
        ax = self._axes(ax)
        clusters = [cluster for cluster in _each_once(self.labels) if cluster != NO_CLUSTER]
        n = len(self.labels)
        size = float(np.clip(12_000 / max(n, 1), 3, 30))
        self.points_: list[Any] = []
        for number, cluster in enumerate(clusters):
            inside = self.labels == cluster
            style = {
                "s": size,
                "color": colour_of(number),
                "marker": MARKS[number // len(COLOURS) % len(MARKS)],
                "alpha": 0.75,
                "linewidths": 0,
                "rasterized": n > 5_000,
                "label": self.names.get(cluster, str(cluster)),
            }
            self.points_.append(ax.scatter(self.x[inside], self.y[inside], **{**style, **kwargs}))
        without = self.labels == NO_CLUSTER
        if without.any():
            style = {"s": size, "color": QUIET, "marker": "x", "label": "no cluster"}
            self.points_.append(ax.scatter(self.x[without], self.y[without], **{**style, **kwargs}))
        if names and 0 < len(clusters) <= MOST_NAMED:
            self._write_names(ax, clusters)
        ax.set_xlabel(self.axes[0], color=INK)
        ax.set_ylabel(self.axes[1], color=INK)
        return self

    def _write_names(self, ax: Any, clusters: Any) -> None:
        """Into the middle of each cluster, or near it where the name of a larger one is there."""
        inside = [self.labels == cluster for cluster in clusters]
        order = sorted(range(len(clusters)), key=lambda i: -int(inside[i].sum()))
        inside, clusters = [inside[i] for i in order], [clusters[i] for i in order]
        texts = [short_name(self.names.get(cluster, str(cluster)), 28) for cluster in clusters]
        middles = np.array([[np.median(self.x[i]), np.median(self.y[i])] for i in inside])
        limits = np.array([ax.get_xlim(), ax.get_ylim()], dtype=float)
        ax.set(xlim=limits[0], ylim=limits[1])
        corner, size = limits[:, 0], limits[:, 1] - limits[:, 0]
        across, along = (_ROOM * points for points in _points(ax))
        widths = [(_LETTER * len(name) + 4) / across for name in texts]
        places = corner + size * pushed_apart((middles - corner) / size, widths, _LINE / along)
        # the largest last, so that no line to another name crosses theirs
        for name, place, middle in reversed(list(zip(texts, places, middles, strict=True))):
            if not np.isfinite(place).all():
                continue
            moved = bool(np.abs((place - middle) / size).max() > 0.03)
            ax.annotate(
                name,
                middle,
                xytext=place,
                ha="center",
                va="center",
                fontsize=9,
                fontweight="bold",
                color=INK,
                bbox={"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none", "alpha": 0.82},
                arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.6} if moved else None,
            )


def _points(ax: Any) -> tuple[float, float]:
    """Width and height of axes, in points of type."""
    box = ax.get_window_extent()
    return 72 * box.width / ax.figure.dpi, 72 * box.height / ax.figure.dpi


def _each_once(labels: Any) -> list[Any]:
    """Labels in their order; those that have none, in that of their names."""
    try:
        return list(np.unique(labels).tolist())
    except TypeError:
        return sorted(set(labels.tolist()), key=str)
