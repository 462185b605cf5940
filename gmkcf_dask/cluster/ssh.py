"""Scheduler and workers on machines one can log in to by SSH."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import dask

from gmkcf_dask.cluster.config import ClusterConfig
from gmkcf_dask.cluster.process_settings import ProcessSettings, not_installed, not_started
from gmkcf_dask.cluster.tls import is_loopback
from gmkcf_dask.errors import ClusterError, InputError

_LOGIN_SECONDS = 20.0
_LOOPBACK = ("lo", "lo0")
_T = TypeVar("_T")


def ssh_only_loopback(config: ClusterConfig) -> bool:
    """Whether nothing of the cluster can be reached from another machine."""
    inside = config.interface is None or config.interface in _LOOPBACK
    return inside and all(is_loopback(host) for host in config.hosts)


def ssh_workers(config: ClusterConfig) -> int:
    """Of the whole cluster."""
    return len(config.hosts[1:]) * (config.workers or 1)


@contextmanager
def ssh_cluster(config: ClusterConfig, process: ProcessSettings) -> Iterator[Any]:
    """A client of a scheduler on the first host and of workers on the others."""
    try:
        import asyncssh  # noqa: F401
    except ImportError as error:
        raise not_installed("ssh", "asyncssh") from error
    from distributed import Client, SSHCluster

    options = _login_options(config)
    listen: dict[str, Any] = {"protocol": process.protocol}
    if config.interface is not None:
        listen["interface"] = config.interface
    elif ssh_only_loopback(config):
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
    with _private_folders(config, options) as folder:
        try:
            cluster = SSHCluster(
                list(config.hosts),
                connect_options=options,
                worker_options={**worker, "local_directory": folder},
                scheduler_options={**listen, "port": 0, **process.page},
                remote_python=config.python,
                security=process.security,
                silence_logs=logging.CRITICAL,
            )
        except Exception as error:  # Dask raises just this where a process does not start
            raise not_started("ssh", error) from error
        with cluster, Client(cluster, security=process.security, set_as_default=False) as client:
            yield client


def _login_options(config: ClusterConfig) -> dict[str, Any]:
    """Options of asyncssh. Known hosts are always named: without, host keys may go unchecked."""
    connect = config.connect
    known = connect.known_hosts or Path("~/.ssh/known_hosts").expanduser()
    if not known.is_file():
        raise InputError(
            f"there is no file {known} with the keys of the hosts: log in to each by ssh once, or "
            "name another in connect.known-hosts"
        )
    for key in connect.client_keys:
        if not key.is_file():
            raise InputError(f"connect.client-keys: {key} is not a file")
    options: dict[str, Any] = {
        "known_hosts": str(known),
        "username": connect.username,
        "port": connect.port,
        "client_keys": [str(key) for key in connect.client_keys] or None,
    }
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def _private_folders(config: ClusterConfig, options: dict[str, Any]) -> Iterator[str]:
    """A folder of mode 0700 on every host, for what scheduler and workers write; gone at the end.

    It has the same name everywhere, which nobody can know beforehand. Logging in for it finds out
    what is wrong with a host before anything is started.
    """
    within = config.local_directory or "/tmp"  # noqa: S108  # of the hosts
    folder = f"{within.rstrip('/')}/gmkcf-spill-{secrets.token_hex(16)}"
    python = config.python or sys.executable
    made: set[str] = set()
    try:
        make = partial(_make_folder, python=python, folder=folder, options=options, made=made)
        problems = [problem for problem in asyncio.run(_on_all(config.hosts, make)) if problem]
        if problems:
            more = f" (and {len(problems) - 1} more hosts)" if len(problems) > 1 else ""
            raise ClusterError(problems[0] + more)
        # the scheduler takes it from Dask's settings, which it gets with its command
        with dask.config.set({"temporary-directory": folder}):
            yield folder
    finally:
        remove = partial(_remove_folder, python=python, folder=folder, options=options)
        asyncio.run(_on_all(made, remove))


async def _on_all(hosts: Iterable[str], work: Callable[[str], Awaitable[_T]]) -> list[_T]:
    return await asyncio.gather(*map(work, dict.fromkeys(hosts)))


async def _remove_folder(host: str, *, python: str, folder: str, options: dict[str, Any]) -> None:
    """Remove a folder on a host, as far as the host is there; processes may still be ending."""
    import asyncssh

    with suppress(asyncssh.Error, OSError, TimeoutError):
        async with (
            asyncio.timeout(_LOGIN_SECONDS),
            asyncssh.connect(host, **options) as connection,
        ):
            await connection.run(f"{python} -c {shlex.quote(_REMOVE)} {shlex.quote(folder)}")


async def _make_folder(
    host: str, *, python: str, folder: str, options: dict[str, Any], made: set[str]
) -> str:
    """Make a private folder on a host; returns what is wrong there, "" if all is well."""
    import asyncssh

    try:
        async with (
            asyncio.timeout(_LOGIN_SECONDS),
            asyncssh.connect(host, **options) as connection,
        ):
            # dots in a word of a shell need no quotes, and variables are to be filled in there
            done = await connection.run(f"{python} -c {shlex.quote('import gmkcf_dask')}")
            words = f"{python} -c {shlex.quote(_MAKE)} {shlex.quote(folder)}"
            space = await connection.run(words)
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
        return (
            f"{python} on {host} cannot import gmkcf_dask ({_last_line(done)}): install it there, "
            "or name another interpreter as python"
        )
    if space.exit_status != 0:
        return (
            f"no private folder can be made on {host} ({_last_line(space)}): give a "
            "local-directory that you can write there"
        )
    made.add(host)
    return ""


def _last_line(done: Any) -> str:
    lines = str(done.stderr or "").strip().splitlines()
    return lines[-1][:200] if lines else f"exit code {done.exit_status}"


# one machine may have two names: a folder that is there has to be the one that was just made
_MAKE = """
import os, stat, sys
folder = sys.argv[1]
os.makedirs(os.path.dirname(folder), exist_ok=True)
try:
    os.mkdir(folder, 0o700)
except FileExistsError:
    pass
status = os.lstat(folder)
if (status.st_mode, status.st_uid) != (stat.S_IFDIR | 0o700, os.getuid()):
    sys.exit(folder + " belongs to another user")
"""
_REMOVE = """
import os, shutil, sys, time
for _ in range(50):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.lexists(sys.argv[1]):
        break
    time.sleep(0.1)
"""
