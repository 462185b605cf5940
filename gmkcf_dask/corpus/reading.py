"""How the texts of a corpus became features, to read new documents the same way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from gmkcf_dask.corpus.model import Floats
from gmkcf_dask.corpus.options import TextOptions
from gmkcf_dask.errors import InputError

VERSION = 1


@dataclass(frozen=True, eq=False)
class TextReading:
    """Options and weights of terms; with the terms themselves it reads any document.

    Attributes
    ----------
    options : TextOptions
    idf : ndarray of float64, shape (n_terms,), or None
        Inverse document frequencies of the corpus; None for hashed features.
    """

    options: TextOptions
    idf: Floats | None = None

    @property
    def n_features(self) -> int:
        """Columns of what it makes of texts."""
        return self.options.n_hash_features if self.idf is None else int(self.idf.size)

    def transform(self, texts: Iterable[str], terms: Sequence[str] | None) -> sparse.csr_array:
        """Features of new texts, made as those of the corpus were.

        Parameters
        ----------
        texts : iterable of str, length n_new
        terms : sequence of str or None
            Terms of the corpus; None for hashed features.

        Returns
        -------
        csr_array, shape (n_new, n_terms)
            As `TfidfVectorizer.transform` would give; rows of zeros where no term is known, which
            a `DataWarning` tells.
        """
        from gmkcf_dask.corpus.text import transform_texts  # which makes readings

        return transform_texts(texts, self, terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextReading) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.options, self.n_features))

    def to_json(self) -> str:
        """As text; floats are spelled so that the same bits are read again."""
        idf = None if self.idf is None else self.idf.tolist()
        return json.dumps({"version": VERSION, "options": self.options.to_json(), "idf": idf})

    @classmethod
    def from_json(cls, content: str | bytes) -> TextReading:
        """From what `to_json` gave, or an InputError that says what is wrong with it."""
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise InputError("how texts were read is not valid JSON: it is damaged.") from error
        if not isinstance(found, dict) or not isinstance(found.get("version"), int):
            raise InputError("how texts were read cannot be understood: it is damaged.")
        if found["version"] != VERSION:
            raise InputError(
                f"how texts were read is of version {found['version']}, this program knows "
                f"{VERSION}: use the version of gmkcf-dask that wrote it."
            )
        options = found.get("options")
        if not isinstance(options, Mapping):
            raise InputError("how texts were read lacks its options: it is damaged.")
        return cls(TextOptions.from_json(options), _weights(found.get("idf"), options))


def _weights(found: Any, options: Mapping[str, Any]) -> Floats | None:
    if found is None and options.get("features") == "hashing":
        return None
    numbers = isinstance(found, list) and all(type(value) in (float, int) for value in found)
    idf = np.array(found, np.float64) if numbers else np.array([np.nan])
    if not np.isfinite(idf).all():
        raise InputError("the weights of terms cannot be right: they are damaged.")
    return idf
