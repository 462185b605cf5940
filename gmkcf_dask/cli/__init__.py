"""The `gmkcf` command."""

# these add their commands to main
from gmkcf_dask.cli import (
    checks as checks,
    choose as choose,
    compare as compare,
    runs as runs,
    submit as submit,
)
from gmkcf_dask.cli.commands import main

__all__ = ["main"]
