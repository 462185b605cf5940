"""Connect to a scheduler that runs already, and wait for its workers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gmkcf_dask.cluster.tls import (
    Certificates,
    is_encrypted,
    reason_of,
    refuse_open_address,
    security_for,
)
from gmkcf_dask.errors import ClusterError, InputError, redacted

CONNECT_SECONDS = 10.0
_ADDRESS = re.compile(r"((tcp|tls|ucx|wss?)://)?([^\s/:\[\]]+|\[[^\s\]]+\]):\d+|inproc://\S+")
_LARGEST_SCHEDULER_FILE = 1 << 20


@contextmanager
def connect(
    address: str, certificates: Certificates | None, *, insecure: bool = False
) -> Iterator[Any]:
    """A client of the scheduler at an address; only `insecure` allows other hosts without TLS."""
    from distributed import Client

    if not _ADDRESS.fullmatch(address):
        raise InputError(
            f"cluster must be threads, local or the address of a Dask scheduler such as "
            f"tls://host:8786, not {redacted(address)!r}"
        )
    encrypted = is_encrypted(address)
    if not encrypted:
        refuse_open_address(address, insecure=insecure)
    security = security_for(address, certificates) if encrypted else None
    hint = "tls://host:8786), its certificates" if encrypted else "tls://host:8786 if it talks TLS)"
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False, security=security)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address!r} ({reason_of(error)}): check the address "
            f"({hint}, or use --cluster threads or local"
        ) from error
    with client:
        yield client


def dashboard_of(client: Any) -> str | None:
    """Where the scheduler serves its dashboard, on loopback of its machine."""
    port = client.scheduler_info(n_workers=0).get("services", {}).get("dashboard")
    return None if port is None else f"http://127.0.0.1:{port}/status"


def wait_for_workers(client: Any, minimum: int, seconds: float, hint: str) -> None:
    """Wait until a minimum of workers has come; raise a `ClusterError` after some seconds."""
    if seconds <= 0:
        return  # the workers that are there are counted later
    try:
        client.wait_for_workers(minimum, timeout=seconds)
    except (OSError, TimeoutError) as error:
        if client.status != "running":
            raise ClusterError("the connection to the Dask scheduler was lost") from error
        present = len(client.scheduler_info(n_workers=-1)["workers"])
        raise ClusterError(
            f"{present} of {minimum} workers came within {seconds:g} s: {hint}"
        ) from error


def scheduler_address(path: Path, seconds: float = 0.0) -> str:
    """The address that a scheduler left in a file; one that is still to come is waited for."""
    until = time.monotonic() + seconds
    while True:
        try:
            return _read_address(path)
        except (ClusterError, InputError):  # not there, or still being written
            if time.monotonic() > until:
                raise
        time.sleep(0.2)


def _read_address(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_SCHEDULER_FILE + 1)
    except OSError as error:
        raise ClusterError(
            f"cannot read the scheduler file {path} ({error.strerror or error}): start the "
            "scheduler with --scheduler-file on a path that is seen from here"
        ) from error
    try:
        address = json.loads(content)["address"]
    except (ValueError, KeyError, TypeError, RecursionError):
        address = None
    if not isinstance(address, str):
        raise InputError(
            f"{path} is not the file of a Dask scheduler: it must be JSON with an address"
        )
    return address
