"""Every error and warning a user can meet, each with one clear sentence.

The sentence says what is wrong, where, and what to do; `exit_code` is the command line's.
"""


class GmkcfError(Exception):
    """Base of all errors raised on purpose by this package."""

    exit_code = 2


class InputError(GmkcfError, ValueError):
    """The input, an option or an output path cannot be used as it is."""


class PlanRefused(GmkcfError, MemoryError):
    """The work does not fit the memory or disk it was given."""

    exit_code = 3


class StoreError(GmkcfError, ValueError):
    """A store is incomplete, of another format, or made from other data or parameters."""


class DamagedStoreError(StoreError):
    """A tile of a complete store is missing or unreadable."""

    exit_code = 4


class NotPositiveError(GmkcfError, ArithmeticError):
    """The objective fell below zero: the fused kernel is too far from positive semi-definite."""


class ClusterError(GmkcfError, ConnectionError):
    """The Dask scheduler cannot be reached or used."""


class DataWarning(UserWarning):
    """The data has a property worth knowing (empty documents, say); work goes on."""


class NumericsWarning(UserWarning):
    """A numerical guard was needed; the result is defined, but worth a look."""
