"""Child processes that do not outlive the parent."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_STOP_SECONDS = 10
# PR_SET_PDEATHSIG survives the exec: the kernel kills the child when the thread that started it is gone, even
# if it was killed. The check of the parent closes the gap between fork and prctl.
_SHIM = (
    "import ctypes,os,signal,sys;"
    "ctypes.CDLL(None).prctl(1,signal.SIGKILL);"
    "os.getppid()==int(sys.argv[1]) or sys.exit(1);"
    "os.execv(sys.argv[2],sys.argv[2:])"
)


def start(command: Sequence[str], *, log: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a program by its full path, in a separate process group, so that Ctrl-C reaches only the parent.

    On Linux it is killed when the calling thread ends, so call from a thread that lives as long as the child.
    """
    argv = list(command)
    if sys.platform == "linux":
        argv = [sys.executable, "-I", "-S", "-c", _SHIM, str(os.getpid()), *argv]
    output = subprocess.DEVNULL if log is None else log.open("ab")
    try:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, process_group=0
        )
    finally:
        if not isinstance(output, int):
            output.close()


def stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate a child, and kill it if it does not end in time; do nothing if it has ended."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a child (SIGKILL)."""
    process.kill()
    process.wait()
