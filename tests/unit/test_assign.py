"""From rows to labels: K-means, directions, the largest entry; in fits, new samples and files."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.problems import dense, kernels, tiled
from hypothesis import given, settings, strategies as st
from sklearn.base import clone
from sklearn.datasets import make_blobs

from gmkcf_dask import (
    GMKCF,
    KCF,
    CoregSpectralClustering,
    KernelKMeans,
    KernelSpectralClustering,
    load,
    pipeline,
)
from gmkcf_dask.cli import main
from gmkcf_dask.compute.combined import CombinedKernels
from gmkcf_dask.compute.cross_products import CrossProducts
from gmkcf_dask.compute.factored import FactoredKernels, MemoryFactors
from gmkcf_dask.compute.lockstep import run_solver
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.errors import DataWarning, InputError, NumericsWarning
from gmkcf_dask.methods.assign import cluster_rows, place_rows
from gmkcf_dask.methods.coreg import Coreg
from gmkcf_dask.methods.defaults import DEFAULT_ASSIGN
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.methods.init import spectral_start, start_from_members
from gmkcf_dask.methods.kcf import Kcf
from gmkcf_dask.methods.predict import extension_of
from gmkcf_dask.methods.registry import make_method
from gmkcf_dask.methods.spectral import Sc, embed
from gmkcf_dask.methods.spherical import climb, normalized_rows, plus_plus, spherical_kmeans
from gmkcf_dask.results.metrics import scores
from gmkcf_dask.results.saved_model import load_model

FEW = ["rbf_1", "cosine", "poly_a1_b2"]
RULES = ["kmeans", "spherical", "argmax"]
MODELS = [
    *(GMKCF(3, kernels=FEW, assign=rule) for rule in RULES),
    *(KCF(3, assign=rule) for rule in RULES),
    KernelSpectralClustering(3, kernel="rbf_1", assign="spherical"),
    KernelSpectralClustering(3, kernel="rbf_0.3", laplacian="unnormalized", assign="spherical"),
]


@pytest.fixture(scope="module")
def X():
    return make_blobs(90, 4, centers=3, cluster_std=1.2, random_state=0)[0]


def rays(rng, n=60, k=3, spread=0.05):
    """Rows near k orthogonal directions, of very different lengths, and the direction of each."""
    topics = np.arange(n) % k
    return (np.eye(k)[topics] + spread * rng.random((n, k))) * 10.0 ** rng.uniform(
        -4, 2, (n, 1)
    ), topics


def as_rows(values, rule):
    return np.abs(values) if rule == "argmax" else values


# spherical k-means


def test_directions_count_and_lengths_do_not(rng):
    rows, topics = rays(rng)
    labels, factors = cluster_rows(rows, 3, 0, "spherical")
    assert scores(topics, labels)["ACC"] == 1.0
    assert labels.dtype == np.int32
    np.testing.assert_allclose(np.linalg.norm(factors["centres"], axis=1), 1.0)
    again, _ = cluster_rows(rows * rng.uniform(0.1, 10, (60, 1)), 3, 0, "spherical")
    np.testing.assert_array_equal(again, labels)


@settings(max_examples=40)
@given(st.integers(0, 2**16), st.integers(1, 9), st.booleans(), st.booleans())
def test_the_objective_never_falls(seed, k, duplicates, bad_start):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(40, 4))
    if duplicates:
        rows = rows[rng.integers(0, 5, 40)]
    unit = normalized_rows(rows)
    # with one and the same centre k times, all but one of them are empty
    start = np.repeat(unit[:1], k, axis=0) if bad_start else plus_plus(unit, k, rng)
    found, centres = climb(unit, start)
    assert (np.diff(found) >= -1e-12 * len(rows)).all()
    np.testing.assert_allclose(found[-1], (unit @ centres.T).max(axis=1).sum())
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 1.0)


def test_an_empty_centre_moves_to_the_sample_that_is_served_worst():
    unit = normalized_rows(np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]))
    _, centres = climb(unit, np.array([[1.0, 0.0], [1.0, 0.0]]))
    np.testing.assert_allclose(centres[1], [0.0, 1.0], atol=1e-12)


def test_rows_that_cancel_out_keep_their_centre():
    unit = np.array([[1.0, 0.0], [-1.0, 0.0]])
    found, centres = climb(unit, np.array([[0.0, 1.0]]))
    np.testing.assert_array_equal(centres, [[0.0, 1.0]])
    assert found[-1] == 0.0


def test_more_iterations_and_starts_are_no_worse(rng):
    rows = rng.normal(size=(200, 5))

    def score(**how):
        return (normalized_rows(rows) @ spherical_kmeans(rows, 6, 0, **how).T).max(axis=1).sum()

    assert score(max_iter=1) <= score(max_iter=20)
    assert score(n_init=1) <= score(n_init=10)


def test_a_seed_decides(rng):
    rows = rng.normal(size=(80, 4))
    first, again = (spherical_kmeans(rows, 5, 3) for _ in range(2))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("rule", ["spherical", "argmax"])
def test_every_row_a_cluster_of_its_own(rule):
    labels, _ = cluster_rows(np.diag([1.0, 2.0, 3.0, 1e-5]), 4, 0, rule)
    assert sorted(labels) == [0, 1, 2, 3]


@pytest.mark.parametrize("rule", ["spherical", "argmax"])
def test_fewer_directions_than_clusters(rule):
    rows = np.repeat([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]], 5, axis=0)
    with pytest.warns(NumericsWarning, match="only 2 of 3 clusters"):
        labels, _ = cluster_rows(rows, 3, 0, rule)
    assert len(set(labels[:5])) == len(set(labels[5:])) == 1
    assert labels[0] != labels[5]


@pytest.mark.parametrize("rule", ["spherical", "argmax"])
def test_a_row_of_zeros_has_no_cluster(rng, rule):
    rows, _ = rays(rng)
    with_zeros = np.insert(rows, [0, 7], 0.0, axis=0)
    with_zeros[0] = np.finfo(float).tiny  # as low as multiplicative updates go
    labels, factors = cluster_rows(with_zeros, 3, 0, rule)
    assert np.flatnonzero(labels == -1).tolist() == [0, 8]
    without, _ = cluster_rows(rows, 3, 0, rule)
    np.testing.assert_array_equal(np.delete(labels, [0, 8]), without)
    found, sure = place_rows(with_zeros, rule, factors.get("centres"))
    np.testing.assert_array_equal(found, labels)
    np.testing.assert_array_equal(sure == 0.0, labels == -1)


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("rule", ["spherical", "argmax"])
def test_nothing_but_zeros(rule):
    labels, _ = cluster_rows(np.zeros((5, 2)), 2, 0, rule)
    np.testing.assert_array_equal(labels, -1)


def test_k_means_gives_every_row_a_cluster(rng):
    rows = np.vstack([rays(rng)[0], np.zeros((3, 3))])
    assert cluster_rows(rows, 3, 0, "kmeans")[0].min() == 0


def test_the_largest_entry_and_how_clearly_it_leads():
    rows = np.array([[4.0, 1.0, 0.0], [0.0, 2.0, 2.0], [0.0, 0.0, 5.0], [0.0, 0.0, 0.0]])
    labels, sure = place_rows(rows, "argmax", None)
    np.testing.assert_array_equal(labels, [0, 1, 2, -1])
    np.testing.assert_allclose(sure, [0.75, 0.0, 1.0, 0.0])
    np.testing.assert_array_equal(place_rows(rows[:, :1], "argmax", None)[1], [1, 0, 0, 0])


def test_how_clearly_a_direction_is_the_nearest():
    rows = np.array([[2.0, 0.0], [3.0, 3.0], [3.0, 4.0], [0.0, 0.0]])
    labels, sure = place_rows(rows, "spherical", np.eye(2))
    np.testing.assert_array_equal(labels, [0, 0, 1, -1])
    expected = 1 - np.sqrt((2 - 2 * 0.8) / (2 - 2 * 0.6))
    np.testing.assert_allclose(sure, [1.0, 0.0, expected, 0.0], atol=1e-12)


@settings(max_examples=30)
@given(st.integers(0, 2**16), st.sampled_from(RULES))
def test_no_row_depends_on_the_others(seed, rule):
    rng = np.random.default_rng(seed)
    rows, centres = (
        as_rows(rng.normal(size=(30, 5)), rule),
        normalized_rows(rng.normal(size=(4, 5))),
    )
    labels, sure = place_rows(rows, rule, centres)
    for i in range(30):
        own, own_sure = place_rows(rows[i : i + 1], rule, centres)
        assert (own[0], own_sure[0]) == (labels[i], sure[i])


# estimators


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_training_samples_get_their_labels_back(X, model, tmp_path):
    model = clone(model).set_params(random_state=0).fit(X)
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    alone = np.concatenate([model.predict(x[None]) for x in X[:9]])
    np.testing.assert_array_equal(alone, model.labels_[:9])
    sure = model.sureness(X)
    assert ((sure >= 0.0) & (sure <= 1.0)).all()
    rows = getattr(model, "V_", getattr(model, "embedding_", None))
    np.testing.assert_allclose(model.transform(X), rows, atol=1e-4 * np.abs(rows).max())
    if model.assign == "argmax":
        np.testing.assert_array_equal(model.labels_, model.V_.argmax(axis=1))
        assert not hasattr(model, "cluster_centers_")
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.assign == model.assign
    np.testing.assert_array_equal(loaded.labels_, model.labels_)
    np.testing.assert_array_equal(loaded.predict(X), model.labels_)
    np.testing.assert_array_equal(loaded.sureness(X), sure)


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("rule", RULES)
def test_a_sample_that_nothing_is_like(rng, rule, tmp_path):
    X = np.vstack([rays(rng)[0], np.zeros((2, 3))])
    how = {"normalization": "none", "scaling": "none", "random_state": 0}
    with pytest.warns(DataWarning):
        model = KCF(3, kernel="linear", assign=rule, **how).fit(X)
    np.testing.assert_array_equal(model.V_[60:], 0.0)
    assert (model.labels_[:60] >= 0).all()
    assert ((model.labels_[60:] == -1) == (rule != "kmeans")).all()
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    if rule != "kmeans":
        np.testing.assert_array_equal(model.sureness(X[60:]), 0.0)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").labels_, model.labels_)


@pytest.mark.usefixtures("calm")
def test_coreg_by_directions(X):
    models = [
        CoregSpectralClustering(3, kernels=FEW, assign=rule, random_state=0).fit(X)
        for rule in ("kmeans", "spherical")
    ]
    np.testing.assert_array_equal(models[0].embedding_, models[1].embedding_)
    np.testing.assert_allclose(np.linalg.norm(models[1].cluster_centers_, axis=1), 1.0)
    assert scores(models[0].labels_, models[1].labels_)["ACC"] > 0.9


@pytest.mark.parametrize("kind", [GMKCF, KCF, KernelSpectralClustering, CoregSpectralClustering])
def test_one_name_has_the_default(kind):
    assert kind().assign == DEFAULT_ASSIGN
    assert make_method(kind.method_name, n_clusters=2).assign == "kmeans"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Gmkcf(3, assign="best"), "kmeans, spherical, argmax"),
        (lambda: Kcf(3, assign=None), "assign"),
        (lambda: Sc(3, assign="argmax"), "sc"),
        (lambda: Coreg(3, assign="argmax"), "coreg"),
        (lambda: make_method("kkm", n_clusters=3, assign="spherical"), "gmkcf, kcf, sc, coreg"),
    ],
)
def test_refusals(make, named):
    with pytest.raises(InputError, match=named):
        make()


def test_kernel_k_means_has_no_rule():
    assert "assign" not in KernelKMeans().get_params()


# files


def test_k_means_is_not_written_down():
    """Fingerprints of earlier versions do not have the word."""
    for method in (Gmkcf(3), Kcf(3), Sc(3), Coreg(3)):
        assert "assign" not in method.parameters()
        assert "assign" not in pipeline.run_fingerprint({}, method, 0, ["mean"])
    other = pipeline.run_fingerprint({}, Gmkcf(3, assign="spherical"), 0, ["mean"])
    assert other["assign"] == "spherical"


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("rule", RULES)
def test_the_command_line(X, tmp_path, rule):
    data, out = tmp_path / "data.npz", tmp_path / "run"
    np.savez(data, X=np.abs(X))
    how = ["run", str(data), "-k", "3", "--out", str(out), "--kernels", "rbf_1,cosine",
           "--assign", rule, "--max-iter", "50", "--tol", "0.001"]  # fmt: skip
    result = CliRunner().invoke(main, how)
    assert result.exit_code == 0, result.output
    parameters = json.loads((out / "result.json").read_text())["parameters"]
    assert parameters.get("assign", "kmeans") == rule
    model = load(out)
    assert model.assign == rule
    np.testing.assert_array_equal(model.predict(np.abs(X)), model.labels_)
    again = CliRunner().invoke(main, [*how, "--resume"])
    assert again.exit_code == 0, again.output
    other = RULES[RULES.index(rule) - 1]
    refused = CliRunner().invoke(main, [*how, "--resume", "--assign", other])
    assert refused.exit_code == 2
    assert "assign" in refused.output


def test_the_command_line_refuses(tmp_path, X):
    np.savez(tmp_path / "data.npz", X=X)
    how = ["run", str(tmp_path / "data.npz"), "-k", "3", "--out", str(tmp_path / "run")]
    for options in (
        ["--method", "sc", "--assign", "argmax"],
        ["--method", "kkm", "--assign", "kmeans"],
    ):
        result = CliRunner().invoke(main, [*how, *options])
        assert result.exit_code == 2
        assert "assign" in result.output


@pytest.mark.usefixtures("calm")
def test_a_model_without_the_word_means_k_means(X, tmp_path):
    GMKCF(3, kernels=FEW, assign="kmeans", random_state=0, max_iter=5).fit(X).save(tmp_path / "m")
    content = json.loads((tmp_path / "m" / "model.json").read_text())["content"]
    assert "assign" not in content["method"]["parameters"]
    assert load_model(tmp_path / "m").method.assign == "kmeans"
    assert load(tmp_path / "m").assign == "kmeans"


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("rule", ["spherical", "argmax"])
def test_a_fit_goes_on(X, tmp_path, rule):
    how = {"kernels": FEW, "assign": rule, "random_state": 0, "max_iter": 8, "tol": 0.0}
    whole = GMKCF(3, **how).fit(X)

    def break_off(event):
        if getattr(event, "iteration", 0) == 4:
            raise KeyboardInterrupt

    broken = GMKCF(3, **how, checkpoint_dir=tmp_path / "c", checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        clone(broken).set_params(callbacks=[break_off]).fit(X)
    with pytest.raises(InputError, match=f"assign .checkpoint: {rule}, requested: kmeans"):
        clone(broken).set_params(assign="kmeans").fit(X, resume=True)
    resumed = broken.fit(X, resume=True)
    np.testing.assert_array_equal(resumed.V_, whole.V_)
    np.testing.assert_array_equal(resumed.labels_, whole.labels_)


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize(
    "method", [Gmkcf(3, max_iter=9, assign="spherical"), Sc(3, assign="spherical")]
)
def test_the_same_bits_on_threads_and_in_memory(rng, tmp_path, method):
    Ks = kernels(rng, 60, 3)
    stacks = [dense(Ks), tiled(tmp_path / "s.zarr", Ks, runner=Runner(scheduler="threads"))]
    one, other = (pipeline.fit(stack, method, [1])[0] for stack in stacks)
    np.testing.assert_array_equal(one.labels, other.labels)
    np.testing.assert_array_equal(one.factors["centres"], other.factors["centres"])


# factors of mixed signs


def signed(rng, n=80, ranks=(6, 9), runner=None, dtype=np.float64):
    """Kernels with three clusters and degrees of both signs, and these clusters."""
    topics = np.arange(n) % 3
    Zs = []
    for r in ranks:
        ways = np.linalg.qr(rng.normal(size=(r, r)))[0][:3]
        ways[2] -= 2 * (ways[0] + ways[1])
        ways[2] /= 3
        Zs.append((ways[topics] + 0.1 * rng.normal(size=(n, r))).astype(dtype))
    names = [f"z{i}" for i in range(len(ranks))]
    return FactoredKernels(MemoryFactors.of(Zs, names), runner), Zs, topics


SIGNED = [
    Gmkcf(3, init="spectral", max_iter=10, assign="spherical"),
    Kcf(3, init="spectral", max_iter=10),
    Kcf(3, init="spectral", solver="accelerated", assign="argmax"),
    Sc(3),
    Sc(3, assign="spherical"),
    Coreg(3),
    Coreg(3, assign="spherical"),
]


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("method", SIGNED, ids=repr)
def test_clusters_of_kernels_with_signed_factors(rng, method):
    stack, Zs, topics = signed(rng)
    tiles = [np.abs(Z) @ np.abs(Z).T for Z in Zs[:1]]
    for kernels_ in (stack, CombinedKernels(dense(tiles, block=20), stack)):
        names = ["mean"] if kernels_ is stack else ["mean", "z0", "z1"]
        for found in pipeline.fit(kernels_, method, [0], names):
            assert scores(topics, found.labels)["ACC"] > 0.9
            history = np.array(found.history)
            assert (np.diff(history) <= 1e-9 * abs(history[0])).all()
    assert min((Z @ Z.sum(axis=0)).min() for Z in Zs) < 0


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("method", SIGNED, ids=repr)
def test_signed_factors_give_the_same_bits_on_threads_and_in_memory(method):
    results = []
    for runner in (None, Runner(scheduler="threads")):
        stack, *_ = signed(np.random.default_rng(0), 9000, dtype=np.float32, runner=runner)
        results += pipeline.fit(stack, method, [0])
    np.testing.assert_array_equal(results[0].labels, results[1].labels)
    for name, values in results[0].factors.items():
        np.testing.assert_array_equal(values, results[1].factors[name])


@pytest.mark.parametrize("combined", [False, True])
def test_eigenvectors_of_a_kernel_with_signed_factors(rng, combined):
    stack, Zs, _ = signed(rng)
    K = sum(Z @ Z.T for Z in Zs) / 2
    fused = stack.fuse(np.full(2, 0.5))
    if combined:
        tile = np.abs(Zs[0]) @ np.abs(Zs[0]).T
        fused = CombinedKernels(dense([tile]), stack).fuse(np.full(3, 0.5))
        K = K + tile / 2
    assert fused.signed_factors
    values = np.linalg.eigvalsh(K)[::-1]
    for direct in (1000, 0):
        found = run_solver(embed(fused, 4, "symmetric", 1e-12, direct=direct), fused)
        np.testing.assert_allclose(1 - found.eigenvalues, values[:4] / values[0], rtol=1e-9)
        np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(4), atol=1e-9)
        residual = K @ found.vectors - found.vectors * values[:4]
        np.testing.assert_allclose(residual, 0, atol=1e-8 * values[0])


def test_fewer_columns_than_clusters(rng):
    Z = rng.normal(size=(30, 2))
    Z[3] = 0.0
    stack = FactoredKernels(MemoryFactors.of([Z], ["z"]))
    found = pipeline.fit(stack, Sc(4, assign="spherical"), [0])[0]
    assert found.factors["embedding"].shape == (30, 4)
    np.testing.assert_array_equal(found.factors["embedding"][:, 2:], 0.0)
    assert np.flatnonzero(found.labels == -1).tolist() == [3]
    kernel = stack.single(0)
    for factor in run_solver(spectral_start(kernel, 4, 1e-12), kernel):
        assert (factor > 0).all()


@pytest.mark.parametrize("rule", ["kmeans", "spherical"])
def test_new_rows_of_a_kernel_with_signed_factors(rng, rule):
    stack, Zs, _ = signed(rng)
    method = Sc(3, assign=rule)
    found = pipeline.fit(stack, method, [0])[0]
    extension, known = extension_of(method, found)
    K = sum(Z @ Z.T for Z in Zs) / 2
    rows = extension(CrossProducts(K @ known.B))
    np.testing.assert_allclose(rows, found.factors["embedding"], atol=1e-9)
    np.testing.assert_array_equal(extension.place(rows)[0], found.labels)


def test_factors_without_negative_entries_keep_their_laplacian(rng):
    Z = rng.random((40, 5))
    kernel = FactoredKernels(MemoryFactors.of([Z], ["z"])).single(0)
    tiles = dense([Z @ Z.T]).single(0)
    assert not kernel.signed_factors
    one, other = (run_solver(embed(K, 3, "symmetric", 1e-12), K) for K in (kernel, tiles))
    np.testing.assert_allclose(one.eigenvalues, other.eigenvalues, atol=1e-10)


def test_samples_of_no_cluster_have_no_say_in_a_start(rng):
    rows = normalized_rows(rng.normal(size=(20, 3)))
    labels = rng.integers(0, 3, 20).astype(np.int32)
    more = np.vstack([rows, np.zeros((5, 3))]), np.append(labels, np.full(5, -1, np.int32))
    _, V = start_from_members(rows, labels)
    np.testing.assert_allclose(start_from_members(*more)[1][:20], V)
