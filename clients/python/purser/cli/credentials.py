"""Keys by service: in the system's key store where `keyring` has one, otherwise in a file that only its owner reads."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

_SERVICE = "purser"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Credentials:
    """What is stored of each service: `api_key`, or the tokens of a login, and ids that are no secrets."""

    def __init__(self) -> None:
        self._folder = Path(click.get_app_dir("purser"))
        self._file = self._folder / "credentials.json"

    @property
    def base_url(self) -> str | None:
        """The service that was registered with, or signed in to, last."""
        found = self._read().get("base_url")
        return str(found) if found else None

    def load(self, base_url: str) -> dict[str, Any]:
        """Return what is stored of a service, or nothing."""
        found: dict[str, Any] = self._read().get("services", {}).get(base_url, {})
        if found.get("is_in_key_store"):
            store = _key_store()
            secret = store.get_password(_SERVICE, base_url) if store else None
            if secret is None:
                raise click.ClickException("The system's key store does not have the key: sign in again.")
            return {**found, **json.loads(secret)}
        return found

    def save(self, base_url: str, secret: dict[str, Any], **public: Any) -> None:
        """Store what signs in to a service, and make it the default."""
        store = _key_store()
        if store:
            store.set_password(_SERVICE, base_url, json.dumps(secret))
        entry = {**public, "is_in_key_store": True} if store else {**public, **secret}
        stored = self._read()
        self._write({"base_url": base_url, "services": {**stored.get("services", {}), base_url: entry}})

    def delete(self, base_url: str) -> None:
        stored = self._read()
        entry = stored.get("services", {}).pop(base_url, {})
        store = _key_store() if entry.get("is_in_key_store") else None
        if store:
            store.delete_password(_SERVICE, base_url)
        if stored.get("base_url") == base_url:
            del stored["base_url"]
        self._write(stored)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other processes: a refresh token that is used twice ends its connection."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self._folder / "lock").open("w") as lock:
            with contextlib.suppress(ImportError):
                fcntl = importlib.import_module("fcntl")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self) -> dict[str, Any]:
        if not self._file.exists():
            return {}
        if os.name == "posix" and self._file.stat().st_mode & _OTHERS:
            raise click.ClickException(f"Others can read {self._file}: chmod 600 it, and replace the keys in it.")
        found: dict[str, Any] = json.loads(self._file.read_text())
        return found

    def _write(self, stored: dict[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self._folder / f"{uuid.uuid4()}.new"
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(stored, file, indent=1)
        new.replace(self._file)


def _key_store() -> Any:
    """Return `keyring` if it is installed and the system has a key store."""
    try:
        keyring = importlib.import_module("keyring")
        return keyring if keyring.get_keyring().priority >= 1 else None
    except (ImportError, RuntimeError):
        return None
