"""Finding a browser on the machine. Imports nothing heavy: every process of the service calls it."""

import os
import shutil
from pathlib import Path

BROWSER_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_PLAYWRIGHT_PATTERNS = (
    "chromium_headless_shell-*/chrome-*/headless_shell",
    "chromium_headless_shell-*/chrome-*/chrome-headless-shell",
    "chromium-*/chrome-linux*/chrome",
    "chromium-*/chrome-mac*/Chromium.app/Contents/MacOS/Chromium",
)
_CACHES = (".cache/ms-playwright", "Library/Caches/ms-playwright")


def find_browser(configured: str = "", *, path: str | None = None) -> str | None:
    """Return the path of a browser: the configured one, then one on PATH, then one installed by Playwright."""
    if configured:
        return shutil.which(configured, path=path)
    for program in BROWSER_NAMES:
        if found := shutil.which(program, path=path):
            return found
    for cache in _CACHES:
        for pattern in _PLAYWRIGHT_PATTERNS:
            for file in sorted((Path.home() / cache).glob(pattern), reverse=True):
                if os.access(file, os.X_OK):
                    return str(file)
    return None
