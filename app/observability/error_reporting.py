"""Reports of unexpected errors to Sentry, if the operator configured it (SENTRY_DSN).

A report contains the stack trace, the route's pattern and the request id; no body, header, URL, variable or log line.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import structlog

from app.version import VERSION

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint

_sdk: ModuleType | None = None


def init(dsn: str, *, network: str) -> None:
    """Enable reports; without a DSN there are none."""
    global _sdk  # noqa: PLW0603 - as the library's own client, one per process
    if not dsn:
        return
    import sentry_sdk  # noqa: PLC0415 - loading it takes a tenth of a second

    _sdk = sentry_sdk
    sentry_sdk.init(
        dsn,
        release=f"purser@{VERSION}",
        environment=network,
        # Each of these would add data: requests, SQL, log lines, arguments.
        default_integrations=False,
        auto_enabling_integrations=False,
        max_breadcrumbs=0,
        include_local_variables=False,
        traces_sample_rate=None,
        before_send=_scrub_event,
    )


def report(error: BaseException, **tags: str) -> None:
    """Report an error. Never raises or blocks: a background thread sends it."""
    if _sdk is None:
        return
    with _sdk.new_scope() as scope:
        for name, value in {**structlog.contextvars.get_contextvars(), **tags}.items():
            scope.set_tag(name, str(value))
        _sdk.capture_exception(error)


def flush() -> None:
    """Wait up to two seconds until reports are sent, because the process may end."""
    if _sdk is not None:
        _sdk.flush(timeout=2)


def _scrub_event(event: Event, _hint: Hint) -> Event | None:
    for field_name in ("request", "user", "breadcrumbs", "extra", "modules", "server_name"):
        event.pop(field_name, None)  # type: ignore[misc] # a key of the event like any other
    for exception in (event.get("exception") or {}).get("values", []):
        # A library's message may contain data; the class and the location are enough.
        exception.pop("value", None)
    return event
