"""Location of the anvil program: $ANVIL, the cache, PATH, or the pinned npm package."""

import os
import platform
import shutil
from pathlib import Path

from sandbox.cache import Cache, Package
from sandbox.errors import SandboxError

VERSION = "1.7.1"
_MEMBER = "bin/anvil"
_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_INTEGRITY = {
    "@foundry-rs/anvil-linux-amd64": (
        "sha512-+XmShybEaxfCrr0OUUZwYEy2OnYZt5pHH9TzBtLv3+VrK0O/ANuNSVEahqNhKHlgX7GRJ59383ofNhxkRWIYTg=="
    )
}


def find(cache: Cache) -> Path:
    """Return the path of anvil, downloading the pinned one if there is none. Raises: SandboxError."""
    chosen = os.environ.get("ANVIL")
    if chosen:
        if not os.access(chosen, os.X_OK):
            msg = f"ANVIL names {chosen}, which is not a program: correct it or unset it"
            raise SandboxError(msg)
        return Path(chosen)
    package = _package()
    cached = cache.root / "packages" / f"{package.name}@{package.version}" / _MEMBER
    on_path = None if cached.is_file() else shutil.which("anvil")
    return Path(on_path) if on_path else cache.files(package, (_MEMBER,)) / _MEMBER


def _package() -> Package:
    system = platform.system().lower()
    architecture = _ARCHITECTURES.get(platform.machine().lower())
    if system not in ("linux", "darwin") or architecture is None:
        msg = f"there is no anvil package for {platform.platform()}: install Foundry and set ANVIL to its anvil"
        raise SandboxError(msg)
    name = f"@foundry-rs/anvil-{system}-{architecture}"
    return Package(name, VERSION, _INTEGRITY.get(name))
