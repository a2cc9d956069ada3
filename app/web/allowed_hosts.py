"""Restriction of the sandbox to requests for loopback and its own host name.

A web page can make its own host name resolve to 127.0.0.1 (DNS rebinding). Browsers then treat the sandbox as the same
origin and let the page read every response; only the Host header distinguishes such a request.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import urlsplit

from app.config import Settings
from app.core.loopback import is_loopback
from app.errors import RouteNotAllowed
from app.web.client_request import ClientRequest

# A name or an IP address, and a port; urlsplit ignores what follows a port that is none.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{0,5})?", re.ASCII)


def host_check(settings: Settings) -> Callable[[ClientRequest], None]:
    """Return the check that refuses requests for other hosts in the sandbox; outside it, it does nothing."""
    own_host = urlsplit(settings.public_url).hostname

    def check(request: ClientRequest) -> None:
        sent = request.environ.get("HTTP_HOST", "")
        # Browsers always send it; HTTP/1.0 clients need not.
        if settings.is_sandbox and sent and not is_allowed_host(sent, own_host):
            raise RouteNotAllowed(
                "This sandbox accepts only requests with the Host 127.0.0.1, localhost or the host of BASE_URL."
                " Use one of them, or set BASE_URL to this address (and SANDBOX_PUBLIC=1)."
            )

    return check


def is_allowed_host(host_header: str, own_host: str | None) -> bool:
    found = _HOST.fullmatch(host_header)
    if found is None:
        return False
    host = found[1].strip("[]").lower()
    return host == own_host or is_loopback(host)
