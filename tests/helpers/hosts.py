"""Several hosts on one machine: network namespaces, each with an address of its own.

They hang on a bridge that is in a namespace too, so nothing outside is touched; the addresses exist
only in here. Files are shared, as on a cluster with a common file system.
"""

import subprocess
from contextlib import ExitStack, contextmanager
from uuid import uuid4

import pytest

from helpers.needs import need_program

NETWORK = "10.77.0"


class Hosts:
    """Hosts by name; `address` of each, commands for them, and their cables."""

    def __init__(self, names):
        self._unique = f"gmkcf-{uuid4().hex[:8]}"
        self._numbers = {name: number for number, name in enumerate(names, start=1)}

    def address(self, name):
        return f"{NETWORK}.{self._numbers[name]}"

    def space(self, name):
        return f"{self._unique}-{name}"

    def on(self, name, *command):
        """A command as it is to be called, to run on a host."""
        return ["ip", "netns", "exec", self.space(name), *map(str, command)]

    def plug(self, name, *, off=False):
        """Pull the cable of a host, or put it back; nobody is told, as with a real one."""
        state = "down" if off else "up"
        ip("-n", self.space("hub"), "link", "set", f"v{self._numbers[name]}", state)

    def received(self, name):
        """Bytes that came in and went out of a host so far, headers included."""
        folder = "/sys/class/net/eth0/statistics"
        shown = subprocess.run(
            self.on(name, "cat", f"{folder}/rx_bytes", f"{folder}/tx_bytes"),
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        return sum(map(int, shown.split()))

    @contextmanager
    def made(self):
        """With all of them there, and all gone afterwards."""
        with ExitStack() as stack:
            for name in ("hub", *self._numbers):
                ip("netns", "add", self.space(name))
                stack.callback(ip, "netns", "delete", self.space(name))
                ip("-n", self.space(name), "link", "set", "lo", "up")
            hub = self.space("hub")
            ip("-n", hub, "link", "add", "bridge", "type", "bridge")
            ip("-n", hub, "link", "set", "bridge", "up")
            for name, number in self._numbers.items():
                there = self.space(name)
                ends = ("eth0", "netns", there, "type", "veth", "peer", "name", f"v{number}")
                ip("link", "add", *ends, "netns", hub)
                ip("-n", hub, "link", "set", f"v{number}", "master", "bridge")
                ip("-n", hub, "link", "set", f"v{number}", "up")
                ip("-n", there, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
                ip("-n", there, "link", "set", "eth0", "up")
            yield self


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def hosts(*names):
    """Hosts with these names; skips the test where they cannot be made."""
    need_program("ip", "apt-get install iproute2")
    probe = f"gmkcf-{uuid4().hex[:8]}"
    may = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
    if may.returncode:
        pytest.skip("no right to make network namespaces here: run as root")
    ip("netns", "delete", probe)
    with Hosts(names).made() as made:
        yield made
