"""Row: damage to the Gram matrix, of which all kernels of a store are evaluated.

Found by `verify` and refused by `fit`, both with the tile; `repair` makes the same bytes again.
"""

import json
import math
import shutil

import numpy as np
import pytest
from helpers.commands import exits
from helpers.damage import DAMAGES, HERE, content, corpus, flip_bit, place, tile_files
from helpers.marks import mostly_slow
from helpers.problems import fit_gmkcf

from gmkcf_dask.compute.dense import DenseKernels
from gmkcf_dask.compute.gram_tiles import GramTiles
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import DamagedStoreError, GmkcfError, StoreError
from gmkcf_dask.kernels import gram_loops
from gmkcf_dask.kernels.gram import GRAM, STEPS
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.kernels.tiling import Tiling
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.features import open_array
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.manifest import Manifest, sealed
from gmkcf_dask.store.repair import repair_store
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.verify import find_damage, open_unchecked

pytestmark = pytest.mark.usefixtures("calm")
KINDS = {"codes": "compact", "distances": "float32", "products": "float64"}
KERNELS = "rbf_0.5,rbf_1,poly_a1_b2,cosine"
BLOCK = 16


def rows(seed=0):
    """Of unit length, and one of zeros."""
    X = corpus(seed=seed).X.toarray()
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    X[7] = 0.0
    return X


def store_of(path, kind="codes", X=None, kernels=KERNELS, **options):
    X = rows() if X is None else X
    wanted = KernelRequest(
        Corpus(X, corpus().ids),
        resolve_kernels(kernels),
        precision=KINDS[kind],
        layout="gram",
        **options,
    )
    made = build_store(path, wanted, HERE, block=BLOCK)
    assert made.manifest.gram.content == kind
    return made


@pytest.fixture(scope="module")
def cleans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gram")
    for kind in KINDS:
        store_of(folder / kind, kind)
    return folder


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def clean(cleans, kind):
    return cleans / kind


@pytest.fixture
def store(clean, tmp_path):
    return shutil.copytree(clean, tmp_path / "s.zarr")


@pytest.fixture
def coded(cleans, tmp_path):
    """A store of codes."""
    return shutil.copytree(cleans / "codes", tmp_path / "s.zarr")


def fits(path):
    """Both ways in which fit reads a store."""
    options = SolverOptions(2, max_iter=1)
    yield lambda: fit_gmkcf(DenseKernels.from_store(KernelStore.open(path)), options, seed=0)
    yield lambda: fit_gmkcf(TiledKernels(KernelStore.open(path), HERE), options, seed=0)


def bad_tiles(path):
    opened = open_unchecked(path)
    damage = find_damage(opened, HERE)
    return {(bad.array, opened.tiling.pair(bad.t)) for bad in damage.tiles}


def refused_and_mended(path, clean, bad):
    """Found, refused in a sentence that names the matrix and the command, made again."""
    assert bad_tiles(path) == set(bad)
    for fit in fits(path):
        with pytest.raises(DamagedStoreError) as told:
            fit()
        sentence = str(told.value)
        assert "of the Gram matrix in" in sentence
        assert sentence.endswith(f"gmkcf repair {path}")
        assert "\n" not in sentence
    done = repair_store(path, HERE)
    assert (done.left, done.changed) == ((), 0)
    assert content(path) == content(clean)
    for fit in fits(path):
        fit()


@mostly_slow("number", range(5), plain=1)
@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_tiles_are_found_and_made_again(store, clean, how, number):
    refused_and_mended(store, clean, DAMAGES[how](store, np.random.default_rng(number)))


def test_a_tile_of_another_store_is_found(store, clean, kind, tmp_path):
    store_of(tmp_path / "other.zarr", kind, rows(seed=1))
    other = tile_files(tmp_path / "other.zarr")[1]
    shutil.copyfile(other, store / other.relative_to(tmp_path / "other.zarr"))
    refused_and_mended(store, clean, [place(other)])


