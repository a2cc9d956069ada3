"""Sizes by the memory of the host, and protection of a process against others of the same user.

Each row of sizes was measured: docs/performance.md, "Small hosts". Read by gunicorn's settings, too, so it imports
nothing.
"""

import ctypes
import resource
import sys
from collections.abc import Mapping

DEFAULTS: Mapping[str, int] = {
    "web_concurrency": 2, "web_threads": 1100, "web_body_memory_mb": 96, "database_pool_size": 15,
}  # fmt: skip
"""For a host of unknown size."""
_BY_SIZE: Mapping[str, Mapping[str, int]] = {
    "512MB": {"web_concurrency": 1, "web_threads": 400, "web_body_memory_mb": 48, "database_pool_size": 8},
    "1GB": {**DEFAULTS, "web_threads": 600, "web_body_memory_mb": 64, "database_pool_size": 10},
    "4GB": {**DEFAULTS, "web_concurrency": 4},
}


def defaults(host_memory: str | None) -> Mapping[str, int]:
    """Return the sizes for a host with this much memory ("512MB", "1GB", "4GB"), by setting."""
    return _BY_SIZE.get(host_memory or "", DEFAULTS)


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
