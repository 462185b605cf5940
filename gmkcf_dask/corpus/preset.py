"""Choose the options of texts that nobody gave, by a look at the first documents of a corpus.

The rules, each for an option that is "auto" under the preset "auto":

- tokens: "chars" where the letters of an average document are, by 30 %, of scripts that put no
  spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese); else "words".
- stop_words: "english" where the text is English, else None.
- max_df: 0.5 where the text is not English, no stop words are given and there are 50 documents; a
  term in more than half of the documents is no mark of a topic. Else 1.0.
- min_df: 1 below 50 documents, 2 below 1,000, then 3, and from 160,000 on √n / 100. The number of
  different words grows about as √n (Heaps), and that of words in m documents falls as 1/m (Zipf):
  so the vocabulary stops growing.
- sublinear_tf: True.

A text is English by the words that English hardly does without and other languages do not have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from math import isqrt
from typing import Any

from gmkcf_dask.corpus.decode import page_text
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.text_options import DOCUMENTS_FOR_PRUNING, TextOptions, TextReading
from gmkcf_dask.corpus.vectorize import BATCH_CHARACTERS, Document, ReadProgress
from gmkcf_dask.events import Listener, StageNote

SAMPLE_DOCUMENTS = 2_000
"""Documents that are looked at, the first ones: a stream is read once."""
SAMPLE_CHARACTERS = 2_000
"""Of each; from the middle, as beginnings are often headers or licences."""
SAMPLE_TEXT = BATCH_CHARACTERS
"""Characters of the documents that are held while they are looked at."""

SPACELESS = 0.3
"""Share of letters from which words cannot be told apart by spaces.

Less than half: words of such scripts are lost altogether, words of others survive as n-grams.
"""
ENGLISH_WORDS = 0.05
"""Share of words that are English function words from which a document is English.

