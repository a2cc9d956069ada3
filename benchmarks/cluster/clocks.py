"""Wall clocks of hosts that can be stepped: a library that is preloaded into their processes."""

import subprocess
from collections.abc import Sequence
from pathlib import Path


def prepare(folder: Path, hosts: Sequence[str]) -> None:
    """Compile the library, and set all clocks right."""
    (folder / "clocks").mkdir(mode=0o755)
    for host in hosts:
        (folder / "clocks" / host).write_bytes(bytes(8))
    source = Path(__file__).with_name("clock.c")
    command = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(folder / "clock.so"), str(source)]
    subprocess.run(command, check=True)  # noqa: S603


def own_clock(folder: Path, host: str) -> dict[str, str]:
    """Return the environment in which the wall clock of a host is off by what its file holds, and no other clock."""
    return {"LD_PRELOAD": str(folder / "clock.so"), "CLOCK_OFFSET": str(folder / "clocks" / host)}


def step(folder: Path, host: str, seconds: int) -> None:
    """Let the clock of a host be off by some seconds from now on. Running processes have mapped the file."""
    with (folder / "clocks" / host).open("r+b") as file:
        file.write(seconds.to_bytes(8, "little", signed=True))
