"""Golden results: what commit d549cfb computed, as digests and rounded values.

`scripts/golden` runs this module with the package of d549cfb and writes `GOLDEN`: digests of all
bits for several kinds of machine, and the values once, for machines of any other kind. Only the
command line is used here, so that both versions of the package can be recorded. Every option that
changes a result is given, so that defaults may change; d549cfb has no `ADDED_OPTIONS`, only what is
given for them here.
"""

import hashlib
import json
import math
import platform
import random
import re
import sys
import tempfile
import warnings
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np
import scipy.linalg  # noqa: F401  loads a BLAS of its own, which `this_machine` lists
import zarr
from click.testing import CliRunner
from threadpoolctl import threadpool_info

import gmkcf_dask
from gmkcf_dask.cli import main

GOLDEN = Path(__file__).resolve().parents[1] / "fixtures" / "golden.json"
TOLERANCES = {"float32": 1e-3, "float64": 1e-6, "compact": 1e-2}
"""On other machines, relative to the largest value of an array."""
SCORES = 1e-12

# Fields that are not results, and why.
RESULT_LEFT_OUT = {
    "store": "a path",
    "bytes": "of the place, and manifest.json has grown since d549cfb",
    "plan": "of the machine and the place",
    "versions": "of libraries",
    "seconds": "of the clock",
    "warnings": "sentences",
    "escaped_ids": "added with --raw-ids after d549cfb",
    "n_without_cluster": "added after d549cfb",
    "what": "added after d549cfb",
    "contrast": "added after d549cfb",
}
FINGERPRINT_LEFT_OUT = {
    "store": "a random id in d549cfb, a digest since",
    "tiles": "added after d549cfb",
    "gmkcf-dask": "the version of the package",
}
MANIFEST_LEFT_OUT = {
    "format_version": "3 in d549cfb, 4 since",
    "store_id": "random",
    "versions": "of libraries",
    "digest": "of the other fields",
    "features": "added in format 4",
    "tile_summaries": "added in format 4",
    "vector_summaries": "added in format 4",
    "text_options": "added in format 4",
}
MANIFEST_DIGESTS = {"inputs", "digests", "vectors"}
"""Of these only the bits can be compared."""
INSIGHT_COMPARED = (
    "method", "n_samples", "n_clusters", "converged", "n_iter", "objective", "clusters",
    "documents", "kernels", "runs", "best", "fused", "scores", "confusion", "parameters",
)  # fmt: skip
"""The rest of insight.json is sentences, paths, times and versions."""


# what is run

N, K, BLOCK, SEED = 90, 3, 28, 7
PRECISIONS = ("float32", "float64", "compact")
THREADS = ("--cluster", "threads", "--workers", 2, "--memory", "2GiB")
POINTS, TEXTS = "points.npz", "texts.jsonl"
KERNELS = {
    POINTS: ("rbf_0.5", "rbf_1", "poly_a1_b2", "cosine"),
    TEXTS: ("rbf_1", "poly_a0_b2", "linear", "cosine"),
}
"""Stores keep equal kernels once, so the fused sum has other last bits than in memory: only texts,
which are not fitted in memory, have two (linear and cosine at unit length)."""
NORMALIZATION = {POINTS: "degree", TEXTS: "unit"}
TEXT_OPTIONS = (
    *("--text-column", "text", "--id-column", "id", "--label-column", "label"),
    *("--title-column", "title", "--encoding", "utf-8", "--tokens", "words", "--ngrams", 1),
    *("--min-df", 2, "--max-df", 0.9, "--max-features", 100, "--features", "tfidf"),
    *("--text-preset", "plain"),
)
ADDED_OPTIONS = ("--text-preset", "--assign", "--layout")
"""Each has a value."""
_FACTORIZATION = {
    "n_init": 2, "init": "random", "solver": "paper", "inner_iter": 2, "v_steps": 2, "tol": 1e-9,
    "max_iter": 6, "polish": True, "assign": "kmeans",
}  # fmt: skip
_ACCELERATED = {**_FACTORIZATION, "n_init": 1, "init": "spectral", "solver": "accelerated"}
_ROBUST = {"gamma": 0.3, "restart_inner": False, "n_init": 2, "max_iter": 5, "inner_iter": 6}


@dataclass(frozen=True)
class Fit:
    """A method and its parameters as estimators name them; options have the same names."""

    method: str
    parameters: dict[str, Any]
    input: str = POINTS


