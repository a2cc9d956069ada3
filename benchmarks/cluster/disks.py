"""Disks of data hosts that fill up, slow down or hang: a small file system in a file for each. Needs root."""

import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.support.waiting import beside

_SIZE_BYTES = 3 * 2**30
"""Sparse: more than PostgreSQL keeps of its WAL."""
_FROZEN_SECONDS, _THAWED_SECONDS = 0.4, 0.05


class Disk:
    """A file system of its own, mounted in the namespace of this process."""

    def __init__(self, image: Path, mounted_at: Path) -> None:
        """Create it."""
        with image.open("wb") as file:
            file.truncate(_SIZE_BYTES)
        mounted_at.mkdir(mode=0o700, parents=True)
        self._folder = mounted_at
        # Nothing is reserved for root, which would fill the rest.
        _run("mkfs.ext4", "-q", "-m", "0", str(image))
        _run("mount", "-o", "loop", str(image), str(mounted_at))

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Leave no free byte until the context ends, whatever is deleted meanwhile."""
        filler, over = self._folder / "filler", threading.Event()
        filler.touch()
        try:
            with beside(lambda: _fill(filler, over), over):
                yield
        finally:
            filler.unlink()

    @contextlib.contextmanager
    def slow(self) -> Iterator[None]:
        """Let writes wait for up to 0.4 s each until the context ends."""
        over = threading.Event()

        def stutter() -> None:
            while not over.wait(_THAWED_SECONDS):
                with self.hanging():
                    over.wait(_FROZEN_SECONDS)

        with beside(stutter, over):
            yield

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Let no write end until the context does. Reads of what is cached succeed."""
        _run("fsfreeze", "--freeze", str(self._folder))
        try:
            yield
        finally:
            _run("fsfreeze", "--unfreeze", str(self._folder))


def _fill(filler: Path, over: threading.Event) -> None:
    with filler.open("r+b") as file:
        size = 0
        while not over.is_set():
            free = os.statvfs(filler.parent)
            wanted = max(4096, free.f_bavail * free.f_frsize // 2 // 4096 * 4096)
            try:
                os.posix_fallocate(file.fileno(), size, wanted)
                size += wanted
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                over.wait(0.05)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)  # noqa: S603
