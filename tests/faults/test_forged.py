"""Row: files whose digests are right but whose content is not ours: somebody made them.

What was found by `scripts/chaos fuzz`, and the sizes that must not cost memory or time.
"""

import json
import math
import resource
import time

import pytest
from helpers.chaos.fuzz_stores import STORE, Examples, _command, _fit, make_example, seal_checkpoint

from gmkcf_dask.errors import DamagedStoreError, InputError, StoreError
from gmkcf_dask.results.checkpoints import has_checkpoint, read_checkpoint
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.manifest import sealed

pytestmark = pytest.mark.usefixtures("calm")


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    folder = tmp_path_factory.mktemp("example")
    make_example(folder)
    return folder


@pytest.fixture
def changed():
    """A function that writes into files; afterwards they and those beside them are as before."""
    whole = {}

    def change(path, content):
        for beside in path.parent.iterdir():
            if beside.is_file():
                whole.setdefault(beside, beside.read_bytes())
        path.write_bytes(content)

    yield change
    for path, content in whole.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


# stores


def forge(example, changed, **fields):
    path = example / STORE / "manifest.json"
    changed(path, sealed(json.loads(path.read_text()) | fields))
    return example / STORE


def test_without_a_digest_of_the_features(example, changed):
    assert _command("verify", str(forge(example, changed, inputs={}))) == 4


@pytest.mark.parametrize("what", ["features", "ids", "terms"])
def test_inputs_under_other_names(example, changed, what):
    """Found by the fuzzer: ids would be read as none."""
    held = json.loads((example / STORE / "manifest.json").read_text())["inputs"]
    digest = held.pop(what)
    for inputs in (held, {**held, f"{what}x": digest}, {**held, what: digest, "../x": digest}):
        store = forge(example, changed, inputs=inputs)
        with pytest.raises(DamagedStoreError, match="invalid inputs"):
            KernelStore.open(store)
        assert _command("verify", str(store)) == 4


@pytest.mark.parametrize("n_features", [5, 12])
def test_another_number_of_features(example, changed, n_features, tmp_path):
    store = forge(example, changed, n_features=n_features)
    with pytest.raises(DamagedStoreError, match=r"terms\.json"):
        KernelStore.open(store).strings("terms")
    if n_features < 6:
        with pytest.raises(DamagedStoreError, match="holds invalid values"):
            KernelStore.open(store).features().rows(slice(0, 24))
    assert _command("fit", str(store), "-k", "2", "--out", str(tmp_path / "run")) == 4
    assert _command("verify", str(store)) == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"vectors": {"norms/../../victim": "0" * 32}},
        {"vectors": {"diagonals/nope": "0" * 32}},
        {"vectors": {"features/X": "0" * 32}},
        {"nearest": {"../../x": "rbf_1"}},
        {"nearest": {"rbf_1": "../../x"}},
        {"differences": {"../../x": 0.0}},
    ],
    ids=str,
)
def test_names_that_are_not_of_the_store(example, changed, fields):
    store = forge(example, changed, **fields)
    (example / "victim").mkdir(exist_ok=True)
    with pytest.raises(StoreError, match="invalid"):
        KernelStore.open(store)
    for command in ("info", "verify", "repair"):
        assert _command(command, str(store)) in (2, 4)
    assert list((example / "victim").iterdir()) == []


def test_many_features_are_not_made_dense(example, changed, tmp_path):
    """Found by the fuzzer, in its own judge: sparse rows of 2^31 columns are read as they are."""
    examples = Examples(example)
    store = forge(example, changed, n_features=2**31 + 6)
    case = tmp_path / "0.2.manifest"
    case.write_bytes((store / "manifest.json").read_bytes())
    assert examples.read(case, whole_way=True) == "refused"


NESTED = json.loads("[" * 500 + "]" * 500)
ABSURD = [
    10**12,
    2**40,
    10**15,
    10**30,
    10**400,
    -(10**15),
    math.nan,
    math.inf,
    NESTED,
    "y" * 10**6,
]