METHODS = {
    "gmkcf": Fit("gmkcf", _FACTORIZATION),
    "kcf": Fit("kcf", {"kernel": "rbf_1", **_FACTORIZATION}),
    "kkm": Fit("kkm", {"kernel": "rbf_1", "n_init": 2, "max_iter": 12}),
    "sc": Fit("sc", {"kernel": "rbf_1", "laplacian": "symmetric", "assign": "kmeans"}),
    "coreg": Fit("coreg", {"lam": 0.1, "max_iter": 4, "assign": "kmeans"}),
    "rmkkm": Fit("rmkkm", _ROBUST),
}
"""Recorded with every precision."""
VARIANTS = {
    "gmkcf of texts": Fit("gmkcf", _FACTORIZATION, TEXTS),
    "gmkcf accelerated": Fit("gmkcf", _ACCELERATED),
    "kcf mean": Fit("kcf", {"kernel": "mean", **_ACCELERATED, "polish": False}),
    "sc unnormalized": Fit(
        "sc", {"kernel": "mean", "laplacian": "unnormalized", "assign": "kmeans"}
    ),
    "rmkkm restarted": Fit("rmkkm", {**_ROBUST, "restart_inner": True}),
}
"""Recorded with the first precision."""


def write_inputs(folder):
    """Both files; of `random` only the function is used whose numbers never change."""
    X, y = points()
    np.savez(folder / POINTS, X=X, y=y, ids=np.array([f"p{i:02d}" for i in range(N)]))
    (folder / TEXTS).write_text("".join(json.dumps(row) + "\n" for row in documents()))


def points():
    """X, shape (90, 5), of three groups that overlap, and the group of each."""
    draw = random.Random(1).random
    y = np.arange(N) ** 2 % 7 % K
    noise = [[sum(draw() for _ in range(4)) for _ in range(5)] for _ in range(N)]
    centres = np.array([[0, 0, 0, 0, 0], [1.2, 0, 0.4, 0, 0], [0, 2.0, 0, 0, 0.6]])
    return np.round(centres[y] + np.array(noise), 4), y


def documents():
    """Rows of a table: 90 documents of three topics that share half of their words."""
    draw = random.Random(2).random
    rows = []
    for i in range(N):
        topic = int(3 * draw())
        pools = [(f"topic{topic}", 12), ("any", 20)]
        words = []
        for _ in range(8 + int(10 * draw())):
            pool, size = pools[int(2 * draw())]
            words.append(f"{pool}x{int(size * draw())}")
        row = {"id": f"d{i}", "label": f"topic {topic}", "title": words[0]}
        rows.append({**row, "text": " ".join(words)})
    return rows


