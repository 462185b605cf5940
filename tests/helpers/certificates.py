"""Certificates for tests, made by openssl."""

import subprocess
from pathlib import Path

from gmkcf_dask.cluster.tls import Certificates


def make_certificates(folder: Path, name: str) -> Certificates:
    """A certificate authority of its own, and one member."""
    folder.mkdir(parents=True, exist_ok=True)
    ca, ca_key = folder / f"{name}-ca.pem", folder / f"{name}-ca.key"
    cert, key, request = folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}.csr"
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    signed = ("-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-out", cert, "-days", "2")
    for command in (
        ("req", "-x509", *new_key, "-keyout", ca_key, "-out", ca, "-days", "2", "-subj", "/CN=ca"),
        ("req", *new_key, "-keyout", key, "-out", request, "-subj", f"/CN={name}"),
        ("x509", "-req", "-in", request, *signed),
    ):
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    return Certificates(ca, cert, key)
