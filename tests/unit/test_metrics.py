"""The measures equal their definitions, spelled out slowly."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from gmkcf_dask.errors import InputError
from gmkcf_dask.results.metrics import (
    adjusted_rand,
    clustering_accuracy,
    nmi_max,
    purity,
    scores,
)

MEASURES = {"ACC": clustering_accuracy, "NMI": nmi_max, "purity": purity, "ARI": adjusted_rand}

labelings = st.integers(1, 20).flatmap(
    lambda n: st.tuples(
        st.lists(st.sampled_from("abcd"), min_size=n, max_size=n),
        st.lists(st.integers(0, 4), min_size=n, max_size=n),
    )
)


def accuracy_over_all_maps(true, pred) -> float:
    """Try every one-to-one map from clusters to classes, some clusters to no class at all."""
    clusters = sorted(set(pred))
    targets = [*sorted(set(true)), *[None] * len(clusters)]
    maps = (
        dict(zip(clusters, chosen, strict=True))
        for chosen in set(permutations(targets, len(clusters)))
    )
    return max(np.mean([to[p] == t for t, p in zip(true, pred, strict=True)]) for to in maps)


@given(labelings.filter(lambda pair: len(pair[0]) <= 8))
def test_accuracy_is_the_best_over_all_maps(pair):
    true, pred = pair
    pred = [p % 3 for p in pred]
    assert clustering_accuracy(true, pred) == pytest.approx(accuracy_over_all_maps(true, pred))


@given(labelings)
def test_purity_counts_the_largest_class_of_each_cluster(pair):
    true, pred = map(np.array, pair)
    largest = sum(
        max(np.sum(true[pred == cluster] == label) for label in set(true)) for cluster in set(pred)
    )
    assert purity(true, pred) == pytest.approx(largest / len(true))


def entropy(shares) -> float:
    return -sum(p * np.log(p) for p in shares if p > 0)


@given(labelings)
def test_nmi_is_the_mutual_information_over_the_larger_entropy(pair):
    true, pred = map(np.array, pair)
    shares = [[np.mean((true == a) & (pred == b)) for b in set(pred)] for a in set(true)]
    of_true, of_pred = np.sum(shares, axis=1), np.sum(shares, axis=0)
    larger = max(entropy(of_true), entropy(of_pred))
    information = entropy(of_true) + entropy(of_pred) - entropy(np.ravel(shares))
    expected = 1.0 if larger == 0 else information / larger
    assert nmi_max(true, pred) == pytest.approx(expected, abs=1e-12)


@given(labelings)
def test_ari_counts_pairs(pair):
    true, pred = map(np.array, pair)
    upper = np.triu_indices(len(true), 1)
    in_classes = (true[:, None] == true)[upper]
    in_clusters = (pred[:, None] == pred)[upper]
    if (in_classes == in_clusters).all():
        assert adjusted_rand(true, pred) == 1.0
        return
    together = (in_classes & in_clusters).sum()
    chance = in_classes.sum() * in_clusters.sum() / len(in_classes)
    most = (in_classes.sum() + in_clusters.sum()) / 2
    expected = (together - chance) / (most - chance)
    assert adjusted_rand(true, pred) == pytest.approx(expected, abs=1e-12)


@given(labelings, st.permutations(range(5)))
def test_names_do_not_matter(pair, renamed):
    true, pred = pair
    other = [f"cluster {renamed[p]}" for p in pred]
    assert scores(true, pred) == pytest.approx(scores(true, other))


@given(labelings)
def test_measures_lie_in_their_range(pair):
    values = scores(*pair)
    assert set(values) == set(MEASURES)
    assert all(0 <= values[name] <= 1 for name in ("ACC", "NMI", "purity"))
    assert values["ACC"] <= values["purity"] + 1e-12
    assert values["ARI"] <= 1


@given(labelings)
def test_perfect_agreement_scores_one(pair):
    true, _ = pair
    assume(len(true) > 1)
    assert scores(true, true) == pytest.approx(dict.fromkeys(MEASURES, 1.0))


def test_by_hand():
    true = ["x", "x", "x", "y", "y", "z"]
    pred = [0, 0, 1, 1, 1, 1]
    # table: x 2 1 / y 0 2 / z 0 1
    entropy_true = -(1 / 2 * np.log(1 / 2) + 1 / 3 * np.log(1 / 3) + 1 / 6 * np.log(1 / 6))
    information = (
        2 / 6 * np.log((2 / 6) / (3 / 6 * 2 / 6))
        + 1 / 6 * np.log((1 / 6) / (3 / 6 * 4 / 6))
        + 2 / 6 * np.log((2 / 6) / (2 / 6 * 4 / 6))
        + 1 / 6 * np.log((1 / 6) / (1 / 6 * 4 / 6))
    )
    # pairs together in both: 1 + 1; in classes: 3 + 1; in clusters: 1 + 6; of all: 15
    chance = 4 * 7 / 15
    assert scores(true, pred) == pytest.approx(
        {
            "ACC": 4 / 6,
            "NMI": information / entropy_true,
            "purity": 4 / 6,
            "ARI": (2 - chance) / ((4 + 7) / 2 - chance),
        }
    )


def test_one_group_says_nothing_unless_there_is_only_one():
    assert nmi_max([1, 1, 1], [5, 5, 5]) == 1.0
    assert nmi_max([1, 1, 1], [1, 2, 3]) == 0.0
    assert nmi_max([1, 2, 3], [1, 1, 1]) == 0.0
    assert scores(["only"], [0]) == dict.fromkeys(MEASURES, 1.0)


@pytest.mark.parametrize("measure", [*MEASURES.values(), scores])
def test_unusable_labels_are_refused(measure):
    with pytest.raises(InputError, match="3 true labels but 2 predicted"):
        measure([1, 2, 3], [1, 2])
    with pytest.raises(InputError, match="no labels"):
        measure([], [])
    with pytest.raises(InputError, match="labels_pred has 2 dimension"):
        measure([1, 2], [[1], [2]])


def test_labels_of_mixed_type():
    assert clustering_accuracy(np.array(["a", 1, 1], dtype=object), [0, 3, 3]) == 1.0
