"""Gaussian blobs that lie apart, for everything that should see how many there are."""

import numpy as np

APART = 6.0


def centres(rng, k, d, room):
    """k centres at least `APART` from each other, uniform in a box as small as will hold them.

    The box has `room` times the edge of k cells of edge `APART`, and grows where they do not fit.
    """
    edge = APART * room * k ** (1 / d)
    while True:
        found = []
        for candidate in rng.uniform(0, edge, (2000, d)):
            if all(np.linalg.norm(candidate - other) >= APART for other in found):
                found.append(candidate)
            if len(found) == k:
                return np.array(found)
        edge *= 1.05


def blobs(k, seed, *, d=2, room=1.3, n=None, equal=True):
    """X, shape (n, d), and which blob each sample is of: standard deviation 1 in every direction.

    Where they are not of equal size, the smallest have at least a third of the mean.
    """
    rng = np.random.default_rng([seed, k, d])
    middle = centres(rng, k, d, room)
    n = min(40 * k, 600) if n is None else n
    share = np.full(k, 1 / k) if equal else np.maximum(rng.dirichlet(np.full(k, 3.0)), 0.35 / k)
    sizes = np.maximum(np.round(n * share / share.sum()), 5).astype(int)
    y = np.repeat(np.arange(k), sizes)
    return middle[y] + rng.standard_normal((len(y), d)), y