@pytest.mark.parametrize("block", [None, 1, 2**40])
@pytest.mark.parametrize("value", ABSURD, ids=lambda value: str(value)[:8])
def test_absurd_sizes_cost_nothing(example, changed, value, block):
    sizes = {"n_samples": value} | ({} if block is None else {"block_size": block})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    store = forge(example, changed, **sizes)
    with pytest.raises(StoreError) as told:
        KernelStore.open(store)
    assert len(str(told.value)) < 1000
    assert _command("info", str(store)) in (2, 4)
    assert _command("verify", str(store)) in (2, 4)
    assert time.perf_counter() - begun < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


# checkpoints


def newest(example, method):
    folder = example / method / "checkpoint"
    return max(folder.glob("*.json"), key=lambda p: json.loads(p.read_text())["serial"])


def forge_checkpoint(example, changed, method, change):
    path = newest(example, method)
    body = json.loads(path.read_text())
    change(body)
    changed(path, json.dumps(body).encode())
    seal_checkpoint(path.with_suffix(""))
    return path.parent


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (field, value)
        for field in ("serial", "fingerprint", "state", "notes")
        for value in (None, "x", {"a": 1}, [1], True, -1)
        if not (isinstance(value, dict) and field in ("fingerprint", "state"))  # as it should be
    ],
    ids=repr,
)
def test_a_field_of_another_type_is_damage(example, changed, field, value):
    folder = forge_checkpoint(example, changed, "kkm", lambda body: body.update({field: value}))
    with pytest.warns(UserWarning, match="the other one is used"):
        read_checkpoint(folder)


def test_a_header_that_does_not_parse_is_damage(example, changed):
    path = newest(example, "gmkcf").with_suffix(".npz")
    for broken in (b"{'descr'  (", b"{'descr': \x00", b"{'descr' }) "):
        changed(path, path.read_bytes().replace(b"{'descr': '"[: len(broken)], broken))
        changed(path.with_suffix(".json"), path.with_suffix(".json").read_bytes())
        seal_checkpoint(path.with_suffix(""))
        with pytest.warns(UserWarning, match="the other one is used"):
            read_checkpoint(path.parent)


STATES = {
    "gmkcf": [
        ("run", "U"),
        ("run", "history"),
        ("run", "gain"),
        ("best",),
        ("ended",),
        ("run",),
    ],
    "kcf": [("running", "0", "at", "KU"), ("running", "1", "history"), ("ended",), ("running",)],
    "rmkkm": [("run", "rng"), ("run", "starts"), ("run", "labels"), ("run", "w"), ("ended",)],
    "kkm": [("ended",), ("running",)],
}


@pytest.mark.parametrize("value", [None, "x", [True], {}, [{}], 7], ids=repr)
@pytest.mark.parametrize(("method", "where"), [(m, w) for m, ws in STATES.items() for w in ws])
def test_a_state_of_another_form_is_refused_and_kept(example, changed, method, where, value):
    def change(body):
        inside = body["state"]
        for name in where[:-1]:
            inside = inside[name]
        same = inside[where[-1]] == value
        inside[where[-1]] = 7.5 if same else value

    folder = forge_checkpoint(example, changed, method, change)
    if _fit(example, method, "--resume") == 0:
        pytest.fail("it went on from that")
    assert has_checkpoint(folder), "the other generation may be whole"


def test_what_is_said_is_short(example, changed):
    path = newest(example, "kkm")
    for file in path.parent.glob("*.npz"):
        changed(file, file.read_bytes().replace(b"a0.npy", b"\n" * 6, 1))
        changed(file.with_suffix(".json"), file.with_suffix(".json").read_bytes())
        seal_checkpoint(file.with_suffix(""))
    with pytest.raises(InputError) as told:
        read_checkpoint(path.parent)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 600
