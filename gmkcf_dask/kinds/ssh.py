"""Scheduler and workers on machines one can log in to by SSH."""

from __future__ import annotations

import asyncio
import logging
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gmkcf_dask.cluster_config import ClusterConfig
from gmkcf_dask.errors import ClusterError, InputError
from gmkcf_dask.kinds.started import Started, not_installed, not_started
from gmkcf_dask.security import is_loopback

_LOGIN_SECONDS = 20.0
_LOOPBACK = ("lo", "lo0")


def only_loopback(config: ClusterConfig) -> bool:
    """Whether nothing of the cluster can be reached from another machine."""
    inside = config.interface is None or config.interface in _LOOPBACK
    return inside and all(is_loopback(host) for host in config.hosts)


def n_workers(config: ClusterConfig) -> int:
    """Of the whole cluster."""
    return len(config.hosts[1:]) * (config.workers or 1)


@contextmanager
def ssh_cluster(config: ClusterConfig, started: Started) -> Iterator[Any]:
    """A client of a scheduler on the first host and of workers on the others."""
    try:
        import asyncssh  # noqa: F401
    except ImportError as error:
        raise not_installed("ssh", "asyncssh") from error
    from distributed import Client, SSHCluster

    options = _login(config)
    _try_hosts(config, options)
    listen: dict[str, Any] = {"protocol": started.protocol}
    if config.interface is not None:
        listen["interface"] = config.interface
    elif only_loopback(config):
        listen["host"] = "127.0.0.1"
    worker: dict[str, Any] = {
        **listen,
        "nthreads": config.threads or 1,
        "n_workers": config.workers or 1,
        "dashboard": False,
        "dashboard_address": "127.0.0.1:0",
    }
    if config.memory is not None:
        worker["memory_limit"] = config.memory
    if config.local_directory is not None:
        worker["local_directory"] = config.local_directory
    try:
        cluster = SSHCluster(
            list(config.hosts),
            connect_options=options,
            worker_options=worker,
            scheduler_options={**listen, "port": 0, **started.page},
            remote_python=config.python,
            security=started.security,
            silence_logs=logging.CRITICAL,
        )
    except Exception as error:  # Dask raises just this where a process does not start
        raise not_started("ssh", error) from error
    with cluster, Client(cluster, security=started.security, set_as_default=False) as client:
        yield client


def _login(config: ClusterConfig) -> dict[str, Any]:
    """Options of asyncssh. Known hosts are always named: without, host keys may go unchecked."""
    said = config.connect
    known = said.known_hosts or Path("~/.ssh/known_hosts").expanduser()
    if not known.is_file():
        raise InputError(
            f"there is no file {known} with the keys of the hosts: log in to each by ssh once, or "
            "name another in connect.known-hosts"
        )
    for key in said.client_keys:
        if not key.is_file():
            raise InputError(f"connect.client-keys: {key} is not a file")
    options: dict[str, Any] = {"known_hosts": str(known)}
    if said.username is not None:
        options["username"] = said.username
    if said.port is not None:
        options["port"] = said.port
    if said.client_keys:
        options["client_keys"] = [str(key) for key in said.client_keys]
    return options


def _try_hosts(config: ClusterConfig, options: dict[str, Any]) -> None:
    """Log in everywhere before anything is started, and look for this package there."""
    wrong = asyncio.run(_try_all(config, options))
    if wrong:
        more = f" (and {len(wrong) - 1} more hosts)" if len(wrong) > 1 else ""
        raise ClusterError(wrong[0] + more)


async def _try_all(config: ClusterConfig, options: dict[str, Any]) -> list[str]:
    hosts = list(dict.fromkeys(config.hosts))
    python = config.python or sys.executable
    found = await asyncio.gather(*(_try(host, python, options) for host in hosts))
    return [sentence for sentence in found if sentence]


async def _try(host: str, python: str, options: dict[str, Any]) -> str:
    """What is wrong with a host; nothing if all is well."""
    import asyncssh

    try:
        async with (
            asyncio.timeout(_LOGIN_SECONDS),
            asyncssh.connect(host, **options) as connection,
        ):
            # dots in a word of a shell need no quotes, and variables are to be filled in there
            done = await connection.run(f"{python} -c {shlex.quote('import gmkcf_dask')}")
    except asyncssh.HostKeyNotVerifiable as error:
        return (
            f"the host key of {host} is not the one in {options['known_hosts']} ({error.reason}): "
            "log in by ssh once and see why"
        )
    except asyncssh.KeyImportError as error:
        return (
            f"a key of connect.client-keys cannot be used ({error}): give a private key without a "
            "password, or leave client-keys out and let an agent have it (ssh-add)"
        )
    except (asyncssh.Error, OSError, TimeoutError) as error:
        why = error or type(error).__name__
        return f"cannot log in to {host} by ssh ({why}): check hosts and connect"
    if done.exit_status != 0:
        said = str(done.stderr or "").strip().splitlines()
        last = said[-1][:200] if said else f"exit code {done.exit_status}"
        return (
            f"{python} on {host} cannot import gmkcf_dask ({last}): install it there, or name "
            "another interpreter as python"
        )
    return ""
