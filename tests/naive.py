"""The slow, obvious oracle: GMKCF and its kernels written straight from the mathematics page.

Nothing here is imported from the package, nothing is clever, everything is float64 and whole.
"""

import numpy as np
from scipy.optimize import nnls

# ---------------------------------------------------------------- kernels


def distances_squared(X):
    n = len(X)
    D = np.zeros((n, n))
    for i in range(n):
        D[i] = ((X[i] - X) ** 2).sum(axis=1)
    return D


def kernel(X, name):
    """One raw kernel matrix by name."""
    G = X @ X.T
    if name.startswith("rbf_"):
        D2 = distances_squared(X)
        sigma = float(name[4:]) * np.sqrt(D2).mean()
        return np.ones_like(D2) if sigma == 0 else np.exp(-D2 / (2 * sigma**2))
    if name.startswith("poly_"):
        a, b = name[len("poly_a") :].split("_b")
        return (float(a) + G) ** int(b)
    if name == "linear":
        return G
    if name == "cosine":
        length = np.sqrt(np.diag(G))
        length[length == 0] = 1.0
        return G / np.outer(length, length)
    raise ValueError(name)


def normalize(K, how):
    """Unit diagonal, degree, or as it is; and which samples have a direction."""
    n = len(K)
    if how == "none":
        return K, np.ones(n, bool)
    norm = np.diag(K) if how == "unit" else K.sum(axis=1)
    valid = norm > 0
    root = np.sqrt(np.where(valid, norm, 1.0))
    return K / np.outer(root, root), valid


def finished_kernel(X, name, normalization, scaling):
    K, valid = normalize(kernel(X, name), normalization)
    if name == "cosine":
        valid = valid & (np.diag(X @ X.T) > 0)
    if scaling == "minmax":
        inside = K[np.ix_(valid, valid)]
        low, high = (inside.min(), inside.max()) if inside.size else (0.0, 0.0)
        constant = high - low <= 1e-12 * abs(high)  # but for rounding
        K = np.ones_like(K) if constant else (K - low) / (high - low)
    K = K.copy()
    K[~valid, :] = 0
    K[:, ~valid] = 0
    K[~valid, ~valid] = 1
    return (K + K.T) / 2


# ---------------------------------------------------------------- updates


def fuse(Ks, w):
    Kw = np.zeros_like(Ks[0])
    for i in range(len(Ks)):
        Kw = Kw + w[i] ** 2 * Ks[i]
    return Kw


def error(K, U, V):
    return np.trace(K) - 2 * np.trace(V.T @ K @ U) + np.trace(U.T @ K @ U @ V.T @ V)


def objective(Ks, w, U, V):
    return sum(w[i] ** 2 * error(Ks[i], U, V) for i in range(len(Ks)))


def step_plain(K, U, V, v_steps):
    U = U * (K @ V) / np.maximum(K @ U @ (V.T @ V), 1e-300)
    for _ in range(v_steps):
        V = V * (K @ U) / np.maximum(V @ (U.T @ K @ U), 1e-300)
    return U, V


def step_mixed(K, U, V, v_steps):
    pos, neg = (np.abs(K) + K) / 2, (np.abs(K) - K) / 2
    U = U * root(K @ V, pos @ U @ (V.T @ V), neg @ U @ (V.T @ V))
    for _ in range(v_steps):
        V = V * root(K @ U, V @ (U.T @ pos @ U), V @ (U.T @ neg @ U))
    return U, V


def root(B, P, N):
    out = np.empty_like(B)
    for at in np.ndindex(B.shape):
        R = np.sqrt(B[at] ** 2 + 4 * P[at] * N[at])
        if B[at] >= 0:
            out[at] = (B[at] + R) / max(2 * P[at], 1e-300)
        else:
            out[at] = 2 * N[at] / max(R - B[at], 1e-300)
    return out


def weights(e):
    return (1 / e) / sum(1 / e)


def gmkcf(Ks, U, V, iterations, inner_iter=1, v_steps=1, floor=1e-12):
    """Every iterate: a list of (U, V, w, J), the start first."""
    Ks = [np.asarray(K, dtype=np.float64) for K in Ks]
    m = len(Ks)
    mixed = min(K.min() for K in Ks) < 0
    w = np.full(m, 1 / m)
    trail = [(U, V, w, objective(Ks, w, U, V))]
    for _ in range(iterations):
        Kw = fuse(Ks, w)
        for _ in range(inner_iter):
            U, V = (step_mixed if mixed else step_plain)(Kw, U, V, v_steps)
        e = np.array([max(error(K, U, V), floor * np.trace(K)) for K in Ks])
        w = weights(e)
        trail.append((U, V, w, sum(w**2 * e)))
    return trail


def finish(Ks, U, V, w, polish=True):
    Kw = fuse(Ks, w)
    UtKU = U.T @ Kw @ U
    if polish:
        L = np.linalg.cholesky(UtKU)
        V = np.array([nnls(L.T, np.linalg.solve(L, b))[0] for b in Kw @ U])
    s = np.sqrt(np.diag(UtKU))
    return U / s, V * s
