"""Structured logs as JSON lines, with keys redacted.

Bodies, headers and messages of foreign exceptions are not logged at all; redaction is the second line of defence.
"""

import json
import logging
import re
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Number
from typing import Any, TextIO

import structlog

# API, gateway, master and owner keys, services' secrets. Claim codes have no prefix and are never logged.
_KEY_PATTERN = re.compile(r"\b(ak|gw|mk|ok|sv|cr|at|rt|ac|dc)_[A-Za-z0-9_-]{16,}")
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")

_SHARED_PROCESSORS: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
_JSON = json.JSONEncoder(default=repr)
# One list object: a logger keeps the list of its first use.
_PROCESSORS: list[Any] = [*_SHARED_PROCESSORS, structlog.stdlib.ProcessorFormatter.wrap_for_formatter]


class _LineFormatter(structlog.stdlib.ProcessorFormatter):
    """Formats our own events without the two copies that the base class makes of each; foreign ones as it does."""

    def format(self, record: logging.LogRecord) -> str:
        # The mark of an event of structlog; a library may log a dictionary too.
        if not hasattr(record, "_logger") or not isinstance(record.msg, dict):
            return super().format(record)
        # A copy, because other handlers get the same record.
        return _render(None, "", structlog.processors.format_exc_info(None, "", record.msg.copy()))


class LineHandler(logging.StreamHandler):  # type: ignore[type-arg] # not a generic class at run time
    """Writes the lines of concurrent threads in one of them, so that the others do not wait for its system call."""

    lock: threading.RLock

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._lines: deque[str] = deque()

    def handle(self, record: logging.LogRecord) -> bool:
        """Write a record, without the lock that the base class holds meanwhile."""
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or leave it to the thread that is writing."""
        try:
            self._lines.append(self.format(record) + self.terminator)
            # Again, because a line may come after the last look and before the release.
            while self._lines and self.lock.acquire(blocking=False):
                try:
                    while self._lines:
                        self.stream.write(self._lines.popleft())
                    self.flush()
                finally:
                    self.lock.release()
        except Exception:
            self.handleError(record)


def configure(level: str) -> None:
    """Send structlog and the standard library's loggers to stdout as JSON lines, one shape for both."""
    structlog.configure(
        processors=_PROCESSORS, logger_factory=structlog.stdlib.LoggerFactory(), cache_logger_on_first_use=True
    )
    handler = LineHandler(sys.stdout)
    handler.setFormatter(_LineFormatter(foreign_pre_chain=_SHARED_PROCESSORS, processors=_FINAL_PROCESSORS))
    # As the library's documentation suggests: no line contains the caller's place in the code or the thread.
    logging._srcfile = None  # noqa: SLF001
    logging.logThreads = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # At DEBUG these log whole requests, URLs with credentials, or SQL parameters.
    for noisy in (
        "urllib3",
        "web3",
        "sqlalchemy.engine",
        "rq",
        "hpack",
        "httpx2",
        "asyncio",
        "alembic.runtime.plugins",
    ):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))


def originating_request_id() -> str | None:
    """Return the id of the request that caused the current work, if there is one."""
    bound = structlog.contextvars.get_contextvars()
    found = bound.get("caused_by") or bound.get("request_id")
    return str(found) if found else None


@contextmanager
def caused_by(request_id: str | None) -> Iterator[None]:
    """Add `caused_by` to log lines: the id of the request that caused the work."""
    if request_id is None:
        yield
        return
    with structlog.contextvars.bound_contextvars(caused_by=request_id):
        yield


def redirect_to_stderr() -> None:
    """Send log lines to stderr from now on, for commands with output on stdout."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.setStream(sys.stderr)


def redact(text: str) -> str:
    """Replace every key and every URL password in a text."""
    # Most texts have neither character, without which the patterns do not match.
    if "_" in text:
        text = _KEY_PATTERN.sub(r"\1_…", text)
    return _URL_CREDENTIALS.sub("…@", text) if "@" in text else text


def _render(_logger: object, _method: str, event: Mapping[str, Any]) -> str:
    """Return an event as a line of JSON, redacted."""
    line = {name: redact_value(value) for name, value in event.items()}
    return _JSON.encode(line)


_FINAL_PROCESSORS: list[Any] = [
    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
    structlog.processors.format_exc_info,
    _render,
]


def redact_value(value: Any) -> Any:
    """Redact the texts in a value, such as a list or a mapping."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact(key) if isinstance(key, str) else key: redact_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact_value(inner) for inner in value]
    if value is None or isinstance(value, Number):
        return value
    return redact(str(value))
