"""How texts become features, as options; tokens are those of scikit-learn's own analyzer."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
from msgspec import Meta, Struct
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer

from gmkcf_dask.corpus.decode import AUTO
from gmkcf_dask.corpus.limits import MOST_FEATURES
from gmkcf_dask.errors import InputError
from gmkcf_dask.system.arrays import Floats

# Two or more letters or digits of any script, so no language is favoured.
_WORD = r"(?u)\b\w\w+\b"

DOCUMENTS_FOR_PRUNING = 50
_LONGEST_NGRAM = 10
_PRUNING = {"min_df": AUTO, "max_df": 1.0, "max_features": None}
"""Options that need document frequencies, and their values where they have no effect."""
_IMPLIED = {"encoding": AUTO, "preset": "plain"}
_BOTH_ORDERS = ("utf-16", "utf-32")
# not tables of characters: what they make of a file is unbounded until the end of it is seen
_COMPUTED = ("idna", "punycode", "raw-unicode-escape", "unicode-escape", "utf-7")

Analyzer = Callable[[str], Iterable[str]]
Preset = Literal["auto", "plain"]

DEFAULT_PRESET: Preset = "auto"
"""Preset of options that name none."""
_PLAIN = {"max_df": 1.0, "stop_words": None, "sublinear_tf": False, "tokens": "words"}
"""What "auto" stands for under the preset "plain"; min_df has a rule of its own."""
CHOSEN = {"min_df", *_PLAIN}
"""Options that a preset chooses where they are "auto"."""


@dataclass(frozen=True)
class TextOptions:
    """How documents are found in a table and turned into features.

    Attributes
    ----------
    text_column : str
        Column that holds the text.
    id_column, label_column, title_column : str or None
        Columns that name the document, its topic and its title. None takes ``"id"``, ``"label"``
        and ``"title"`` where the table has them.
    min_df : int, float or "auto"
        Terms in fewer documents are left out: a count, or a share of the documents. "auto" is 2
        from 50 documents on, else 1; under the preset "auto" it grows further, see there.
    max_df : int, float or "auto"
        Terms in more documents are left out: a count, or a share of the documents. "auto" is 1.0,
        unless the preset chooses.
    max_features : int or None
        Keep only this many of the most frequent terms.
    stop_words : "english", "auto", sequence of str or None
        Common words to leave out; words of one's own are read as texts are, so that case does not
        matter and "don't" leaves out what becomes of it. None leaves out none and favours no
        language. "auto" is None, unless the preset chooses.
    sublinear_tf : bool or "auto"
        Count a term as 1 + log(count), which keeps long documents from repeating themselves.
        "auto" is False, unless the preset chooses.
    lowercase : bool
        Whether Tea and tea are the same word.
    tokens : {"words", "chars", "auto"}
        Words are two or more letters or digits of any script. Scripts that put no spaces between
        words, such as Chinese or Japanese, are better read in "chars": runs of characters inside
        what spaces separate. "auto" is "words", unless the preset chooses.
    ngrams : int, (int, int) or None
        Tokens in a row that make a term: up to so many, or from the first to the second number.
        None is 1 for words, and 2 to 3 for characters.
    features : {"tfidf", "hashing"}
        TF-IDF takes two passes over the counts and has a vocabulary. Hashing takes one: terms are
        counted in n_hash_features columns by their hash, without document frequencies (no IDF, no
        pruning) and without a vocabulary, so clusters cannot be described by their terms.
    n_hash_features : int
        Columns of "hashing".
    encoding : str
        Encoding of files that do not declare one, such as "cp1252", as Python names it; "auto" is
        UTF-8. A byte order mark of UTF-8, UTF-16 or UTF-32 takes precedence; so do valid UTF-8 in
        files of a folder, and the declared encoding of HTML pages.
    preset : {"auto", "plain"}
        What becomes of options that are "auto". "plain" takes the values named above. "auto" looks
        at the first documents and chooses for this corpus: tokens by the script, stop words where
        the text is English and otherwise a max_df of 0.5, sublinear_tf, and min_df by the number
        of documents (`gmkcf_dask.corpus.preset`). What is given is never changed. The options of
        a corpus that was read, in its `reading`, hold what was chosen.
    """

    text_column: str = "text"
    id_column: str | None = None
    label_column: str | None = None
    min_df: int | float | Literal["auto"] = "auto"
    max_df: int | float | Literal["auto"] = "auto"
    max_features: int | None = None
    stop_words: Literal["english", "auto"] | tuple[str, ...] | None = "auto"
    sublinear_tf: bool | Literal["auto"] = "auto"
    title_column: str | None = None
    lowercase: bool = True
    tokens: Literal["words", "chars", "auto"] = "auto"
    ngrams: int | tuple[int, int] | None = None
    features: Literal["tfidf", "hashing"] = "tfidf"
    n_hash_features: int = 2**18
    encoding: str = AUTO
    preset: Preset = DEFAULT_PRESET

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))
        presets = get_args(Preset)
        _require(self.preset in presets, "preset", self.preset, "'auto' or 'plain'")
        if self.preset == "plain":
            for name in self.open_options() & set(_PLAIN):
                object.__setattr__(self, name, _PLAIN[name])
        for name in ("min_df", "max_df"):
            if name not in self.open_options():
                _check_frequency(name, getattr(self, name))
        most = self.max_features
        _require(most is None or _is_whole(most), "max_features", most, "at least 1 or None")
        if "stop_words" not in self.open_options():
            object.__setattr__(self, "stop_words", _checked_stop_words(self.stop_words))
        if "tokens" not in self.open_options():
            _require(self.tokens in ("words", "chars"), "tokens", self.tokens, "'words' or 'chars'")
        tfidf, hashing = self.features == "tfidf", self.features == "hashing"
        _require(tfidf or hashing, "features", self.features, "'tfidf' or 'hashing'")
        columns = self.n_hash_features
        _require(
            _is_whole(columns) and columns <= MOST_FEATURES,
            "n_hash_features",
            columns,
            f"a whole number from 1 to {MOST_FEATURES:,}",
        )
        if isinstance(self.ngrams, list | tuple):  # a list, as JSON has it
            object.__setattr__(self, "ngrams", tuple(map(_plain, self.ngrams)))
        _check_ngrams(self.ngrams)
        object.__setattr__(self, "encoding", _checked_encoding(self.encoding))
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        """Refuse options that would have no effect."""
        if self.tokens == "chars" and self.stop_words not in (None, AUTO):
            raise InputError("stop_words are words but tokens is 'chars': leave one of them out.")
        for name, usual in _PRUNING.items():
            if self.features == "hashing" and getattr(self, name) not in (usual, AUTO):
                raise InputError(
                    f"{name} needs the document frequencies that hashing does not count: leave it "
                    "out, or use features 'tfidf'."
                )

    def open_options(self) -> set[str]:
        """Options that are "auto": the preset chooses them."""
        return {name for name in CHOSEN if _is_auto(getattr(self, name))}

    @property
    def ngram_range(self) -> tuple[int, int]:
        """Shortest and longest run of tokens that is a term."""
        if isinstance(self.ngrams, tuple):
            return self.ngrams
        if self.tokens != "chars":
            return 1, self.ngrams or 1
        longest = self.ngrams or 3
        return min(2, longest), longest

    def least_documents(self, n: int) -> int | float:
        """`min_df` for a corpus of n documents."""
        if self.min_df != "auto":
            return self.min_df
        if self.preset == "auto":
            from gmkcf_dask.corpus.preset import least_documents  # which chooses options

            return least_documents(n)
        return 2 if n >= DOCUMENTS_FOR_PRUNING else 1

    def analyzer(self) -> Analyzer:
        """From a text to its terms, repeated as often as they are there."""
        return CountVectorizer(**self.analysis()).build_analyzer()  # type: ignore[no-any-return]

    def hasher(self) -> HashingVectorizer:
        """From texts to counts in hashed columns."""
        return HashingVectorizer(
            **self.analysis(), n_features=self.n_hash_features, alternate_sign=False, norm=None
        )

    def analysis(self) -> dict[str, Any]:
        """Parameters of scikit-learn's vectorizers for the same terms."""
        options: dict[str, Any] = {"ngram_range": self.ngram_range, "lowercase": self.lowercase}
        if self.tokens == "chars":
            return {**options, "analyzer": "char_wb"}
        words: str | list[str] | None = self.stop_words if self.stop_words == "english" else None
        if isinstance(self.stop_words, tuple):
            read = CountVectorizer(token_pattern=_WORD, lowercase=self.lowercase).build_analyzer()
            words = sorted({token for word in self.stop_words for token in read(word)}) or None
        return {**options, "analyzer": "word", "token_pattern": _WORD, "stop_words": words}

    def to_json(self) -> dict[str, Any]:
        """As plain values; what stores did not always know is left out where it says nothing."""
        values = asdict(self)
        return {item[0]: item[1] for item in values.items() if item not in _IMPLIED.items()}

    @classmethod
    def from_json(cls, values: object) -> TextOptions:
        """From what `to_json` gave, or an InputError."""
        if not isinstance(values, Mapping):
            raise InputError("the text options are invalid.")
        known = {field.name for field in fields(cls)}
        if not set(values) <= known:
            raise InputError(f"the options {sorted(set(values) - known)} are not known here.")
        try:
            return cls(**{"preset": "plain", **values})  # the only one there was
        except TypeError as error:
            raise InputError(f"the text options are invalid ({error}).") from error


