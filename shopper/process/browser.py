"""Starting a browser with nothing of the service in its environment."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import MappingProxyType
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Playwright, Request, Route, sync_playwright
from playwright.sync_api import Error as PlaywrightError

_ARGUMENTS = (
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    # WebRTC sends datagrams past every proxy, to any address that a page names.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    # Only the proxy resolves names.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
# For browsers that ignore the flag: removes the interfaces.
_DISABLE_WEBRTC_SCRIPT = """
for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection", "WebTransport"]) delete window[name];
"""


class SandboxUnavailable(Exception):
    """Chromium does not start with its sandbox, and must not run without it."""


@contextmanager
def launch_browser(
    executable: str,
    *,
    proxy: str,
    environment: Mapping[str, str],
    sandbox_required: bool,
    on_unsandboxed: Callable[[], None] = lambda: None,
) -> Iterator[Browser]:
    """Start a browser that can reach only the proxy; call `on_unsandboxed` if it runs without its sandbox.

    Raises: SandboxUnavailable.
    """
    with sync_playwright() as playwright:
        browser = _launch(
            playwright,
            executable,
            proxy=proxy,
            environment=environment,
            sandbox_required=sandbox_required,
            on_unsandboxed=on_unsandboxed,
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def new_context(
    browser: Browser, signatures: Mapping[str, Mapping[str, str]] = MappingProxyType({})
) -> Iterator[BrowserContext]:
    """Open an empty profile that is not stored; requests to a host with `signatures` have these headers."""
    context = browser.new_context(
        locale="en-US",
        timezone_id="UTC",
        viewport={"width": 1280, "height": 1600},
        service_workers="block",
        accept_downloads=False,
    )
    try:
        context.add_init_script(_DISABLE_WEBRTC_SCRIPT)
        if signatures:
            context.route(lambda url: urlsplit(url).netloc in signatures, partial(_send_signed, signatures))
        yield context
    finally:
        context.close()


def _send_signed(signatures: Mapping[str, Mapping[str, str]], route: Route, request: Request) -> None:
    route.continue_(headers={**request.headers, **signatures[urlsplit(request.url).netloc]})


def _launch(
    playwright: Playwright,
    executable: str,
    *,
    proxy: str,
    environment: Mapping[str, str],
    sandbox_required: bool,
    on_unsandboxed: Callable[[], None],
) -> Browser:
    def launch(*, sandboxed: bool) -> Browser:
        return playwright.chromium.launch(
            executable_path=executable,
            chromium_sandbox=sandboxed,
            args=list(_ARGUMENTS),
            # By default Chromium does not use the proxy for loopback addresses.
            proxy={"server": proxy, "bypass": "<-loopback>"},
            env=dict(environment),
            timeout=30_000,
        )

    # Chromium's sandbox does not work for root; for others it needs user namespaces or the setuid helper.
    if os.geteuid() != 0:
        with suppress(PlaywrightError):
            return launch(sandboxed=True)
    if sandbox_required:
        raise SandboxUnavailable
    browser = launch(sandboxed=False)
    on_unsandboxed()
    return browser
