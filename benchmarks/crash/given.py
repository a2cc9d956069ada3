"""A deployment of the reader's: base URLs, a command that makes a key, and others that kill it and read its books."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.crash.calls import Client
from benchmarks.crash.scenarios import Sizes
from benchmarks.crash.upstream import CountingUpstream

_COMMAND_SECONDS = 300


@dataclass
class GivenDeployment:
    """A gateway that somebody else runs, with the upstream of this test behind it."""

    base_urls: Sequence[str]
    model: str
    keys: list[str] = field(default_factory=list)
    key_command: str = ""
    restart_command: str = ""
    spend_command: str = ""
    settle_seconds: float = 15.0

    def client(self) -> Client:
        """Return the clients of the next key. Raises: SystemExit when there is none."""
        if self.keys:
            return Client(self.base_urls, self.keys.pop(0), self.model)
        if not self.key_command:
            raise SystemExit("Each scenario needs a key with the whole budget: repeat --api-key, or use --key-command.")
        return Client(self.base_urls, _output(self.key_command), self.model)

    def kill_and_restart(self) -> None:
        """Run the given command, which returns when the gateway accepts requests again."""
        _output(self.restart_command)

    def settle(self) -> None:
        """Wait as long as the gateway may need to write its books."""
        time.sleep(self.settle_seconds)

    def recorded_usd(self, client: Client) -> float | None:
        """Run the given command with the key in `CRASH_TEST_KEY`."""
        return float(_output(self.spend_command, CRASH_TEST_KEY=client.key)) if self.spend_command else None

    @contextlib.contextmanager
    def run(self, _upstream: CountingUpstream, _replicas: int, _sizes: Sizes) -> Iterator[GivenDeployment]:
        """Yield itself: it is running."""
        yield self


def _output(command: str, **variables: str) -> str:
    ran = subprocess.run(  # noqa: S602 - the reader's own command
        command, shell=True, check=True, capture_output=True, text=True, timeout=_COMMAND_SECONDS,
        env={**os.environ, **variables},
    )  # fmt: skip
    return ran.stdout.strip()
