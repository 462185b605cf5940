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


# ---------------------------------------------------------------- new samples


def cross_kernel(X, new, name):
    """One raw kernel between new samples and the training samples X, widths from X alone."""
    G = new @ X.T
    if name.startswith("rbf_"):
        D2 = np.array([((x - X) ** 2).sum(axis=1) for x in new])
        sigma = float(name[4:]) * np.sqrt(distances_squared(X)).mean()
        return np.ones_like(D2) if sigma == 0 else np.exp(-D2 / (2 * sigma**2))
    if name.startswith("poly_"):
        a, b = name[len("poly_a") :].split("_b")
        return (float(a) + G) ** int(b)
    if name == "linear":
        return G
    lengths = [np.sqrt((Y**2).sum(axis=1)) for Y in (new, X)]
    return G / np.outer(*(np.where(length > 0, length, 1.0) for length in lengths))


def own_value(x, name):
    """k(x, x)"""
    if name.startswith("rbf_"):
        return 1.0
    if name == "cosine":
        return float((x**2).sum() > 0)
    return cross_kernel(x[None], x[None], name)[0, 0]


def finished_cross_kernel(X, new, name, normalization, scaling):
    """Normalised and scaled by what was found on X; rows of samples without a direction are 0."""
    raw, K = cross_kernel(X, new, name), kernel(X, name)
    training, valid = normalize(K, normalization)
    if name == "cosine":
        valid = valid & ((X**2).sum(axis=1) > 0)
    values, own_valid = raw.copy(), np.ones(len(new), bool)
    if normalization != "none":
        norm = np.diag(K) if normalization == "unit" else K.sum(axis=1)
        own = [own_value(x, name) for x in new] if normalization == "unit" else raw.sum(axis=1)
        own_valid = np.asarray(own) > 0
        roots = [np.sqrt(np.where(part > 0, part, 1.0)) for part in (np.asarray(own), norm)]
        values = raw / np.outer(*roots)
    if name == "cosine":
        own_valid = own_valid & ((new**2).sum(axis=1) > 0)
    if scaling == "minmax":
        inside = training[np.ix_(valid, valid)]
        low, high = (inside.min(), inside.max()) if inside.size else (0.0, 0.0)
        constant = high - low <= 1e-12 * abs(high)
        values = np.ones_like(values) if constant else (values - low) / (high - low)
    values[~own_valid] = 0
    values[:, ~valid] = 0
    return values


def place(crosses, w, U, UtKU):
    """Rows of V for new samples, one non-negative least squares each."""
    b = sum(w[i] ** 2 * crosses[i] for i in range(len(crosses))) @ U
    L = np.linalg.cholesky(UtKU)
    return np.array([nnls(L.T, np.linalg.solve(L, row))[0] for row in b])


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


def step_split(positive, negative, U, V):
    """The mixed-sign steps for any K = positive − negative with both parts non-negative."""
    VtV = V.T @ V
    U = U * root((positive - negative) @ V, positive @ U @ VtV, negative @ U @ VtV)
    KU = (positive - negative) @ U
    return U, V * root(KU, V @ (U.T @ positive @ U), V @ (U.T @ negative @ U))


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


def hals(V, KU, G, passes):
    for _ in range(passes):
        for c in range(V.shape[1]):
            rest = [a for a in range(V.shape[1]) if a != c]
            if G[c, c] > 0:
                best = np.maximum((KU[:, c] - V[:, rest] @ G[rest, c]) / G[c, c], 0)
                V = np.column_stack([best if a == c else V[:, a] for a in range(V.shape[1])])
    return V


