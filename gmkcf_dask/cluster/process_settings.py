"""What clusters that are started from here have in common, wherever their processes run."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask
import psutil

from gmkcf_dask.cluster.config import ClusterConfig
from gmkcf_dask.cluster.tls import configured_security, is_loopback, pages, security_of, settings_of
from gmkcf_dask.errors import ClusterError, InputError
from gmkcf_dask.store.files import make_folder
from gmkcf_dask.system.temporary import run_folder
from gmkcf_dask.system.units import MIB

WAIT_SECONDS = 600.0
"""How long the first workers are waited for; jobs may sit in a queue."""
ENVIRONMENT = "distributed.nanny.pre-spawn-environ"
_DEFAULT = re.compile(r"\$\{(\w+):-([^${}]*)\}")


# Dask's default gives every freed tile back to the system, and each new one is then page-faulted in
# again: 2.5 to 5 times slower reads. Freed tiles are kept up to a bound instead.
WORKER_ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": str(64 * MIB),
    "MALLOC_MMAP_THRESHOLD_": str(32 * MIB),
    "MALLOC_TOP_PAD_": str(16 * MIB),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class ProcessSettings:
    """For every process of a cluster: Dask's settings, and how they talk."""

    settings: dict[str, Any]  # by dotted name: of the file, TLS, and the environment of workers
    security: Any  # distributed.Security or None
    page: dict[str, Any]  # options of the scheduler, see `page_settings`

    @property
    def protocol(self) -> str:
        """As Dask wants it."""
        return "tcp://" if self.security is None else "tls://"


def prepare(config: ClusterConfig, *, only_loopback: bool) -> ProcessSettings:
    """Settings of a cluster to be; one that others could reach must be encrypted.

    Dask's configuration must hold the settings of the file already.
    """
    settings = dict(config.settings)
    if config.certificates is not None:
        security = security_of(config.certificates)
        settings |= settings_of(config.certificates)
    else:
        security = configured_security()
        if security is not None:
            settings["distributed.comm.require-encryption"] = True
    if security is None and not (only_loopback or config.insecure):
        raise InputError(
            f"a cluster of kind {config.kind} listens on the network, and anyone who can reach it "
            "can run code as you: give tls: {ca, cert, key} (cluster_configs/tls makes them), or "
            "insecure: true on a network you trust"
        )
    if config.dashboard:
        need_bokeh()
    more, page = page_settings(dashboard=config.dashboard)
    settings |= {ENVIRONMENT: worker_environment(), **more}
    return ProcessSettings(settings, security, page)


def need_bokeh() -> None:
    """Refuse a dashboard where its package is missing."""
    if find_spec("bokeh") is None:
        raise InputError(
            "the dashboard needs bokeh: pip install 'gmkcf-dask[dashboard]', or leave the option "
            "out"
        )


def page_settings(*, dashboard: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Dask's settings for the page of a scheduler on loopback, and the scheduler's own options."""
    port = 0
    if dashboard:  # its address must be known beforehand, as a browser may use no other
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    # pages of other sites must not talk to a dashboard on this machine
    origins = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"
    settings = {origins: [f"127.0.0.1:{port}", f"localhost:{port}"], **pages(dashboard=dashboard)}
    return settings, {"dashboard": dashboard, "dashboard_address": f"127.0.0.1:{port}"}


def is_loopback_interface(name: str | None) -> bool:
    """Whether a network interface of this machine leads nowhere else; refused if there is none."""
    if name is None:
        return False  # Dask takes the one that leads outside
    interfaces = psutil.net_if_addrs()
    if name not in interfaces:
        raise InputError(
            f"there is no network interface {name!r} on this machine: interface may be one of "
            f"{', '.join(sorted(interfaces))}"
        )
    # the address of the hardware has another family, and no host in it
    hosts = [address.address for address in interfaces[name] if address.family.name != "AF_PACKET"]
    return bool(hosts) and all(is_loopback(host.partition("%")[0]) for host in hosts)


def directory_here(config: ClusterConfig) -> str | None:
    """`local-directory` for workers on this machine, with its variables filled in."""
    if config.local_directory is None:
        return None
    # as in a shell: the default stands for a variable that is not set, or empty
    filled = _DEFAULT.sub(lambda m: os.environ.get(m[1]) or m[2], config.local_directory)
    directory = os.path.expandvars(filled)
    if "$" in directory:
        raise InputError(
            f"local-directory {config.local_directory} names a variable that is not set here: set "
            "it, or give a path"
        )
    return str(os.path.expanduser(directory))  # noqa: PTH111  # stays a word


def not_installed(kind: str, package: str) -> InputError:
    """The sentence for a kind whose package is missing."""
    return InputError(f"a cluster of kind {kind} needs {package}: pip install 'gmkcf-dask[{kind}]'")


def not_started(kind: str, error: BaseException) -> ClusterError:
    """The sentence for a cluster that does not start, with the last line of what was said."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = lines[-1] if lines else type(error).__name__
    return ClusterError(f"the {kind} cluster cannot be started: {why[:300]}")


def worker_environment() -> dict[str, str]:
    """Ours, where Dask's configuration was not changed to something else."""
    default = dask.config.merge(*dask.config.defaults)["distributed"]["nanny"]["pre-spawn-environ"]
    now = dask.config.get(ENVIRONMENT, {})
    changed = {name: str(value) for name, value in now.items() if default.get(name) != value}
    return WORKER_ENVIRONMENT | changed


@contextmanager
def private_space(directory: str | None) -> Iterator[str]:
    """A new folder of mode 0700 for what processes of this run write, removed at the end.

    Dask's own choice is `dask-scratch-space` in TMPDIR, whoever made it. It puts that folder first
    on the path from which a process imports modules, and spills results into it. Workers get the
    folder by argument, schedulers and nannies by `writing_into` while they start.

    It is made in `directory`, for None in `temporary-directory` of Dask's settings or else TMPDIR.
    """
    directory = directory or dask.config.get("temporary-directory", None)
    within = None if directory is None else Path(directory).absolute()
    if within is not None:
        make_folder(within, "spilled results")
    with run_folder("spill", within) as folder:
        yield str(folder)


def writing_into(folder: str) -> dask.config.set:
    """Dask's settings while the processes of a run start in this process.

    Not for longer: another cluster of this process would take the folder for its own, and lose it
    when the first one ends.
    """
    return dask.config.set({"temporary-directory": folder})
