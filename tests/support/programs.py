"""Programs of the system that tests run."""

from __future__ import annotations

import os
import shutil

import pytest


def installed(program: str, *, package: str) -> str:
    """Return the path of a program; without it the test is skipped, and fails with CI=true."""
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        message = f"{program} is missing: apt-get install --no-install-recommends {package}"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return found
