"""Check workers: the same versions on driver, scheduler and workers, and access to the store.

Different versions may fail to read each other's graphs in the middle of a job, or give other bits.
Workers that join late are checked by their first task.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from gmkcf_dask.errors import ClusterError, UnfitWorker

if TYPE_CHECKING:
    from distributed import Client

WorkerCheck = Callable[[], str | None]
ANSWER_SECONDS = 60.0
"""How long a worker may take to answer a question."""
PACKAGES = ("gmkcf-dask", "dask", "distributed", "numpy", "scipy", "zarr")


def installed_versions() -> dict[str, str]:
    """Versions of all that must be the same everywhere; of Python the first two numbers."""
    python = "{}.{}".format(*sys.version_info[:2])
    return {"python": python, **{name: version(name) for name in PACKAGES}}


def ask_workers(
    client: Client,
    function: Callable[..., Any],
    *args: Any,
    seconds: float = ANSWER_SECONDS,
    only: Iterable[str] | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """Call a function on every worker, or some; by address, its result or its error.

    A worker that does not answer in time gives a `TimeoutError`, one that leaves another `OSError`.
    """

    async def ask(address: str) -> Any:
        try:
            # it has no timeout of its own, and a single call would wait for the slowest worker
            call = client._run(function, *args, workers=[address], on_error="return", **kwargs)
            answers = await asyncio.wait_for(call, seconds)
        except TimeoutError:
            return TimeoutError(f"no answer within {seconds:g} s")
        except OSError as error:
            return error
        return answers.get(address, ConnectionError("it went away"))

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*map(ask, addresses))

    addresses = sorted(client.scheduler_info(n_workers=-1)["workers"] if only is None else only)
    return dict(zip(addresses, client.sync(ask_all), strict=True))


def refuse_other_versions(client: Client) -> None:
    """Ask the scheduler and every worker for their versions, and refuse those that differ."""
    here = installed_versions()
    try:
        there: dict[str, Any] = {"the scheduler": client.run_on_scheduler(installed_versions)}
    except ImportError as error:
        there = {"the scheduler": error}
    workers = ask_workers(client, installed_versions)
    for address, answer in workers.items():
        if isinstance(answer, TimeoutError):
            raise ClusterError(
                f"worker {address} does not answer ({answer}): see whether it runs, or end it"
            )
        if isinstance(answer, OSError):  # it may just have gone: asked again
            raise ConnectionError(f"worker {address} does not answer ({answer})") from answer
    there |= {f"worker {address}": answer for address, answer in workers.items()}
    different = version_differences(here, there)
    if different:
        raise ClusterError(
            f"the cluster has other versions than this process ({'; '.join(different)}): install "
            "the same ones everywhere"
        )


@dataclass(frozen=True)
class CheckedTask:
    """A task that first checks its worker: the driver's versions, and all `checks`.

    Not a plugin of the cluster: one that outlives a killed driver would disturb other jobs.

    Attributes
    ----------
    checks : tuple of callable
        Each runs on the worker and returns what is wrong there, or None.
    """

    task: Callable[..., Any]
    versions: tuple[tuple[str, str], ...]
    checks: tuple[WorkerCheck, ...] = ()

    @classmethod
    def for_driver(
        cls, task: Callable[..., Any], checks: Iterable[WorkerCheck] = ()
    ) -> CheckedTask:
        """With the versions of this process."""
        return cls(task, tuple(installed_versions().items()), tuple(checks))

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.task)  # Dask gives block numbers to tasks that ask for them

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        different = _other_versions(self.versions)
        if different:
            raise _unfit(
                f"has other versions than the driver ({'; '.join(different)}): install the "
                "same versions everywhere"
            )
        for check in self.checks:
            problem = check()
            if problem is not None:
                raise _unfit(f"joined late and {problem}")
        return self.task(*args, **kwargs)


@cache
def _other_versions(driver: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    here = installed_versions()
    return tuple(
        f"{name} {here.get(name, 'unknown')}, not {wanted}"
        for name, wanted in driver
        if here.get(name) != wanted
    )


def _unfit(what: str) -> UnfitWorker:
    from distributed import get_worker

    address = str(get_worker().address)
    error = UnfitWorker(f"worker {address} {what}")
    error.worker = address
    return error


def version_differences(here: dict[str, str], there: dict[str, Any]) -> list[str]:
    """What differs, in words; places with the same difference are counted, not listed.

    >>> version_differences({"zarr": "3.2"}, {"a": {"zarr": "3.1"}, "b": {"zarr": "3.1"}})
    ['zarr 3.1 on a and 1 more, 3.2 here']
    >>> version_differences({"zarr": "3.2"}, {"a": ImportError("no gmkcf_dask")})
    ['a: no gmkcf_dask']
    """
    places: dict[str, list[str]] = {}
    for place, versions in there.items():
        if not isinstance(versions, dict):  # an error instead of an answer
            places.setdefault(f"{{}}: {versions}", []).append(place)
            continue
        for name, value in here.items():
            if versions.get(name) != value:
                words = f"{name} {versions.get(name, 'missing')} on {{}}, {value} here"
                places.setdefault(words, []).append(place)
    return [
        words.replace("{}", where[0] + (f" and {len(where) - 1} more" if len(where) > 1 else ""), 1)
        for words, where in places.items()
    ]
