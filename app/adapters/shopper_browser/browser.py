"""Starting a browser without anything of ours in its environment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from playwright.sync_api import Browser, BrowserContext, Playwright, sync_playwright
from playwright.sync_api import Error as PlaywrightError

_ARGUMENTS = (
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    # Calls between browsers send datagrams past every proxy, to whatever address a page names.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    # Names are looked up by the proxy alone.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
# Where a browser does not heed the flag, there is nothing to make such calls with.
_WITHOUT_CALLS = """
for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection", "WebTransport"]) delete window[name];
"""


@contextmanager
def context(executable: str, *, proxy: str, environment: Mapping[str, str]) -> Iterator[BrowserContext]:
    """Open a browser that can reach the proxy and nothing else, with an empty profile that is kept nowhere."""
    with (
        launched(executable, proxy=proxy, environment=environment) as browser,
        visit(browser) as opened,
    ):
        yield opened


@contextmanager
def launched(executable: str, *, proxy: str, environment: Mapping[str, str]) -> Iterator[Browser]:
    """Start a browser that can reach the proxy and nothing else."""
    with sync_playwright() as playwright:
        browser = _launch(playwright, executable, proxy=proxy, environment=environment)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visit(browser: Browser) -> Iterator[BrowserContext]:
    """Open an empty profile that is kept nowhere."""
    opened = browser.new_context(
        locale="en-US",
        timezone_id="UTC",
        viewport={"width": 1280, "height": 1600},
        service_workers="block",
        accept_downloads=False,
    )
    try:
        opened.add_init_script(_WITHOUT_CALLS)
        yield opened
    finally:
        opened.close()


def _launch(
    playwright: Playwright, executable: str, *, proxy: str, environment: Mapping[str, str]
) -> Browser:
    # Root cannot use Chromium's sandbox, and some hosts do not let others either.
    for sandboxed in (True, False) if os.geteuid() != 0 else (False,):
        try:
            return playwright.chromium.launch(
                executable_path=executable,
                chromium_sandbox=sandboxed,
                args=list(_ARGUMENTS),
                # Chromium would go around the proxy for loopback addresses.
                proxy={"server": proxy, "bypass": "<-loopback>"},
                env=dict(environment),
                timeout=30_000,
            )
        except PlaywrightError:
            if not sandboxed:
                raise
    raise AssertionError("unreachable")
