"""The user of the browser process: started by root, it runs as a user without rights."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Neither distributions nor systemd assign these (systemd.io/UIDS-GIDS). Each worker uses another one, so that
# concurrent browsers cannot read each other's memory.
_FIRST_UID, _UID_COUNT = 60_706, 478
_ACCESS_CHECK_SCRIPT = """
import os, sys, playwright, shopper
sys.exit(not all(os.access(path, os.X_OK) for path in sys.argv[1:]))
"""


def find_unprivileged_user(root: Path, executable: str) -> int | None:
    """Return the id of a user without rights for the browser process; None to run it as the current user.

    Only root can switch users. The interpreter, this package below `root`, the browser and the temporary folder must be
    accessible to others, which they are not if one of them is in root's home.
    """
    if os.geteuid() != 0:
        return None
    user = _FIRST_UID + os.getpid() % _UID_COUNT
    try:
        tried = subprocess.run(  # noqa: S603 - our own words
            [sys.executable, "-c", _ACCESS_CHECK_SCRIPT, executable, tempfile.gettempdir()],
            user=user, group=user, extra_groups=(), cwd=root, env={"PYTHONPATH": str(root)},
            stdin=subprocess.DEVNULL, capture_output=True, check=False,
        )  # fmt: skip
    except OSError:
        return None
    return user if tried.returncode == 0 else None
