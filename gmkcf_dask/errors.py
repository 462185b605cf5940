"""Every error and warning a user can meet, each with one clear sentence.

The sentence says what is wrong, where, and what to do; `exit_code` is the command line's.
"""

from gmkcf_dask.redact import redacted


class GmkcfError(Exception):
    """Base of all errors raised on purpose by this package. Secrets in the sentence are struck out.

    >>> InputError("no answer from tcp://ann:pw@host:8786")
    InputError('no answer from tcp://***@host:8786')
    """

    exit_code = 2

    def __init__(self, *sentence: object) -> None:
        super().__init__(*(redacted(part) if isinstance(part, str) else part for part in sentence))


class InputError(GmkcfError, ValueError):
    """The input, an option or an output path cannot be used as it is."""


class HopelessError(GmkcfError):
    """The same run would end here again, however often: there is nothing to go on to.

    Only this drops checkpoints. Whatever else ends a fit may be over the next time.
    """


class HopelessInputError(HopelessError, InputError):
    """Found while fitting: the kernels or options of this run cannot be used as they are."""


class DamagedCheckpointError(InputError):
    """What a checkpoint holds cannot be where a run like this one stood."""


class PlanRefused(GmkcfError, MemoryError):
    """The work does not fit the memory or disk it was given."""

    exit_code = 3


class StoreError(GmkcfError, ValueError):
    """A store is incomplete, of another format, or made from other data or parameters."""


class DamagedStoreError(StoreError):
    """Part of a store is missing, unreadable, or not what was written."""

    exit_code = 4


class StoreGoneError(DamagedStoreError):
    """A store was removed or replaced by another one while it was used."""


class DamagedModelError(DamagedStoreError):
    """Part of a saved model is missing, unreadable, or not what was written."""


class StoreBusyError(StoreError):
    """Somebody else writes into the store, or was killed while doing so."""

    exit_code = 6


class DiskFullError(GmkcfError, OSError):
    """The disk of a store has no room left; what is there is kept, and work can go on later."""

    exit_code = 3


class ScratchError(GmkcfError, OSError):
    """Fused kernels cannot be kept on disk now; the iterations until then are."""

    exit_code = 5


class StorageError(GmkcfError):
    """An object store does not answer, or not as it should; what is there is kept.

    Not an OSError on purpose: where one of these means that part of a store is damaged or missing,
    trouble on the way to it must not.
    """

    exit_code = 5


class StorageRefused(StorageError):
    """An object store does not know us, our rights or the bucket."""

    exit_code = 2


class NotPositiveError(HopelessError, ArithmeticError):
    """The objective fell below zero: the fused kernel is too far from positive semi-definite."""


class NumericsError(GmkcfError, ArithmeticError):
    """Numbers of a run are no longer finite."""


class ClusterError(GmkcfError, ConnectionError):
    """The Dask scheduler cannot be reached or used."""


class BlindWorkersError(ClusterError):
    """Workers do not see the store, or cannot write to it."""


class ClusterLost(ClusterError):
    """Workers or the scheduler were lost during work, more often than work is tried again."""

    exit_code = 5
    retries = 3
    """How often the work is tried again before this is told."""


class WorkersKilled(ClusterLost):
    """A task took one worker after the other with it."""

    retries = 1  # Dask itself has tried it on several workers by then


class ClusterStalled(ClusterLost):
    """No task came to its end for too long."""

    retries = 0  # 1 where some workers still answer


class UnfitWorker(ClusterLost):
    """A worker that came late cannot do this work; the others go on without it."""

    retries = 0  # with the same workers
    worker: str | None = None
    """Its address, where it is known."""


class CheckpointError(GmkcfError, OSError):
    """A checkpoint cannot be written; the one before it is whole."""

    exit_code = 5


class DataWarning(UserWarning):
    """The data has a property worth knowing (empty documents, say); work goes on."""


class ClusterWarning(UserWarning):
    """The cluster changed during work; results are the same, costs may not be."""


class NumericsWarning(UserWarning):
    """A numerical guard was needed; the result is defined, but worth a look."""
