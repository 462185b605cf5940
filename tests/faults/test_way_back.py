"""`gmkcf build INPUT STORE` is the way back from damage, and no advice leads in a circle."""

import csv
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers.chaos import store as chaos_store
from helpers.chaos.store import FIT, THREADS, gmkcf, outcome
from helpers.legacy import FIT_OPTIONS, KINDS, extract_d549cfb

from gmkcf_dask.results.checkpoints import RunCheckpoints, has_checkpoint
from gmkcf_dask.store import tile_tasks
from gmkcf_dask.store.kernel_store import KernelStore

pytestmark = pytest.mark.usefixtures("calm")


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    return chaos_store.prepare(tmp_path_factory.mktemp("subjects"))


@pytest.fixture
def texts(subjects):
    subjects["texts"].reset()
    return subjects["texts"]


@pytest.fixture
def points(subjects):
    subjects["points"].reset()
    return subjects["points"]


@pytest.fixture(params=["texts", "points"])
def subject(request):
    return request.getfixturevalue(request.param)


def state(path):
    """Bytes and time of every file of a store, by its path inside."""
    return {
        file.relative_to(path).as_posix(): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def changed(before, after):
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


def good(said):
    """What a command said that must succeed."""
    assert said.code == 0, said.text
    return said


def part(name):
    """What is written as a whole: all features, or one file."""
    return "features" if name.startswith("features/") else name


def contents(path):
    return {name: held for name, (held, _) in state(path).items()}


def damaged(subject, kind, way):
    kinds = [*chaos_store.KINDS[subject.name], *chaos_store.FOLDERS[subject.name]]
    (found,) = [one for one in kinds if one.name == kind]
    return chaos_store.damage(subject, chaos_store.Case(subject.name, found, way))


# what verify advises


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("features-data-chunk", "build"),
        ("ids.json", "build"),
        ("excerpts.json", "build"),
        ("features-folder", "build"),
        ("diagonals-chunk", "repair"),
        ("kernels-folder", "repair"),
    ],
)
def test_verify_names_the_command_that_helps(texts, kind, command):
    """Only the input brings inputs back: `repair` would send its reader on to `build`."""
    damaged(texts, kind, "gone" if kind.endswith("folder") else "flip")
    said = texts.verify()
    assert said.code == 4
    assert f"gmkcf {command} " in said.text
    good(texts.build() if command == "build" else texts.repair())
    good(texts.verify())


# build INPUT STORE


@pytest.mark.parametrize("repeated", [True, False])
def test_build_changes_no_byte_of_a_whole_store(subject, repeated):
    """The advice that is printed does not repeat the options of the store."""
    before = state(subject.store)
    good(subject.build(*(subject.options if repeated else ())))
    assert state(subject.store) == before


def test_build_refuses_options_that_the_store_was_not_made_with(subject):
    before = state(subject.store)
    assert subject.build("--kernels", "linear").code == 2
    assert state(subject.store) == before


@pytest.mark.parametrize(
    ("name", "kind", "way"),
    [
        ("texts", "titles.json", "flip"),
        ("texts", "ids.json", "delete"),
        ("texts", "reading.json", "zero"),
        ("texts", "features-data-chunk", "flip"),
        ("texts", "features-folder", "gone"),
        ("texts", "kernel-folder", "gone"),
        ("texts", "inner-tile", "folder"),
        ("points", "features-offset-chunk", "foreign"),
        ("points", "features-X-chunk", "swap"),
        ("points", "norms-folder", "gone"),
        ("points", "diagonals-folder", "gone"),
    ],
)
def test_build_rewrites_exactly_what_is_damaged(request, name, kind, way):
    subject = request.getfixturevalue(name)
    before = state(subject.store)
    lost = damaged(subject, kind, way)
    good(subject.build(*subject.options))
    after = state(subject.store)
    assert contents(subject.store) == contents(subject.whole)
    assert set(map(part, changed(before, after))) - {"manifest.json"} <= set(map(part, lost))
    good(subject.verify())


@pytest.mark.parametrize("hurt", [False, True], ids=["whole", "damaged"])
def test_build_from_another_input_is_refused_and_changes_nothing(subject, hurt):
    if hurt:
        damaged(subject, "ids.json", "flip")
        damaged(subject, "inner-tile", "delete")
    before = state(subject.store)
    other = subject.folder / f"other{subject.input.suffix}"
    said = gmkcf("build", other, subject.store, *subject.options, *THREADS)
    assert said.code == 2, said.text
    assert state(subject.store) == before


