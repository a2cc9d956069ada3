"""Defects told to Sentry, where the operator has one (SENTRY_DSN): the trace and nothing of a request.

No body, header, URL, variable or earlier log line leaves: only the trace, the route's pattern and the request id.
"""

from __future__ import annotations

import sentry_sdk
import structlog
from sentry_sdk.types import Event, Hint

from app.version import VERSION

_DELIVERY_SECONDS = 2


def begin(dsn: str, *, network: str) -> None:
    """Start telling; without an address nothing is ever told."""
    if not dsn:
        return
    sentry_sdk.init(
        dsn,
        release=f"purser@{VERSION}",
        environment=network,
        # Each of these sends something of its own along: requests, SQL, log lines, arguments.
        default_integrations=False,
        auto_enabling_integrations=False,
        max_breadcrumbs=0,
        include_local_variables=False,
        traces_sample_rate=None,
        before_send=_strip,
    )


def report(error: BaseException, **tags: str) -> None:
    """Tell a defect. Never raises, never waits: it is sent by a thread of its own."""
    with sentry_sdk.new_scope() as scope:
        for name, value in {**structlog.contextvars.get_contextvars(), **tags}.items():
            scope.set_tag(name, str(value))
        sentry_sdk.capture_exception(error)


def deliver() -> None:
    """Wait, for a moment at most, until what was told has left: a process that ends with its job ends at once."""
    sentry_sdk.flush(_DELIVERY_SECONDS)


def _strip(event: Event, _hint: Hint) -> Event | None:
    for unwanted in ("request", "user", "breadcrumbs", "extra", "modules", "server_name"):
        event.pop(unwanted, None)  # type: ignore[misc] # a key of the event like any other
    for problem in (event.get("exception") or {}).get("values", []):
        # What a library put into its message is not ours to pass on; the class and the place say enough.
        problem.pop("value", None)
    return event
