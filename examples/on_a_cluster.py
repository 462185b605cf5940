"""Cluster with the kernels on disk and the work on a Dask cluster.

    python examples/on_a_cluster.py

The cluster here is two processes of this machine. With a cluster of your own, give its `Client`:
only the lines with `LocalCluster` change. The workers must see the path of the store.
"""

import tempfile
from pathlib import Path

from distributed import Client, LocalCluster
from sklearn.datasets import make_blobs

from gmkcf_dask import GMKCF, KernelSpectralClustering, KernelStore, scores


def main() -> None:
    X, groups = make_blobs(600, 10, centers=4, random_state=0)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        store = Path(folder) / "kernels.zarr"  # keep it, and the next fit starts from it

        model = GMKCF(4, store=store, client=client, random_state=0).fit(X)
        print(KernelStore.open(store))
        print(
            f"GMKCF     {model.n_iter_} iterations, ARI {scores(groups, model.labels_)['ARI']:.3f}"
        )

        # another method on the kernels that are there already
        spectral = KernelSpectralClustering(4, client=client, random_state=0).fit(store)
        print(f"spectral  ARI {scores(groups, spectral.labels_)['ARI']:.3f}")


if __name__ == "__main__":  # worker processes import this script
    main()
