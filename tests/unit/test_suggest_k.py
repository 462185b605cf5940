"""Choice of k: the criteria by brute force, the true k on separated data, and what it costs."""

import json
import struct

import numpy as np
import pytest
from helpers.blobs import blobs
from helpers.commands import done, exits
from helpers.counting import Counter
from helpers.marks import mostly_slow
from helpers.problems import dense, kernels, tiled
from hypothesis import given, settings, strategies as st
from sklearn.metrics import adjusted_rand_score, silhouette_score

from gmkcf_dask import GMKCF, KSuggestion, StageProgress, suggest_k
from gmkcf_dask.cli.choose import parse_ks
from gmkcf_dask.errors import DataWarning, InputError
from gmkcf_dask.methods import select_k as choosing
from gmkcf_dask.methods.select_k import (
    BEHIND,
    SHARES,
    KTrial,
    combined_score,
    concept_points,
    eigengaps,
    given_weights,
    group_ks,
    recommend,
    references_of,
    silhouette,
    silhouettes,
    stability,
    suggest,
    suggestion_job,
    validate_ks,
)
from gmkcf_dask.methods.silhouette import kernel_silhouette
from gmkcf_dask.results.plots import select_k

FEW = range(2, 7)
PAPER_EIGENGAP = (0.36957, 0.55103, 0.92401, 0.54268, 0.33952)
PAPER_SILHOUETTE = (0.65919, 0.71886, 0.84632, 0.75537, 0.65946)
"""Of `four`, as 0.1.0 gave them."""


# the criteria


def test_the_eigengap_is_the_share_of_the_fall_that_comes_at_once():
    flat = np.array([1.0, 0.9, 0.8, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    gaps = eigengaps(flat, [2, 3, 4], behind=3)
    np.testing.assert_allclose(gaps, [0.1 / 0.8, 1.0, 0.0])
    line = np.linspace(1, 0, 12)
    np.testing.assert_allclose(eigengaps(line, [2, 5], behind=3), 0.25)


def test_the_eigengap_does_not_depend_on_the_size_of_the_eigenvalues(rng):
    values = np.sort(rng.random(12))[::-1]
    np.testing.assert_allclose(eigengaps(values, FEW), eigengaps(values * 1e-4, FEW))


def test_eigenvalues_that_are_not_there_are_zero():
    assert eigengaps(np.array([1.0, 0.5]), [2])[0] == 1.0
    assert eigengaps(np.zeros(3), [2])[0] == 0.0


def test_stability_is_the_mean_over_pairs(rng):
    labelings = [rng.integers(0, 3, 30) for _ in range(4)]
    pairs = [adjusted_rand_score(a, b) for i, a in enumerate(labelings) for b in labelings[:i]]
    assert stability(labelings) == pytest.approx(np.mean(pairs))
    assert stability(labelings[:1]) == 1.0


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**20), st.integers(2, 5), st.integers(6, 25))
def test_the_silhouette_is_the_known_one(seed, k, n):
    rng = np.random.default_rng(seed)
    X, labels = rng.normal(size=(n, 3)), rng.integers(0, k, n)
    if 2 <= len(set(labels)) < n:
        D = np.linalg.norm(X[:, None] - X[None], axis=2)
        assert silhouette(D, labels) == pytest.approx(silhouette_score(X, labels))


def test_no_silhouette_without_others():
    assert silhouette(np.ones((4, 4)), np.zeros(4, int)) == 0.0
    assert silhouette(np.zeros((4, 4)), np.array([0, 0, 1, 1])) == 0.0


def test_concept_points_are_as_far_apart_as_in_kernel_space(rng):
    Phi, U, V = rng.normal(size=(6, 20)), rng.random((20, 3)), rng.random((20, 3))
    points = concept_points(V, U.T @ (Phi.T @ Phi) @ U)
    image = (Phi @ U @ V.T).T
    np.testing.assert_allclose(
        np.linalg.norm(points[:, None] - points[None], axis=2),
        np.linalg.norm(image[:, None] - image[None], axis=2),
        atol=1e-10,
    )


def test_clusters_are_scored_in_the_v_of_the_next_two_ks(rng):
    sample = np.array([0, 2, 3, 5, 7, 8, 9, 11])
    trials = {
        k: KTrial((rng.permutation(12) % k, np.arange(12) % k), rng.normal(size=(8, k)))
        for k in (2, 3, 4, 5, 6, 7)
    }
    expected = [
        np.mean(
            [
                silhouette_score(trials[j].points, trials[k].labels[0][sample])
                for j in (k + 1, k + 2)
            ]
        )
        for k in (2, 5)
    ]
    np.testing.assert_allclose(silhouettes(trials, (2, 5), sample), expected)
    assert references_of(11, 12) == (12,)
    assert silhouettes({7: trials[7]}, (7,), sample) == [0.0]


