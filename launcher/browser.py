"""Detection of a browser for purchases, by the same rules as the service."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

_INSTALL_HINT = (
    "No browser found, so shopping is off (503). To turn it on: apt install chromium-headless-shell fonts-dejavu-core, "
    "or set BROWSER_EXECUTABLE."
)
_MEMORY_HINT = "Shopping is off (503): a purchase takes up to 700 MB, and HOST_MEMORY is {}."
_TOO_SMALL_HOSTS = ("512MB", "1GB")
_BROWSER_PROGRAMS = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
)
_PLAYWRIGHT_FOLDERS = (".cache/ms-playwright", "Library/Caches/ms-playwright")


def obstacle(environment: Mapping[str, str]) -> str | None:
    """Return why this machine cannot run a browser, as a message for the operator; None if it can."""
    if (memory := environment.get("HOST_MEMORY")) in _TOO_SMALL_HOSTS:
        return _MEMORY_HINT.format(memory)
    return None if _is_installed(environment) else _INSTALL_HINT


def _is_installed(environment: Mapping[str, str]) -> bool:
    path = environment.get("PATH")
    if configured := environment.get("BROWSER_EXECUTABLE"):
        return shutil.which(configured, path=path) is not None
    if any(shutil.which(program, path=path) for program in _BROWSER_PROGRAMS):
        return True
    return any(any((Path.home() / folder).glob("chromium*")) for folder in _PLAYWRIGHT_FOLDERS)