def accelerated(Ks, U, V, iterations, tol, per_weight_step):
    """Every iterate of the accelerated solver, as in `gmkcf`; products are formed when needed."""
    m = len(Ks)
    mixed = min(K.min() for K in Ks) < 0
    w, before, t, earned = np.full(m, 1 / m), U, 1.0, 0.0
    trail = [(U, V, w, objective(Ks, w, U, V))]
    for _ in range(iterations):
        Kw, seen, done = fuse(Ks, w), V, 0
        step = step_mixed if mixed else step_plain
        begun = J = error(Kw, U, V)
        while True:
            t_next = (1 + np.sqrt(1 + 4 * t**2)) / 2
            carry = np.clip(U / np.maximum(before, 1e-300), 0.1, 10) ** ((t - 1) / t_next)
            candidates = []
            for V_used, factor in ((seen, carry), (V, 1.0)):
                C = step(Kw, U, V_used, 0)[0] * factor
                VC = hals(V, Kw @ C, C.T @ Kw @ C, 8)
                candidates.append((error(Kw, C, VC), C, VC))
            J_old = J
            if J - candidates[0][0] > tol * candidates[0][0]:
                (J, C, VC), t = candidates[0], t_next
            else:
                (J, C, VC), t = min([*candidates, (J, U, V)], key=lambda one: one[0]), 1.0
            before, U, seen, V = U, C, V, VC
            done += 1
            if (J_old - J) / J <= tol:
                break
            if (J_old - J) * (per_weight_step + done) <= earned + begun - J:
                break
        e = np.array([error(K, U, V) for K in Ks])
        earned = sum(w**2 * e)
        w = weights(e)
        earned -= sum(w**2 * e)
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


# ---------------------------------------------------------------- the paper's other methods


def cf(X, W, V, iterations):
    """Concept factorization on features by its own formulas: X ≈ Xᵀ W Vᵀ, rows are samples."""
    G = X @ X.T
    trail = []
    for _ in range(iterations):
        W = W * (G @ V) / (G @ W @ V.T @ V)
        V = V * (G @ W) / (V @ W.T @ G @ W)
        trail.append((W, V, np.linalg.norm(X.T - X.T @ W @ V.T) ** 2))
    return trail


def fill_empty(labels, d, k):
    """Emptied clusters take the farthest samples of clusters that keep at least one."""
    labels = labels.copy()
    own = np.array([d[j, labels[j]] for j in range(len(labels))])
    for c in range(k):
        if not (labels == c).any():
            for j in np.argsort(-own, kind="stable"):
                if (labels == labels[j]).sum() > 1:
                    labels[j], own[j] = c, 0.0
                    break
    return labels


def kernel_distances(K, C):
    n, k = C.shape
    d = np.zeros((n, k))
    for j in range(n):
        for c in range(k):
            d[j, c] = K[j, j] - 2 * K[j] @ C[:, c] + C[:, c] @ K @ C[:, c]
    return d


def kkm(K, centres, iterations=100):
    """Kernel k-means; labels and the sum of distances at every assignment."""
    n, k = len(K), len(centres)
    C = np.eye(n)[:, centres]
    labels, trail = None, []
    for _ in range(iterations + 1):
        d = kernel_distances(K, C)
        new = fill_empty(d.argmin(axis=1), d, k)
        trail.append(d.min(axis=1).sum())
        if labels is not None and (new == labels).all():
            break
        labels = new
        C = np.array([(labels == c) / (labels == c).sum() for c in range(k)]).T
    return labels, trail


def rmkkm(Ks, centres, gamma, outer=50, inner=30):
    """Robust multiple kernel k-means, warm inner runs; labels, weights, and F at weight steps.

    The last value returned says whether every step of every centre lowered its cluster's sum, or at
    least could not raise it: where samples sit on a centre their weight is made up, and the step
    can be a bad one, or one that changes nothing but rounding.
    """
    m, n, k = len(Ks), len(Ks[0]), len(centres)
    lowered = True
    w = np.full(m, m ** (-1 / gamma))
    C = np.eye(n)[:, centres]
    last, trail = None, []
    for round_ in range(outer):
        K = sum(w[i] * Ks[i] for i in range(m))
        labels = None
        for step in range(inner):
            d = kernel_distances(K, C)
            new = fill_empty(d.argmin(axis=1), d, k)
            own = np.array([0.0 if d[j].argmin() != new[j] else d[j, new[j]] for j in range(n)])
            s = np.array([1 / (2 * np.sqrt(x)) if x >= 1e-10 else np.nan for x in own])
            s[np.isnan(s)] = np.nanmean(s)
            C = np.array([s * (new == c) / (s * (new == c)).sum() for c in range(k)]).T
            moved = kernel_distances(K, C)
            for c in set(d.argmin(axis=1)) if round_ or step else ():
                before = sum(np.sqrt(max(own[j], 0)) for j in range(n) if new[j] == c)
                after = sum(np.sqrt(max(moved[j, c], 0)) for j in range(n) if new[j] == c)
                made_up = any(own[j] < 1e-10 for j in range(n) if new[j] == c)
                lowered = lowered and after <= before * (1 - 1e-9 if made_up else 1 + 1e-9)
            same = labels is not None and (new == labels).all()
            labels = new
            if same:
                break
        d = [kernel_distances(Ki, C) for Ki in Ks]
        A = np.array([[max(di[j, labels[j]], 0.0) for di in d] for j in range(n)])
        if not trail:
            trail.append(np.sqrt(A @ w).sum())
        away = [j for j in range(n) if A[j] @ w > 0]
        h = np.array([sum(A[j, i] / (2 * np.sqrt(A[j] @ w)) for j in away) for i in range(m)])
        w = h ** (-1 / (1 - gamma)) / (h ** (-gamma / (1 - gamma))).sum() ** (1 / gamma)
        trail.append(np.sqrt(A @ w).sum())
        if last is not None and (labels == last).all():
            break
        last = labels
    return labels, w, trail, lowered


