"""Structured logs as JSON lines. Whatever is logged, keys never appear: a last processor blanks them.

Bodies, headers and foreign exception texts are not logged at all; this is the net beneath that rule.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from numbers import Number
from typing import Any

import structlog

# API, gateway, master and owner keys, services' secrets;
# claim codes are short-lived words of people and are never passed to a logger.
_KEYS = re.compile(r"\b(ak|gw|mk|ok|sv)_[A-Za-z0-9_-]{16,}")
_URL_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
# One list for good: a logger keeps the list that it found at its first use.
_PROCESSORS: list[Any] = [*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter]


def configure(level: str) -> None:
    """Send structlog and the standard library's loggers to stdout as JSON lines, one shape for both."""
    structlog.configure(
        processors=_PROCESSORS,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_SHARED,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _blank_secrets,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # These log whole requests, URLs with credentials or SQL parameters when they are let down to DEBUG.
    for noisy in ("urllib3", "web3", "sqlalchemy.engine", "rq", "hpack", "httpx2", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))


def origin() -> str | None:
    """Return the id of the request that the present work goes back to; None for what nobody has asked for."""
    bound = structlog.contextvars.get_contextvars()
    found = bound.get("caused_by") or bound.get("request_id")
    return str(found) if found else None


@contextmanager
def caused_by(request_id: str | None) -> Iterator[None]:
    """Let all lines tell which request the work goes back to, so that one search finds all of it."""
    if request_id is None:
        yield
        return
    with structlog.contextvars.bound_contextvars(caused_by=request_id):
        yield


def aside() -> None:
    """Send log lines to stderr from now on: what a command prints on stdout is for whoever asked, or a pipe."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.setStream(sys.stderr)


def blank(text: str) -> str:
    """Replace every key and every URL password in a text."""
    return _URL_PASSWORD.sub("…@", _KEYS.sub(r"\1_…", text))


def _blank_secrets(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    return {name: _blank_value(value) for name, value in event.items()}


def _blank_value(value: Any) -> Any:
    if isinstance(value, str):
        return blank(value)
    if isinstance(value, Mapping):
        return {key: _blank_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_blank_value(inner) for inner in value]
    if value is None or isinstance(value, Number):
        return value
    return blank(str(value))
