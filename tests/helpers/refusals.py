"""Inputs that are refused: small features and kernels, the command, and what an error must say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gmkcf_dask.errors import GmkcfError
from helpers import commands
from helpers.commands import gmkcf as gmkcf

N, K = 30, 3
KERNELS = ("--kernels", "rbf_1,cosine")
THREADS = ("--cluster", "threads", "--workers", "1")
FIT = ("-k", str(K), "--max-iter", "30", "--tol", "0.01")


def features(n: int = N) -> np.ndarray:
    """Three groups without negative entries."""
    X = np.random.default_rng(0).uniform(0, 1, (n, 4))
    X[np.arange(n), np.arange(n) % K] += 3
    return X


def kernel(n: int = N) -> np.ndarray:
    return features(n) @ features(n).T


def one_sentence(sentence: str) -> str:
    """A sentence is one line, not empty, and no remains of a traceback."""
    assert sentence.strip()
    assert "\n" not in sentence
    assert "Traceback" not in sentence
    return sentence


def refused(*arguments: object, code: int = 2) -> str:
    """The sentence with which a command refuses."""
    return one_sentence(commands.refused(*arguments, code=code).removeprefix("error: "))


def raised(call: Callable[[], object], kind: type[GmkcfError] = GmkcfError) -> str:
    """The sentence with which a call refuses."""
    with pytest.raises(kind) as error:
        call()
    return one_sentence(str(error.value))


def all_named(words: tuple[str, ...] | str, sentence: str) -> bool:
    return all(word in sentence for word in ([words] if isinstance(words, str) else words))