def test_commands_say_it_with_exit_codes(store, tmp_path):
    bad = DAMAGES["delete"](store, np.random.default_rng(3))
    where = ("--cluster", "threads")
    found = exits(4, "verify", store, *where)
    assert f"Gram matrix tile {bad[0][1]} is missing" in found.stdout
    fit = exits(4, "fit", store, "-k", 2, "--out", tmp_path / "run", *where)
    assert f"of the Gram matrix in {store} is missing: repair it with" in fit.stderr
    assert "Gram matrix tile" in exits(0, "repair", store, *where).stdout
    exits(0, "verify", store, *where)


def test_without_its_features_it_cannot_be_made_again(store):
    """Features come from the input alone."""
    (store / "features" / "X" / "c" / "0" / "0").unlink()
    victim = tile_files(store)[0]
    victim.unlink()
    done = repair_store(store, HERE)
    assert done.damage.inputs == ("features",)
    assert any(
        "1 tile of the Gram matrix cannot be computed again without the features" in left
        for left in done.left
    )
    assert not victim.exists()


def test_kernels_beside_it_are_damaged_by_themselves(tmp_path):
    from gmkcf_dask.kernels.specs import Precomputed

    K = rows() @ rows().T
    wanted = KernelRequest(
        Corpus(rows(), corpus().ids),
        (*resolve_kernels(KERNELS), Precomputed(K, "given", "none", "none")),
        layout="auto",
    )
    path = tmp_path / "s.zarr"
    build_store(path, wanted, HERE, block=BLOCK)
    before = content(path)
    gram, given = path / "gram/X/c/0/1", path / "kernels/given/c/0/1"
    gram.unlink()
    given.unlink()
    assert bad_tiles(path) == {(GRAM, (0, 1)), ("given", (0, 1))}
    done = repair_store(path, HERE)
    assert len(done.left) == 1
    assert "1 tile of kernel given cannot be computed again" in done.left[0]
    assert gram.read_bytes() == before["gram/X/c/0/1"]
    with pytest.warns(UserWarning, match="kernel given tile"):
        build_store(path, wanted, HERE, verify=True)  # the same input has the matrix
    assert content(path) == before


# metadata and vectors


@pytest.mark.parametrize(
    "changes",
    [{"shape": [60, 61]}, {"data_type": "int8"}, {"fill_value": 0}, {"codecs": []}, None],
    ids=str,
)
@pytest.mark.parametrize("where", ["gram/X", "gram_rows/squares"])
def test_damaged_metadata_is_refused_and_written_again(store, clean, where, changes):
    file = store / where / "zarr.json"
    if changes is None:
        file.unlink()
    else:
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(DamagedStoreError, match=rf"{where}/zarr\.json of .* gmkcf repair /"):
        KernelStore.open(store)
    assert not repair_store(store, HERE).left
    assert content(store) == content(clean)


@pytest.mark.parametrize("where", ["gram", "gram_rows"])
def test_folders_that_are_gone_are_made_again(store, clean, where):
    shutil.rmtree(store / where)
    with pytest.raises(DamagedStoreError, match=f"{where}/zarr.json"):
        KernelStore.open(store)
    assert not repair_store(store, HERE).left
    assert content(store) == content(clean)


VECTORS = {
    "other values": lambda path, chunk: KernelStore.open(path).write_vector(
        "gram_rows/squares", np.full(60, 2.0)
    ),
    "flip": lambda path, chunk: flip_bit(chunk, np.random.default_rng(0)),
    "truncate": lambda path, chunk: chunk.write_bytes(chunk.read_bytes()[:9]),
    "missing": lambda path, chunk: chunk.unlink(),
}


