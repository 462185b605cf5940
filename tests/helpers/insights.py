"""Insights as a fit would give them, made up from real-looking words: for tests of the report."""

import math

import numpy as np

from gmkcf_dask.results.schemas import RunBytes, RunResult

_SUBJECTS = [
    ("cricket", "football match league goal coach season striker penalty stadium champion"),
    ("markets", "shares profit bank investors economy inflation growth quarter dollar debt"),
    ("cinema", "film actor director festival oscar drama screen comedy studio premiere"),
    ("software", "server network security browser users internet virus update code linux"),
    ("politics", "election minister parliament vote party campaign policy tax reform leader"),
    ("health", "patients hospital vaccine doctors disease treatment trial clinic nurses drug"),
    ("space", "orbit rocket satellite mars telescope launch astronaut lunar probe comet"),
    ("music", "album band singer guitar tour concert chart record festival lyrics"),
    ("food", "recipe oven sugar butter flour garlic kitchen restaurant chef flavour"),
    ("travel", "airline hotel flight passengers beach tourists island airport ticket luggage"),
    ("law", "court judge trial lawyer appeal verdict jury prosecutor evidence ruling"),
    ("climate", "emissions carbon warming glacier energy solar wind drought flood forest"),
]
_WORDS = "the new report says more people after a long week of talks over what could follow"
_FILLER = _WORDS.split()
KERNELS = (
    "linear", "cosine", "poly 2", "poly 4", "rbf 0.01", "rbf 0.05", "rbf 0.1", "rbf 1", "rbf 10",
    "rbf 50", "rbf 100", "jaccard",
)  # fmt: skip


def words_of(cluster):
    """Ten words of a subject, and another ten for every further round through the subjects."""
    name, words = _SUBJECTS[cluster % len(_SUBJECTS)]
    turn = cluster // len(_SUBJECTS)
    return [word if turn == 0 else f"{word}{turn + 1}" for word in [name, *words.split()]]


def make_insight(
    n=300,
    k=5,
    m=12,
    iterations=60,
    restarts=4,
    *,
    topics=True,
    titles=True,
    excerpts=True,
    seed=0,
):
    """A whole insight of contract version 1."""
    random = np.random.default_rng(seed)
    chances = random.dirichlet(np.full(k, 4.0))
    labels = np.concatenate([np.arange(k), random.choice(k, n - k, p=chances)])
    centres = _spread(k)
    around = random.standard_normal((n, 2)) * 0.55 / math.sqrt(k) * random.uniform(0.5, 1.6, (n, 1))
    points = centres[labels] + around
    sure = np.clip(1 - np.abs(random.standard_normal(n)) * 0.25, 0.02, 1)
    names = [", ".join(words_of(c)[1:4]) for c in range(k)]
    sizes = np.bincount(labels, minlength=k)
    kernels = KERNELS[:m]
    weights, history = _weights(m, iterations, random)
    runs = [_objectives(iterations, random) for _ in range(restarts)]
    best = int(np.argmin([run[-1] for run in runs]))
    groups, fused = _fused(sizes, random)
    largest = np.argsort(-sizes)[:2]
    return {
        "version": 1,
        "title": "newswire",
        "summary": f"{n:,} documents fell into {k} clusters, most of them clearly; the largest are "
        f"{' and '.join(f'“{names[c]}” ({sizes[c]:,})' for c in largest)}.",
        "method": "gmkcf",
        "n_samples": n,
        "n_clusters": k,
        "converged": True,
        "n_iter": iterations,
        "objective": runs[best][-1],
        "what": "documents",
        "clusters": [
            _cluster(c, names[c], labels, sure, centres, kernels, random) for c in range(k)
        ],
        "documents": {
            "ids": [f"news/{i:06d}.txt" for i in range(n)],
            "labels": labels.tolist(),
            "titles": _sentences(labels, k, 7, random) if titles else None,
            "excerpts": _sentences(labels, k, 26, random) if excerpts else None,
            "topics": _topics(labels, k, random) if topics else None,
            "sure": sure.tolist(),
            "x": points[:, 0].tolist(),
            "y": points[:, 1].tolist(),
        },
        "map": "Two directions that keep most of how the documents differ in their memberships "
        "(principal components of V).",
        "kernels": _kernels(kernels, weights, history, random),
        "runs": [{"history": run, "converged": i != restarts - 1} for i, run in enumerate(runs)],
        "best": best,
        "fused": {
            "groups": [size for _, size in groups],
            "labels": [label for label, _ in groups],
            "means": fused,
        },
        "scores": {"ACC": 0.9134, "NMI": 0.8021, "purity": 0.9134, "ARI": 0.7911}
        if topics
        else None,
        "confusion": _confusion(k, sizes, random) if topics else None,
        "seconds": {"read": 3.2, "build": 48.7, "fit": 131.4, "summary": 1.9, "overview": 6.5},
        "bytes": {"stored": 96_468_992, "planned_worker_peak": 1_288_490_188},
        "command": f"gmkcf run newswire.jsonl -k {k} --method gmkcf --seed 0 --out demo_run",
        "versions": {"gmkcf-dask": "0.1.0", "python": "3.12.4", "numpy": "2.5.4", "dask": "2026.8"},
        "parameters": {"method": "gmkcf", "n_clusters": k, "seed": 0, "n_init": restarts},
        "warnings": ["2 documents have no words that others have too: they were left out"],
        "created": "2026-11-17T11:45:00+00:00",
    }


