"""Row: store of another dataset, other parameters, row order, dtype or block size."""

from dataclasses import replace

import pytest
from helpers.damage import HERE, content, corpus, request, store_at
from helpers.marks import mostly_slow
from msgspec import structs

from gmkcf_dask.errors import StoreError
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.store.build import build_store

OTHERS = {
    "dataset": ({"corpus": corpus(seed=1)}, "content of features"),
    "row order": ({"corpus": replace(corpus(), X=corpus().X[::-1])}, "content of features"),
    "names": ({"corpus": replace(corpus(), ids=corpus().ids[::-1])}, "content of ids"),
    "fewer samples": ({"corpus": corpus(40)}, r"samples \(store: 60, requested: 40\)"),
    "dtype": ({"precision": "float64"}, r"precision \(store: float32, requested: float64\)"),
    "block size": ({"block": 8}, r"block size \(store: 16, requested: 8\)"),
    "kernels": ({"specs": resolve_kernels("rbf_1")}, "kernels"),
    "normalization": ({"normalization": "none"}, "normalization of rbf_1 "),
    "merging": ({"merge_duplicates": 0.5}, "merged duplicates"),
}


@mostly_slow("complete", [True, False])
@pytest.mark.parametrize("what", OTHERS)
def test_another_store_is_refused_with_what_differs_and_left_alone(tmp_path, what, complete):
    path = tmp_path / "s.zarr"
    made = store_at(path)
    structs.replace(made.manifest, complete=complete).write(path)
    before = content(path)
    changes, field = OTHERS[what]
    with pytest.raises(StoreError, match=f"differs in .*{field}"):
        build_store(path, replace(request(), **changes), HERE, force=True)
    assert content(path) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.zarr"]
