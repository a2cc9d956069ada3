"""A launcher of a folder with tiny programs, run as a separate process by the tests in this folder.

`python fake_service.py ROOT [KEY=VALUE ...]` works like `./run`, in a work tree written by the test.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from launcher import service
from launcher.errors import LauncherError
from launcher.settings import read_settings

if __name__ == "__main__":
    # As in a terminal, also when the tests run under nohup, whose children ignore it.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    given = dict(argument.split("=", 1) for argument in sys.argv[2:])
    try:
        service.run(read_settings(Path(sys.argv[1]), given, {}), preloaded=())
    except LauncherError as error:
        print(error, file=sys.stderr)  # noqa: T201 - like the command line
        sys.exit(error.status)