@pytest.mark.parametrize("diagonals", [False, True])
@pytest.mark.parametrize("how", VECTORS)
def test_lengths_of_samples_are_found_and_made_again(store, clean, kind, how, diagonals):
    VECTORS[how](store, store / "gram_rows" / "squares" / "c" / "0")
    if diagonals:  # they are made of these
        KernelStore.open(store).write_vector("diagonals/cosine", np.zeros(60))
    open_array.cache_clear()
    wanted = {"gram_rows/squares", *(["diagonals/cosine"] if diagonals else [])}
    assert set(find_damage(open_unchecked(store), HERE).vectors) == wanted
    if kind == "products":  # formulas need them, tables of unit rows do not
        for fit in fits(store):
            with pytest.raises(DamagedStoreError, match=r"(squares|cosine) in .* gmkcf repair"):
                fit()
    assert not repair_store(store, HERE).left
    assert content(store) == content(clean)


@pytest.mark.parametrize("what", ["along", "centred"])
def test_lengths_from_the_mean_row_are_made_again(tmp_path, what):
    path = tmp_path / "s.zarr"
    made = store_of(path, "products", 50.0 + rows())
    assert made.manifest.gram.shifted
    before = content(path)
    made.write_vector(f"gram_rows/{what}", np.zeros(60))
    open_array.cache_clear()
    assert find_damage(open_unchecked(path), HERE).vectors == (f"gram_rows/{what}",)
    for fit in fits(path):
        with pytest.raises(DamagedStoreError, match=rf"gram_rows/{what} in .* gmkcf repair"):
            fit()
    assert not repair_store(path, HERE).left
    assert content(path) == before


def test_row_sums_are_made_again(tmp_path):
    path = tmp_path / "s.zarr"
    made = store_of(path, normalization="degree")
    before = content(path)
    made.write_vector("norms/cosine", np.ones(60))
    open_array.cache_clear()
    for fit in fits(path):
        with pytest.raises(DamagedStoreError, match=r"norms/cosine in .* gmkcf repair"):
            fit()
    assert not repair_store(path, HERE).left
    assert content(path) == before


# made by somebody


def forge(path, **fields):
    file = path / "manifest.json"
    held = json.loads(file.read_text())
    gram = fields.pop("gram", {})
    changed = held | fields | {"gram": held["gram"] | gram if isinstance(gram, dict) else gram}
    file.write_bytes(sealed(changed))


FORGED = [
    {"gram": {"dtype": "float32"}},
    {"gram": {"dtype": "int8"}},
    {"gram": {"content": "distances"}},
    {"gram": {"content": "products"}},
    {"gram": {"content": "products", "dtype": "float64"}},  # tables of products
    {"gram": {"content": "products", "dtype": "float64", "tabulated": False}},  # of unit rows
    {"gram": {"shifted": True}},
    {"gram": {"d_max": math.nan}},
    {"gram": {"d_max": -1.0}},
    {"gram": {"d_max": math.inf}},
    {"gram": {"d_max": None}},
    {"gram": {"unit_rows": False}},  # tables of cosine
    {"gram": {"more": 1}},
    {"gram": []},
    {"gram": None},
    {"formulas": []},
    {"formulas": ["rbf_1"]},
    {"formulas": ["rbf_0.5", "rbf_1", "poly_a1_b2", "cosine", "unknown"]},
    {"n_features": 0},
    {"precision": "float64"},
    {"precision": "float32"},
    {"stored_as": ["rbf_0.5", "rbf_0.5", "poly_a1_b2", "cosine"]},
    {"stored_as": ["rbf_0.5"]},
    {"vectors": {}},
    {"vectors": {"gram_rows/../../victim": "0" * 32}},
    {"digests": {}},
]


@pytest.mark.parametrize("fields", FORGED, ids=str)
def test_forged_manifests_are_refused_in_a_sentence(coded, fields):
    forge(coded, **fields)
    with pytest.raises(StoreError, match=r"manifest of .* is damaged"):
        KernelStore.open(coded)
    for command in ("info", "verify", "repair"):
        exits(4, command, coded)


@pytest.mark.parametrize("field", ["sigma", "d2_max", "minimum", "maximum"])
def test_kernels_without_their_statistics_are_refused(coded, field):
    kernels = json.loads((coded / "manifest.json").read_text())["kernels"]
    forge(coded, kernels=[kernel | {field: None} for kernel in kernels])
    with pytest.raises(StoreError, match="invalid gram"):
        KernelStore.open(coded)


