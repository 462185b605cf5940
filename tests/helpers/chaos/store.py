"""Damage to every kind of file of a store, in six ways: scripts/chaos store [--only KIND:WAY].

Each case damages one file or folder of a store and then asks every command: `verify` finds it,
`fit`, `predict` and `report` refuse or give the right results, `repair` or `build INPUT STORE`
makes the store good again, and the printed advice leads there within three steps.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import shutil
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from helpers import commands
from helpers.damage import flip_bit
from helpers.faulty import AS_PAPER, outcome
from helpers.legacy import BUILD_OPTIONS, FIXTURE

THREADS = ("--cluster", "threads")
FIT = ("-k", 3, "--max-iter", 12, *AS_PAPER)
MOST_STEPS = 3
"""Commands that the printed advice may take until the store is good."""


# commands


@dataclass(frozen=True)
class Said:
    """How a command ended: exit code and all it printed."""

    code: int
    text: str

    def short(self) -> str:
        """Exit code and the last lines."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        return f"exit {self.code}: {' / '.join(lines[-2:])[:300]}"


def gmkcf(*arguments: object) -> Said:
    """Run a command as a new process would: with empty caches."""
    _clear_caches()
    ran = commands.gmkcf(*arguments)
    text = ran.output
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        text += "".join(traceback.format_exception(ran.exception)[-3:])
    return Said(ran.exit_code, text)


_KEPT_CACHES = {
    "gmkcf_dask.compute.blas",
    "gmkcf_dask.compute.worker_checks",
    "gmkcf_dask.results.report.render",
    "gmkcf_dask.store.object_storage",  # connections: aiohttp warns of those dropped before closing
}
"""Modules whose caches hold nothing of a store."""


def _clear_caches() -> None:
    """Forget what functions of the package keep of earlier commands."""
    for name, module in list(sys.modules.items()):
        if name.startswith("gmkcf_dask") and name not in _KEPT_CACHES:
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


# stores to damage


@dataclass
class Subject:
    """A store with its input and a run of it, and what commands give while it is whole."""

    name: str
    folder: Path
    input: Path
    new: Path
    options: tuple[object, ...]
    foreign: tuple[Path, ...] = ()
    outcome: Any = None
    predicted: bytes = b""
    page: bytes = b""
    insight: dict[str, Any] = field(default_factory=dict)
    fitted: dict[str, Any] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        return self.folder / "s.zarr"

    @property
    def whole(self) -> Path:
        """A copy that stays as it is."""
        return self.folder / "whole.zarr"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def out(self) -> Path:
        """Where a command writes; removed before each."""
        return self.folder / "out"

    def reset(self) -> None:
        """Put the whole store back."""
        _remove(self.store)
        shutil.copytree(self.whole, self.store)

    def fit(self) -> Said:
        _remove(self.out)
        return gmkcf("fit", self.store, *FIT, *THREADS, "--out", self.out)

    def predict(self) -> Said:
        _remove(self.out)
        return gmkcf("predict", self.run, self.new, "--out", self.out, *THREADS)

    def report(self, *, explained: bool) -> Said:
        """With insight.json the page is made from it alone, without it from the store."""
        _remove(self.out)
        shutil.copytree(self.run, self.out)
        (self.out / "report.html").unlink()
        if not explained:
            (self.out / "insight.json").unlink()
        return gmkcf("report", self.out)

    def verify(self) -> Said:
        return gmkcf("verify", self.store, *THREADS)

    def repair(self) -> Said:
        return gmkcf("repair", self.store, *THREADS)

    def build(self, *options: object) -> Said:
        return gmkcf("build", self.input, self.store, *options, *THREADS)


