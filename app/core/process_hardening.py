"""Protection of a process that holds secrets against other processes of the same user."""

from __future__ import annotations

import ctypes
import resource
import sys

_PR_SET_DUMPABLE = 4  # prctl(2)


def harden() -> None:
    """Forbid core dumps and, on Linux, reading this process's memory and environment without CAP_SYS_PTRACE.

    Forked processes inherit both. A program started by exec is dumpable again and must call this itself, as early as
    possible: until then, other processes of its user can read `/proc/<pid>/environ`.

    Raises: OSError when the kernel refuses.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")
