"""The `gmkcf` command."""

from gmkcf_dask.cli import stores as stores  # adds its commands to main
from gmkcf_dask.cli.commands import main

__all__ = ["main"]