def make_result(**changes):
    """The content of a result.json."""
    values = {
        "method": "kkm", "parameters": {"n_clusters": 1}, "kernel": "mean", "seed": 0,
        "store": "s.zarr", "n_samples": 1, "precision": "float32", "block_size": 1, "kernels": [],
        "kernel_weights": {}, "objective_history": [1.0], "n_iter": 0, "converged": True,
        "runs": [], "bytes": RunBytes(1, None, 1, []), "plan": {}, "versions": {},
    }  # fmt: skip
    return RunResult(**(values | changes))


def _spread(k):
    """Places that fill a disc evenly, as the seeds of a sunflower do."""
    turns = np.arange(k) * math.pi * (3 - math.sqrt(5))
    radius = np.sqrt((np.arange(k) + 0.5) / k)
    return np.stack([radius * np.cos(turns) * 1.5, radius * np.sin(turns)], axis=1)


def _weights(m, iterations, random):
    end = random.dirichlet(np.full(m, 0.8))
    steps = 1 - np.exp(-np.arange(iterations + 1) / max(iterations / 6, 1))
    history = (1 - steps)[:, None] / m + steps[:, None] * end
    return history[-1].tolist(), history.tolist()


def _objectives(iterations, random):
    end, rate = 80 + random.exponential(1.5), random.uniform(0.12, 0.3)
    t = np.arange(iterations + 1)
    return (end + 40 * np.exp(-rate * t) + 4 / (1 + t) ** 1.5).tolist()


def _cluster(c, name, labels, sure, centres, kernels, random):
    mine = np.flatnonzero(labels == c)
    by_sure = mine[np.argsort(-sure[mine])]
    far = np.hypot(*(centres - centres[c]).T)
    nearest = [int(j) for j in np.argsort(far)[1:4]]
    terms = words_of(c)
    contrast = np.sort(random.gamma(2, 0.5, len(kernels)))[::-1]
    return {
        "label": c,
        "name": name,
        "size": len(mine),
        "share": len(mine) / len(labels),
        "cohesion": float(1 + random.gamma(2, 1.2)),
        "terms": [{"term": t, "score": 1 / (1 + 0.4 * i)} for i, t in enumerate(terms[1:10])],
        "concept_terms": [{"term": t, "score": 1 / (2 + i)} for i, t in enumerate(terms[4:9])],
        "central": by_sure[:5].tolist(),
        "doubtful": by_sure[::-1][:5].tolist(),
        "nearest": [{"label": j, "similarity": float(1 / (1 + far[j]))} for j in nearest],
        "kernels": [
            {"name": kernels[j], "contrast": float(value)}
            for j, value in zip(random.permutation(len(kernels)), contrast, strict=True)
        ],
    }


def _sentence(cluster, n_words, random):
    words = words_of(cluster)
    picked = [
        words[random.integers(len(words))]
        if random.random() < 0.45
        else _FILLER[random.integers(len(_FILLER))]
        for _ in range(n_words)
    ]
    return " ".join(picked).capitalize()


