"""Network namespaces for the hosts of a cluster, joined by a bridge, within a namespace of this process alone.

Needs root. `enter` starts the program again in new network, mount and process namespaces, so that the
hosts always end with it, and the network of the machine does not change.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_SUBNET = "10.81.0"
_NAMESPACES = Path("/run/netns")
_INSIDE = "PURSER_CLUSTER_NAMESPACE"
WORLD = f"{_SUBNET}.254"
"""The address of the clients and of what is outside of the cluster: chains and an upstream."""


def enter(arguments: Sequence[str]) -> None:
    """Run this program in new namespaces and exit with its status, unless it runs there. Raises: SystemExit."""
    if _INSIDE in os.environ:
        return _become_init()
    if os.geteuid() != 0:
        raise SystemExit("The hosts get network namespaces, which needs root.")
    command = [
        "unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child",
        sys.executable, "-m", "benchmarks.cluster", *arguments,
    ]  # fmt: skip
    raise SystemExit(subprocess.run(command, env={**os.environ, _INSIDE: "1"}, check=False).returncode)  # noqa: S603


def _become_init() -> None:
    """Reap orphans, and return in a child. Unreaped, a killed PostgreSQL would seem to be alive."""
    if not (child := os.fork()):
        return
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) % 256)


class Network:
    """The bridge, and for each host a namespace and a cable."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """Create them."""
        self.addresses = {host: f"{_SUBNET}.{number}" for number, host in enumerate(hosts, 1)}
        _NAMESPACES.mkdir(exist_ok=True)
        _run("mount", "-t", "tmpfs", "tmpfs", str(_NAMESPACES))
        _ip("link set lo up")
        _ip("link add purser0 type bridge")
        _ip(f"addr add {WORLD}/24 dev purser0")
        _ip("link set purser0 up")
        for host, address in self.addresses.items():
            _ip(f"netns add {host}")
            _ip(f"link add {host} type veth peer name eth0 netns {host}")
            _ip(f"link set {host} master purser0 up")
            _ip(f"-n {host} addr add {address}/24 dev eth0")
            _ip(f"-n {host} link set lo up")
            _ip(f"-n {host} link set eth0 up")

    def command(self, host: str, *command: str) -> list[str]:
        """Return a command line that runs on a host."""
        return ["ip", "netns", "exec", host, *command]

    def processes(self, host: str) -> list[int]:
        """Return the processes of a host."""
        namespace = (_NAMESPACES / host).stat().st_ino
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if (folder / "ns/net").stat().st_ino == namespace:
                    found.append(int(folder.name))
        return found

    @contextlib.contextmanager
    def unplugged(self, host: str) -> Iterator[None]:
        """Unplug the cable of a host until the context ends."""
        _ip(f"link set {host} down")
        try:
            yield
        finally:
            _ip(f"link set {host} up")

    @contextlib.contextmanager
    def separated(self, host: str, others: Sequence[str]) -> Iterator[None]:
        """Drop what a host sends to some others until the context ends."""
        for other in others:
            _ip(f"-n {host} route add blackhole {self.addresses[other]}/32")
        try:
            yield
        finally:
            for other in others:
                _ip(f"-n {host} route del blackhole {self.addresses[other]}/32")


def _ip(arguments: str) -> None:
    _run("ip", *arguments.split())


def _run(*command: str) -> None:
    subprocess.run(command, check=True)  # noqa: S603
