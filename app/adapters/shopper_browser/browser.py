"""Finding a browser on the machine, and starting it without anything of ours in its environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Playwright, sync_playwright
from playwright.sync_api import Error as PlaywrightError

PROGRAMS = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
)
_DOWNLOADED = (
    "chromium_headless_shell-*/chrome-*/headless_shell",
    "chromium_headless_shell-*/chrome-*/chrome-headless-shell",
    "chromium-*/chrome-linux*/chrome",
    "chromium-*/chrome-mac*/Chromium.app/Contents/MacOS/Chromium",
)
_CACHES = (".cache/ms-playwright", "Library/Caches/ms-playwright")


def find(configured: str = "") -> str | None:
    """Return the path of a browser: the configured one, else one on PATH, else one that Playwright has fetched."""
    if configured:
        return shutil.which(configured)
    for program in PROGRAMS:
        if found := shutil.which(program):
            return found
    for cache in _CACHES:
        for pattern in _DOWNLOADED:
            for path in sorted((Path.home() / cache).glob(pattern), reverse=True):
                if os.access(path, os.X_OK):
                    return str(path)
    return None


@contextmanager
def context(executable: str, *, proxy: str, environment: Mapping[str, str]) -> Iterator[BrowserContext]:
    """Open a browser that can reach the proxy and nothing else, with an empty profile that is kept nowhere."""
    with sync_playwright() as playwright:
        browser = _launch(playwright, executable, proxy=proxy, environment=environment)
        try:
            opened = browser.new_context(
                locale="en-US",
                timezone_id="UTC",
                viewport={"width": 1280, "height": 1600},
                service_workers="block",
                accept_downloads=False,
            )
            yield opened
        finally:
            browser.close()


def _launch(
    playwright: Playwright, executable: str, *, proxy: str, environment: Mapping[str, str]
) -> Browser:
    # Root cannot use Chromium's sandbox, and some hosts do not let others either.
    for sandboxed in (True, False) if os.geteuid() != 0 else (False,):
        try:
            return playwright.chromium.launch(
                executable_path=executable,
                chromium_sandbox=sandboxed,
                args=["--disable-dev-shm-usage", "--disable-quic", "--no-first-run"],
                # Chromium would go around the proxy for loopback addresses.
                proxy={"server": proxy, "bypass": "<-loopback>"},
                env=dict(environment),
                timeout=30_000,
            )
        except PlaywrightError:
            if not sandboxed:
                raise
    raise AssertionError("unreachable")
