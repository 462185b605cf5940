"""Cluster samples that are known only by their similarities: kernel matrices of your own.

    python examples/precomputed_kernels.py

A kernel is a symmetric (n, n) matrix of similarities. Here there are three for the handwritten
digits of scikit-learn; yours may come from graphs, strings, images or another program.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import cosine_similarity, laplacian_kernel, rbf_kernel

from gmkcf_dask import GMKCF, Precomputed, scores

NAMES = ("rbf", "laplacian", "cosine_8")


def kernels_between(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Three similarities of every row of A with every row of B, shape (3, len(A), len(B))."""
    return np.stack(
        [rbf_kernel(A, B, gamma=5), laplacian_kernel(A, B, gamma=0.5), cosine_similarity(A, B) ** 8]
    )


def main() -> None:
    X, digits = load_digits(n_class=5, return_X_y=True)
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    train, new = slice(0, 800), slice(800, None)

    # a plain array of shape (m, n, n) works too; `Precomputed` gives the kernels names
    own = [
        Precomputed(matrix, name)
        for matrix, name in zip(kernels_between(X[train], X[train]), NAMES, strict=True)
    ]
    model = GMKCF(5, kernels="precomputed", random_state=0).fit(own)
    for name, weight in zip(model.kernel_names_, model.kernel_weights_, strict=True):
        print(f"weight of {name:10} {weight:.3f}")

    # new samples come as kernels between them and the training samples, shape (m, n_new, n)
    labels = model.predict(kernels_between(X[new], X[train]))
    print(f"accuracy, training samples  {scores(digits[train], model.labels_)['ACC']:.3f}")
    print(f"accuracy, new samples       {scores(digits[new], labels)['ACC']:.3f}")


if __name__ == "__main__":
    main()
