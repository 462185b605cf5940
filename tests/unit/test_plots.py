"""Displays: what they show, how they are made, and what they say where they cannot be."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from helpers.insights import make_insight
from helpers.marks import mostly_slow
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask import (
    GMKCF,
    KCF,
    ConvergenceDisplay,
    EmbeddingDisplay,
    FusedKernelDisplay,
    History,
    KernelKMeans,
    KernelSpectralClustering,
    KernelWeightsDisplay,
)
from gmkcf_dask.errors import InputError
from gmkcf_dask.results.plots.numbers import principal_plane, pushed_apart, spread_apart

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")
from matplotlib import pyplot as plt  # noqa: E402

FEW = ["rbf_1", "cosine", "poly_a1_b2"]
DISPLAYS = [ConvergenceDisplay, KernelWeightsDisplay, FusedKernelDisplay, EmbeddingDisplay]
pytestmark = pytest.mark.usefixtures("calm")


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def X():
    return make_blobs(90, 4, centers=3, cluster_std=0.6, random_state=0)[0]


@pytest.fixture(scope="module")
def model(X):
    with pytest.warns(ConvergenceWarning):
        return GMKCF.paper(3, kernels=FEW, n_init=2, max_iter=20, random_state=0).fit(X)


def drawn(display) -> None:
    """A display that is ready: axes with names, and a picture."""
    assert display.figure_ is display.ax_.figure
    assert display.ax_.get_xlabel()
    assert display.ax_.get_ylabel()
    display.figure_.canvas.draw()


def make(kind, model, X, **how):
    data = (X,) if kind is FusedKernelDisplay else ()
    return kind.from_estimator(model, *data, **how)


@pytest.mark.parametrize("kind", DISPLAYS)
def test_displays_of_an_estimator(kind, model, X):
    drawn(make(kind, model, X))


@pytest.mark.parametrize("kind", DISPLAYS)
def test_displays_draw_into_given_axes(kind, model, X):
    _, axes = plt.subplots(1, 2)
    display = make(kind, model, X, ax=axes[1])
    assert display.ax_ is axes[1]
    display.plot(axes[0])
    assert display.ax_ is axes[0]


@pytest.mark.parametrize("kind", DISPLAYS)
def test_an_estimator_must_be_fitted(kind, X):
    with pytest.raises(InputError, match="fit the estimator"):
        make(kind, GMKCF(3), X)


def test_convergence_shows_every_restart(model):
    one = ConvergenceDisplay.from_estimator(model)
    shown = np.concatenate([line.get_ydata() for line in one.lines_])
    assert model.objective_history_[-1] in shown
    histories = [[9.0, 5, 4, 3.5], [9.0, 6, 5.5]]
    two = ConvergenceDisplay(histories, best=0, converged=[True, False]).plot()
    drawn(two)
    assert [line.get_ydata().tolist() for line in two.lines_] == [[5, 4, 3.5], [6, 5.5]]
    legend = [text.get_text() for text in two.ax_.get_legend().get_texts()]
    assert legend == ["kept, 3.5", "1 other restart", "not converged"]
    assert ConvergenceDisplay(histories).plot(start=True).lines_[0].get_ydata()[0] == 9
    drawn(ConvergenceDisplay([[3.0]]).plot())


def test_all_histories_of_restarts_are_shown_where_an_estimator_has_them():
    class Run:
        def __init__(self, history, converged):
            self.history, self.converged, self.objective = history, converged, history[-1]

    class Fitted:
        objective_history_ = np.array([9, 3.0])
        converged_ = True
        runs_ = (Run((9.0, 4.0), False), Run((9.0, 3.0), True))
        kernel_names_ = ("a", "b")
        kernel_weights_ = np.array([0.3, 0.7])
        weights_history_ = np.array([[0.5, 0.5], [0.3, 0.7]])

    display = ConvergenceDisplay.from_estimator(Fitted())
    assert (len(display.lines_), display.best) == (2, 1)
    assert len(KernelWeightsDisplay.from_estimator(Fitted()).lines_) == 2


def test_weights_are_bars_or_lines(model):
    bars = KernelWeightsDisplay.from_estimator(model, kind="bars")
    assert [bar.get_width() for bar in bars.bars_] == pytest.approx(model.kernel_weights_.tolist())
    names = [label.get_text() for label in bars.ax_.get_yticklabels()]
    assert names == list(model.kernel_names_)
    history = np.array([[0.3, 0.3, 0.4], [0.2, 0.5, 0.3], [0.1, 0.6, 0.3]])
    lines = KernelWeightsDisplay(FEW, history[-1], history).plot()
    drawn(lines)
    assert lines.bars_ is None
    assert {line.get_label(): line.get_ydata()[-1] for line in lines.lines_} == dict(
        zip(FEW, history[-1].tolist(), strict=True)
    )
    bare = KernelWeightsDisplay(FEW, history[-1], np.empty((0, 3)))
    with pytest.raises(InputError, match="no history"):
        bare.plot(kind="lines")
    with pytest.raises(InputError, match="kind must be"):
        bare.plot(kind="pie")


def test_a_history_that_was_listened_to_can_be_drawn(X):
    history = History()
    model = GMKCF(3, kernels=FEW, max_iter=5, callbacks=[history], random_state=0).fit(X)
    drawn(
        KernelWeightsDisplay(model.kernel_names_, model.kernel_weights_, history.weights[0]).plot()
    )


def test_fused_kernel_is_drawn_from_what_explain_finds(rng, calm):
    A = rng.random((40, 5))
    model = KCF(3, kernel="precomputed", max_iter=5, random_state=0).fit(A @ A.T)
    with pytest.raises(InputError, match="give them as X"):
        FusedKernelDisplay.from_estimator(model)
    display = FusedKernelDisplay.from_estimator(model, A @ A.T)
    drawn(display)
    fused = model.explain()["fused"]
    np.testing.assert_array_equal(display.means, fused["means"])
    assert display.labels == tuple(fused["labels"])


def test_fused_kernel_on_a_store_is_that_in_memory(model, X, tmp_path):
    how = {"kernels": FEW, "max_iter": 5, "random_state": 0, "block_size": 32}
    stored = GMKCF(3, store=tmp_path / "s.zarr", **how).fit(X)
    near = FusedKernelDisplay.from_estimator(GMKCF(3, **how).fit(X))
    far = FusedKernelDisplay.from_estimator(stored)
    np.testing.assert_allclose(near.means, far.means, rtol=1e-5)
    with pytest.raises(InputError, match="it was fitted on"):
        FusedKernelDisplay.from_estimator(model, X[:50])


def test_block_means_must_fit_their_groups():
    drawn(FusedKernelDisplay.from_blocks([[1, 0], [0, 1]], [3, 5], [0, 1], colorbar=False))
    for means, groups, labels in (([[1.0]], [1, 2], [0, 1]), ([[1.0]], [1], []), ([], [], [])):
        with pytest.raises(InputError, match="do not fit"):
            FusedKernelDisplay(means, groups, labels)


def test_the_map_shows_every_sample_once(model, X):
    display = EmbeddingDisplay.from_estimator(model)
    assert sum(len(points.get_offsets()) for points in display.points_) == len(X)
    assert len(display.points_) == len(set(model.labels_.tolist()))
    assert "principal component of V" in display.ax_.get_xlabel()
    spectral = KernelSpectralClustering(3, kernel="rbf_1", random_state=0).fit(X)
    assert "embedding" in EmbeddingDisplay.from_estimator(spectral).ax_.get_xlabel()
    with pytest.raises(InputError, match="no representation"):
        EmbeddingDisplay.from_estimator(KernelKMeans(3, kernel="rbf_1", random_state=0).fit(X))
    with pytest.raises(InputError, match="equally long"):
        EmbeddingDisplay([1.0], [1.0, 2.0], [0])


def test_the_plane_is_that_of_principal_components(rng):
    from sklearn.decomposition import PCA

    V = rng.random((50, 6))
    plane, shares = principal_plane(V)
    model = PCA(2).fit(V)
    np.testing.assert_allclose(np.abs(plane), np.abs(model.transform(V)), atol=1e-9)
    assert shares == pytest.approx(tuple(model.explained_variance_ratio_))
    assert principal_plane(V[:, :1])[0].shape == (50, 2)
    assert principal_plane(np.ones((5, 3)))[1] == (0.0, 0.0)


def test_names_do_not_overlap(rng):
    values = np.sort(rng.random(10))[::-1]
    apart = spread_apart(values, 0.0, 1.0, 0.05)
    assert (-np.diff(apart) >= 0.05 - 1e-12).all()
    points = pushed_apart(np.full((6, 2), 0.5), [0.1] * 6, 0.05)
    assert len({round(y, 6) for y in points[:, 1]}) == 6
    points = pushed_apart(rng.random((40, 2)), [0.1] * 40, 0.05)
    kept = points[np.isfinite(points).all(axis=1)]
    assert len(kept) > 20
    for i, one in enumerate(kept):
        assert 0.05 <= one[0] <= 0.95
        assert 0.025 <= one[1] <= 0.975
        assert not [o for o in kept[:i] if abs(o - one)[0] < 0.1 and abs(o - one)[1] < 0.0499]
    assert not np.isfinite(pushed_apart(np.full((9, 2), 0.5), [0.1] * 9, 0.3)[3:]).any()


@pytest.fixture(scope="module")
def many():
    """Twenty-one clusters of different sizes, of which most lie nearly at one point."""
    random = np.random.default_rng(0)
    sizes = [300, 120, 80, *[12] * 8, *[4] * 10]
    labels = np.repeat(np.arange(21), sizes)
    V = 0.02 * random.random((len(labels), 21))
    V[labels == 1] += np.eye(21)[1]
    V[labels == 2] += np.eye(21)[2]
    groups = [size // parts for size, parts in zip(sizes, [3] * 3 + [1] * 18, strict=True)]
    of = np.repeat(np.arange(21), [3] * 3 + [1] * 18)
    return labels, V, np.repeat(groups, [3] * 3 + [1] * 18), of


class Fitted:
    def __init__(self, labels, V):
        self.labels_, self.V_ = labels, V


def boxes_of(texts):
    return [text.get_window_extent() for text in texts]


def overlapping(boxes):
    return [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]


@mostly_slow("size", [(6.4, 4.4), (3.2, 2.4), (12, 3)], ids=str)
def test_names_of_many_clusters_stay_inside_the_axes(many, size, tmp_path):
    labels, V, _, _ = many
    for layout in (None, "constrained"):
        ax = plt.subplots(figsize=size, layout=layout)[1]
        display = EmbeddingDisplay.from_estimator(Fitted(labels, V), ax=ax)
        display.figure_.savefig(tmp_path / "map.png")
        frame = ax.get_window_extent()
        boxes = boxes_of([text.get_bbox_patch() for text in ax.texts])
        assert {"0", "1", "2"} <= {text.get_text() for text in ax.texts}
        assert 3 < len(boxes) < 21
        assert overlapping(boxes) == []
        for box in boxes:
            assert frame.x0 <= box.x0 <= box.x1 <= frame.x1
            assert frame.y0 <= box.y0 <= box.y1 <= frame.y1


@pytest.mark.parametrize("size", [(5.8, 4.8), (3.0, 2.6), (9, 4)], ids=str)
def test_ticks_of_many_clusters_do_not_overlap(many, size, tmp_path):
    _, _, groups, of = many
    means = np.eye(len(of))
    for layout in (None, "constrained"):
        ax = plt.subplots(figsize=size, layout=layout)[1]
        display = FusedKernelDisplay.from_blocks(means, groups, of, ax=ax)
        display.figure_.savefig(tmp_path / "fused.png")
        for ticks in (ax.get_xticklabels(), ax.get_yticklabels()):
            assert {"0", "1", "2"} <= {tick.get_text() for tick in ticks}
            assert len(ticks) < 21
            assert overlapping(boxes_of(ticks)) == []


INSIGHT = make_insight(n=12, k=3, m=2, iterations=4, restarts=2)
for cluster, odd in zip(INSIGHT["clusters"], ["$a_b$", "x" * 80, "c\nd"], strict=True):
    cluster["name"] = odd


@mostly_slow("kind", DISPLAYS)
def test_displays_of_an_insight_and_of_its_file(kind, tmp_path):
    drawn(kind.from_insight(INSIGHT))
    (tmp_path / "insight.json").write_text(json.dumps(INSIGHT))
    drawn(kind.from_run(tmp_path))
    drawn(kind.from_run(str(tmp_path)))
    drawn(kind.from_run(INSIGHT))


@pytest.mark.parametrize("content", ["", "[1", "[]", "3", '{"runs": []}'])
def test_a_damaged_insight_is_refused(tmp_path, content):
    (tmp_path / "insight.json").write_text(content)
    with pytest.raises(InputError, match=r"insight\.json"):
        ConvergenceDisplay.from_run(tmp_path)


def test_displays_of_a_run_that_has_no_insight(X, tmp_path):
    from click.testing import CliRunner

    from gmkcf_dask.cli import main

    np.savez(tmp_path / "x.npz", X=X)
    words = [
        "run",
        tmp_path / "x.npz",
        "-k",
        3,
        "--out",
        tmp_path / "r",
        "--max-iter",
        5,
        "--quiet",
    ]
    words += ["--kernels", ",".join(FEW), "--cluster", "threads"]
    assert CliRunner().invoke(main, [str(word) for word in words]).exit_code == 0
    (tmp_path / "r" / "insight.json").unlink(missing_ok=True)
    for kind in (ConvergenceDisplay, KernelWeightsDisplay, EmbeddingDisplay):
        drawn(kind.from_run(tmp_path / "r"))
    with pytest.raises(InputError, match=r"no insight\.json"):
        FusedKernelDisplay.from_run(tmp_path / "r")
    (tmp_path / "r" / "factors.npz").write_bytes(b"PK nonsense")
    with pytest.raises(InputError, match="cannot read"):
        EmbeddingDisplay.from_run(tmp_path / "r")
    with pytest.raises(InputError, match="not a finished run"):
        ConvergenceDisplay.from_run(tmp_path / "nowhere")


@pytest.mark.slow
def test_many_clusters_and_kernels_can_be_drawn(rng):
    n, k = 400, 40
    labels = rng.integers(0, k, n)
    drawn(EmbeddingDisplay(rng.random(n), rng.random(n), labels).plot())
    history = rng.dirichlet(np.ones(30), 9)
    drawn(KernelWeightsDisplay([f"kernel {i}" for i in range(30)], history[-1], history).plot())
    drawn(FusedKernelDisplay(np.eye(k), [2] * k, range(k)).plot())


@pytest.mark.once
@pytest.mark.slow
def test_matplotlib_is_asked_for_only_when_something_is_drawn():
    code = (
        "import sys, gmkcf_dask\n"
        "gmkcf_dask.ConvergenceDisplay([[2.0, 1.0]])\n"
        "assert 'matplotlib' not in sys.modules\n"
        "sys.modules['matplotlib'] = None\n"
        "gmkcf_dask.ConvergenceDisplay([[2.0, 1.0]]).plot()\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "InputError: pictures need Matplotlib: pip install 'gmkcf-dask[plot]'" in ran.stderr


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConvergenceDisplay([]),
        lambda: ConvergenceDisplay([[]]),
        lambda: ConvergenceDisplay([[2.0, 1.0]], best=1),
        lambda: EmbeddingDisplay([], [], []),
        lambda: KernelWeightsDisplay([], []),
        lambda: KernelWeightsDisplay(["a"], [0.5, 0.5]),
        lambda: FusedKernelDisplay([], [], []),
    ],
)
def test_nothing_to_draw_is_said_in_a_sentence(make):
    with pytest.raises(InputError, match=r"give|needs|there is no"):
        make()


def test_labels_may_be_of_any_kind():
    def legend(labels, names=None):
        shown = EmbeddingDisplay([0.0, 1.0, 2.0], [0.0, 1.0, 0.5], labels, names).plot()
        return [points.get_label() for points in shown.points_]

    assert legend(["b", "a", "b"]) == ["a", "b"]
    assert legend(["b", "a", "b"], {"a": "first"}) == ["first", "b"]
    assert legend(np.array([1, 0, 1]), {1: "one"}) == ["0", "one"]
    assert legend(np.array(["b", None, 3], dtype=object)) == ["3", "None", "b"]
    fused = FusedKernelDisplay([[1.0, 0.0], [0.0, 1.0]], [2, 2], ["a", "b"]).plot()
    assert [tick.get_text() for tick in fused.ax_.get_xticklabels()] == ["a", "b"]
