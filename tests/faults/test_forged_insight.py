"""Row: an insight.json with a forged number or type is one sentence that names the field."""

import copy
import json
import math
from functools import partial

import numpy as np
import pytest
from helpers.commands import exits
from helpers.insights import make_insight

from gmkcf_dask.errors import InputError
from gmkcf_dask.results.report.render import render_report
from gmkcf_dask.results.run_folder import read_insight
from gmkcf_dask.results.schemas import parse_insight

pytestmark = pytest.mark.timeout(120)
SMALL = make_insight(n=12, k=3, m=3, iterations=4, restarts=2)
FORGED = [math.nan, math.inf, -math.inf, 10**30, 10**400, -1, 1e308, True, "x", None, [], {}, [[]]]


def leaves(value, path=()):
    """Paths of everything inside, one of each list of numbers."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield (*path, name)
            yield from leaves(part, (*path, name))
    elif isinstance(value, list) and value:
        yield (*path, len(value) - 1)
        yield from leaves(value[-1], (*path, len(value) - 1))


def forged(path, value):
    insight = copy.deepcopy(SMALL)
    inside = insight
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = value
    return insight


def as_written(path):
    text = ""
    for name in path:
        text += f"[{name}]" if isinstance(name, int) else f".{name}" if text else name
    return text


def sentence_of(read, what):
    try:
        render_report(read())
    except InputError as error:
        return str(error)
    except Exception as error:  # what is looked for  # noqa: BLE001
        pytest.fail(f"{what}: {error!r}")
    return ""


@pytest.mark.parametrize("value", FORGED, ids=lambda value: repr(value)[:8])
def test_every_field_is_a_page_or_a_sentence(value, tmp_path):
    for path in leaves(SMALL):
        insight = forged(path, value)
        (tmp_path / "insight.json").write_text(json.dumps(insight))
        for read in (partial(parse_insight, insight), partial(read_insight, tmp_path)):
            said = sentence_of(read, f"{as_written(path)} = {value!r}")
            assert "\n" not in said
            assert len(said) < 600


NUMBERS = [
    ("n_samples",),
    ("objective",),
    ("best",),
    ("clusters", 1, "size"),
    ("clusters", 2, "share"),
    ("clusters", 0, "cohesion"),
    ("clusters", 0, "central", 0),
    ("clusters", 0, "terms", 0, "score"),
    ("clusters", 0, "nearest", 0, "label"),
    ("documents", "labels", 3),
    ("documents", "sure", 4),
    ("documents", "x", 5),
    ("kernels", "weights", 1),
    ("kernels", "history", 2, 1),
    ("kernels", "correlation", 1, 2),
    ("runs", 1, "history", 2),
    ("fused", "groups", 0),
    ("fused", "means", 0, 0),
    ("confusion", "counts", 0, 1),
    ("seconds", "fit"),
    ("bytes", "stored"),
    ("scores", "ACC"),
    ("parameters", "seed"),
]


FORGED = [
    (path, value)
    for path in NUMBERS
    for value in ("NaN", "1e999", "-Infinity", "1" + "0" * 400, '"7"')
    if (path[0], value) != ("parameters", '"7"')  # a parameter may be a text
]


@pytest.mark.parametrize(("path", "value"), FORGED)
def test_the_command_names_the_field(path, value, tmp_path):
    text = json.dumps(forged(path, "FORGED")).replace('"FORGED"', value)
    (tmp_path / "insight.json").write_text(text)
    found = exits(2, "report", tmp_path)
    assert as_written(path) in found.stderr
    assert found.stderr.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("clusters", 1, "size"), -1),
        (("clusters", 1, "size"), 13),
        (("clusters", 1, "central"), [12]),
        (("clusters", 1, "central"), [-1]),
        (("clusters", 1, "label"), 0),
        (("documents", "labels", 0), 3),
        (("documents", "labels", 0), True),
        (("documents", "ids"), ["a"]),
        (("best",), 2),
        (("seconds", "fit"), -1),
        (("bytes", "stored"), -5),
        (("confusion", "counts", 0, 0), -1),
        (("n_samples",), 13),
        (("n_iter",), -1),
        (("version",), True),
    ],
    ids=str,
)
def test_numbers_that_cannot_be(path, value, tmp_path):
    (tmp_path / "insight.json").write_text(json.dumps(forged(path, value)))
    exits(2, "report", tmp_path)


def test_deep_nesting_is_a_sentence(tmp_path):
    deep = json.dumps(forged(("parameters", "seed"), "FORGED"))
    for levels in (100, 100_000):
        nested = "[" * levels + "]" * levels
        (tmp_path / "insight.json").write_text(deep.replace('"FORGED"', nested))
        exits(2, "report", tmp_path)


def test_a_forged_insight_of_a_run_is_made_again(tmp_path):
    """By the command that is advised, and by --resume, which is not content with such a run."""
    store, out = tmp_path / "s.zarr", tmp_path / "run"
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((30, 4)))
    threads = ("--cluster", "threads")
    exits(0, "build", tmp_path / "x.npy", store, "--kernels", "rbf_1", *threads)
    fit = ("fit", store, "-k", 2, "--out", out, *threads)
    exits(0, *fit)
    insight, whole = out / "insight.json", read_insight(out)

    def forge():
        insight.write_text(insight.read_text().replace('"n_samples":30', '"n_samples":1e999'))

    forge()
    refusal = exits(2, "report", out)
    assert "remove insight.json and make it again with gmkcf report" in refusal.stderr
    insight.unlink()
    exits(0, "report", out)
    assert read_insight(out).clusters == whole.clusters
    forge()
    exits(0, *fit, "--resume")
    assert read_insight(out).clusters == whole.clusters