def test_kernels_that_are_no_formulas_are_refused(coded):
    """They would be evaluated: there is no such formula."""
    held = (coded / "manifest.json").read_text()
    for name in ("mine", "local_5", "heat_1"):
        (coded / "manifest.json").write_text(held.replace('"cosine"', f'"{name}"'))
        forge(coded)
        with pytest.raises(StoreError, match="invalid"):
            KernelStore.open(coded)


def test_tables_of_kernels_normalised_by_degree_are_refused(tmp_path):
    store_of(tmp_path / "s.zarr", normalization="degree")
    forge(tmp_path / "s.zarr", gram={"tabulated": True})
    with pytest.raises(StoreError, match="invalid gram"):
        KernelStore.open(tmp_path / "s.zarr")


# entries that cannot be


def put(path, t, change, *, forged=False):
    """Write a valid chunk with other entries; with `forged`, also the digest that it has."""
    opened = KernelStore.open(path)
    reader, number = opened.reader, opened.reader.gram.number
    tile = reader.raw(number, t).copy()
    change(tile)
    digest, _ = reader.write(GRAM, t, tile)
    if forged:
        old = Manifest.read(path).digests[GRAM]
        width = 2 * len(digest)
        new = old[: width * t] + digest.hex() + old[width * (t + 1) :]
        held = json.loads((path / "manifest.json").read_text())
        forge(path, digests=held["digests"] | {GRAM: new})


WHERE = {"corner": (-1, -1), "elsewhere": (2, 3), "all": (slice(None), slice(None))}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("code", [STEPS + 1, STEPS + 2, 65_535])
def test_codes_that_were_not_written_are_caught_by_digests(cleans, coded, code, where):
    put(coded, 1, lambda tile: tile.__setitem__(WHERE[where], code))
    refused_and_mended(coded, cleans / "codes", [(GRAM, (0, 1))])


@pytest.mark.parametrize("where", WHERE)
def test_a_code_that_is_never_written_does_no_harm(coded, where):
    """Whoever makes a digest for it gets a refusal, or some numbers."""
    put(coded, 1, lambda tile: tile.__setitem__(WHERE[where], 65_535), forged=True)
    for fit in fits(coded):
        if where == "elsewhere":
            assert np.isfinite(fit().history).all()
        else:  # what marks the end of a tile as not written
            with pytest.raises(DamagedStoreError, match="is missing"):
                fit()


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e38, -1e38, -70_000.0, -3.5, -1e-45])
def test_distances_that_cannot_be_do_no_harm(cleans, tmp_path, value):
    path = shutil.copytree(cleans / "distances", tmp_path / "s.zarr")
    put(path, 1, lambda tile: tile.__setitem__((2, 3), value), forged=True)
    for fit in fits(path):
        with np.errstate(all="ignore"):
            try:
                found = fit()
            except GmkcfError:
                continue
        assert np.isfinite(found.history).all()
        assert np.isfinite(found.factors["V"]).all()


def test_every_entry_is_inside_the_tables():
    codes = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    table = np.arange(gram_loops.ENTRIES, dtype=np.float32)
    out, bins = np.empty((256, 256), np.float32), np.zeros((2, gram_loops.ENTRIES))
    gram_loops.gather_codes(codes, table, out)
    np.testing.assert_array_equal(out, codes)
    gram_loops.scatter_codes(codes, np.ones_like(out), 1.0, bins)
    assert bins.sum() == codes.size
    assert codes.max() < gram_loops.ENTRIES


def test_each_code_is_evaluated_by_formula_too(coded):
    gram = KernelStore.open(coded).reader.gram
    codes = np.full((BLOCK, BLOCK), 65_535, np.uint16)
    out = np.empty(codes.shape, np.float32)
    tiles = GramTiles(gram, Tiling(60, BLOCK))
    for number, _ in gram.kernels:
        tiles.evaluate(number, 1, codes, out)
        assert np.isfinite(out).all()