def test_the_silhouette_in_a_kernel_is_of_squared_distances(rng):
    X, labels = rng.normal(size=(25, 3)), rng.integers(0, 4, 25)
    K = X @ X.T
    squares = np.sum((X[:, None] - X[None]) ** 2, axis=2)
    expected = silhouette_score(squares, labels, metric="precomputed")
    assert kernel_silhouette(K @ np.eye(4)[labels], np.diag(K), labels) == pytest.approx(expected)
    one_more = np.eye(5)[labels]  # a cluster that nobody is in
    assert kernel_silhouette(K @ one_more, np.diag(K), labels) == pytest.approx(expected)
    assert kernel_silhouette(K @ np.ones((25, 1)), np.diag(K), np.zeros(25, int)) == 0.0


def test_the_score_is_one_where_everything_is_best():
    assert sum(SHARES.values()) == pytest.approx(1)
    ones = np.ones(2)
    np.testing.assert_allclose(combined_score(ones, ones, np.array([0.3, 0.15])), [1.0, 0.54])
    worst = combined_score(np.zeros(2), -ones, -ones)
    np.testing.assert_allclose(worst, 0.0)


def test_a_suggestion_says_how_sure_it_is():
    high, low = np.array([0.1, 1.0, 0.1, 0.2]), np.array([0.1, 0.12, 0.1, 0.1])
    clear = recommend([2, 3, 4, 5], high, high, high)
    assert (clear.k, clear.word, clear.sure) == (3, "clear", 1.0)
    assert "silhouette, stability and eigengap are best here" in clear.why
    unsure = recommend([2, 3, 4, 5], high[::-1], low, low)
    assert unsure.word == "unsure"
    assert unsure.sure < clear.sure
    assert "other ks may fit as well" in unsure.why


def test_a_suggestion_at_the_end_says_so():
    rising = np.array([0.1, 0.3, 0.9])
    assert "first or last k" in recommend([3, 4, 5], rising, rising, rising).why
    falling = rising[::-1]
    assert "first or last k" in recommend([3, 4, 5], falling, falling, falling).why
    assert "first or last k" not in recommend([2, 4, 5], falling, falling, falling).why


def test_a_few_samples_that_stand_out_are_not_all_there_is():
    high = np.array([1.0, 0.1, 0.1])
    even = recommend([2, 3, 4], high, high, high, np.full(3, 0.5))
    few = recommend([2, 3, 4], high, high, high, np.full(3, 0.96))
    assert (even.word, few.word) == ("clear", "unsure")
    assert "one cluster has 96% of the samples and may contain more clusters" in few.why


def test_two_ks_are_enough_to_choose_from():
    ones = np.ones(2)
    found = recommend([2, 3], ones, ones, ones)
    assert (found.k, found.runner_up, found.word) == (2, 3, "unsure")


# the true k


PAPER = {"kernels": "paper12", "assign": "kmeans"}
BLOBS = [(2, 5, 1.3), (3, 2, 3.0), (5, 10, 1.3), (8, 5, 3.0)]


@mostly_slow(("k", "d", "room"), BLOBS)
def test_it_finds_the_true_k(k, d, room):
    X, _ = blobs(k, seed=1, d=d, room=room, n=25 * k)
    assert suggest_k(X, range(2, 11)).k == k


@mostly_slow(("k", "d", "room"), BLOBS)
def test_the_setting_of_the_paper_finds_the_true_k(k, d, room):
    X, _ = blobs(k, seed=1, d=d, room=room, n=25 * k)
    assert suggest_k(X, range(2, 11), **PAPER).k == k


@pytest.mark.parametrize("setting", [{}, PAPER], ids=["local", "paper"])
def test_it_is_unsure_where_there_are_no_clusters(rng, setting):
    assert suggest_k(rng.normal(size=(120, 4)), range(2, 8), **setting).word == "unsure"


def test_the_setting_of_the_paper_gives_what_it_gave(four):
    found = suggest_k(four, FEW, n_restarts=3, **PAPER)
    assert (found.k, found.word) == (4, "clear")
    np.testing.assert_allclose(found.silhouette, PAPER_SILHOUETTE, atol=5e-5)
    np.testing.assert_allclose(found.eigengap, PAPER_EIGENGAP, atol=5e-5)


