"""A launcher of a folder with tiny programs, run as a process of its own by the tests beside it.

`python fake_service.py ROOT [KEY=VALUE ...]` does what `./run` does, in a work tree that the test wrote.
"""

from __future__ import annotations

import sys
from pathlib import Path

from launcher import service
from launcher.errors import LauncherError
from launcher.settings import read_settings

if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[2:])
    try:
        service.run(read_settings(Path(sys.argv[1]), given, {}))
    except LauncherError as error:
        print(error, file=sys.stderr)  # noqa: T201 - as the command line does
        sys.exit(error.status)
