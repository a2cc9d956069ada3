"""The sandbox's secrets: generated once, in one 0600 file; never generated outside of the sandbox.

They are never replaced, because the wallets in the same folder cannot be opened without them.
"""

from __future__ import annotations

import base64
import os
import secrets
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from dotenv import dotenv_values


def _new_key_with_id() -> str:
    return "sandbox1:" + base64.b64encode(secrets.token_bytes(32)).decode()


GENERATORS: Mapping[str, Callable[[], str]] = {
    "SECRET_KEY": lambda: secrets.token_hex(32),
    "CODE_PEPPERS": _new_key_with_id,
    "ENCRYPTION_KEYS": _new_key_with_id,
    "RECEIPT_SIGNING_KEYS": _new_key_with_id,
    "BOOTSTRAP_MASTER_KEY": lambda: "mk_" + secrets.token_urlsafe(32),
}
"""The secrets that the service needs, each with its generator (256 random bits)."""

_HEADER = "# Made by ./run for the sandbox. The wallets in this folder cannot be opened without it."


def ensure_secrets(path: Path) -> dict[str, str]:
    """Return the secrets of the file, generating those that are missing."""
    existing = {name: value for name, value in dotenv_values(path, interpolate=False).items() if value}
    missing = [name for name in GENERATORS if name not in existing]
    if missing:
        existing |= {name: GENERATORS[name]() for name in missing}
        lines = [_HEADER, *(f"{name}={value}" for name, value in existing.items())]
        write_privately(path, "\n".join(lines) + "\n")
    path.chmod(0o600)
    return existing


def write_privately(path: Path, content: str | bytes) -> None:
    """Write a file atomically that only its owner can read."""
    # mkstemp creates it with mode 0600.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).replace(path)