def prepare(folder: Path) -> dict[str, Subject]:
    """Stores of texts (sparse, unit) and of points far from the origin (dense, degree).

    Kernels have an array each; those of the points once more in one array for all, "gram".
    """
    subjects = {}
    for name, data, ending in (
        ("texts", "texts", ".jsonl"),
        ("points", "points", ".npy"),
        ("gram", "points", ".npy"),
    ):
        own = folder / name
        own.mkdir(parents=True)
        for prefix in ("", "new_"):
            shutil.copy(FIXTURE / f"{prefix}{data}{ending}", own)
        layout = "gram" if name == "gram" else "each"
        options = (*BUILD_OPTIONS[data], "--layout", layout)
        subject = Subject(name, own, own / f"{data}{ending}", own / f"new_{data}{ending}", options)
        subject.foreign = tuple(_foreign_stores(subject))
        _expect(subject.build(*subject.options))
        shutil.copytree(subject.store, subject.whole)
        _know_the_whole(subject)
        subjects[name] = subject
    return subjects


def _foreign_stores(subject: Subject) -> Iterator[Path]:
    """One of other samples and the same shape, and one of another shape."""
    other = subject.folder / f"other{subject.input.suffix}"
    if subject.name == "texts":
        rows = [json.loads(line) for line in subject.input.read_text().splitlines()]
        for row in rows:  # words spelt backwards: another vocabulary of the same size
            row.update({key: row[key][::-1] for key in row})
        other.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    else:
        np.save(other, np.load(subject.input)[::-1] * 1.25 + 3.0)
    block = subject.options.index("--block")
    shapes = (subject.options, (*subject.options[:block], "--block", 5))
    for number, options in enumerate(shapes):
        path = subject.folder / f"foreign-{number}.zarr"
        _expect(gmkcf("build", other, path, *options, *THREADS))
        yield path


def _know_the_whole(subject: Subject) -> None:
    """Keep what commands give for the store as it is."""
    _expect(subject.fit())
    subject.outcome = outcome(subject.out)
    shutil.copytree(subject.out, subject.run)
    first = _leaves(subject.out / "insight.json")
    _expect(subject.fit())
    subject.fitted = _steady(first, _leaves(subject.out / "insight.json"))
    _expect(subject.predict())
    subject.predicted = subject.out.read_bytes()
    _expect(subject.report(explained=True))
    subject.page = (subject.out / "report.html").read_bytes()
    _expect(subject.report(explained=False))
    first = _leaves(subject.out / "insight.json")
    _expect(subject.report(explained=False))
    subject.insight = _steady(first, _leaves(subject.out / "insight.json"))


def _expect(said: Said) -> None:
    if said.code != 0:
        raise SystemExit(f"without any damage: {said.text}")


def _leaves(path: Path) -> dict[str, Any]:
    """Values of a JSON file by their place in it."""

    def walk(tree: Any, where: str) -> Iterator[tuple[str, Any]]:
        inside = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in inside:
            if isinstance(value, dict | list) and value:
                yield from walk(value, f"{where}/{key}")
            else:
                yield f"{where}/{key}", value

    return dict(walk(json.loads(path.read_bytes()), ""))


_PASSING = ("/created", "/seconds", "/bytes")