def laplacian(K, kind):
    D = K.sum(axis=1)
    if kind == "unnormalized":
        return np.diag(D) - K
    return np.eye(len(K)) - K / np.sqrt(np.outer(D, D))


def smallest(L, k):
    """The k smallest eigenvalues and their vectors."""
    values, vectors = np.linalg.eigh(L)
    return values[:k], vectors[:, :k]


def coreg(Ks, k, lam, rounds):
    """U* after every round, the λ-free start first, and the sum that is maximised."""
    Ls = [np.eye(len(K)) - laplacian(K, "symmetric") for K in Ks]
    Us = [smallest(-L, k)[1] for L in Ls]
    centre, trail = None, []
    for _ in range(rounds + 1):
        if centre is not None:
            Us = [smallest(-(L + lam * centre @ centre.T), k)[1] for L in Ls]
        centre = smallest(-sum(U @ U.T for U in Us), k)[1]
        value = sum(np.trace(U.T @ L @ U) for U, L in zip(Us, Ls, strict=True))
        value += lam * sum(np.trace(U @ U.T @ centre @ centre.T) for U in Us)
        trail.append((centre, value))
    return trail


# ---------------------------------------------------------------- local kernels


def neighbours(X, p):
    """Of every unit row the p most similar others with a positive cosine, (similarity, j) each."""
    found = []
    for i, row in enumerate(X):
        others = [(float(row @ X[j]), j) for j in range(len(X)) if j != i and row @ X[j] > 0]
        found.append(sorted(others, key=lambda one: (-one[0], one[1]))[:p])
    return found


def apart(similarity):
    """Squared distance of unit rows; that of equal ones is 0 but for rounding."""
    return 2 - 2 * similarity if 2 - 2 * similarity > 4e-6 else 0.0


def walk(near):
    """S = (I + D⁻¹A)/2 from neighbours, dense."""
    n = len(near)
    width = np.ones(n)
    for i, row in enumerate(near):
        away = [np.sqrt(apart(s)) for s, _ in row]
        if away:
            width[i] = away[min(7, len(away)) - 1]
        if away and width[i] == 0:
            width[i] = min([d for d in away if d > 0], default=1.0)
    W = np.zeros((n, n))
    for i, row in enumerate(near):
        for s, j in row:
            W[i, j] = np.exp(-apart(s) / (width[i] * width[j]))
    A = (W + W.T) / 2
    S = np.zeros((n, n))
    for i in range(n):
        S[i, i] = 1.0 if A[i].sum() == 0 else 0.5
        if A[i].sum() > 0:
            S[i] += A[i] / A[i].sum() / 2
    return S


def local_kernels(X, rank, depths):
    """K_t of unit rows X, t in depths: cosines of the rows of S^t F."""
    n = len(X)
    S = walk(neighbours(X, min(int(np.ceil(np.log2(n))), n - 1)))
    Vt = np.linalg.svd(X, full_matrices=False)[2]
    F = X @ Vt[:rank].T
    kernels = []
    for t in depths:
        Z = np.linalg.matrix_power(S, t) @ F
        lengths = np.linalg.norm(Z, axis=1, keepdims=True)
        Z = Z / np.where(lengths > 0, lengths, 1)
        kernels.append(Z @ Z.T)
    return kernels
