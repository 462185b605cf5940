"""A DaskJob of the Dask operator for Kubernetes: options to a manifest, no more.

The operator starts scheduler, workers and the pod that runs our command, and removes them together.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from gmkcf_dask.cluster import WORKER_ENVIRONMENT
from gmkcf_dask.errors import InputError
from gmkcf_dask.plan import MIB, refuse_small_workers
from gmkcf_dask.submit import DASK_SETTINGS, refuse_lines, resumed

_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,43}[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]{0,400}")
_VOLUME = re.compile(r"(?P<claim>[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?):(?P<path>/[^\s:]*)")
_TLS, _SETTINGS, _SCRATCH = "/etc/gmkcf/tls", "/etc/gmkcf/settings", "/scratch"
_RESERVED = ("/etc/gmkcf", _SCRATCH)
_PORT = 8786


@dataclass(frozen=True)
class KubernetesJob:
    """What to ask the operator for, and what to run there.

    Attributes
    ----------
    command : tuple of str
        Words after `gmkcf`, without options of a cluster; paths as pods see them.
    image : str
        With this package inside, for all pods.
    memory : int
        Bytes of a worker, and of the driver.
    volumes : tuple of str
        CLAIM:/path, mounted into all pods.
    tls_secret : str, optional
        A secret with ca.pem, member.pem and member.key; traffic is in the open without.
    seconds : int, optional
        Longest time of the pod that runs the driver.
    paths : tuple of str
        Paths and URLs in the command, all of which pods have to share.
    """

    name: str
    command: tuple[str, ...]
    image: str
    workers: int
    memory: int
    volumes: tuple[str, ...]
    cpus: int = 1
    namespace: str | None = None
    tls_secret: str | None = None
    seconds: int | None = None
    paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = {
            "--name": self.name,
            "--namespace": self.namespace,
            "--tls-secret": self.tls_secret,
        }
        for option, name in names.items():
            if name is not None and not _LABEL.fullmatch(name):
                raise InputError(
                    f"{option} must be a name as Kubernetes has them, of a-z 0-9 - and at most 45 "
                    f"letters, not {name[:60]!r}"
                )
        if not _IMAGE.fullmatch(self.image):
            raise InputError(f"--image must be the name of an image, not {self.image[:60]!r}")
        for volume in self.volumes:
            if not _VOLUME.fullmatch(volume):
                raise InputError(f"--volume must be CLAIM:/path, not {volume[:60]!r}")
        if not self.volumes:
            raise InputError("--volume is missing: all pods must see the store, at one path")
        mounts = _mounts(self.volumes)
        for path in self.paths:
            _refuse_unshared(path, mounts)
        refuse_lines("the command", *self.command)
        refuse_small_workers(self.memory)

    @property
    def address(self) -> str:
        """Of the scheduler, inside the namespace."""
        return f"{'tls' if self.tls_secret else 'tcp'}://{self.name}-scheduler:{_PORT}"


def _mounts(volumes: tuple[str, ...]) -> list[PurePosixPath]:
    """Where volumes are in a pod: apart from each other and from what a job itself mounts."""
    found: list[PurePosixPath] = []
    for volume in volumes:
        path = _plain(volume.partition(":")[2])
        for ours in map(PurePosixPath, _RESERVED):
            if path.is_relative_to(ours) or ours.is_relative_to(path):
                raise InputError(
                    f"--volume {volume} covers {ours} of a pod, which is for the job itself: mount "
                    "it elsewhere, such as at /data"
                )
        if path in found:
            raise InputError(f"--volume mounts {path} twice: give each claim a path of its own")
        found.append(path)
    return found


def _refuse_unshared(path: str, mounts: list[PurePosixPath]) -> None:
    if "://" in path or any(_plain(path).is_relative_to(mount) for mount in mounts):
        return
    raise InputError(
        f"{path[:200]!r} is not below a --volume ({', '.join(map(str, mounts))}), so pods would "
        "not share it and it would end with them: give an absolute path there, or a URL"
    )


def _plain(path: str) -> PurePosixPath:
    return PurePosixPath(posixpath.normpath(path))


def manifest(job: KubernetesJob) -> str:
    """The file for `kubectl apply`: how the driver finds its cluster, and the job."""
    where = {} if job.namespace is None else {"namespace": job.namespace}
    metadata = {"name": job.name, **where}
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"cluster.yaml": yaml.safe_dump({"gmkcf": _place(job)}, sort_keys=False)},
    }
    made = {
        "apiVersion": "kubernetes.dask.org/v1",
        "kind": "DaskJob",
        "metadata": metadata,
        "spec": {
            "job": {"spec": _driver(job)},
            "cluster": {
                "spec": {
                    "worker": {"replicas": job.workers, "spec": _worker(job)},
                    "scheduler": {"spec": _scheduler(job), "service": _service(job)},
                }
            },
        },
    }
    # no references (& and *) where parts are equal: each is to be changed alone
    text = yaml.dump_all([settings, made], Dumper=_Plain, sort_keys=False, width=100)
    return _HEADER + text


def _place(job: KubernetesJob) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": "address", "address": job.address}
    if job.tls_secret:
        names = {"ca": "ca.pem", "cert": "member.pem", "key": "member.key"}
        found["tls"] = {part: f"{_TLS}/{name}" for part, name in names.items()}
    else:
        found["insecure"] = True
    return found | {"minimum": job.workers, "wait": "10m"}


def _driver(job: KubernetesJob) -> dict[str, Any]:
    words = ["gmkcf", *resumed(job.command), "--cluster", f"{_SETTINGS}/cluster.yaml"]
    pod = _pod(job, "job", words, settings=True)
    # the operator makes this pod at once; a scheduler whose image still comes would end the driver
    (driver,) = pod["containers"]
    alike = {key: driver[key] for key in ("image", "resources", "securityContext")}
    where = [f"{job.name}-scheduler", str(_PORT)]
    pod["initContainers"] = [{"name": "wait", **alike, "args": ["python", "-c", _WAIT, *where]}]
    # whoever is killed begins again, and goes on from the checkpoint
    pod["restartPolicy"] = "OnFailure"
    pod["terminationGracePeriodSeconds"] = 120
    if job.seconds is not None:
        pod["activeDeadlineSeconds"] = job.seconds
    return pod


def _worker(job: KubernetesJob) -> dict[str, Any]:
    words = ["dask", "worker", job.address, "--name", "$(DASK_WORKER_NAME)"]
    words += ["--nthreads", str(job.cpus), "--memory-limit", f"{_limit(job)}MiB"]
    words += ["--local-directory", _SCRATCH, "--death-timeout", "120"]
    words += ["--no-dashboard", "--dashboard-address", "127.0.0.1:0", *_protocol(job)]
    return _pod(job, "worker", words)


def _scheduler(job: KubernetesJob) -> dict[str, Any]:
    words = ["dask", "scheduler", "--port", str(_PORT), *_protocol(job)]
    words += ["--no-dashboard", "--dashboard-address", ":8787"]
    pod = _pod(job, "scheduler", words, stores=False)
    container = pod["containers"][0]
    container["ports"] = [
        {"name": "tcp-comm", "containerPort": _PORT, "protocol": "TCP"},
        {"name": "http-dashboard", "containerPort": 8787, "protocol": "TCP"},
    ]
    health = {"port": "http-dashboard", "path": "/health"}
    container["readinessProbe"] = {"httpGet": health, "periodSeconds": 10}
    container["livenessProbe"] = {
        "httpGet": health,
        "initialDelaySeconds": 30,
        "periodSeconds": 20,
        "timeoutSeconds": 10,
        "failureThreshold": 6,
    }
    return pod


def _service(job: KubernetesJob) -> dict[str, Any]:
    ports = {"tcp-comm": _PORT, "http-dashboard": 8787}
    return {
        "type": "ClusterIP",
        "selector": {"dask.org/cluster-name": job.name, "dask.org/component": "scheduler"},
        "ports": [
            {"name": name, "protocol": "TCP", "port": port, "targetPort": name}
            for name, port in ports.items()
        ],
    }


def _pod(
    job: KubernetesJob, name: str, words: list[str], *, stores: bool = True, settings: bool = False
) -> dict[str, Any]:
    """A pod of one container; what it needs of volumes, and no rights in the cluster."""
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []

    def mount(what: str, source: Mapping[str, Any], path: str, *, read_only: bool = False) -> None:
        volumes.append({"name": what, **source})
        mounts.append({"name": what, "mountPath": path} | ({"readOnly": True} if read_only else {}))

    for number, found in enumerate(map(_VOLUME.fullmatch, job.volumes) if stores else ()):
        assert found is not None  # checked when the job was made
        claim = {"persistentVolumeClaim": {"claimName": found["claim"]}}
        mount(f"data-{number}", claim, found["path"])
    mount("scratch", {"emptyDir": {}}, _SCRATCH)
    if job.tls_secret:
        # readable by the image's user, whoever that is: nothing else runs in the pod, and a group
        # for it (fsGroup) would be given to the files of all claims as well
        secret = {"secret": {"secretName": job.tls_secret, "defaultMode": 0o444}}
        mount("tls", secret, _TLS, read_only=True)
    if settings:
        mount("settings", {"configMap": {"name": job.name}}, _SETTINGS, read_only=True)
    size = {"cpu": str(job.cpus), "memory": f"{job.memory // MIB}Mi"}
    container = {
        "name": name,
        "image": job.image,
        "args": words,
        "env": [{"name": key, "value": value} for key, value in _environment(job).items()],
        "resources": {"requests": dict(size), "limits": dict(size)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
    return {
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": volumes,
    }


def _environment(job: KubernetesJob) -> dict[str, str]:
    ours = {"DASK_SCHEDULER_ADDRESS": job.address, "TMPDIR": _SCRATCH}
    if job.tls_secret:
        section = "DASK_DISTRIBUTED__COMM__"
        ours |= {
            f"{section}REQUIRE_ENCRYPTION": "True",
            f"{section}TLS__CA_FILE": f"{_TLS}/ca.pem",
            f"{section}TLS__SCHEDULER__CERT": f"{_TLS}/member.pem",
            f"{section}TLS__SCHEDULER__KEY": f"{_TLS}/member.key",
            f"{section}TLS__WORKER__CERT": f"{_TLS}/member.pem",
            f"{section}TLS__WORKER__KEY": f"{_TLS}/member.key",
        }
    return WORKER_ENVIRONMENT | DASK_SETTINGS | ours


def _protocol(job: KubernetesJob) -> list[str]:
    return ["--protocol", "tls" if job.tls_secret else "tcp"]


def _limit(job: KubernetesJob) -> int:
    # the process that watches over a worker needs some of its memory
    return job.memory // MIB * 95 // 100


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> Any:
        return self.represent_scalar(
            "tag:yaml.org,2002:str", data, style="|" if "\n" in data else None
        )


_Plain.add_representer(str, _Plain.represent_str)


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
_HEADER = """\
# A Dask cluster and the driver that runs gmkcf on it, for the Dask operator
# (helm install --repo https://helm.dask.org --create-namespace -n dask-operator --generate-name
# dask-kubernetes-operator). Apply it with kubectl; what was begun goes on from its checkpoint when
# the job is made again: kubectl replace --force -f THIS_FILE.
"""