def test_texts_are_compared_by_local_kernels():
    texts = [
        " ".join(rng.choice(topic, 12))
        for rng in [np.random.default_rng(0)]
        for topic in (
            [f"a{i}" for i in range(12)], [f"b{i}" for i in range(12)], [f"c{i}" for i in range(12)]
        )
        for _ in range(20)
    ]  # fmt: skip
    found = suggest_k(texts, range(2, 7), n_restarts=2)
    assert found.k == 3
    assert list(found.kernel_weights) == ["local_0", "local_1", "local_2", "local_4"]


def test_a_rule_that_is_none_is_refused(four):
    with pytest.raises(InputError, match="assign must be one of spherical, kmeans, not 'argmax'"):
        suggest_k(four, FEW, assign="argmax")


def test_more_clusters_than_a_store_usually_has_columns_for(rng):
    found = suggest_k(rng.normal(size=(70, 3)), (2, 55), n_restarts=2)
    assert found.ks == (2, 55)


@pytest.fixture(scope="module")
def four():
    return blobs(4, seed=3, d=5, n=80)[0]


@pytest.fixture(scope="module")
def found(four):
    return suggest_k(four, FEW, n_restarts=3)


def test_the_same_seed_gives_the_same_numbers(four, found):
    assert suggest_k(four, list(reversed(FEW)), n_restarts=3) == found


def test_a_store_gives_the_same_numbers(four, found, tmp_path):
    path = tmp_path / "s.zarr"
    assert suggest_k(four, FEW, n_restarts=3, store=path) == found
    assert suggest_k(str(path), FEW, n_restarts=3) == found


def test_precomputed_kernels_will_do(rng):
    found = suggest_k(kernels(rng, n=60), FEW, kernels="precomputed")
    assert found.k in FEW
    assert set(found.kernel_weights) == {f"kernel_{i}" for i in range(4)}


def test_a_sample_is_scored_where_there_are_many(four, monkeypatch, found):
    monkeypatch.setattr(choosing, "SAMPLE_SIZE", 40)
    sampled = suggest_k(four, FEW, n_restarts=3)
    assert sampled.silhouette != found.silhouette
    assert sampled.stability == found.stability
    np.testing.assert_allclose(sampled.silhouette, found.silhouette, atol=0.15)


@pytest.mark.usefixtures("calm")
def test_learned_weights_make_another_kernel(four, found):
    model = GMKCF(4, kernels="paper12", random_state=0, max_iter=5, tol=0.5).fit(four)
    weights = dict(zip(model.kernel_names_, model.kernel_weights_, strict=True))
    other = suggest_k(four, FEW, n_restarts=3, kernels="paper12", kernel_weights=weights)
    assert other.k == found.k
    squares = model.kernel_weights_**2
    np.testing.assert_allclose(list(other.kernel_weights.values()), squares / squares.sum())


def test_runs_are_told(four):
    heard = []
    suggest_k(four, FEW, n_restarts=3, callbacks=[heard.append])
    events = [e for e in heard if isinstance(e, StageProgress) and e.stage == "suggest"]
    assert (events[0].done, events[0].total) == (0, 17)
    assert (events[-1].done, events[-1].total) == (17, 17)
    assert [e.done for e in events] == sorted(e.done for e in events)
    assert any(0 < e.done < 17 for e in events)


def test_linear_and_heat_kernels_in_memory_are_tried_together(rng):
    X = np.vstack([rng.normal(size=(20, 3)) + 6 * np.eye(3)[c] for c in range(3)])
    with pytest.warns(DataWarning, match="for linear alone"):
        suggestion = suggest_k(X, (2, 3), n_restarts=2, kernels="local,linear", scaling="none")
    assert set(suggestion.kernel_weights) == {"heat_s", "heat_m", "heat_l", "linear"}


# what it costs


def sweeps(rng, ks, **how):
    counter = Counter(dense(kernels(rng, n=60, m=3), block=20))
    suggest(counter, ks, **how)
    assert counter.fused == 1
    assert counter.each == [sum(ks)]
    return counter.products


def test_all_ks_and_restarts_share_each_sweep(monkeypatch):
    """As many sweeps as the longest of them takes alone, and those for the eigenvectors."""
    monkeypatch.setattr(choosing, "MAX_ITER", 6)
    monkeypatch.setattr(choosing, "TOL", 0.0)  # none ends early
    shared = sweeps(np.random.default_rng(0), FEW, n_restarts=3)
    eigenvectors = [1, 60]
    assert shared[:2] == eigenvectors
    width = 3 * sum(FEW) + 7 + 8  # of all runs, the judges beyond the last k among them
    assert shared[2] == 2 * width  # U and V of every run, in one product
    pairs = [len(sweeps(np.random.default_rng(0), (k, k + 1), n_restarts=3)) for k in (2, 4, 5)]
    assert len(shared) <= max(*pairs, 2 + 1 + 2 * 6 + 1)
    assert shared[3] in (width, 2 * width)