def _steady(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Leaves that stay the same, unlike times and the size of the store."""
    return {
        key: value
        for key, value in one.items()
        if other.get(key) == value and not key.startswith(_PASSING)
    }


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# what is damaged, and how


@dataclass(frozen=True)
class Kind:
    """A file or folder of a store; `names` is what `verify` may call it, one is enough."""

    name: str
    where: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """One kind of file damaged in one way."""

    subject: str
    kind: Kind
    way: str

    def __str__(self) -> str:
        return f"{self.subject}/{self.kind.name}:{self.way}"


WAYS = ("flip", "cut", "delete", "swap", "foreign", "zero")
FOLDER_WAYS = ("gone", "folder")
"""A whole folder deleted, and a folder in the place of a file."""


def _kinds(
    kernel: str, edge: int, features: Iterable[str], *, norms: bool, gram: bool = False
) -> list[Kind]:
    """Kinds of files that every store has, and those of its features."""
    array, called = ("gram/X", "Gram matrix") if gram else (f"kernels/{kernel}", kernel)

    def tile(name: str, i: int, j: int) -> Kind:
        return Kind(name, f"{array}/c/{i}/{j}", (f"{called} tile ({i}, {j})",))

    def metadata(folder: str, name: str) -> Kind:
        return Kind(f"{name}zarr.json", f"{folder}zarr.json", (f"{folder}zarr.json",))

    vectors = {"diagonals": kernel, **({"norms": kernel} if norms else {})}
    vectors |= {"gram_rows": "squares"} if gram else {}
    found = [
        Kind("manifest.json", "manifest.json", ("manifest",)),
        metadata("", ""),
        metadata("kernels/", "kernels/"),
        metadata(f"{array}/", "gram/X/" if gram else "kernels/K/"),
        *([metadata("gram/", "gram/")] if gram else []),
        metadata("features/", "features/"),
        tile("diagonal-tile", 1, 1),
        tile("inner-tile", 0, 1),
        tile("edge-tile", 1, edge),
        *(Kind(f"{name}.json", f"{name}.json", (name,)) for name in ("ids", "labels", "terms")),
    ]
    for vector, name in vectors.items():
        found.append(metadata(f"{vector}/", f"{vector}/"))
        found.append(metadata(f"{vector}/{name}/", f"{vector}/K/"))
        found.append(Kind(f"{vector}-chunk", f"{vector}/{name}/c/0", (f"{vector}/{name}",)))
    for part in features:
        found.append(metadata(f"features/{part}/", f"features/{part}/"))
        chunk = f"features/{part}/c/0" + ("/0" if part == "X" else "")
        found.append(Kind(f"features-{part}-chunk", chunk, ("features",)))
    return found


def _folders(kernel: str, features: str, *, norms: bool) -> list[Kind]:
    found = [
        Kind("kernel-folder", f"kernels/{kernel}", (kernel,)),
        Kind("kernels-folder", "kernels", ("kernels",)),
        Kind("features-folder", "features", ("features",)),
        Kind(f"features-{features}-folder", f"features/{features}", ("features",)),
        Kind("diagonals-folder", "diagonals", ("diagonals",)),
        Kind("diagonal-folder", f"diagonals/{kernel}", (f"diagonals/{kernel}",)),
    ]
    return [*found, Kind("norms-folder", "norms", ("norms",))] if norms else found


KINDS: dict[str, list[Kind]] = {
    "texts": [
        *_kinds("rbf_1", 3, ("data", "indices", "indptr"), norms=False),
        *(
            Kind(f"{name}.json", f"{name}.json", (name,))
            for name in ("titles", "excerpts", "reading")
        ),
    ],
    "points": _kinds("rbf_1", 3, ("X", "offset"), norms=True),
    "gram": _kinds("rbf_1", 3, ("X", "offset"), norms=True, gram=True),
}
FOLDERS: dict[str, list[Kind]] = {
    "texts": _folders("rbf_1", "indptr", norms=False),
    "points": _folders("rbf_1", "offset", norms=True),
    "gram": [
        Kind("gram-folder", "gram", ("gram",)),
        Kind("array-folder", "gram/X", ("gram/X",)),
        Kind("rows-folder", "gram_rows", ("gram_rows",)),
    ],
}


def all_cases() -> list[Case]:
    """Every case, kind by kind."""
    cases = []
    for subject, kinds in KINDS.items():
        cases += [Case(subject, kind, way) for kind in kinds for way in (*WAYS, "folder")]
        cases += [Case(subject, kind, "gone") for kind in FOLDERS[subject]]
    return cases


def few_cases() -> list[Case]:
    """One way for each kind, another one for the next."""
    found: dict[tuple[str, str], Case] = {}
    cases = all_cases()
    for case in cases:
        place = (case.subject, case.kind.name)
        ways = [one.way for one in cases if (one.subject, one.kind.name) == place]
        if case.way == ways[len(found) % len(ways)]:
            found.setdefault(place, case)
    return list(found.values())


DESCRIPTIONS = frozenset(
    f"{name}.json" for name in ("labels", "terms", "titles", "excerpts", "reading")
)
"""Files that only people read: a fit gives its labels without them."""
_NAMES = DESCRIPTIONS | {"ids.json"}


def damage(subject: Subject, case: Case) -> frozenset[str]:
    """Damage the store of a subject; returns the files and folders that are not what they were."""
    file = subject.store / case.kind.where
    before = _tree(subject.store)
    rng = np.random.default_rng(zlib.crc32(str(case).encode()))
    _DAMAGES[case.way](subject, file, rng)
    after = _tree(subject.store)
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    assert changed, str(case)
    return frozenset(changed)


def _flip(subject: Subject, file: Path, rng: np.random.Generator) -> None:
    flip_bit(file, rng)


def _cut(subject: Subject, file: Path, rng: np.random.Generator) -> None:
    file.write_bytes(file.read_bytes()[: int(rng.integers(file.stat().st_size))])


def _delete(subject: Subject, file: Path, rng: np.random.Generator) -> None:
    file.unlink()


def _swap(subject: Subject, file: Path, rng: np.random.Generator) -> None:
    """With another file of its kind; of a sibling kind where all of its kind are the same."""
    own = file.read_bytes()
    alike = _alike(subject.store, file.relative_to(subject.store))
    other = next(one for one in alike if one.read_bytes() != own)
    file.write_bytes(other.read_bytes())
    other.write_bytes(own)


def _foreign(subject: Subject, file: Path, rng: np.random.Generator) -> None:
    """The same file of another store; of a sibling kind where they are the same in all."""
    own, inside = file.read_bytes(), file.relative_to(subject.store)
    there = [path / inside for path in subject.foreign]
    alike = (one for path in subject.foreign for one in _alike(path, inside))
    other = next(one for one in (*there, *alike) if one.is_file() and one.read_bytes() != own)
    shutil.copyfile(other, file)


def _zero(subject: Subject, file: Path, rng: np.random.Generator) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def _gone(subject: Subject, file: Path, rng: np.random.Generator) -> None:
    shutil.rmtree(file)


def _folder(subject: Subject, file: Path, rng: np.random.Generator) -> None:
    file.unlink()
    file.mkdir()


_DAMAGES: dict[str, Callable[[Subject, Path, np.random.Generator], None]] = {
    "flip": _flip,
    "cut": _cut,
    "delete": _delete,
    "swap": _swap,
    "foreign": _foreign,
    "zero": _zero,
    "gone": _gone,
    "folder": _folder,
}


def _alike(store: Path, inside: Path) -> list[Path]:
    """Files of a store other than one, those most like it first."""
    files = [one for one in sorted(store.rglob("*")) if one.is_file() and one != store / inside]

    def distance(one: Path) -> tuple[int, ...]:
        parts, own = one.relative_to(store).parts, inside.parts
        same = next((n for n, (a, b) in enumerate(zip(parts, own, strict=False)) if a != b), 99)
        metadata = (parts[-1] == "zarr.json") == (own[-1] == "zarr.json")
        names = (parts[-1] in _NAMES) == (own[-1] in {*_NAMES, "manifest.json"})
        only_read = parts[-1] in DESCRIPTIONS
        return (
            *(not metadata, not names, not only_read),
            *(len(parts) != len(own), parts[0] != own[0], -same),
        )

    return sorted(files, key=distance)


# what must hold


def check_case(subject: Subject, case: Case) -> list[str]:
    """Do the damage, ask every command, mend; returns what does not hold, nothing if all does."""
    subject.reset()
    damaged = damage(subject, case)
    hurt = _tree(subject.store)
    found = subject.verify()
    wrong = _verify_finds(case, found)
    refusals = [found]
    for check in (_fit_is_right, _predict_is_right, _report_is_right):
        failures, said = check(subject, case)
        wrong += failures
        refusals += said
        if check is _fit_is_right and said and damaged <= DESCRIPTIONS:
            wrong.append("fit refuses where only a description is damaged")
    if _tree(subject.store) != hurt:
        wrong.append("a command that only reads changed the store")
    lost = case.kind.name == "manifest.json"
    for first in _beginnings(subject, refusals):
        subject.reset()
        damage(subject, case)
        wrong += [f"{first[0]}: {one}" for one in _follow(subject, first, may_remove=lost)]
    return [one.replace(f"{subject.folder}/", "") for one in wrong]


def _verify_finds(case: Case, said: Said) -> list[str]:
    wrong = []
    if said.code != 4:
        wrong.append(f"verify does not find it, {said.short()}")
    elif not _names(case, said.text) and str(case.kind.name) != "manifest.json":
        wrong.append(f"verify does not name {' or '.join(case.kind.names)}, {said.short()}")
    if said.code == 4 and not _advice(said.text):
        wrong.append(f"verify does not say what mends it, {said.short()}")
    return wrong


def _names(case: Case, text: str) -> bool:
    return any(name in text for name in case.kind.names)


def _fit_is_right(subject: Subject, case: Case) -> tuple[list[str], list[Said]]:
    said = subject.fit()
    if said.code == 4:
        return _refused("fit", said, subject.out / "labels.csv"), [said]
    if said.code != 0:
        return [f"fit ends with another code, {said.short()}"], []
    found = outcome(subject.out)
    wrong = []
    if found[1:] != subject.outcome[1:] or _column(found[0]) != _column(subject.outcome[0]):
        wrong.append("fit exits 0 with other labels or factors")
    elif found[0] != subject.outcome[0] and "ids" not in case.kind.names:
        wrong.append("fit exits 0 with other ids")
    insight = subject.out / "insight.json"
    if not insight.exists():
        if not _names(case, said.text):
            wrong.append("fit exits 0 without a report and does not say why")
        return wrong, []
    if not _agrees(insight, subject.fitted) or found[0] != subject.outcome[0]:
        if not _names(case, said.text):
            wrong.append("fit exits 0 with another report and does not say what is missing")
        if not _says_more(subject, case):
            wrong.append("the report of the fit does not say what is missing")
    return wrong, []


def _column(labels: bytes) -> list[bytes]:
    """The labels alone: ids may be missing."""
    return [line.rsplit(b",", 1)[-1] for line in labels.splitlines()]


def _agrees(insight: Path, steady: dict[str, Any]) -> bool:
    found = _leaves(insight)
    return all(found.get(key) == value for key, value in steady.items())


def _says_more(subject: Subject, case: Case) -> bool:
    """Whether the page names what is damaged more often than the page of the whole store."""
    page = (subject.out / "report.html").read_bytes()
    names = [name.encode() for name in case.kind.names]
    return any(page.count(name) > subject.page.count(name) for name in names)


def _refused(command: str, said: Said, written: Path) -> list[str]:
    wrong = []
    if written.exists():
        wrong.append(f"{command} exits 4 and leaves {written.name}")
    if not _advice(said.text):
        wrong.append(f"{command} does not say what mends it, {said.short()}")
    return wrong


def _predict_is_right(subject: Subject, case: Case) -> tuple[list[str], list[Said]]:
    said = subject.predict()
    if said.code == 4:
        return _refused("predict", said, subject.out), [said]
    if said.code == 2 and _is_another_store(case):
        return [], []
    if said.code != 0:
        return [f"predict ends with another code, {said.short()}"], []
    same = subject.out.read_bytes() == subject.predicted
    return ([] if same else ["predict exits 0 with other labels"]), []


def _is_another_store(case: Case) -> bool:
    """With the whole manifest of another store it is that one, as far as a run can see."""
    return (case.kind.name, case.way) == ("manifest.json", "foreign")


def _report_is_right(subject: Subject, case: Case) -> tuple[list[str], list[Said]]:
    said = subject.report(explained=True)
    wrong = []
    if said.code not in (0, 4):
        wrong.append(f"report ends with another code, {said.short()}")
    elif said.code == 0 and (subject.out / "report.html").read_bytes() != subject.page:
        wrong.append("report from insight.json is another page")
    said = subject.report(explained=False)
    if said.code == 4:
        more = _refused("report", said, subject.out / "insight.json")
        return wrong + more, [said]
    if said.code == 2 and _is_another_store(case):
        return wrong, []
    if said.code != 0:
        return [*wrong, f"report from the store ends with another code, {said.short()}"], []
    if not _agrees(subject.out / "insight.json", subject.insight) and not (
        _names(case, said.text) and _says_more(subject, case)
    ):
        wrong.append("report from the store is another one and does not say what is missing")
    return wrong, []


# mending


def _beginnings(subject: Subject, refusals: list[Said]) -> list[tuple[str, ...]]:
    """Commands to begin with: both ways back, and whatever was advised."""
    again = ("build", str(subject.input), str(subject.store), *map(str, subject.options))
    found = [("repair", str(subject.store)), again]
    for said in refusals:
        advised = _advice(said.text)
        if advised is not None:
            command = _filled(subject, advised)
            if command not in found:
                found.append(command)
    return found


_COMMAND = re.compile(r"gmkcf (repair|build) ([^\n]*)")


def _advice(text: str) -> tuple[str, ...] | None:
    """The last command that a text names to mend a store."""
    commands = _COMMAND.findall(text)
    if not commands:
        return None
    name, rest = commands[-1]
    try:
        words = shlex.split(rest.replace("`", " "))
    except ValueError:
        words = rest.split()
    wanted = 1 if name == "repair" else 2
    positional = [word.rstrip(".,;:)") for word in words[:wanted]]
    options: list[str] = []
    if positional and positional[-1] == (words[wanted - 1] if len(words) >= wanted else ""):
        for word in words[wanted:]:
            if not (word.startswith("--") or (options and options[-1].startswith("--"))):
                break
            options.append(word.rstrip(".,;:)"))
    return (name, *positional, *options)


def _filled(subject: Subject, command: tuple[str, ...]) -> tuple[str, ...]:
    """A command with the paths of a subject in the place of INPUT and STORE."""
    known = {"INPUT": str(subject.input), "STORE": str(subject.store)}
    return tuple(known.get(word, word) for word in command)


def _follow(subject: Subject, command: tuple[str, ...], *, may_remove: bool) -> list[str]:
    """Run a command and then whatever it advises, until the store is good.

    Only where the manifest is lost the advice may be to remove the store and build it again.
    """
    trail: list[str] = []
    seen: set[tuple[str, ...]] = set()
    for _ in range(MOST_STEPS):
        said = gmkcf(*command, *THREADS)
        trail.append(f"{command[0]} {said.short()}")
        if said.code == 0:
            return [f"exits 0, but {one} ({'; '.join(trail)})" for one in _not_good(subject)]
        if said.code not in (2, 4):
            return [f"ends with another code ({'; '.join(trail)})"]
        removed = may_remove and _removed_as_told(subject, said.text)
        advised = _advice(said.text)
        if advised is None and removed:
            advised = ("build", str(subject.input), str(subject.store), *map(str, subject.options))
        if advised is None:
            return [f"says nothing that mends it ({'; '.join(trail)})"]
        if removed and advised[0] == "build" and len(advised) == 3:
            advised = (*advised, *map(str, subject.options))  # nothing is left to take them from
        seen.add(command)
        command = _filled(subject, advised)
        if not removed and command in seen:
            return [f"its advice goes in a circle ({'; '.join(trail)})"]
    return [f"is not good after {MOST_STEPS} commands ({'; '.join(trail)})"]


def _removed_as_told(subject: Subject, text: str) -> bool:
    """Whether a sentence says to remove the store; then it is done."""
    told = re.search(r"\bremove (it|the store|that store)\b|\brm -rf? ", text)
    if told:
        _remove(subject.store)
    return bool(told)


def _not_good(subject: Subject) -> list[str]:
    """What is still wrong with a store that was mended."""
    wrong = []
    said = subject.verify()
    if said.code != 0:
        wrong.append(f"verify says {said.short()}")
    found, whole = _tree(subject.store), _tree(subject.whole)
    manifests = [_told(tree.pop("manifest.json", b"")) for tree in (found, whole)]
    changed = sorted(name for name in {*found, *whole} if found.get(name) != whole.get(name))
    if changed:
        wrong.append(f"other bytes in {', '.join(changed[:3])} and {len(changed)} files in all")
    if manifests[0] != manifests[1]:
        names = {*manifests[0], *manifests[1]}
        fields = sorted(k for k in names if manifests[0].get(k) != manifests[1].get(k))
        wrong.append(f"another manifest in {', '.join(fields)}")
    beside = [one.name for one in subject.folder.iterdir() if one.name.startswith(".")]
    if beside:
        wrong.append(f"{', '.join(beside)} left beside the store")
    same_bytes = (subject.store / "manifest.json").is_file() and (
        (subject.store / "manifest.json").read_bytes()
        == (subject.whole / "manifest.json").read_bytes()
    )
    if not wrong and not same_bytes:  # of the same bytes it is known what they give
        if subject.fit().code != 0 or outcome(subject.out) != subject.outcome:
            wrong.append("fit gives something else")
        if subject.predict().code != 0 or subject.out.read_bytes() != subject.predicted:
            wrong.append("predict gives something else")
    return wrong


def _told(manifest: bytes) -> dict[str, Any]:
    """A manifest without its name and its own digest."""
    found: dict[str, Any] = json.loads(manifest or b"{}")
    return {key: value for key, value in found.items() if key not in ("store_id", "digest")}


def _tree(path: Path) -> dict[str, bytes]:
    """Bytes of every file by its path inside; folders with nothing inside too."""
    return {
        one.relative_to(path).as_posix(): one.read_bytes() if one.is_file() else b"a folder"
        for one in sorted(path.rglob("*"))
        if one.is_file() or not any(one.iterdir())
    }


# the table


def store(count: int, seed: int, limit: float, only: str = "") -> bool:
    """Every kind of file of a store damaged in six ways: found, survived or refused, mended."""
    begin, failed, done = time.monotonic(), 0, 0
    table: dict[str, dict[str, str]] = {}
    cases = [case for case in all_cases() if only in str(case)][:count]
    with tempfile.TemporaryDirectory(prefix="gmkcf-chaos-") as folder:
        subjects = prepare(Path(folder).resolve())
        for case in cases:
            if time.monotonic() - begin > limit:
                print(f"stopped after {limit:.0f} s")
                break
            try:
                wrong = check_case(subjects[case.subject], case)
            except Exception as error:  # one case more that fails  # noqa: BLE001
                wrong = [f"{type(error).__name__}: {error}"]
            done += 1
            failed += bool(wrong)
            row = table.setdefault(f"{case.subject}/{case.kind.name}", {})
            row[case.way] = f"{len(wrong)} WRONG" if wrong else "well"
            if wrong:
                print(f"FAILED {case}   (scripts/chaos store --only {case})")
                for one in wrong:
                    print(f"  {one}")
    _print_table(table)
    print(f"{done - failed} of {len(cases)} in {time.monotonic() - begin:.0f} s")
    return bool(cases) and failed == 0 and done == len(cases)


def _print_table(table: dict[str, dict[str, str]]) -> None:
    ways = (*WAYS, *FOLDER_WAYS)
    print(" " * 34 + "".join(f"{way:>9}" for way in ways))
    for kind, row in table.items():
        print(f"{kind:<34}" + "".join(f"{row.get(way, '·'):>9}" for way in ways))
