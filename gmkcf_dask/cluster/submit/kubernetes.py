"""A DaskJob of the Dask operator for Kubernetes: options to a manifest, no more.

The operator starts scheduler, workers and the pod that runs our command, and removes them together.
All pods meet the profile "restricted" of the Pod Security Standards.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from gmkcf_dask.cluster.process_settings import WORKER_ENVIRONMENT
from gmkcf_dask.cluster.submit.render import render
from gmkcf_dask.cluster.submit.slurm import DASK_SETTINGS, refuse_lines, resumed
from gmkcf_dask.compute.plan import refuse_small_workers
from gmkcf_dask.errors import InputError
from gmkcf_dask.system.units import MIB

_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,43}[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]{0,400}")
_VOLUME = re.compile(r"(?P<claim>[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?):(?P<path>/[^\s:]*)")
_SECRET = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_TLS, _SETTINGS, _SCRATCH = "/etc/gmkcf/tls", "/etc/gmkcf/settings", "/scratch"
_RESERVED = ("/etc/gmkcf", _SCRATCH)
_PORT = 8786
_LARGEST_ID = 2**31 - 1
_LOGS = 256 * MIB
"""Ephemeral storage for what a container prints, and for what it writes outside of its volumes."""


@dataclass(frozen=True)
class KubernetesJob:
    """What to ask the operator for, and what to run there. Sizes in bytes."""

    name: str
    command: tuple[str, ...]  # words after `gmkcf`, without cluster options; paths of pods
    image: str  # with this package inside, for all pods
    workers: int
    memory: int  # of a worker, and of the driver
    volumes: tuple[str, ...]  # CLAIM:/path, mounted into all pods
    cpus: int = 1
    namespace: str | None = None
    tls_secret: str | None = None  # has ca.pem, member.pem and member.key; None: no encryption
    pull_secrets: tuple[str, ...] = ()  # with which the image is pulled
    scratch: int = 20 << 30  # ephemeral storage of every pod, for spilled results and such
    user: int = 1000  # of all containers
    group: int = 1000  # of all containers; it also reads the TLS secret and owns claims
    seconds: int | None = None  # longest time of the pod that runs the driver
    paths: tuple[str, ...] = ()  # paths and URLs in the command, all of which pods have to share

    def __post_init__(self) -> None:
        names = (self.name, self.namespace, self.tls_secret)
        for option, name in zip(("--name", "--namespace", "--tls-secret"), names, strict=True):
            if name is not None and not _LABEL.fullmatch(name):
                raise InputError(
                    f"{option} must be a name as Kubernetes has them, of a-z 0-9 - and at most 45 "
                    f"letters, not {name[:60]!r}"
                )
        for name in self.pull_secrets:
            if not _SECRET.fullmatch(name):
                raise InputError(
                    "--image-pull-secret must be the name of a secret, of a-z 0-9 - and ., not "
                    f"{name[:60]!r}"
                )
        for option, number in {"--user": self.user, "--group": self.group}.items():
            if not 1 <= number <= _LARGEST_ID:
                raise InputError(
                    f"{option} must be a number from 1 to {_LARGEST_ID}, not {number}: pods do not "
                    "run as root"
                )
        if self.scratch < MIB:
            raise InputError(f"--scratch must be at least 1Mi, not {self.scratch} bytes")
        if not _IMAGE.fullmatch(self.image):
            raise InputError(f"--image must be the name of an image, not {self.image[:60]!r}")
        for volume in self.volumes:
            if not _VOLUME.fullmatch(volume):
                raise InputError(f"--volume must be CLAIM:/path, not {volume[:60]!r}")
        if not self.volumes:
            raise InputError("--volume is missing: all pods must see the store, at one path")
        mounts = _mounts(self.volumes)
        for path in self.paths:
            if "://" not in path and not any(_plain(path).is_relative_to(m) for m in mounts):
                raise InputError(
                    f"{path[:200]!r} is not below a --volume ({', '.join(map(str, mounts))}), so "
                    "pods would not share it and it would end with them: give an absolute path "
                    "there, or a URL"
                )
        refuse_lines("the command", *self.command)
        refuse_small_workers(self.memory)

    @property
    def address(self) -> str:
        """Of the scheduler, inside the namespace."""
        return f"{'tls' if self.tls_secret else 'tcp'}://{self.name}-scheduler:{_PORT}"


def _mounts(volumes: tuple[str, ...]) -> list[PurePosixPath]:
    """Where volumes are in a pod: apart from each other and from what a job itself mounts."""
    mounts: list[PurePosixPath] = []
    for volume in volumes:
        path = _plain(volume.partition(":")[2])
        for ours in map(PurePosixPath, _RESERVED):
            if path.is_relative_to(ours) or ours.is_relative_to(path):
                raise InputError(
                    f"--volume {volume} covers {ours} of a pod, which is for the job itself: mount "
                    "it elsewhere, such as at /data"
                )
        if path in mounts:
            raise InputError(f"--volume mounts {path} twice: give each claim a path of its own")
        mounts.append(path)
    return mounts


def _plain(path: str) -> PurePosixPath:
    return PurePosixPath(posixpath.normpath(path))


def manifest(job: KubernetesJob) -> str:
    """The file for `kubectl apply`: how the driver finds its cluster, and the job."""
    protocol = ["--protocol", "tls" if job.tls_secret else "tcp"]
    # the process that watches over a worker needs some of its memory
    limit = f"{job.memory // MIB * 95 // 100}MiB"
    return render(
        "kubernetes.yaml.jinja",
        job=job,
        port=_PORT,
        tls_path=_TLS,
        settings_path=_SETTINGS,
        scratch_path=_SCRATCH,
        claims=[volume.split(":", 1) for volume in job.volumes],
        environment=_environment(job),
        memory=job.memory // MIB,
        scratch=job.scratch // MIB,
        storage=(job.scratch + _LOGS) // MIB,
        wait=["python", "-c", _WAIT, f"{job.name}-scheduler", _PORT],
        driver=["gmkcf", *resumed(job.command), "--cluster", f"{_SETTINGS}/cluster.yaml"],
        worker=[
            *("dask", "worker", job.address, "--name", "$(DASK_WORKER_NAME)"),
            *("--nthreads", job.cpus, "--memory-limit", limit),
            *("--local-directory", _SCRATCH, "--death-timeout", "120"),
            *("--no-dashboard", "--dashboard-address", "127.0.0.1:0", *protocol),
        ],
        scheduler=[
            *("dask", "scheduler", "--port", _PORT, *protocol),
            *("--no-dashboard", "--dashboard-address", ":8787"),
        ],
    )


def _environment(job: KubernetesJob) -> dict[str, str]:
    # the one folder that any user can write, beside claims
    own = {"DASK_SCHEDULER_ADDRESS": job.address, "TMPDIR": _SCRATCH, "HOME": _SCRATCH}
    if job.tls_secret:
        section = "DASK_DISTRIBUTED__COMM__"
        own |= {
            f"{section}REQUIRE_ENCRYPTION": "True",
            f"{section}TLS__CA_FILE": f"{_TLS}/ca.pem",
        }
        for role in ("SCHEDULER", "WORKER"):
            own[f"{section}TLS__{role}__CERT"] = f"{_TLS}/member.pem"
            own[f"{section}TLS__{role}__KEY"] = f"{_TLS}/member.key"
    return WORKER_ENVIRONMENT | DASK_SETTINGS | own


_WAIT = """\
import socket, sys, time
for _ in range(300):
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).close()
        sys.exit()
    except OSError:
        time.sleep(2)
sys.exit("no scheduler in ten minutes: look at its pod")
"""