def gmkcf(*words):
    """Run the command line in this process; it must succeed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = CliRunner().invoke(main, [str(word) for word in _known(words)])
    assert done.exit_code == 0, done.output
    return done.output


def _known(words):
    """Leave out `ADDED_OPTIONS` that this package has not."""
    command = main.get_command(click.Context(main), words[0])
    known = {name for parameter in command.params for name in parameter.opts}
    missing = [i for i, word in enumerate(words) if word in ADDED_OPTIONS and word not in known]
    return [word for i, word in enumerate(words) if not {i, i - 1} & set(missing)]


def build(folder, file, precision, place=THREADS):
    """Build the store of an input beside it."""
    path = folder / f"{Path(file).stem}_{precision}.zarr"
    gmkcf(
        *("build", folder / file, path, "--kernels", ",".join(KERNELS[file])),
        *("--normalization", NORMALIZATION[file], "--scaling", "minmax"),
        *("--precision", precision, "--layout", "each", "--block", BLOCK),
        *("--merge-duplicates", 0.0, "--quiet"),
        *(TEXT_OPTIONS if file == TEXTS else ()),
        *place,
    )
    return path


def fit(store, job, out, place=THREADS):
    """Fit into a run folder."""
    options = [word for item in job.parameters.items() for word in _option(*item)]
    words = ("-k", K, "--seed", SEED, "--method", job.method, *options)
    gmkcf("fit", store, *words, "--out", out, "--quiet", *place)
    return out


def _option(name, value):
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return (f"--{option}" if value else f"--no-{option}",)
    return f"--{option}", value


# records


@dataclass(frozen=True)
class Record:
    """What is compared: everything to the bit, and values where bits may differ."""

    bits: dict[str, str]
    values: dict[str, Any]


def digest(data):
    return hashlib.blake2b(data, digest_size=4).hexdigest()


def json_digest(value):
    return digest(json.dumps(value, sort_keys=True).encode())


def array_digest(array):
    return digest(f"{array.dtype}{array.shape}".encode() + array.tobytes())


def rounded(array):
    """To six digits, without signs: those of eigenvectors depend on the machine."""
    return [float(f"{value:.6g}") for value in np.abs(array).ravel().tolist()]


def store_record(path):
    """All files of a store, those of an array as one, and the fields of manifest.json."""
    files = {str(file.relative_to(path)): file for file in path.rglob("*") if file.is_file()}
    manifest = json.loads(files.pop("manifest.json").read_bytes())
    fields = {key: v for key, v in manifest.items() if key not in MANIFEST_LEFT_OUT}
    parts: dict[str, list[str]] = {}
    for name in sorted(files):
        parts.setdefault(name.partition("/c/")[0], []).append(name)
    arrays = [part for part, names in parts.items() if names != [part]]
    return Record(
        bits={f"manifest/{name}": json_digest(value) for name, value in fields.items()}
        | {
            part: digest(b"".join(_named(files, n) for n in names)) for part, names in parts.items()
        },
        values={"files": sorted(files), "sums": {name: _sums(path / name) for name in arrays}}
        | {f"manifest/{name}": fields[name] for name in fields if name not in MANIFEST_DIGESTS},
    )


def _named(files, name):
    return name.encode() + files[name].read_bytes()


def _sums(path):
    """Sum the entries, and these times weights that differ; missing tiles count nothing."""
    array = zarr.open_array(path, mode="r")
    values = np.asarray(array[...], dtype=np.float64).ravel()
    values[(values == array.fill_value) | np.isnan(values)] = 0.0
    weights = 1.0 + np.arange(values.size) % 97
    return [float(f"{total:.9g}") for total in (values.sum(), values @ weights)]


def run_record(folder):
    """All results of a run folder."""
    result = json.loads((folder / "result.json").read_bytes())
    insight = json.loads((folder / "insight.json").read_bytes())
    table = (folder / "labels.csv").read_bytes()
    with np.load(folder / "factors.npz", allow_pickle=False) as factors:
        arrays = {name: factors[name] for name in factors.files}
    fields = {key: v for key, v in result.items() if key not in RESULT_LEFT_OUT}
    fingerprint = fields.pop("fingerprint")
    identity = {key: v for key, v in fingerprint.items() if key not in FINGERPRINT_LEFT_OUT}
    labels = [int(line.split(",")[1]) for line in table.decode().splitlines()[1:]]
    scores = json.loads(gmkcf("score", folder, "--json").splitlines()[-1])["scores"]
    files = sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())
    return Record(
        bits={"labels.csv": digest(table), "fingerprint": json_digest(identity)}
        | _result_bits(labels, arrays, fields)
        | {f"insight/{name}": json_digest(insight[name]) for name in INSIGHT_COMPARED},
        values={"files": files, "scores": scores} | _result_values(labels, arrays, fields),
    )


def fit_record(clustering):
    """What a clustering in memory has of that; weights where all kernels were there."""
    fields = {"objective_history": list(clustering.history), "converged": clustering.converged}
    if len(clustering.kernel_names) > 1:
        weights = zip(clustering.kernel_names, clustering.weights.tolist(), strict=True)
        fields["kernel_weights"] = dict(weights)
    labels = clustering.labels.tolist()
    return Record(
        _result_bits(labels, clustering.factors, fields),
        _result_values(labels, clustering.factors, fields),
    )


def _result_bits(labels, factors, fields):
    return (
        {"labels": json_digest(labels)}
        | {f"factors/{name}": array_digest(array) for name, array in factors.items()}
        | {f"result/{name}": json_digest(value) for name, value in fields.items()}
    )


def _result_values(labels, factors, fields):
    return (
        {"labels": labels}
        | {f"factors/{name}": rounded(array) for name, array in factors.items()}
        | {f"result/{name}": value for name, value in fields.items()}
    )


@cache
def this_machine():
    """All that may change the last bit of a result."""
    blas = [lib for lib in threadpool_info() if lib["user_api"] == "blas"]
    kinds = {f"{lib['internal_api']} {lib['version']} {lib.get('architecture')}" for lib in blas}
    libraries = ("numpy", "scipy", "scikit-learn", "zarr", "numcodecs")
    return {
        "processor": platform.machine(),
        "instructions of numpy": _instructions(),
        "blas": sorted(kinds),
        "libc": " ".join(platform.libc_ver()),
        "libraries": {name: version(name) for name in libraries},
    }


def _instructions():
    """Instruction sets that NumPy chose for this processor."""
    if not hasattr(np.lib, "introspect"):  # before NumPy 2.1
        return []
    functions = np.lib.introspect.opt_func_info("^(add|multiply|sqrt|exp|log)$").values()
    return sorted({used["current"] for types in functions for used in types.values()})


def record():
    """Build every store and fit every method, on threads: all records by `key`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        stores = {(file, p): build(folder, file, p) for file in KERNELS for p in PRECISIONS}
        records = {key(*which): store_record(path) for which, path in stores.items()}
        fits = [(name, p) for p in PRECISIONS for name in METHODS]
        fits += [(name, PRECISIONS[0]) for name in VARIANTS]
        for name, precision in fits:
            job = (METHODS | VARIANTS)[name]
            out = folder / f"{name}_{precision}".replace(" ", "_")
            run = fit(stores[job.input, precision], job, out)
            records[key(name, precision)] = run_record(run)
        return records