English articles, mails, titles and queries have 14 to 22 % of these; texts of other languages have
them in names and quotations only.
"""
ENGLISH_DOCUMENTS = 0.25
"""Share of documents that have to be English; titles and queries often have no function word."""
TELLING_WORDS = 20
"""Words from which a document without English function words is not English, else unknown."""
MOST_COMMON = 0.5
"""The max_df where it stands in for a list of stop words."""
MOST_EMPTIED = 0.05
"""Share of documents that may lose all words to max_df; with more, common words are content."""

_WORD = re.compile(r"\w\w+")
_LETTERS = re.compile(r"[^\W\d_]+")
_SCRIPTS = {
    "Chinese": re.compile("[\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"),
    "Japanese": re.compile("[\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f]"),
    "Thai": re.compile("[\u0e00-\u0e7f]"),
    "Lao": re.compile("[\u0e80-\u0eff]"),
    "Khmer": re.compile("[\u1780-\u17ff]"),
    "Burmese": re.compile("[\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f]"),
}  # fmt: skip
"""Scripts without spaces by the language they are read as; Japanese has Chinese characters, too."""
_LEAST_KANA = 0.1
"""Share of kana from which such letters are Japanese."""

# Left out are words that other languages have, too, such as in, is, was, of, to, for, are or under.
_FUNCTION_WORDS = frozenset({
    "about", "after", "again", "against", "and", "because", "been", "before", "being", "between",
    "both", "but", "cannot", "could", "did", "does", "doesn", "doing", "during", "each", "every",
    "from", "had", "having", "how", "into", "isn", "it", "its", "my", "not", "only", "other", "our",
    "ours", "shall", "she", "should", "such", "than", "that", "the", "their", "theirs", "them",
    "then", "there", "these", "they", "this", "those", "through", "using", "very", "were", "what",
    "when", "where", "which", "while", "who", "whose", "why", "with", "would", "you", "your",
    "yours",
})  # fmt: skip


@dataclass(frozen=True)
class SampleStatistics:
    """What is to know of the first documents of a corpus.

    Attributes
    ----------
    n_documents, n_lettered : int
        Documents of the sample, and those that have letters.
    scripts : dict of str to float
        Share of the letters of an average document, by the languages of scripts without spaces.
    english, other : float
        Shares of the documents with letters that are English, and that are clearly not.
    emptied : float
        Share of the documents with words that have none but those in most documents.
    """

    n_documents: int
    n_lettered: int
    scripts: dict[str, float]
    english: float
    other: float
    emptied: float

    @property
    def spaceless(self) -> bool:
        """Whether spaces do not tell words apart."""
        return sum(self.scripts.values()) >= SPACELESS

    @property
    def language(self) -> str:
        """The language of a script without spaces, "English", "not English" or "no letters"."""
        if self.spaceless:
            if self.scripts["Japanese"] >= _LEAST_KANA * sum(self.scripts.values()):
                return "Japanese"
            return max(self.scripts, key=lambda name: self.scripts[name])
        if self.english >= ENGLISH_DOCUMENTS and self.english > self.other:
            return "English"
        return "not English" if self.n_lettered else "no letters"


@dataclass(frozen=True)
class TextChoice:
    """Options with nothing left to choose before documents are counted, and why; "" if given."""

    options: TextOptions
    language: str = ""


def least_documents(n: int) -> int:
    """Documents a term must be in, of n.

    >>> [least_documents(n) for n in (10, 50, 999, 1_000, 100_000, 250_000, 1_000_000)]
    [1, 2, 2, 3, 3, 5, 10]
    """
    if n < DOCUMENTS_FOR_PRUNING:
        return 1
    return 2 if n < 1_000 else max(3, isqrt(n) // 100)


def sample_statistics(texts: Sequence[str]) -> SampleStatistics:
    """Statistics of texts, which are looked at from the middle on.

    >>> sample_statistics(["green tea and the kettle", "tee und die kanne"]).english
    0.5
    """
    scripts: Counter[str] = Counter()
    lettered = english = other = 0
    vocabularies: list[set[str]] = []
    for text in texts:
        start = max(0, len(text) - SAMPLE_CHARACTERS) // 2
        part = text[start : start + SAMPLE_CHARACTERS].lower()
        shares = _script_shares(part)
        lettered += shares is not None
        scripts.update(shares or {})
        words = _LETTERS.findall(part)
        known = sum(word in _FUNCTION_WORDS for word in words)
        is_english = known > 0 and known >= ENGLISH_WORDS * len(words)
        english += is_english
        other += not is_english and len(words) >= TELLING_WORDS
        vocabularies.append(set(_WORD.findall(part)))
    return SampleStatistics(
        n_documents=len(texts),
        n_lettered=lettered,
        scripts={name: scripts[name] / max(1, lettered) for name in _SCRIPTS},
        english=english / max(1, lettered),
        other=other / max(1, lettered),
        emptied=_emptied(vocabularies),
    )


def _script_shares(text: str) -> dict[str, float] | None:
    """Shares of letters of scripts without spaces; None where there are no letters."""
    counts = dict.fromkeys(_SCRIPTS, 0)
    if not text.isascii():
        for name, script in _SCRIPTS.items():
            text, counts[name] = script.subn(" ", text)
    letters = sum(counts.values()) + sum(map(str.isalpha, text))
    return {name: count / letters for name, count in counts.items()} if letters else None


def _emptied(vocabularies: Iterable[set[str]]) -> float:
    """Share of documents with words that have none but those in most documents."""
    with_words = [words for words in vocabularies if words]
    documents = Counter(chain.from_iterable(with_words))
    most = MOST_COMMON * len(with_words)
    lost = sum(all(documents[word] > most for word in words) for words in with_words)
    return lost / max(1, len(with_words))


def choose_text_options(options: TextOptions, statistics: SampleStatistics) -> TextOptions:
    """The options with a choice for each that is "auto", but min_df, which needs all documents.

    Parameters
    ----------
    options : TextOptions
    statistics : SampleStatistics

    Returns
    -------
    TextOptions
        The same under the preset "plain", or where all options are given.

    Examples
    --------
    >>> found = sample_statistics(["the tea and the kettle", "how to make a tea with milk"])
    >>> choose_text_options(TextOptions(preset="auto"), found).stop_words
    'english'
    """
    open_options = options.open_options()
    if options.preset == "plain":
        return options
    tokens = options.tokens
    if tokens == "auto":  # stop words that are given are words
        words_given = "stop_words" not in open_options and options.stop_words is not None
        tokens = "chars" if statistics.spaceless and not words_given else "words"
    english = statistics.language == "English" and tokens == "words"
    common = (
        not english
        and "stop_words" in open_options
        and options.features == "tfidf"
        and statistics.n_documents >= DOCUMENTS_FOR_PRUNING
        and (tokens == "chars" or statistics.emptied <= MOST_EMPTIED)
    )
    chosen: dict[str, Any] = {
        "tokens": tokens,
        "stop_words": "english" if english else None,
        "max_df": MOST_COMMON if common else 1.0,
        "sublinear_tf": True,
    }
    return replace(options, **{name: chosen[name] for name in chosen if name in open_options})


def choose_by_sample(
    documents: Iterable[Document], options: TextOptions
) -> tuple[TextChoice, Iterable[Document]]:
    """Choose by the first documents; all of them are returned, to be read once.

    The sample depends on the order of documents alone.
    """
    if options.preset == "plain" or not options.open_options():
        return TextChoice(options), documents
    rest = iter(documents)
    first = list(_first(rest))
    texts = [page_text(each.text)[0] if each.page else each.text for each in first]
    statistics = sample_statistics(texts)
    choice = TextChoice(choose_text_options(options, statistics), statistics.language)
    return choice, chain(first, rest)


def _first(documents: Iterator[Document]) -> Iterator[Document]:
    size = 0
    for number, document in enumerate(documents, start=1):
        yield document
        size += len(document.text)
        if number >= SAMPLE_DOCUMENTS or size >= SAMPLE_TEXT:
            return


def settle(corpus: Corpus, choice: TextChoice, listen: Listener, progress: ReadProgress) -> Corpus:
    """The corpus with all that was chosen in its reading; listeners get one line about it."""
    if not choice.language or corpus.reading is None:
        return corpus
    options, idf = choice.options, corpus.reading.idf
    if options.features == "tfidf":
        options = replace(options, min_df=options.least_documents(corpus.n_samples))
    message = describe_choice(TextChoice(options, choice.language))
    listen(StageNote(**asdict(progress.event()), message=message))
    return replace(corpus, reading=TextReading(options, idf))


def describe_choice(choice: TextChoice) -> str:
    """One line on how texts are read.

    >>> options = TextOptions(stop_words="english", min_df=3, preset="plain")
    >>> describe_choice(TextChoice(options, "English"))
    'text: English; stop words removed, words in at least 3 documents'
    """
    options = choice.options
    shortest, longest = options.ngram_range
    spans = f"{shortest} to {longest}" if shortest < longest else f"{longest}"
    terms = "words" if longest == 1 else f"runs of {spans} words"
    if options.tokens == "chars":
        terms = f"runs of {spans} characters"
    parts = [] if options.stop_words is None else ["stop words removed"]
    bounds = []
    if options.min_df not in (1, "auto"):
        bounds.append(f"at least {_documents(options.min_df)}")
    if options.max_df not in (1.0, "auto"):
        bounds.append(f"at most {_documents(options.max_df)}")
    parts.append(f"{terms} in {' and '.join(bounds)}" if bounds else f"all {terms}")
    parts += ["sublinear tf"] if options.sublinear_tf else []
    return f"text: {choice.language}; {', '.join(parts)}"


def _documents(value: Any) -> str:
    return f"{value:.0%} of the documents" if isinstance(value, float) else f"{value} documents"
