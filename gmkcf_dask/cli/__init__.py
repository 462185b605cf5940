"""The `gmkcf` command."""

from gmkcf_dask.cli.commands import main

__all__ = ["main"]
