"""Commands that start a process which sees a folder otherwise than everybody else does."""

import subprocess

import pytest

from helpers.needs import need_program


def blind_to(folder):
    """There the folder is empty, as where a file system is not mounted."""
    return _within(folder, 'mount -t tmpfs none "$0"')


def reads_only(folder):
    """There nothing can be written into the folder."""
    return _within(folder, 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"')


def _within(folder, mounts):
    need_program("unshare", "apt-get install util-linux")
    within = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', str(folder)]
    if subprocess.run([*within, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no right to mount anything here: run as root")
    return within
