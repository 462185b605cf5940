"""`python -m gmkcf_dask.cli` is the `gmkcf` command."""

from gmkcf_dask.cli import main

main()