# repair


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("features-offset-chunk", "foreign"),
        ("features-offset-chunk", "flip"),
        ("features-offset-folder", "gone"),
        ("features-X-chunk", "swap"),
        ("features-X-chunk", "foreign"),
    ],
)
def test_repair_makes_no_tile_of_inputs_that_do_not_verify(points, kind, way):
    """The chunk of another store has a right checksum: only the digest in the manifest tells."""
    damaged(points, kind, way)
    damaged(points, "inner-tile", "delete")
    before = contents(points.store)
    said = points.repair()
    assert said.code == 4, said.text
    assert "gmkcf build" in said.text
    written = changed(before, contents(points.store))
    assert all(name.endswith("zarr.json") for name in written), written
    said = good(points.build(*points.options))
    assert chaos_store._tree(points.store) == chaos_store._tree(points.whole)


@pytest.mark.parametrize(
    ("name", "kind", "way"),
    [
        ("texts", "inner-tile", "folder"),
        ("texts", "kernel-folder", "gone"),
        ("texts", "kernels-folder", "gone"),
        ("points", "diagonals-folder", "gone"),
        ("points", "norms-folder", "gone"),
    ],
)
def test_repair_recreates_what_is_made_from_features(request, name, kind, way):
    subject = request.getfixturevalue(name)
    damaged(subject, kind, way)
    good(subject.repair())
    assert chaos_store._tree(subject.store) == chaos_store._tree(subject.whole)


def other_tiles(monkeypatch, change):
    """From now on tiles come out otherwise."""
    original = tile_tasks.stored_tiles

    def made(*arguments, **options):
        for name, stored, *rest in original(*arguments, **options):
            yield name, change(stored), *rest

    monkeypatch.setattr(tile_tasks, "stored_tiles", made)


def far_off(stored):
    return stored + stored.dtype.type(1e-3)


def one_rounding_off(stored):
    return np.nextafter(stored, stored.dtype.type(0.5))


@pytest.mark.parametrize("kind", ["diagonal-tile", "inner-tile", "edge-tile"])
def test_repair_does_not_seal_a_tile_that_is_another_one(subject, monkeypatch, kind):
    damaged(subject, kind, "flip")
    manifest = (subject.store / "manifest.json").read_bytes()
    other_tiles(monkeypatch, far_off)
    for mend in (subject.repair, lambda: subject.build(*subject.options)):
        said = mend()
        assert said.code == 4, said.text
        assert (subject.store / "manifest.json").read_bytes() == manifest
        assert subject.verify().code == 4
    monkeypatch.undo()
    good(subject.repair())
    assert chaos_store._tree(subject.store) == chaos_store._tree(subject.whole)


def test_one_wrong_entry_of_a_tile_is_enough(subject, monkeypatch):
    def change(stored):
        stored = stored.copy()
        stored[0, -1] += 0.01
        return stored

    damaged(subject, "inner-tile", "delete")
    manifest = (subject.store / "manifest.json").read_bytes()
    other_tiles(monkeypatch, change)
    assert subject.repair().code == 4
    assert (subject.store / "manifest.json").read_bytes() == manifest


@pytest.mark.parametrize("kind", ["diagonal-tile", "inner-tile", "edge-tile"])
def test_repair_seals_a_tile_with_other_last_bits_and_says_so(subject, monkeypatch, kind):
    damaged(subject, kind, "flip")
    other_tiles(monkeypatch, one_rounding_off)
    said = good(subject.repair())
    assert "bits" in said.text
    good(subject.verify())
    assert chaos_store._tree(subject.store) != chaos_store._tree(subject.whole)
    good(subject.fit())


def test_other_last_bits_are_not_sealed_where_an_input_is_damaged(subject, monkeypatch):
    part = "features-X-chunk" if subject.name == "points" else "features-data-chunk"
    damaged(subject, part, "flip")
    damaged(subject, "inner-tile", "flip")
    manifest = (subject.store / "manifest.json").read_bytes()
    other_tiles(monkeypatch, one_rounding_off)
    assert subject.repair().code == 4
    assert (subject.store / "manifest.json").read_bytes() == manifest


# commands that use inputs


