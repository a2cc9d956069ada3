"""The sandbox's secrets: made once, kept in one 0600 file, never made where keys are worth money.

Without them the wallets in the database beside them cannot be opened, so they are never replaced either.
"""

from __future__ import annotations

import base64
import os
import secrets
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from launcher.dotenv import read_dotenv


def _identified_key() -> str:
    return "sandbox1:" + base64.b64encode(secrets.token_bytes(32)).decode()


MAKERS: Mapping[str, Callable[[], str]] = {
    "SECRET_KEY": lambda: secrets.token_hex(32),
    "CODE_PEPPERS": _identified_key,
    "ENCRYPTION_KEYS": _identified_key,
    "BOOTSTRAP_MASTER_KEY": lambda: "mk_" + secrets.token_urlsafe(32),
}
"""Each secret that the service needs, and how one is made (256 random bits each)."""

REQUIRED_OUTSIDE_SANDBOX = ("SECRET_KEY", "CODE_PEPPERS", "ENCRYPTION_KEYS")


def ensure_secrets(path: Path) -> dict[str, str]:
    """Return the secrets of the file, making those that it does not hold yet."""
    held = read_dotenv(path)
    missing = [name for name in MAKERS if not held.get(name)]
    if missing:
        held |= {name: MAKERS[name]() for name in missing}
        _write_privately(path, held)
    path.chmod(0o600)
    return held


def _write_privately(path: Path, values: Mapping[str, str]) -> None:
    # mkstemp makes it 0600 and it is moved into place whole: never can others read it, or half be there.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w") as file:
        file.write(
            "# Made by ./run for the sandbox. The wallets in this folder cannot be opened without it.\n"
        )
        file.writelines(f"{name}={value}\n" for name, value in values.items())
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).replace(path)
