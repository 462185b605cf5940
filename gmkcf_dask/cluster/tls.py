"""TLS of clusters: certificates, addresses that need them, Dask's settings, pages it serves."""

from __future__ import annotations

import ipaddress
import os
import shlex
import ssl
import stat
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import msgspec

from gmkcf_dask.errors import InputError, SecurityWarning, redacted

_ENCRYPTED = ("tls", "wss")
_INSIDE_THIS_PROCESS = "inproc"
_ROLES = ("client", "scheduler", "worker")
_HEALTH = "distributed.http.health"
_TLS = "distributed.comm.tls"


def split_address(address: str) -> tuple[str, str]:
    """Scheme and host of the address of a scheduler.

    >>> split_address("tcp://[::1]:8786")
    ('tcp', '::1')
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme = str(dask.config.get("distributed.comm.default-scheme", "tcp"))
        rest = address
    host = rest.rpartition(":")[0] if ":" in rest else rest
    return scheme.lower(), host.strip("[]")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its very name; no name server is asked.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("node1")
    (True, True, False, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_encrypted(address: str) -> bool:
    """Whether traffic to an address is under TLS."""
    return split_address(address)[0] in _ENCRYPTED


def refuse_open_address(address: str, *, insecure: bool) -> None:
    """Refuse a scheduler without TLS, unless it is on this machine or `insecure` allows it."""
    scheme, host = split_address(address)
    if not (insecure or scheme == _INSIDE_THIS_PROCESS or is_loopback(host)):
        raise InputError(
            f"{redacted(address)} is not encrypted, and anyone who can reach it can run code as "
            "you: use tls:// with --tls-ca, --tls-cert and --tls-key, or --insecure on a network "
            "you trust"
        )
    if _requires_encryption():  # Dask would refuse in many lines, and late
        raise InputError(
            f"Dask's settings demand encryption (distributed.comm.require-encryption), which "
            f"{redacted(address)} has not: give its tls:// address, or change DASK_CONFIG"
        )


class Certificates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files in PEM form: the cluster's own authority, and what proves to be one of its members."""

    ca: Path
    cert: Path
    key: Path


TLS_OPTIONS = ("--tls-ca", "--tls-cert", "--tls-key")


def certificates(
    ca: Path | None, cert: Path | None, key: Path | None, names: tuple[str, ...] = TLS_OPTIONS
) -> Certificates | None:
    """All three, validated, or none; `names` are those under which a user gave them."""
    given = dict(zip(names, (ca, cert, key), strict=True))
    missing = [name for name, path in given.items() if path is None]
    if len(missing) == len(given):
        return None
    if ca is None or cert is None or key is None:
        raise InputError(f"TLS needs three files, {', '.join(given)}: add {', '.join(missing)}")
    for name, path in given.items():
        if path is not None and not path.is_file():
            raise InputError(f"{name} {path} is not a file: give one in PEM form")
    files = Certificates(ca, cert, key)
    try:
        ends = [_context(files, purpose) for purpose in ssl.Purpose]
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(
            f"the TLS files cannot be used ({reason}): give PEM files, and a key without a "
            "password that belongs to the certificate"
        ) from error
    try:
        _handshake(*ends)
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", None) or error.reason or error
        raise InputError(
            f"the certificate {cert} would not be accepted ({reason}): give one that is signed by "
            f"{ca} and still valid"
        ) from error
    return files


def _context(files: Certificates, purpose: ssl.Purpose) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose, cafile=str(files.ca))
    context.check_hostname = False  # members of a cluster are known by their authority alone
    context.verify_mode = ssl.CERT_REQUIRED
    # a password would be asked for on the terminal, in the middle of a job
    context.load_cert_chain(str(files.cert), str(files.key), password=_no_password)
    return context


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Let a member meet its like in memory: what either refuses, a cluster would refuse later."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True))
    for _ in range(10):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()


def _no_password() -> str:
    raise ValueError("the key is protected by a password")


def security_of(files: Certificates) -> Any:
    """One certificate for every role: all members of the cluster show it, and ask for its CA."""
    from distributed import Security

    settings = settings_of(files)
    warn_of_open_key(settings["distributed.comm.tls.client.key"])
    with dask.config.set(settings):
        return Security(require_encryption=True)


def settings_of(files: Certificates) -> dict[str, Any]:
    """The same as Dask's settings, for processes that are started elsewhere."""
    # for processes in other folders; links stay, they may lead elsewhere on other machines
    ca, cert, key = map(os.path.abspath, (files.ca, files.cert, files.key))
    settings: dict[str, Any] = {f"{_TLS}.ca-file": ca}
    for role in _ROLES:
        settings |= {f"{_TLS}.{role}.cert": cert, f"{_TLS}.{role}.key": key}
    return settings | {"distributed.comm.require-encryption": True}


def warn_of_open_key(key: str) -> None:
    """Warn of a private key that other users of the machine can read.

    A key of another owner, such as a secret that is mounted into a pod, is read through its group:
    of such a key only the bits for all others count.
    """
    try:
        status = os.stat(key)  # noqa: PTH116  # a path of Dask's settings, as it stands there
    except OSError:
        return  # reading it later raises the error
    mode, mine = stat.S_IMODE(status.st_mode), status.st_uid == os.geteuid()
    if mode & (0o077 if mine else 0o007):
        warnings.warn(
            f"the TLS key {key} has mode {mode:04o}, and anyone who can read "
            f"it can run code as you on your clusters: chmod 600 {shlex.quote(key)}",
            SecurityWarning,
            stacklevel=2,
        )


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
    return {
        "distributed.scheduler.http.routes": list(routes),
        "distributed.worker.http.routes": [_HEALTH],
    }


def security_for(address: str, files: Certificates | None) -> Any:
    """What a client of a tls:// scheduler shows and asks for: by option, else by Dask's config."""
    security = security_of(files) if files is not None else configured_security()
    if security is None:
        raise InputError(
            f"{redacted(address)} needs certificates: give --tls-ca, --tls-cert and --tls-key, or "
            "set distributed.comm.tls in Dask's configuration"
        )
    return security


def security_here(files: Certificates | None) -> Any:
    """For workers on loopback: None, unless files are given or Dask's settings need encryption."""
    if files is None and not _requires_encryption():
        return None
    return security_for("a local cluster, by Dask's settings,", files)


def _requires_encryption() -> bool:
    return bool(dask.config.get("distributed.comm.require-encryption", False))


def configured_security() -> Any:
    """By Dask's configuration, or None where that names no certificates."""
    from distributed import Security

    try:
        security = Security(require_encryption=True)
        context = security.get_connection_args("client")["ssl_context"]
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise InputError(
            f"the TLS files of Dask's configuration, such as "
            f"{dask.config.get(f'{_TLS}.ca-file', None)}, cannot be used ({error}): "
            "fix distributed.comm.tls, or give --tls-ca, --tls-cert and --tls-key"
        ) from error
    if context is None:
        return None
    keys = {dask.config.get(f"{_TLS}.{role}.key", None) for role in _ROLES}
    for key in sorted(filter(None, keys)):
        warn_of_open_key(str(key))
    return security


def reason_of(error: BaseException) -> str:
    """Why a connection failed, in few words: what TLS refused, if it was that."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ssl.SSLError):
            return str(getattr(inner, "verify_message", None) or inner.reason or inner)
        inner = inner.__cause__ or inner.__context__
    return type(error).__name__
