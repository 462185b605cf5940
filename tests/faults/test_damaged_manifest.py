"""Row: manifest or zarr.json damaged or missing. Refused with what differs; metadata is mended."""

import json
from contextlib import suppress

import numpy as np
import pytest
from helpers.commands import exits
from helpers.damage import HERE, content, flip_bit
from hypothesis import given, settings, strategies as st

from gmkcf_dask.errors import DamagedStoreError, GmkcfError, StoreError
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.manifest import Manifest, sealed
from gmkcf_dask.store.repair import repair_store

# the manifest


def test_every_flipped_bit_of_a_manifest_is_found(store):
    rng, whole = np.random.default_rng(0), (store / "manifest.json").read_bytes()
    for _ in range(200):
        flip_bit(store / "manifest.json", rng)
        with pytest.raises(StoreError, match=r"manifest|format version"):
            KernelStore.open(store)
        (store / "manifest.json").write_bytes(whole)
    KernelStore.open(store)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.999])
def test_a_truncated_manifest(store, keep):
    whole = (store / "manifest.json").read_bytes()
    (store / "manifest.json").write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(StoreError, match=r"is damaged .*remove the store and build it again"):
        KernelStore.open(store)


@pytest.mark.parametrize("command", ["verify", "repair"])
@pytest.mark.parametrize("damage", ["missing", "noise"])
def test_without_a_manifest_there_is_nothing_to_verify_or_repair(store, command, damage):
    if damage == "missing":
        (store / "manifest.json").unlink()
    else:
        (store / "manifest.json").write_bytes(bytes(range(256)))
    said = exits(4, command, store)
    assert said.stderr.startswith("error: ")
    assert "manifest" in said.stderr


WRONG = {
    "n_samples": [-1, 0, 1.5, "60", True, None, 10**30, [60]],
    "n_features": [-1, None],
    "block_size": [0, 2**60, {}],
    "precision": ["float16", None, [], {}, "\ud800"],
    "kernels": [[], None, [1], [{"name": "../x", "normalization": "unit", "scaling": "none"}], "a"],
    "complete": [1, "yes", None],
    "tiles_done": [[0, 0], [-1], [99], None, "ab", [0.5], [[0]], {"a": 1}],
    "digests": [{}, [], {"rbf_1": "00"}, {"rbf_1": 5}, None],
    "stored_as": [["x"], [1, 2, 3, 4], ["rbf_1"], "abcd"],
    "stored_minima": [{}, [], {"rbf_1": "a"}],
    "differences": [[], {"a": None}, {"a": 10**400}, {"a": float("nan")}],
    "versions": [{"numpy": "\ud800"}, {"numpy": "1\n2"}, {"\ud800": "1"}],
    "\ud800": [1],  # half a character
    "format_version": [None, "a\nb", 3.0, -1, "3" * 10**6],
    "vectors": [[], {"a": 1}],
    "inputs": [None, {"ids": 3}],
    "store_id": [1, "", None, "\n" * 32],
    "formulas": [["nonsense"], [1], None],
    "merge_tolerance": [None, "0", float("nan"), float("inf"), 10**400],
}


@pytest.mark.parametrize(("field", "value"), [(k, v) for k, vs in WRONG.items() for v in vs])
def test_impossible_fields_are_refused_in_a_sentence(store, field, value):
    """With a seal that is right: made by somebody, not by chance."""
    held = json.loads((store / "manifest.json").read_text())
    (store / "manifest.json").write_bytes(sealed(held | {field: value}))
    with pytest.raises(StoreError, match=r"manifest of .* is damaged"):
        KernelStore.open(store)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(field=st.sampled_from(sorted(Manifest.__struct_fields__)), value=json_values)
@settings(max_examples=150)
def test_any_json_in_any_field_is_a_typed_error_or_a_manifest(clean, tmp_path, field, value):
    held = json.loads((clean / "manifest.json").read_text())
    folder = tmp_path / "fuzzed"
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_bytes(sealed(held | {field: value}))
    with suppress(GmkcfError):
        Manifest.read(folder)


def test_deeply_nested_json_is_a_typed_error(tmp_path):
    (tmp_path / "manifest.json").write_bytes(b"[" * 100_000)
    with pytest.raises(StoreError, match="is damaged"):
        Manifest.read(tmp_path)


# zarr.json


def metadata_files(path):
    return sorted(path.rglob("zarr.json"))


def test_every_flipped_bit_of_the_metadata_is_found_and_mended(clean, store):
    rng, files = np.random.default_rng(0), metadata_files(store)
    before = content(clean)
    for _ in range(60):
        victim = files[int(rng.integers(len(files)))]
        flip_bit(victim, rng)
        name = victim.relative_to(store).as_posix()
        with pytest.raises(DamagedStoreError, match=r"zarr\.json of .* gmkcf repair"):
            KernelStore.open(store)
        if not name.startswith("features/"):
            done = repair_store(store, HERE)
            assert [f"{bad.where}/zarr.json".lstrip("/") for bad in done.damage.metadata] == [name]
            assert not done.left
            assert content(store) == before
        victim.write_bytes(before[name])
    KernelStore.open(store)


CHANGES = {
    "another format": ({"zarr_format": 2}, "zarr_format"),
    "a huge shape": ({"shape": [10**9, 10**9]}, "shape"),
    "another shape": ({"shape": [60, 61]}, "shape"),
    "another type": ({"data_type": "float64"}, "data_type"),
    "numbers for text": ({"shape": [60.0, 60.0]}, "shape"),
    "another chunk": (
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [60, 60]}}},
        "chunk_grid",
    ),
    "pickle": ({"codecs": [{"name": "numcodecs.pickle"}]}, "codecs"),
    "no checksum": (
        {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]},
        "codecs",
    ),
    "zeros for what is missing": ({"fill_value": 0.0}, "fill_value"),
    "transformers": ({"storage_transformers": [{"name": "x"}]}, "storage_transformers"),
    "unknown": ({"must_understand": True}, "must_understand"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_metadata_that_we_do_not_write_is_refused_by_field(clean, store, change):
    changes, field = CHANGES[change]
    file = store / "kernels" / "rbf_1" / "zarr.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(DamagedStoreError, match=rf"kernels/rbf_1/zarr\.json of .* {field}"):
        KernelStore.open(store)
    said = exits(4, "verify", store, "--cluster", "threads")
    assert said.stdout.startswith("kernels/rbf_1/zarr.json has ")
    assert field in said.stdout
    assert not repair_store(store, HERE).left
    KernelStore.open(store)


@pytest.mark.parametrize("name", ["zarr.json", "kernels/zarr.json", "diagonals/cosine/zarr.json"])
def test_missing_metadata_is_mended(store, name):
    (store / name).unlink()
    with pytest.raises(DamagedStoreError, match="is missing"):
        KernelStore.open(store)
    assert not repair_store(store, HERE).left
    assert KernelStore.open(store).to_dask("cosine").compute(scheduler="synchronous").shape == (
        60,
        60,
    )


def test_zarr_reads_mended_metadata(store):
    import zarr

    for file in metadata_files(store):
        if "features/" not in file.as_posix():
            file.unlink()
    assert not repair_store(store, HERE).left
    found = zarr.open_array(store=str(store), path="kernels/rbf_1", mode="r")[:16, :16]
    np.testing.assert_array_equal(found, KernelStore.open(store).reader.raw(1, 0))
