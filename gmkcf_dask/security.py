"""What a name, a path and an address may be: checked here, before anything is done with them."""

from __future__ import annotations

import ipaddress
import re
import shutil
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gmkcf_dask.errors import InputError
from gmkcf_dask.files import is_link, resolved
from gmkcf_dask.redact import redacted

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ENCRYPTED = ("tls", "wss")
_INSIDE_THIS_PROCESS = "inproc"
# Names that mean something to the file system or to Zarr: the folder itself, its parent, metadata.
_RESERVED = frozenset({".", "..", "zarr.json"})


def is_plain_name(name: object) -> bool:
    """Whether a name may become a file or folder: 1 to 64 of A-Z a-z 0-9 _ . -, and no path.

    >>> is_plain_name("rbf_0.5"), is_plain_name(".."), is_plain_name("a/b")
    (True, False, False)
    """
    return isinstance(name, str) and name not in _RESERVED and bool(NAME.fullmatch(name))


def confined(path: Path, root: Path) -> Path:
    """The path, once it is known to lie below root with no symbolic link leading elsewhere."""
    if not resolved(path).is_relative_to(resolved(root)):
        raise InputError(f"{path} leads out of {root}: remove the link or choose another folder")
    return path


def refuse_link(path: Path, what: str) -> None:
    """Refuse a symbolic link where something would be deleted or replaced."""
    if is_link(path):
        raise InputError(
            f"{path} is a symbolic link, and {what} is never replaced through one: give the path "
            "it points to, or remove the link"
        )


def remove_tree(path: Path, root: Path | None = None, *, ignore_errors: bool = False) -> None:
    """Remove a folder and all in it; links inside are removed, what they point to is kept.

    Nothing happens where there is nothing; `ignore_errors` leaves what cannot be removed.
    """
    refuse_link(path, "a folder")
    if root is not None:
        confined(path, root)
    if path.exists():
        shutil.rmtree(path, ignore_errors=ignore_errors)


# --- addresses --------------------------------------------------------------------------------


def split_address(address: str, default_scheme: str = "tcp") -> tuple[str, str]:
    """Scheme and host of the address of a scheduler.

    >>> split_address("tcp://[::1]:8786")
    ('tcp', '::1')
    """
    scheme, found, rest = address.partition("://")
    if not found:
        scheme, rest = default_scheme, address
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


def is_encrypted(address: str, default_scheme: str = "tcp") -> bool:
    """Whether traffic to an address is under TLS."""
    return split_address(address, default_scheme)[0] in _ENCRYPTED


def refuse_open_address(address: str, *, insecure: bool, default_scheme: str = "tcp") -> None:
    """Refuse a scheduler to which code and data would travel in the open, unless that is meant."""
    scheme, host = split_address(address, default_scheme)
    if insecure or scheme in _ENCRYPTED or scheme == _INSIDE_THIS_PROCESS or is_loopback(host):
        return
    raise InputError(
        f"{redacted(address)} is not encrypted, and whoever can reach it can run code as you: use "
        "tls:// with --tls-ca, --tls-cert and --tls-key, or say --insecure on a network you trust"
    )


# --- certificates -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Certificates:
    """Files in PEM form: the cluster's own authority, and what proves to be one of its members."""

    ca: Path
    cert: Path
    key: Path


TLS_OPTIONS = ("--tls-ca", "--tls-cert", "--tls-key")


def certificates(
    ca: Path | None, cert: Path | None, key: Path | None, names: tuple[str, ...] = TLS_OPTIONS
) -> Certificates | None:
    """All three, tried out, or none; one sentence on what is missing or does not fit.

    `names` are those under which a user gave them.
    """
    given = dict(zip(names, (ca, cert, key), strict=True))
    missing = [option for option, path in given.items() if path is None]
    if len(missing) == len(given):
        return None
    if ca is None or cert is None or key is None:
        raise InputError(f"TLS needs three files, {', '.join(given)}: add {', '.join(missing)}")
    for name, path in zip(names, (ca, cert, key), strict=True):
        if not path.is_file():
            raise InputError(f"{name} {path} is not a file: give one in PEM form")
    found = Certificates(ca, cert, key)
    try:
        ends = [_context(found, purpose) for purpose in ssl.Purpose]
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(
            f"the TLS files cannot be used ({reason}): give PEM files, and a key without a "
            "password that belongs to the certificate"
        ) from error
    try:
        _shake_hands(*ends)
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", None) or error.reason or error
        raise InputError(
            f"the certificate {cert} would not be accepted ({reason}): give one that is signed by "
            f"{ca} and still valid"
        ) from error
    return found


def _context(files: Certificates, purpose: ssl.Purpose) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose, cafile=str(files.ca))
    context.check_hostname = False  # members of a cluster are known by their authority alone
    context.verify_mode = ssl.CERT_REQUIRED
    # a password would be asked for on the terminal, in the middle of a job
    context.load_cert_chain(str(files.cert), str(files.key), password=_no_password)
    return context


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Let a member meet its like in memory: what either refuses, a cluster would refuse later."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, there, server_side=False),
        server.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(10):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()


def _no_password() -> str:
    raise ValueError("the key is protected by a password")
