from .docstrings import (
    docstring_corpus as docstring_corpus,
    docstring_documents as docstring_documents,
)
from .documents import corpus_from_texts as corpus_from_texts
from .matrices import READERS as READERS
from .model import Corpus as Corpus, Matrix as Matrix
from .read import (
    count_samples as count_samples,
    read_corpus as read_corpus,
    read_like as read_like,
)
from .text_options import TextOptions as TextOptions, TextReading as TextReading
from .validate import (
    NotNumericError as NotNumericError,
    as_features as as_features,
    check_ids as check_ids,
    check_labels as check_labels,
    refuse_equal_rows as refuse_equal_rows,
    warn_about_zero_rows as warn_about_zero_rows,
)