def test_runs_that_do_not_fit_together_go_in_groups(monkeypatch):
    assert list(group_ks(FEW, 1000)) == [[2, 3, 4, 5, 6]]
    assert list(group_ks(FEW, 9)) == [[2, 3, 4], [5], [6]]
    assert list(group_ks(FEW, 1)) == [[2], [3], [4], [5], [6]]
    X = blobs(3, seed=0, n=60)[0]
    whole = suggest_k(X, FEW, n_restarts=2)
    monkeypatch.setattr(choosing, "RUNS_BYTES", 1)
    apart = suggest_k(X, FEW, n_restarts=2)
    assert apart.k == whole.k
    np.testing.assert_allclose(apart.score, whole.score, atol=1e-6)


def test_it_works_out_of_core(rng, tmp_path):
    Ks = kernels(rng, n=60, m=3)
    of_store = suggest(tiled(tmp_path / "s.zarr", Ks), FEW, n_restarts=2)
    in_memory = suggest(dense(Ks), FEW, n_restarts=2)
    assert of_store.k == in_memory.k
    np.testing.assert_allclose(of_store.score, in_memory.score, atol=1e-6)


def test_mixed_signs_are_taken(rng):
    Ks = [K + 0.1 for K in kernels(rng, n=40, m=2)]
    Ks[0] = Ks[0] - 0.15
    assert suggest(dense(Ks), (2, 3, 4), n_restarts=2).k in (2, 3, 4)


# bad input


@pytest.mark.parametrize(
    ("ks", "sentence"),
    [
        ((), "ks is empty"),
        ((3,), "k = 3 is the only k"),
        ((3, 3), "is the only k"),
        ((1, 2), "k = 1 is too small"),
        ((2, 81), "k = 81 is larger than the number of samples, 80"),
        ((2, 2.5), "whole number, not 2.5"),
        ((2, True), "whole number, not True"),
        (7, "ks must be several whole numbers, not 7"),
    ],
)
def test_ks_that_cannot_be_are_refused(four, ks, sentence):
    with pytest.raises(InputError, match=sentence):
        suggest_k(four, ks)


def test_the_default_ends_below_the_samples():
    assert validate_ks(choosing.DEFAULT_KS, 6) == (2, 3, 4, 5)
    with pytest.raises(InputError, match="3 samples are too few"):
        validate_ks(choosing.DEFAULT_KS, 3)


def test_the_plan_counts_all_runs_and_their_references():
    job = suggestion_job((2, 3, 6), 80, n_restarts=3)
    assert (job.n_clusters, job.n_columns, job.n_init) == (8, 3 * 11 + 4 + 5 + 7 + 8, 3)
    assert suggestion_job((2, 3), 3, n_restarts=2).n_clusters == 3


def test_as_many_clusters_as_samples_is_no_crash(rng):
    found = suggest_k(rng.normal(size=(8, 3)), range(2, 9))
    assert np.isfinite(found.score).all()


def test_one_restart_is_refused(four):
    with pytest.raises(InputError, match="n_restarts must be at least 2"):
        suggest_k(four, FEW, n_restarts=1)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({"kernel_0": 1.0}, "kernel_1 is not among both"),
        ({"kernel_0": 0.0, "kernel_1": 0.0}, "not all 0"),
        ({"kernel_0": np.nan, "kernel_1": 1.0}, "finite"),
    ],
)
def test_weights_that_cannot_be_are_refused(rng, weights, sentence):
    with pytest.raises(InputError, match=sentence):
        given_weights(dense(kernels(rng, n=20, m=2)), weights)


# the command line


@pytest.fixture(scope="module")
def store(four, tmp_path_factory):
    folder = tmp_path_factory.mktemp("suggest")
    np.save(folder / "x.npy", four)
    done("build", folder / "x.npy", folder / "s.zarr", "--cluster", "threads")
    return folder / "s.zarr"


@pytest.fixture(scope="module")
def paper_store(store):
    path = store.parent / "paper.zarr"
    done("build", store.parent / "x.npy", path, "--cluster", "threads", "--paper")
    return path