def _is_auto(value: object) -> bool:
    return isinstance(value, str) and value == AUTO


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, which JSON can hold."""
    return value.item() if isinstance(value, np.generic) else value


def _checked_stop_words(words: Any) -> Any:
    if words is None or isinstance(words, str):
        known = words in (None, "english")
        _require(known, "stop_words", words, "'english', a list of words, or None")
        return words
    listed = tuple(words) if isinstance(words, Iterable) else (words,)
    if not all(isinstance(word, str) for word in listed):
        raise InputError(f"stop_words must be words, not {listed[:3]!r}.")
    return tuple(sorted(listed)) if isinstance(words, set | frozenset) else listed


def _require(ok: bool, name: str, value: object, expected: str) -> None:
    if not ok:
        raise InputError(f"{name} is {value!r} but must be {expected}.")


def _check_ngrams(ngrams: Any) -> None:
    ends = ngrams if isinstance(ngrams, tuple) else (1, 1 if ngrams is None else ngrams)
    _require(
        len(ends) == 2 and all(map(_is_whole, ends)) and ends[0] <= ends[1] <= _LONGEST_NGRAM,
        "ngrams",
        ngrams,
        f"a whole number from 1 to {_LONGEST_NGRAM}, or two of them, the smaller first",
    )


def _checked_encoding(encoding: Any) -> str:
    """The name that Python has for an encoding of texts."""
    if encoding == AUTO:
        return AUTO
    try:
        name = codecs.lookup(encoding).name
        b"a".decode(name, "replace")  # some are no encodings of texts
    except (LookupError, TypeError, ValueError):
        name = ""
    if name in _BOTH_ORDERS:
        raise InputError(
            f"encoding is {encoding!r}, which does not define the byte order: use "
            f"'{name}-le' or '{name}-be', or 'auto' where files begin with a mark."
        )
    _require(
        bool(name) and name not in _COMPUTED,
        "encoding",
        encoding,
        "a table of characters that Python knows, such as 'cp1252', 'iso-8859-15' or 'gb18030', or "
        "'auto'",
    )
    return name


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _check_frequency(name: str, value: Any) -> None:
    _require(isinstance(value, Real), name, value, "a count or a share of the documents")
    if isinstance(value, float) and not 0 <= value <= 1:
        raise InputError(f"{name} is {value} but a share of the documents lies between 0 and 1.")
    if value < (0 if isinstance(value, float) else 1):
        raise InputError(f"{name} is {value} but a count of documents is at least 1.")


VERSION = 1
_MAX = sys.float_info.max


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
            As `TfidfVectorizer.transform` would give; rows of zeros, with a `DataWarning`, for
            documents that are empty or have no known term.
        """
        # which makes readings
        from gmkcf_dask.corpus.documents import documents_of, read_documents_like

        kinds = ("empty", "unknown")
        X = read_documents_like(documents_of(texts), self, terms, warn=kinds).X
        assert isinstance(X, sparse.csr_array)
        return X

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
            version = msgspec.json.decode(content, type=_Versioned).version
            if version != VERSION:
                raise InputError(
                    f"how texts were read is of version {version}, this program knows {VERSION}: "
                    "use the version of gmkcf-dask that wrote it."
                )
            file = msgspec.json.decode(content, type=_ReadingFile)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError(f"how texts were read is damaged ({error}).") from error
        options = TextOptions.from_json(file.options)
        if (file.idf is None) != (options.features == "hashing"):
            raise InputError("the weights of terms are damaged.")
        return cls(options, None if file.idf is None else np.array(file.idf, np.float64))


class _Versioned(Struct):
    version: int


class _ReadingFile(_Versioned):
    """The content of reading.json."""

    options: dict[str, Any]
    idf: list[Annotated[float, Meta(ge=-_MAX, le=_MAX)]] | None = None