def test_predict_with_two_chunks_of_features_swapped_gives_no_wrong_label(points):
    first, second = (points.store / "features" / "X" / "c" / row / "0" for row in "01")
    held = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(held)
    said = points.predict()
    assert said.code == 4, said.text
    assert not points.out.exists()


@pytest.mark.parametrize("name", ["labels", "terms", "titles", "excerpts", "reading"])
def test_a_fit_without_a_description_writes_its_labels_and_says_what_is_missing(texts, name):
    damaged(texts, f"{name}.json", "flip")
    said = good(texts.fit())
    assert name in said.text
    assert outcome(texts.out) == texts.outcome
    page = (texts.out / "report.html").read_text()
    assert page.count(name) > texts.page.decode().count(name)


def test_what_cannot_be_used_is_said_before_any_work(texts, monkeypatch):
    """Reading the names of samples takes a moment, a fit takes hours."""
    damaged(texts, "ids.json", "flip")
    kept = []
    monkeypatch.setattr(RunCheckpoints, "keep", lambda self, state: kept.append(state))
    said = texts.fit()
    assert said.code in (0, 4), said.text
    if said.code == 4:
        assert not kept
        assert "resume with" not in said.text


def test_a_command_to_go_on_with_succeeds_once_the_store_is_mended(points):
    damaged(points, "inner-tile", "flip")
    said = points.fit()
    assert said.code == 4
    good(points.repair())
    for line in said.text.splitlines():
        if line.startswith("resume with: gmkcf "):
            good(gmkcf(*line.removeprefix("resume with: gmkcf ").split()))
            assert outcome(points.out) == points.outcome


def test_a_flipped_bit_in_a_description_has_a_way_back_without_a_circle(texts):
    damaged(texts, "excerpts.json", "flip")
    good(texts.fit())
    assert texts.verify().code == 4
    said = texts.repair()
    assert said.code == 4
    assert f"gmkcf build INPUT {texts.store}" in said.text
    said = good(texts.build())
    good(texts.verify())
    assert chaos_store._tree(texts.store) == chaos_store._tree(texts.whole)
    good(texts.fit())
    assert outcome(texts.out) == texts.outcome


# stores of d549cfb


@pytest.fixture
def legacy(request, tmp_path):
    return extract_d549cfb(tmp_path)[request.param]


both = pytest.mark.parametrize("legacy", KINDS, indirect=True)


def warned(path):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        KernelStore.open(path)
    return [str(one.message) for one in said]


def labels(path):
    with path.open(newline="") as file:
        return {row["id"]: row["label"] for row in csv.DictReader(file)}


def rebuilt(legacy):
    return good(gmkcf("build", legacy.input, legacy.store, *legacy.build_options, *THREADS))


@both
def test_build_adds_what_an_old_store_lacks(legacy, tmp_path):
    before = contents(legacy.store)
    assert len(warned(legacy.store)) == 1
    rebuilt(legacy)
    assert warned(legacy.store) == []
    assert changed(before, contents(legacy.store)) == {"manifest.json"}
    again = state(legacy.store)
    rebuilt(legacy)
    assert state(legacy.store) == again
    said = gmkcf("verify", legacy.store, *THREADS)
    assert said.code == 0
    assert "note:" not in said.text


@both
def test_commands_say_once_what_an_old_store_lacks(legacy, tmp_path):
    commands = {
        "fit": ("fit", legacy.store, *FIT_OPTIONS, *THREADS, "--out", tmp_path / "again"),
        "verify": ("verify", legacy.store, *THREADS),
        "predict": ("predict", legacy.run, legacy.new, "--out", tmp_path / "new.csv", *THREADS),
    }
    for name, words in commands.items():
        said = good(gmkcf(*words))
        notes = [line for line in said.text.splitlines() if "gmkcf build" in line]
        assert len(notes) == 1, (name, said.text)
        assert notes[0].startswith("note: ")


@both
def test_after_that_old_runs_and_checkpoints_still_work(legacy, tmp_path):
    rebuilt(legacy)
    out = tmp_path / "new.csv"
    good(gmkcf("predict", legacy.run, legacy.new, "--out", out, *THREADS))
    assert labels(out) == labels(legacy.new_labels)
    fit = ("fit", legacy.store, *FIT_OPTIONS, *THREADS, "--out", legacy.unfinished)
    good(gmkcf(*fit, "--resume"))
    assert labels(legacy.unfinished / "labels.csv") == labels(legacy.run / "labels.csv")


