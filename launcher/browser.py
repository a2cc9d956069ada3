"""Detection of a browser for purchases, by the same rules as the service."""

from __future__ import annotations

from collections.abc import Mapping

from shopper.process.browser_discovery import find_browser

_INSTALL_HINT = (
    "No browser found, so shopping is off (503). To turn it on: apt install chromium-headless-shell fonts-dejavu-core, "
    "or set BROWSER_EXECUTABLE."
)
_MEMORY_HINT = "Shopping is off (503): a purchase takes up to 700 MB, and HOST_MEMORY is {}."
_TOO_SMALL_HOSTS = ("512MB", "1GB")


def obstacle(environment: Mapping[str, str]) -> str | None:
    """Return why this machine cannot run a browser, as a message for the operator; None if it can."""
    if (memory := environment.get("HOST_MEMORY")) in _TOO_SMALL_HOSTS:
        return _MEMORY_HINT.format(memory)
    found = find_browser(environment.get("BROWSER_EXECUTABLE", ""), path=environment.get("PATH"))
    return None if found else _INSTALL_HINT
