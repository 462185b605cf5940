"""The numbers the paper prints: its Tables 1 to 4 and the gains it claims from them."""

from __future__ import annotations

PAPER_METHODS = ("KKM", "SC", "KCF", "Coreg", "RMKKM", "GMKCF")
SINGLE, MULTIPLE = PAPER_METHODS[:3], PAPER_METHODS[3:]
PAPER_MEASURES = ("ACC", "NMI", "purity")

SIZES = {"bbc": (737, 1000, 5), "tr31": (927, 10128, 7), "k1b": (2340, 21839, 6),
         "webkb": (4199, 1000, 4)}  # fmt: skip
"""Table 1: samples, features, classes."""

DATASET_TITLES = {"bbc": "BBC", "tr31": "TR31", "k1b": "K1B", "webkb": "WebKB", "tr11": "TR11"}

SCORES: dict[str, dict[str, dict[str, float]]] = {
    measure: {
        dataset: dict(zip(PAPER_METHODS, values, strict=True)) for dataset, values in rows.items()
    }
    for measure, rows in {
        "ACC": {
            "bbc": (0.4567, 0.4062, 0.4701, 0.5604, 0.4707, 0.6132),
            "tr31": (0.4376, 0.4789, 0.4230, 0.4363, 0.4969, 0.4759),
            "k1b": (0.6422, 0.5540, 0.6145, 0.6962, 0.6947, 0.7694),
            "webkb": (0.5045, 0.4438, 0.4669, 0.5728, 0.5859, 0.5995),
        },
        "NMI": {
            "bbc": (0.1961, 0.2018, 0.2378, 0.3469, 0.2269, 0.3977),
            "tr31": (0.2029, 0.3436, 0.2506, 0.3292, 0.2628, 0.3540),
            "k1b": (0.2815, 0.3916, 0.3512, 0.5640, 0.3325, 0.6204),
            "webkb": (0.1981, 0.1132, 0.1872, 0.3727, 0.3169, 0.3656),
        },
        "purity": {
            "bbc": (0.4840, 0.4675, 0.5190, 0.5861, 0.5046, 0.6436),
            "tr31": (0.5204, 0.6284, 0.5522, 0.6083, 0.5622, 0.6309),
            "k1b": (0.7164, 0.7702, 0.7457, 0.8298, 0.7336, 0.8539),
            "webkb": (0.5349, 0.4516, 0.5288, 0.6780, 0.6228, 0.6642),
        },
    }.items()
}
"""Tables 2 to 4: measure → data set → method."""

GAIN_MULTIPLE_OVER_SINGLE = {"ACC": 0.182, "NMI": 0.518, "purity": 0.144}
GAIN_GMKCF_OVER_SECOND = {"ACC": 0.085, "NMI": 0.077, "purity": 0.033}
