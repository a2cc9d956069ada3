"""Whether this machine has a browser that the service can shop with. Says no more than the service finds by itself."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

MEND = (
    "No browser found, so shopping is off (503). To turn it on: apt install chromium-headless-shell fonts-dejavu-core, "
    "or set BROWSER_EXECUTABLE."
)
_PROGRAMS = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
)
_FETCHED = (".cache/ms-playwright", "Library/Caches/ms-playwright")


def is_there(environment: Mapping[str, str]) -> bool:
    """Tell whether there is one: the configured one, one on PATH, or one that Playwright has fetched."""
    path = environment.get("PATH")
    if configured := environment.get("BROWSER_EXECUTABLE"):
        return shutil.which(configured, path=path) is not None
    if any(shutil.which(program, path=path) for program in _PROGRAMS):
        return True
    return any(any((Path.home() / folder).glob("chromium*")) for folder in _FETCHED)
