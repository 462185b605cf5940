"""Doing damage to stores, one file at a time, and telling whether two stores hold the same."""

import os
import subprocess
import sys

import numpy as np
from msgspec import structs
from scipy import sparse

from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.manifest import Manifest
from gmkcf_dask.store.request import KernelRequest
from helpers.paths import ROOT

HERE = Runner(scheduler="synchronous")
KERNELS = "rbf_0.5,rbf_1,poly_a1_b2,cosine"


def corpus(n=60, d=12, seed=0, form="sparse"):
    rng = np.random.default_rng(seed)
    X = rng.random((n, d)) * (rng.random((n, d)) < 0.5)
    X[:, 0] += 0.1
    ids = tuple(f"doc-{i}" for i in range(n))
    labels, terms = tuple("ab"[i % 2] for i in range(n)), tuple(f"w{i}" for i in range(d))
    return Corpus(sparse.csr_array(X) if form == "sparse" else X, ids, labels, terms)


def request(n=60, kernels=KERNELS, **options):
    return KernelRequest(corpus(n), resolve_kernels(kernels), **options)


def store_at(path, block=16, **options):
    return build_store(path, request(**options), HERE, block=block)


# telling stores apart


def content(path):
    """Bytes of every file but the manifest, by path inside."""
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != "manifest.json"
    }


def same_store(path, other):
    """The same files with the same bytes, and manifests that differ in the store's name only."""
    mine, theirs = Manifest.read(path), Manifest.read(other)
    return (
        content(path) == content(other)
        and structs.replace(mine, store_id=theirs.store_id) == theirs
    )


# damage; each function returns the (kernel, (I, J)) that are bad afterwards


def tile_files(path):
    arrays = ("kernels/*", "gram/X")
    return sorted(file for at in arrays for file in path.glob(f"{at}/c/*/*") if file.is_file())


def place(file):
    """The array, a kernel or the Gram matrix, and the tile."""
    folder, name = file.parts[-5:-3]
    array = "gram/X" if folder == "gram" else name
    return array, (int(file.parts[-2]), int(file.parts[-1]))


def flip(path, rng):
    """One bit of one tile."""
    file = _any(tile_files(path), rng)
    flip_bit(file, rng)
    return [place(file)]


def flip_bit(file, rng):
    held = bytearray(file.read_bytes())
    held[int(rng.integers(len(held)))] ^= 1 << int(rng.integers(8))
    file.write_bytes(held)


def truncate(path, rng):
    """A tile cut off somewhere, or down to nothing."""
    file = _any(tile_files(path), rng)
    file.write_bytes(file.read_bytes()[: int(rng.integers(file.stat().st_size))])
    return [place(file)]


def delete(path, rng):
    """A tile that is gone."""
    file = _any(tile_files(path), rng)
    file.unlink()
    return [place(file)]


def swap(path, rng):
    """Two tiles of the store that took each other's place: every checksum in them is right."""
    files = tile_files(path)
    while True:
        one, other = _any(files, rng), _any(files, rng)
        mine, theirs = one.read_bytes(), other.read_bytes()
        if mine != theirs:
            one.write_bytes(theirs)
            other.write_bytes(mine)
            return [place(one), place(other)]


DAMAGES = {"flip": flip, "truncate": truncate, "delete": delete, "swap": swap}


def _any(files, rng):
    return files[int(rng.integers(len(files)))]


# other processes


def start_build(x_file, store, *options):
    """`gmkcf build` in a process of its own."""
    command = [sys.executable, "-m", "gmkcf_dask.cli", "build", x_file, store, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*map(str, command)],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
