"""Starts a shop's own program in its environment, with a folder of its own, and ends it."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.servers import _tie_to_the_tests

HERE = Path(__file__).parent


@contextmanager
def started_shop(
    program: Sequence[str | Path], *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Run a program that gets a folder and prints one line of JSON when it listens; yield both."""
    folder = Path(tempfile.mkdtemp(prefix="purser-test-shop-"))
    command = [*_tie_to_the_tests(), *map(str, program), str(folder), *options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the shop did not start:\n{(folder / 'log').read_text()[-2000:]}")
        yield folder, json.loads(line)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)