def test_the_command_prints_a_table_and_writes_files(store, tmp_path, found):
    out = tmp_path / "out"
    said = done("suggest-k", store, "--ks", "2-6", "--restarts", 3, "--out", out).stdout
    rows = said.splitlines()
    assert rows[0].split() == ["k", "eigengap", "stability", "silhouette", "score"]
    assert [row.split()[0] for row in rows[1:6]] == ["2", "3", "4", "5", "6"]
    assert [row.endswith("← suggested") for row in rows[1:6]].index(True) == found.k - 2
    assert rows[6].startswith("k = 4, clear (")
    kept = json.loads((out / "suggest_k.json").read_text())
    assert kept["k"] == found.k == 4
    assert [row["k"] for row in kept["ks"]] == [2, 3, 4, 5, 6]
    np.testing.assert_allclose([row["score"] for row in kept["ks"]], found.score)
    assert len(kept["eigenvalues"]) == 6 + 1 + BEHIND
    picture = (out / "suggest_k.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", picture[16:24])
    assert min(width, height) > 500


def test_without_out_there_is_only_the_table(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done("suggest-k", store, "--ks", "2,3,5", "--restarts", 2)
    assert list(tmp_path.iterdir()) == []


def test_input_will_do_as_well(store, tmp_path):
    x = store.parent / "x.npy"
    in_memory = done("suggest-k", x, "--ks", "2-5", "--restarts", 2).stdout
    again = ("suggest-k", x, "--ks", "2-5", "--restarts", 2, "--store", tmp_path / "s.zarr")
    assert done(*again).stdout == done(*again).stdout == in_memory
    assert done("suggest-k", store, "--ks", "2-5", "--restarts", 2).stdout == in_memory


def test_paper_is_one_word(store, paper_store, four):
    asked = ("--ks", "2-6", "--restarts", 3, "--paper")
    said = done("suggest-k", paper_store, *asked).stdout
    assert said == done("suggest-k", store.parent / "x.npy", *asked).stdout
    assert said.splitlines() == suggest_k(four, FEW, n_restarts=3, **PAPER).lines()


def test_paper_refuses_a_store_of_other_kernels(store):
    result = exits(2, "suggest-k", store, "--paper")
    assert "has the kernels heat_s, heat_m, heat_l, not the twelve of the paper" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_weights_of_a_run(store, tmp_path):
    run = tmp_path / "run"
    done("fit", store, "-k", 4, "--out", run, "--max-iter", 3, "--tol", "0.5")
    out = tmp_path / "out"
    done("suggest-k", store, "--ks", "3-5", "--restarts", 2, "--weights-of", run, "--out", out)
    learned = json.loads((run / "result.json").read_text())["kernel_weights"]
    used = json.loads((out / "suggest_k.json").read_text())["kernel_weights"]
    squares = {name: w**2 for name, w in learned.items()}
    assert used == pytest.approx({name: s / sum(squares.values()) for name, s in squares.items()})


def test_without_matplotlib_it_says_so(store, tmp_path, monkeypatch):
    monkeypatch.setattr(select_k, "find_spec", lambda name: None)
    out = tmp_path / "out"
    said = done("suggest-k", store, "--ks", "2-4", "--restarts", 2, "--out", out).stdout
    assert "needs the extra [plot]" in said
    assert [path.name for path in out.iterdir()] == ["suggest_k.json"]
    with pytest.raises(InputError, match=r"extra \[plot\]"):
        select_k.draw_suggestion(recommend([2, 3], *(np.ones(2),) * 3))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--ks", "2-x"), "--ks has '2-x'"),
        (("--ks", "5-2"), "an empty range"),
        (("--ks", ""), "ks is empty"),
        (("--ks", "4"), "is the only k"),
        (("--ks", "2-999999999"), "more than 1000"),
        (("--ks", "2-100"), "larger than the number of samples, 80"),
        (("--restarts", "1"), "at least 2"),
        (("--weights-of", "nowhere"), "not a finished run"),
        (("--store", "other.zarr"), "is already a store"),
    ],
)
def test_the_command_refuses_in_one_sentence(store, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    result = exits(2, "suggest-k", store, *arguments)
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_ks_as_they_are_typed():
    assert parse_ks("2-12") == range(2, 13)
    assert parse_ks(" 2, 3,8 - 10 ") == (2, 3, 8, 9, 10)
    assert parse_ks("2-15") == choosing.DEFAULT_KS


def test_many_ks_are_drawn_too():
    values = np.linspace(0.1, 0.9, 60)
    many = recommend(range(2, 62), values, values, -values)
    assert isinstance(many, KSuggestion)
    assert select_k.draw_suggestion(many).startswith(b"\x89PNG")