@both
def test_a_damaged_old_store_is_mended_by_build(legacy):
    before = contents(legacy.store)
    ids = legacy.store / "ids.json"
    ids.write_bytes(ids.read_bytes().replace(b"1", b"7", 1))
    shutil.rmtree(legacy.store / "features")
    (legacy.store / "kernels" / "rbf_1" / "c" / "0" / "1").unlink()
    assert gmkcf("verify", legacy.store, *THREADS).code == 4
    rebuilt(legacy)
    assert changed(before, contents(legacy.store)) == {"manifest.json"}
    good(gmkcf("verify", legacy.store, *THREADS))


def test_a_damaged_offset_of_an_old_store_is_mended_by_build(tmp_path, points):
    """It has no digest there, but it follows from the input."""
    legacy = extract_d549cfb(tmp_path)["points"]
    before = contents(legacy.store)
    chunk = Path("features", "offset", "c", "0")
    shutil.copy(points.foreign[0] / chunk, legacy.store / chunk)
    rebuilt(legacy)
    assert changed(before, contents(legacy.store)) == {"manifest.json"}


@both
def test_no_other_tile_is_sealed_into_an_old_store(legacy, monkeypatch):
    (legacy.store / "kernels" / "rbf_1" / "c" / "0" / "1").unlink()
    manifest = (legacy.store / "manifest.json").read_bytes()
    other_tiles(monkeypatch, far_off)
    said = gmkcf("repair", legacy.store, *THREADS)
    assert said.code == 4, said.text
    assert (legacy.store / "manifest.json").read_bytes() == manifest


# checkpoints


def with_states_counted(monkeypatch, *command, end_after=None):
    """Run a command: how it ended, and how many states it kept.

    After `end_after` states it is ended as by Ctrl-C.
    """
    original, kept = RunCheckpoints.keep, []

    def keep(self, state):
        original(self, state)
        kept.append(state)
        if len(kept) == end_after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunCheckpoints, "keep", keep)
        return gmkcf(*command), len(kept)


def interrupted(monkeypatch, *command):
    """Run a command and end it, as Ctrl-C does, after five iterations."""
    said, _ = with_states_counted(monkeypatch, *command, end_after=5)
    assert said.code == 130, said.text


def went_on(monkeypatch, *command):
    """Run a command that must go on from a checkpoint; returns how many iterations it took."""
    said, n_states = with_states_counted(monkeypatch, *command)
    assert said.code == 0, said.text
    return n_states


def test_a_fit_goes_on_after_its_store_was_removed_and_built_again(subject, monkeypatch):
    subject.fit()
    whole = went_on(monkeypatch, *_fit(subject, "--overwrite"))
    shutil.rmtree(subject.out)
    interrupted(monkeypatch, *_fit(subject))
    assert has_checkpoint(subject.out / "checkpoint")
    shutil.rmtree(subject.store)
    good(subject.build(*subject.options))
    assert went_on(monkeypatch, *_fit(subject, "--resume")) == whole - 5
    assert outcome(subject.out) == subject.outcome


def _fit(subject, *more):
    return ("fit", subject.store, *FIT, *THREADS, "--out", subject.out, *more)


def test_a_run_goes_on_after_its_store_was_removed(subject, monkeypatch):
    chaos_store._remove(subject.out)
    words = ("run", subject.input, *FIT, *subject.options, *THREADS, "--out", subject.out)
    interrupted(monkeypatch, *words)
    shutil.rmtree(subject.out / "store.zarr")
    assert went_on(monkeypatch, *words, "--resume") < 12
    assert outcome(subject.out) == subject.outcome


def test_a_checkpoint_of_another_store_is_still_refused(subject, monkeypatch):
    chaos_store._remove(subject.out)
    interrupted(monkeypatch, *_fit(subject))
    shutil.rmtree(subject.store)
    shutil.copytree(subject.foreign[0], subject.store)
    said = gmkcf(*_fit(subject, "--resume"))
    assert said.code == 2, said.text


def test_predict_works_after_the_store_was_removed_and_built_again(subject):
    shutil.rmtree(subject.store)
    good(subject.build(*subject.options))
    good(subject.predict())
    assert subject.out.read_bytes() == subject.predicted
