"""What clients and members of a cluster show, ask for, and serve to others, in Dask's words."""

from __future__ import annotations

import os
import ssl
from typing import Any

import dask

from gmkcf_dask.errors import InputError
from gmkcf_dask.redact import redacted
from gmkcf_dask.security import Certificates

_ROLES = ("client", "scheduler", "worker")
_HEALTH = "distributed.http.health"
_MEND = "give --tls-ca, --tls-cert and --tls-key, or set distributed.comm.tls in Dask's "
_MEND += "configuration"


def security_of(files: Certificates) -> Any:
    """One certificate for every role: all members of the cluster show it, and ask for its CA."""
    from distributed import Security

    ca, cert, key = _paths(files)
    pairs = {f"tls_{role}_cert": cert for role in _ROLES}
    pairs |= {f"tls_{role}_key": key for role in _ROLES}
    return Security(tls_ca_file=ca, require_encryption=True, **pairs)


def settings_of(files: Certificates) -> dict[str, Any]:
    """The same as Dask's settings, for processes that are started elsewhere."""
    tls = "distributed.comm.tls"
    ca, cert, key = _paths(files)
    settings: dict[str, Any] = {f"{tls}.ca-file": ca}
    for role in _ROLES:
        settings |= {f"{tls}.{role}.cert": cert, f"{tls}.{role}.key": key}
    return settings | {"distributed.comm.require-encryption": True}


def _paths(files: Certificates) -> tuple[str, str, str]:
    """For processes in other folders; links stay, they may lead elsewhere on other machines."""
    ca, cert, key = map(os.path.abspath, (files.ca, files.cert, files.key))
    return ca, cert, key


def pages(*, dashboard: bool) -> dict[str, list[str]]:
    """Dask's settings for what scheduler and workers serve by HTTP.

    Without a dashboard Dask still serves tables, logs, call stacks, metrics and a proxy, to all who
    can ask: of these only a page stays that says ok.
    """
    import distributed  # noqa: F401  # brings its defaults

    routes = [_HEALTH]
    if dashboard:
        routes = dask.config.get("distributed.scheduler.http.routes")
        if routes == [_HEALTH]:  # of another cluster of this process, or workers.yaml
            default = dask.config.merge(*dask.config.defaults)
            routes = default["distributed"]["scheduler"]["http"]["routes"]
    name = "distributed.{}.http.routes"
    return {name.format("scheduler"): list(routes), name.format("worker"): [_HEALTH]}


def security_for(address: str, files: Certificates | None) -> Any:
    """What a client of a tls:// scheduler shows and asks for: by option, else by Dask's config."""
    found = security_of(files) if files is not None else configured_security()
    if found is None:
        raise InputError(f"{redacted(address)} needs certificates: {_MEND}")
    return found


def security_here(files: Certificates | None) -> Any:
    """For workers of this machine, which talk on loopback: None, unless Dask's settings want it."""
    if files is not None:
        return security_of(files)
    return security_for("a local cluster, by Dask's settings,", None) if _demanded() else None


def refuse_plain(address: str) -> None:
    """Where Dask's own settings demand encryption it would refuse in many lines, and late."""
    if _demanded():
        raise InputError(
            f"Dask's settings demand encryption (distributed.comm.require-encryption), which "
            f"{redacted(address)} has not: give its tls:// address, or change DASK_CONFIG"
        )


def _demanded() -> bool:
    return bool(dask.config.get("distributed.comm.require-encryption", False))


def configured_security() -> Any:
    """By Dask's configuration, or None where that names no certificates."""
    from distributed import Security

    try:
        found = Security(require_encryption=True)
        context = found.get_connection_args("client")["ssl_context"]
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise InputError(
            f"the TLS files of Dask's configuration, such as "
            f"{dask.config.get('distributed.comm.tls.ca-file', None)}, cannot be used ({error}): "
            "mend distributed.comm.tls, or give --tls-ca, --tls-cert and --tls-key"
        ) from error
    return None if context is None else found


def default_scheme() -> str:
    """Of an address without one."""
    return str(dask.config.get("distributed.comm.default-scheme", "tcp"))


def reason_of(error: BaseException) -> str:
    """Why a connection failed, in few words: what TLS refused, if it was that."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ssl.SSLError):
            return str(getattr(inner, "verify_message", None) or inner.reason or inner)
        inner = inner.__cause__ or inner.__context__
    return type(error).__name__
