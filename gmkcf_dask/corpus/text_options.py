"""How texts become features, as options; tokens are those of scikit-learn's own analyzer."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Annotated, Any, Literal

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

_DOCUMENTS_FOR_PRUNING = 50
_LONGEST_NGRAM = 10
_PRUNING = ("min_df", "max_df", "max_features")
_BOTH_ORDERS = ("utf-16", "utf-32")
# not tables of characters: what they make of a file is unbounded until the end of it is seen
_COMPUTED = ("idna", "punycode", "raw-unicode-escape", "unicode-escape", "utf-7")

Analyzer = Callable[[str], Iterable[str]]


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
        from 50 documents on, else 1.
    max_df : int or float
        Terms in more documents are left out: a count, or a share of the documents.
    max_features : int or None
        Keep only this many of the most frequent terms.
    stop_words : "english", sequence of str or None
        Common words to leave out; words of one's own are read as texts are, so that case does not
        matter and "don't" leaves out what becomes of it. None leaves out none and favours no
        language.
    sublinear_tf : bool
        Count a term as 1 + log(count), which keeps long documents from repeating themselves.
    lowercase : bool
        Whether Tea and tea are the same word.
    tokens : {"words", "chars"}
        Words are two or more letters or digits of any script. Scripts that put no spaces between
        words, such as Chinese or Japanese, are better read in "chars": runs of characters inside
        what spaces separate.
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
        Encoding of files that do not tell theirs, such as "cp1252", as Python names it; "auto" is
        UTF-8. Files tell by a mark of UTF-8, UTF-16 or UTF-32 at their beginning; files of a folder
        also by being UTF-8, and HTML pages by what they declare.
    """

    text_column: str = "text"
    id_column: str | None = None
    label_column: str | None = None
    min_df: int | float | Literal["auto"] = "auto"
    max_df: int | float = 1.0
    max_features: int | None = None
    stop_words: Literal["english"] | tuple[str, ...] | None = None
    sublinear_tf: bool = False
    title_column: str | None = None
    lowercase: bool = True
    tokens: Literal["words", "chars"] = "words"
    ngrams: int | tuple[int, int] | None = None
    features: Literal["tfidf", "hashing"] = "tfidf"
    n_hash_features: int = 2**18
    encoding: str = AUTO

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))
        if self.min_df != "auto":
            _check_frequency("min_df", self.min_df)
        _check_frequency("max_df", self.max_df)
        if self.max_features is not None and not _is_whole(self.max_features):
            raise InputError(f"max_features is {self.max_features} but must be at least 1 or None.")
        object.__setattr__(self, "stop_words", _checked_stop_words(self.stop_words))
        _check_choice("tokens", self.tokens, ("words", "chars"))
        _check_choice("features", self.features, ("tfidf", "hashing"))
        if not (_is_whole(self.n_hash_features) and self.n_hash_features <= MOST_FEATURES):
            raise InputError(
                f"n_hash_features is {self.n_hash_features} but must be a whole number from 1 to "
                f"{MOST_FEATURES:,}."
            )
        if isinstance(self.ngrams, list | tuple):  # a list, as JSON has it
            object.__setattr__(self, "ngrams", tuple(map(_plain, self.ngrams)))
        _check_ngrams(self.ngrams)
        object.__setattr__(self, "encoding", _checked_encoding(self.encoding))
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        """Refuse options that would have no effect."""
        if self.tokens == "chars" and self.stop_words is not None:
            raise InputError("stop_words are words but tokens is 'chars': leave one of them out.")
        usual = {field.name: field.default for field in fields(self)}
        for name in _PRUNING:
            if self.features == "hashing" and getattr(self, name) != usual[name]:
                raise InputError(
                    f"{name} needs the document frequencies that hashing does not count: leave it "
                    "out, or use features 'tfidf'."
                )

    @property
    def ngram_range(self) -> tuple[int, int]:
        """Shortest and longest run of tokens that is a term."""
        if isinstance(self.ngrams, tuple):
            return self.ngrams
        if self.tokens == "words":
            return 1, self.ngrams or 1
        longest = self.ngrams or 3
        return min(2, longest), longest

    def least_documents(self, n: int) -> int | float:
        """`min_df` for a corpus of n documents."""
        if self.min_df != "auto":
            return self.min_df
        return 2 if n >= _DOCUMENTS_FOR_PRUNING else 1

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
        return {name: values[name] for name in values if (name, values[name]) != ("encoding", AUTO)}

    @classmethod
    def from_json(cls, values: object) -> TextOptions:
        """From what `to_json` gave, or an InputError."""
        if not isinstance(values, Mapping):
            raise InputError("the options of texts cannot be right.")
        known = {field.name for field in fields(cls)}
        if not set(values) <= known:
            raise InputError(f"the options {sorted(set(values) - known)} are not known here.")
        try:
            return cls(**values)
        except TypeError as error:
            raise InputError(f"the options of texts cannot be right ({error}).") from error


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, which JSON can hold."""
    return value.item() if isinstance(value, np.generic) else value


def _checked_stop_words(words: Any) -> Any:
    if words is None or (isinstance(words, str) and words == "english"):
        return words
    if isinstance(words, str):
        raise InputError(
            f"stop_words is {words!r} but must be 'english', a list of words, or None."
        )
    listed = tuple(words) if isinstance(words, Iterable) else (words,)
    if not all(isinstance(word, str) for word in listed):
        raise InputError(f"stop_words must be words, not {listed[:3]!r}.")
    return tuple(sorted(listed)) if isinstance(words, set | frozenset) else listed


def _check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        listed = " or ".join(map(repr, known))
        raise InputError(f"{name} is {value!r} but must be {listed}.")


def _check_ngrams(ngrams: Any) -> None:
    ends = ngrams if isinstance(ngrams, tuple) else (1, 1 if ngrams is None else ngrams)
    right = len(ends) == 2 and all(map(_is_whole, ends)) and ends[0] <= ends[1] <= _LONGEST_NGRAM
    if not right:
        raise InputError(
            f"ngrams is {ngrams!r} but must be a whole number from 1 to {_LONGEST_NGRAM}, or two "
            "of them, the smaller first."
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
            f"encoding is {encoding!r}, which says nothing about the order of bytes: take "
            f"'{name}-le' or '{name}-be', or 'auto' where files begin with a mark."
        )
    if not name or name in _COMPUTED:
        raise InputError(
            f"encoding is {encoding!r} but must be a table of characters that Python knows, such "
            "as 'cp1252', 'iso-8859-15' or 'gb18030', or 'auto'."
        )
    return name


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _check_frequency(name: str, value: object) -> None:
    if not isinstance(value, Real):
        raise InputError(f"{name} is {value!r} but must be a count or a share of the documents.")
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
            As `TfidfVectorizer.transform` would give; rows of zeros where no term is known, which
            a `DataWarning` tells.
        """
        from gmkcf_dask.corpus.documents import transform_texts  # which makes readings

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
            raise InputError("the weights of terms cannot be right: they are damaged.")
        return cls(options, None if file.idf is None else np.array(file.idf, np.float64))


class _Versioned(Struct):
    version: int


class _ReadingFile(_Versioned):
    """The content of reading.json."""

    options: dict[str, Any]
    idf: list[Annotated[float, Meta(ge=-_MAX, le=_MAX)]] | None = None
