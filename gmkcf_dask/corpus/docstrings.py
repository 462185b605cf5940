"""A corpus every installation carries: the docstrings of the scientific Python stack.

Each document describes one public function or class; its topic is the subpackage that holds it.
Nothing is downloaded and the order never changes, which makes it a handy first corpus::

    python -m gmkcf_dask.corpus.docstrings docstrings.jsonl
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gmkcf_dask.corpus.documents import corpus_from_texts
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.text_options import TextOptions
from gmkcf_dask.errors import InputError

# The subpackages of numpy, scipy, scikit-learn, dask, distributed, zarr and click that have forty
# documents or more; what is documented in a module below one of them belongs to it.
_MODULES = {
    "click": "click",
    "dask": "dask dask.bag dask.base dask.config dask.delayed dask.diagnostics "
    "dask.graph_manipulation dask.utils",
    "dask.array": "dask.array dask.array.linalg dask.array.random dask.array.stats",
    "distributed": "distributed",
    "numpy": "numpy numpy.strings",
    "numpy.ma": "numpy.ma",
    "numpy.polynomial": "numpy.polynomial numpy.polynomial.polynomial numpy.polynomial.chebyshev "
    "numpy.polynomial.hermite numpy.polynomial.hermite_e numpy.polynomial.laguerre "
    "numpy.polynomial.legendre",
    "numpy.random": "numpy.random",
    "scipy.interpolate": "scipy.interpolate",
    "scipy.linalg": "scipy.linalg",
    "scipy.ndimage": "scipy.ndimage",
    "scipy.optimize": "scipy.optimize",
    "scipy.signal": "scipy.signal scipy.signal.windows",
    "scipy.sparse": "scipy.sparse scipy.sparse.csgraph scipy.sparse.linalg",
    "scipy.spatial": "scipy.spatial scipy.spatial.distance",
    "scipy.special": "scipy.special",
    "scipy.stats": "scipy.stats scipy.stats.contingency scipy.stats.mstats scipy.stats.qmc "
    "scipy.stats.sampling",
    "sklearn.datasets": "sklearn.datasets",
    "sklearn.linear_model": "sklearn.linear_model",
    "sklearn.metrics": "sklearn.metrics sklearn.metrics.cluster sklearn.metrics.pairwise",
    "zarr": "zarr zarr.abc.codec zarr.abc.store zarr.codecs zarr.dtype zarr.storage",
}
DEFAULT_PACKAGES: Mapping[str, Sequence[str]] = {
    topic: tuple(modules.split()) for topic, modules in _MODULES.items()
}
"""Topics, each with the modules whose public names it holds."""

DEFAULT_OPTIONS = TextOptions(stop_words="english", sublinear_tf=True, min_df=5, preset="plain")

SHORTEST_TEXT = 200
"""Characters; a shorter docstring says too little to have a topic."""

# NumPy's documentation format: a heading is a line underlined by the next.
_HEADING = r"^\S[^\n]*\n[-=~]{3,}[ ]*$"
_TO_NEXT_HEADING = rf".*?(?={_HEADING}|\Z)"
# What every page has, whatever it is about.
_FORMATTING = tuple(
    re.compile(pattern, re.MULTILINE | re.DOTALL)
    for pattern in (
        r"\A\w+\([^\n]*\)$",
        r"^out : ndarray, None, or tuple.*?<ufuncs\.kwargs>[^\n]*$",
        rf"^(Examples?|References|Methods)[ ]*\n-{{3,}}[ ]*\n{_TO_NEXT_HEADING}",
        rf"^\*\*Array API Standard Support\*\*{_TO_NEXT_HEADING}",
        r"^[ ]*>>>.*?(\n[ ]*\n|\Z)",
        _HEADING,
        r"^[ ]*\.\.[ ][^\n]*$",
        r"^[ ]*[-=~][-=~ ]{2,}$",
    )
)
_COPIED = "This docstring was copied from"


@dataclass(frozen=True)
class Docstring:
    """One text with its unique name and its known topic."""

    id: str
    text: str
    label: str


def docstring_corpus(
    packages: Mapping[str, Sequence[str]] = DEFAULT_PACKAGES,
    options: TextOptions = DEFAULT_OPTIONS,
) -> Corpus:
    """Return the docstrings of installed packages as a corpus with known topics.

    Parameters
    ----------
    packages : mapping of str to sequence of str
        The modules that make up each topic.
    options : TextOptions

    Returns
    -------
    Corpus
        With X a csr_array of shape (n_documents, n_terms), ids such as ``"scipy.signal.butter"``
        and labels such as ``"scipy.signal"``.
    """
    documents = docstring_documents(packages)
    return corpus_from_texts(
        [document.text for document in documents],
        [document.id for document in documents],
        [document.label for document in documents],
        options,
    )


def docstring_documents(
    packages: Mapping[str, Sequence[str]] = DEFAULT_PACKAGES,
) -> list[Docstring]:
    """Return one document per public function or class, in the order of topics, modules and names.

    A docstring counts once, where it is met first, however many names lead to it. Left out are
    short ones, those copied from another library, and what is formatting rather than content:
    headings, examples, references.
    """
    first_with: dict[str, Docstring] = {}
    # Deprecated names warn when touched; reading their docstrings does not use them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for topic, modules in packages.items():
            for name, thing in _public_objects(modules):
                docstring = inspect.getdoc(thing) or ""
                text = _prose(docstring)
                if len(text) >= SHORTEST_TEXT and _COPIED not in docstring:
                    first_with.setdefault(text, Docstring(name, text, topic))
    return list(first_with.values())


def write_jsonl(documents: Iterable[Docstring], path: str | Path) -> None:
    """Write one JSON object per line with the fields id, text and label."""
    with Path(path).open("w", encoding="utf-8") as file:
        file.writelines(
            json.dumps(asdict(document), ensure_ascii=False) + "\n" for document in documents
        )


def _public_objects(modules: Iterable[str]) -> Iterator[tuple[str, object]]:
    """Full names and objects of what can be called and comes from the module's own package."""
    for module_name in modules:
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise InputError(
                f"the module {module_name} cannot be imported ({error}): install it or leave it "
                "out."
            ) from error
        home = _top_package(module_name)
        for name in sorted(getattr(module, "__all__", None) or dir(module)):
            try:
                thing = None if name.startswith("_") else getattr(module, name)
            except (AttributeError, ImportError):  # announced, but an optional part is missing
                continue
            # compiled functions often do not say where they come from
            if callable(thing) and _top_package(getattr(thing, "__module__", None) or home) == home:
                yield f"{module.__name__}.{name}", thing


def _top_package(module_name: str) -> str:
    return module_name.partition(".")[0]


def _prose(docstring: str) -> str:
    for pattern in _FORMATTING:
        docstring = pattern.sub("", docstring)
    return re.sub(r"\n\s*\n", "\n\n", docstring).strip()


def main(arguments: Sequence[str]) -> int:
    """Write the documents to the file named by the only argument."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m gmkcf_dask.corpus.docstrings OUT.jsonl\n")
        return 2
    documents = docstring_documents()
    try:
        write_jsonl(documents, arguments[0])
    except OSError as error:
        sys.stderr.write(f"{arguments[0]} cannot be written ({error}): name another file.\n")
        return 2
    sys.stdout.write(f"{len(documents)} documents written to {arguments[0]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
