"""Traces by OpenTelemetry, if the operator configured a collector (OTEL_EXPORTER_OTLP_ENDPOINT).

One span per request, job and paid call, with routes, statuses, models, tokens and costs; no body, header,
address or account. The SDK reads the other variables of OpenTelemetry, such as OTEL_TRACES_SAMPLER, itself.
"""

import re
from typing import Any, Literal

from app.version import VERSION

_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_tracer: Any = None


def init(endpoint: str) -> None:
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


def start(
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
