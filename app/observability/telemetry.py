"""Telemetry: structured logs as JSON lines, with keys redacted; traces by OpenTelemetry; reports of errors to Sentry.

Bodies, headers and messages of foreign exceptions are not logged at all; redaction is the second line of defence.

Traces are sent if the operator configured a collector (OTEL_EXPORTER_OTLP_ENDPOINT): one span per request, job and paid
call, with routes, statuses, models, tokens and costs; no body, header, address or account. The SDK reads the other
variables of OpenTelemetry, such as OTEL_TRACES_SAMPLER, itself.

Unexpected errors are reported if the operator configured it (SENTRY_DSN): the stack trace, the route's pattern and the
request id; no body, header, URL, variable or log line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from numbers import Number
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TextIO

import structlog

from app.version import VERSION

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint


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
# At DEBUG these log whole requests, URLs with credentials, or SQL parameters.
_NOISY = (
    "urllib3", "botocore", "google", "web3", "sqlalchemy.engine", "rq", "hpack", "httpx2", "asyncio",
    "alembic.runtime.plugins",
)  # fmt: skip
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


def configure_logs(level: str) -> None:
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
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))


def originating_request_id() -> str | None:
    """Return the id of the request that caused the current work, if there is one."""
    bound = structlog.contextvars.get_contextvars()
    found = bound.get("caused_by") or bound.get("request_id")
    return str(found) if found else None


def caused_by(request_id: str | None) -> AbstractContextManager[None]:
    """Add `caused_by` to log lines: the id of the request that caused the work."""
    return structlog.contextvars.bound_contextvars(caused_by=request_id) if request_id else nullcontext()


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
    # Most values are numbers or texts that `redact` leaves as they are: a call for each takes as long as the encoding.
    return _JSON.encode(
        {
            name: value
            if type(value) is int or (type(value) is str and "_" not in value and "@" not in value)
            else redact_value(value)
            for name, value in event.items()
        }
    )


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


_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_tracer: Any = None


def init_traces(endpoint: str) -> None:
    """Enable traces; without an endpoint there are none. A background thread sends them."""
    global _tracer  # noqa: PLW0603 - as the library's own provider, one per process
    _tracer = None
    if not endpoint:
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(resource=Resource.create({"service.name": "purser", "service.version": VERSION}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")))
    _tracer = provider.get_tracer("purser", VERSION)


class Span:
    """A step of a trace, from its creation to `end`."""

    def __init__(self, span: Any) -> None:
        self._span = span
        context = span.get_span_context()
        self.trace_id = f"{context.trace_id:032x}"
        self.traceparent = f"00-{self.trace_id}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def set(self, **attributes: str | int) -> None:
        """Set attributes; two underscores in a name stand for a dot."""
        sent = {name: _text(value) if isinstance(value, str) else value for name, value in attributes.items()}
        self._span.set_attributes({name.replace("__", "."): value for name, value in sent.items()})

    def end(self, *, name: str = "", error: str = "") -> None:
        """End the span, under a name that was not known before; `error` is the type of what failed."""
        if name:
            self._span.update_name(_text(name))
        if error:
            from opentelemetry.trace import StatusCode  # noqa: PLC0415

            self._span.set_status(StatusCode.ERROR)
            self._span.set_attributes({"error.type": error})
        self._span.end()


def start_span(
    name: str, kind: Literal["SERVER", "CLIENT", "INTERNAL"], *, parent: Span | None = None, traceparent: str = ""
) -> Span | None:
    """Start a span below another one or below a caller's `traceparent`; None if traces are off."""
    if _tracer is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    carrier = {"traceparent": parent.traceparent if parent else traceparent}
    context = TraceContextTextMapPropagator().extract(carrier)
    return Span(_tracer.start_span(_text(name), context=context, kind=trace.SpanKind[kind]))


def _text(text: str) -> str:
    """Return a client's text, short, and without lone surrogates: one span that has them makes a batch fail."""
    return text[:200].encode("utf-8", "replace").decode()


def trace_id_of(traceparent: str) -> str | None:
    """Return the trace that a caller's header names (W3C Trace Context), if it is valid."""
    found = _TRACEPARENT.fullmatch(traceparent)
    return found[1] if found else None


_sdk: ModuleType | None = None


def init_error_reports(dsn: str, *, network: str) -> None:
    """Enable reports; without a DSN there are none."""
    global _sdk  # noqa: PLW0603 - as the library's own client, one per process
    if not dsn:
        return
    import sentry_sdk  # noqa: PLC0415 - loading it takes a tenth of a second

    _sdk = sentry_sdk
    sentry_sdk.init(
        dsn, release=f"purser@{VERSION}", environment=network, before_send=_scrub_event,
        # Each of these would add data: requests, SQL, log lines, arguments.
        default_integrations=False, auto_enabling_integrations=False, max_breadcrumbs=0,
        include_local_variables=False, traces_sample_rate=None,
    )  # fmt: skip


def report(error: BaseException, **tags: str) -> None:
    """Report an error. Never raises or blocks: a background thread sends it."""
    if _sdk is None:
        return
    with _sdk.new_scope() as scope:
        for name, value in {**structlog.contextvars.get_contextvars(), **tags}.items():
            scope.set_tag(name, str(value))
        _sdk.capture_exception(error)


def flush_error_reports() -> None:
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
