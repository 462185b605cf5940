"""Fitted estimators say what their clusters mean, from the samples they were fitted on."""

import numpy as np
import pytest
from helpers.problems import kernels

from gmkcf_dask import GMKCF, CoregSpectralClustering, KernelKMeans, load
from gmkcf_dask.errors import InputError, NumericsWarning
from gmkcf_dask.results.report.render import render_report
from gmkcf_dask.results.schemas import parse_insight

TEXTS = [f"{words} nr{i:02}" for i, words in enumerate(
    ["roses tulips garden soil", "flour butter oven cake"] * 12)]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    with pytest.warns(NumericsWarning, match="local_4 has"):  # which so few texts are easy for
        return GMKCF(2, random_state=0).fit(TEXTS)


def test_texts_are_explained_by_their_words(model, tmp_path):
    found = model.explain(ids=[f"d{i}" for i in range(24)], topics=["a", "b"] * 12, title="mine")
    assert found["title"] == "mine"
    assert found["scores"]["ACC"] == 1.0
    assert found["documents"]["ids"][3] == "d3"
    words = [{term["term"] for term in cluster["terms"]} for cluster in found["clusters"]]
    garden = model.labels_[0]
    assert "tulips" in words[garden]
    assert "oven" in words[1 - garden]
    path = model.report(tmp_path / "deep" / "page.html")  # as explained last
    assert path.read_text(encoding="utf-8") == render_report(parse_insight(found))
    assert model.explain() == found
    assert model.explain(title="again")["title"] == "again"


def test_a_saved_model_reports_without_its_samples(model, tmp_path):
    found = model.explain(title="kept")
    model.save(tmp_path / "model", features=False)
    again = load(tmp_path / "model")
    assert again.explain() == found
    again.report(tmp_path / "page.html")
    with pytest.raises(InputError, match="give them as X"):
        again.explain(title="another")
    assert again.explain(TEXTS, title="another")["clusters"] == found["clusters"]
    with pytest.raises(InputError, match="5 samples but the model was fitted on 24"):
        again.explain(TEXTS[:5])


def test_a_store_is_read_again(tmp_path, rng):
    X = np.eye(4)[np.arange(32) % 4] + 0.2 * rng.random((32, 4))
    model = GMKCF(
        4, kernels=["rbf_1", "poly_a1_b2"], store=tmp_path / "s.zarr", tol=1e-3, random_state=0
    )
    model.fit(X)
    before = dict(vars(model))
    found = model.explain()
    assert [cluster["size"] for cluster in found["clusters"]] == [8, 8, 8, 8]
    assert {name for name in vars(model) if vars(model)[name] is not before[name]} == {"_model"}
    model.to_local().explain(title="x")


@pytest.mark.parametrize("cls", [GMKCF, CoregSpectralClustering])
def test_precomputed_kernels_are_given_again(cls, rng, calm):
    Ks = kernels(rng, n=30, m=2)
    model = cls(3, kernels="precomputed", random_state=0).fit(Ks)
    with pytest.raises(InputError, match="give them as X"):
        model.explain()
    assert model.explain(Ks)["what"] == "samples"


def test_columns_of_a_data_frame_are_named():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"low": [0.3, 0.1, 0.2] * 4, "high": [0.1, 5.0] * 6})
    model = KernelKMeans(2, kernel="rbf_1", random_state=0).fit(table)
    named = {term["term"] for c in model.explain()["clusters"] for term in c["terms"]}
    assert "high" in named