def _sentences(labels, k, n_words, random):
    """A sentence for each document, from not too many different ones of its cluster."""
    different = min(max(len(labels) // k, 1), 200)
    picked = random.integers(different, size=len(labels))
    found = [[_sentence(c, n_words, random)[:200] for _ in range(different)] for c in range(k)]
    return [found[c][i] for c, i in zip(labels, picked, strict=True)]


def _topics(labels, k, random):
    other = random.integers(0, k, len(labels))
    kept = random.random(len(labels)) < 0.92
    return [words_of(c)[0] for c in np.where(kept, labels, other)]


def _confusion(k, sizes, random):
    counts = random.poisson(sizes / (12 * k), (k, k))
    counts[np.diag_indices(k)] = np.maximum(sizes - counts.sum(axis=0), 1)
    return {
        "topics": [words_of(c)[0] for c in range(k)],
        "clusters": list(range(k)),
        "counts": counts.tolist(),
    }


def _fused(sizes, random):
    """Groups of each cluster, and means between them: high inside, lower elsewhere."""
    width = max(int(sizes.sum()) // 120, 1)
    groups = []
    for label, size in enumerate(sizes.tolist()):
        parts = max(round(size / width), 1)
        cut = np.diff(np.linspace(0, size, parts + 1).round().astype(int)).tolist()
        groups += [(label, part) for part in cut if part > 0]
    of = np.array([label for label, _ in groups])
    inside = random.uniform(0.25, 0.6, len(sizes))
    means = np.where(of[:, None] == of, inside[of][:, None], 0.08)
    means = means + random.uniform(0, 0.06, means.shape)
    return groups, ((means + means.T) / 2).tolist()


def _kernels(names, weights, history, random):
    m = len(names)
    place = np.sort(random.uniform(0, 1, m))
    likeness = np.exp(-np.abs(place[:, None] - place) * 1.8)
    near = [
        {"a": names[i], "b": names[j], "correlation": float(likeness[i, j])}
        for i in range(m)
        for j in range(i)
        if likeness[i, j] > 0.98
    ]
    return {
        "names": list(names),
        "weights": weights,
        "history": history,
        "correlation": likeness.tolist(),
        "near": near,
    }


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"'><svg onload=alert(3)>",
    "<!--<script>",
    "]]>&lt;b&gt;&amp;",
    "line\u2028and\u2029paragraph",
    "\u202eright to left\u202c עברית العربية",
    "🦊 emoji 👩‍👩‍👧 and \U0001d54f",
    "{{ 7 * 7 }}{% raw %}",
    "lone \udc80 surrogate, \x00 and \x1b[31m",
    "javascript:alert(4)",
    "__proto__",
]


def hostile_insight():
    """Every text that a stranger could have written does its worst."""
    insight = make_insight(n=60, k=4, m=5, iterations=20, restarts=2)
    found = insight["documents"]
    for field in ("ids", "titles", "excerpts", "topics"):
        found[field][: len(HOSTILE)] = HOSTILE
    found["ids"] = [f"{name} {i}" for i, name in enumerate(found["ids"])]
    for cluster, text in zip(insight["clusters"], HOSTILE, strict=False):
        cluster["name"] = text
        cluster["terms"] = [{"term": t, "score": 1.0, "high": True} for t in HOSTILE]
        cluster["concept_terms"] = cluster["terms"]
        cluster["kernels"] = [{"name": t, "contrast": 1.0} for t in HOSTILE]
    insight["kernels"]["names"] = HOSTILE[:5]
    insight["kernels"]["near"] = [{"a": HOSTILE[0], "b": HOSTILE[1], "correlation": 0.999}]
    insight["confusion"]["topics"] = HOSTILE[:4]
    for field in ("title", "summary", "method", "map", "command", "created"):
        insight[field] = HOSTILE[0] + HOSTILE[1]
    insight["warnings"] = HOSTILE
    insight["parameters"] = {HOSTILE[0]: HOSTILE[1], HOSTILE[1]: [HOSTILE[0]]}
    insight["versions"] = {HOSTILE[1]: HOSTILE[0]}
    insight["seconds"] = {HOSTILE[0]: 1.0, HOSTILE[1]: 2.0}
    insight["scores"] = {HOSTILE[0]: 0.5}
    return insight