def key(name, precision):
    """Name a store, by its input, or a run."""
    return f"{name}, {precision}"


def write(records):
    """Add the bits of this kind of machine to `GOLDEN`; the first one gives the values."""
    old = json.loads(GOLDEN.read_bytes()) if GOLDEN.exists() else {"kinds": []}
    kinds = [kind for kind in old["kinds"] if kind["machine"] != this_machine()]
    bits = {which: made.bits for which, made in records.items()}
    kinds.append({"machine": this_machine(), "bits": bits})
    values = old.get("values") or {which: made.values for which, made in records.items()}
    text = json.dumps({"kinds": kinds, "values": values}, separators=(",", ":"))
    GOLDEN.write_text(re.sub(r'("[^"]+, (?:float32|float64|compact)":|"machine":)', r"\n\1", text))


# comparison


@cache
def golden():
    """Read what was recorded."""
    return json.loads(GOLDEN.read_bytes())


def recorded_bits():
    """Return the digests for this kind of machine; None where it was not recorded."""
    here = [kind["bits"] for kind in golden()["kinds"] if kind["machine"] == this_machine()]
    return here[0] if here else None


def mismatches(ours, name, precision, *, part=False):
    """Name all that differs from the golden record: bits, or values on other kinds of machine.

    Parameters
    ----------
    ours : Record
    name : str
        Of the input of a store, or of a run.
    part : bool
        Compare only what `ours` has.
    """
    bits, values = recorded_bits(), golden()["values"][key(name, precision)]
    if bits is None:
        return list(_differences(ours.values, values, TOLERANCES[precision], part=part))
    exact = _differences(ours.bits, bits[key(name, precision)], 0.0, part=part)
    others = {which: values[which] for which in ("files", "scores") if which in values}
    return [*exact, *_differences(ours.values, others, 0.0, part=True)]


def _differences(ours, expected, tolerance, *, part=False):
    names = ours.keys() & expected.keys() if part else ours.keys() | expected.keys()
    for name in sorted(names):
        if name not in ours or name not in expected:
            yield f"{name}: {'missing' if name in expected else 'not expected'}"
        elif not _equal(ours[name], expected[name], SCORES if name == "scores" else tolerance):
            yield f"{name}: {str(ours[name])[:60]}, expected {str(expected[name])[:60]}"


def _equal(ours, expected, tolerance):
    if isinstance(expected, dict):
        return not list(_differences(ours, expected, tolerance))
    if isinstance(expected, list):
        if len(ours) != len(expected):
            return False
        if expected and all(isinstance(value, float) for value in expected):
            most = max(map(abs, expected))
            return all(abs(a - b) <= tolerance * most for a, b in zip(ours, expected, strict=True))
        return all(_equal(a, b, tolerance) for a, b in zip(ours, expected, strict=True))
    if isinstance(expected, float):
        return math.isclose(ours, expected, rel_tol=tolerance, abs_tol=1e-3 * tolerance)
    return ours == expected


if __name__ == "__main__":
    package = Path(gmkcf_dask.__file__).parent
    if GOLDEN.parents[2] in package.parents:
        sys.exit("the package of this checkout is not what is recorded: use scripts/golden")
    write(record())
    size = GOLDEN.stat().st_size
    print(f"{GOLDEN}: {size:,} bytes, of {package} with {', '.join(this_machine()['blas'])}")
