"""Cache of files from pinned npm packages, shared by all clones.

Only the required files are unpacked: nothing is installed, no script runs, no dependency is downloaded. Files are
written atomically, and concurrent processes wait for each other.
"""

import base64
import fcntl
import hashlib
import hmac
import os
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox import npm
from sandbox.errors import SandboxError

LineLogger = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Package:
    """An npm package at one version; `integrity` is the SHA-512 of its archive, None if unknown."""

    name: str
    version: str
    integrity: str | None


def default_cache_root() -> Path:
    """Return `${XDG_CACHE_HOME:-~/.cache}/purser-sandbox`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "purser-sandbox"


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file atomically and durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class Cache:
    """A folder of unpacked files and chain snapshots."""

    def __init__(self, root: Path | None = None, *, log_line: LineLogger = lambda _line: None) -> None:
        """`root` is created if missing; `log_line` gets a line for each step that takes time."""
        self.root = root or default_cache_root()
        self._log_line = log_line

    def files(self, package: Package, members: Collection[str]) -> Path:
        """Return the folder with these members of the package, downloading those that are missing.

        Raises: SandboxError when it cannot be fetched.
        """
        folder = self.root / "packages" / f"{package.name}@{package.version}"
        missing = _missing(folder, members)
        if missing:
            with self.locked("packages"):
                missing = _missing(folder, members)  # another process may have downloaded it
                if missing:
                    self._fetch(package, folder, missing)
        return folder

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold one of the cache's locks, exclusive across processes and threads. It is not re-entrant."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / f".{name}.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _fetch(self, package: Package, folder: Path, members: Collection[str]) -> None:
        self._log_line(f"fetching {package.name}@{package.version}")
        with tempfile.TemporaryDirectory(dir=self.root) as scratch:
            spec = f"{package.name}@{package.version}"
            archive = npm.pack(spec, Path(scratch), kept_in=self.root, log_line=self._log_line)
            _verify(package, archive)
            _unpack(archive, folder, set(members))
        missing = _missing(folder, members)
        if missing:
            msg = f"{package.name}@{package.version} lacks {', '.join(sorted(missing))}"
            raise SandboxError(msg)


def _missing(folder: Path, members: Collection[str]) -> set[str]:
    return {member for member in members if not (folder / member).is_file()}


def _verify(package: Package, archive: Path) -> None:
    if package.integrity is None:
        return
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if not hmac.compare_digest(f"sha512-{digest}", package.integrity):
        msg = f"{package.name}@{package.version} from the registry has another digest than expected"
        raise SandboxError(msg)


def _unpack(archive: Path, folder: Path, members: set[str]) -> None:
    with tarfile.open(archive) as tar:
        for entry in tar:
            name = entry.name.partition("/")[2]  # npm puts everything under package/
            content = tar.extractfile(entry) if name in members else None
            if content is not None:
                write_atomically(folder / name, content.read(), mode=0o755 if entry.mode & 0o100 else 0o644)
