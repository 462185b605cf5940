"""What a store keeps of texts beside their features: names, beginnings, and how they were read."""

from __future__ import annotations

from pathlib import Path

from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.reading import TextReading
from gmkcf_dask.errors import DamagedStoreError, InputError
from gmkcf_dask.files import get, put_atomic
from gmkcf_dask.kernels.manifest import Manifest, text_digest

STRINGS = ("ids", "labels", "terms", "titles", "excerpts")
"""Lists of strings, each in a file of its own."""
READING = "reading.json"


def write_reading(path: Path, corpus: Corpus) -> None:
    """Keep how texts were read in a new store."""
    if corpus.reading is not None:
        put_atomic(path / READING, corpus.reading.to_json().encode())


def read_reading(path: Path, manifest: Manifest) -> TextReading | None:
    """How the texts of a store were read; None where it was made of other things.

    Refused where it is not what was written, or does not go with the features.
    """
    known = manifest.inputs.get("reading")
    if known is None:
        return None
    damaged = DamagedStoreError(f"{READING} of {path} is damaged: build the store again")
    try:
        content = (get(path / READING) or b"").decode()
        if text_digest(content) != known:
            raise damaged
        reading = TextReading.from_json(content)
    except (UnicodeDecodeError, InputError) as error:
        raise damaged from error
    if reading.n_features != manifest.n_features:
        raise damaged
    return reading
