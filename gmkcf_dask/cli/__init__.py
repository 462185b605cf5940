"""The `gmkcf` command."""

from gmkcf_dask.cli import choose as choose  # these add their commands to main
from gmkcf_dask.cli import doctor as doctor
from gmkcf_dask.cli import explain as explain
from gmkcf_dask.cli import predict as predict
from gmkcf_dask.cli import stores as stores
from gmkcf_dask.cli import submit as submit
from gmkcf_dask.cli.commands import main

__all__ = ["main"]
