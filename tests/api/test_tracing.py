"""Traces by OpenTelemetry: who called whom and what it cost, and nothing of what was said."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from flask import Flask
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.observability import telemetry
from tests.support.gateway import Stage, gateway_stage
from tests.support.loopback_http import Asked, Reply, serve
from tests.support.upstreams import Exchange, chat_answer, chat_chunks
from tests.support.waiting import wait_until
from workers.context import job

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
REQUEST = "POST /v1/gateway/<provider>/<rest:path>"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


class Collector:
    """A collector that decodes what it receives."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[bytes] = []

    def accept(self, asked: Asked) -> Reply:
        assert asked.target == "/v1/traces"
        self.bodies.append(asked.body)
        return Reply(b"")

    def spans(self) -> dict[str, Any]:
        received = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return {
            span.name: span
            for request in received
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        }

    def span(self, name: str) -> Any:
        wait_until(lambda: name in self.spans(), what=f"the span {name}")
        return self.spans()[name]


def attributes(span: Any) -> dict[str, str | int]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    found = Collector()
    with serve(found.accept) as server:
        found.url = server.url
        yield found
    telemetry.init_traces("")


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str, collector: Collector) -> Iterator[Stage]:
    new_app = partial(build_app, reused=False)
    with gateway_stage(new_app, sqlite_url, otel_exporter_otlp_endpoint=collector.url) as made:
        yield made


def test_a_chat_is_a_call_within_a_request_within_the_trace_of_its_caller(
    stage: Stage, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    stage.behave(lambda exchange: exchange.json(chat_answer(tokens_in=1000, tokens_out=500)))
    answer = stage.chat(headers={"traceparent": CALLER, "tracestate": "vendor=1"})
    call, request = collector.span("chat gpt-5"), collector.span(REQUEST)
    assert [span.trace_id.hex() for span in (request, call)] == [TRACE_ID] * 2
    assert (request.parent_span_id.hex(), call.parent_span_id) == ("00f067aa0ba902b7", request.span_id)
    found = attributes(call)
    assert {name: found[name] for name in found if name.startswith("gen_ai")} == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-5",
        "gen_ai.usage.input_tokens": 1000, "gen_ai.usage.output_tokens": 500,
    }  # fmt: skip
    assert found["purser.cost_nano_usd"] == stage.spent_nanos() > 0
    assert attributes(request)["http.response.status_code"] == 200
    assert attributes(request)["http.route"] == "/v1/gateway/<provider>/<rest:path>"
    sent = {name.lower(): value for name, value in stage.upstream.asked[-1].headers}
    assert sent["traceparent"] == f"00-{TRACE_ID}-{call.span_id.hex()}-01"
    assert "tracestate" not in sent
    lines = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    logged = [line for line in lines if line["request_id"] == answer.headers["X-Gateway-Request-Id"]]
    assert logged
    assert {line["trace_id"] for line in logged} == {TRACE_ID}
    text = b"".join(collector.bodies)
    assert not [word for word in (stage.agent.key, "Bearer", "messages", "127.0.0.1") if word.encode() in text]


def test_a_stream_ends_its_span_with_its_usage(stage: Stage, collector: Collector) -> None:
    def answer(exchange: Exchange) -> None:
        exchange.start_stream()
        for frame in chat_chunks("a", "b", tokens_in=10, tokens_out=5):
            exchange.chunk(frame)
        exchange.end_stream()

    stage.behave(answer)
    with stage.stream() as pieces:
        list(pieces)
    found = attributes(collector.span("chat gpt-5"))
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (10, 5)


def test_failures_are_errors_of_their_spans(stage: Stage, collector: Collector) -> None:
    stage.behave(lambda exchange: exchange.hang_up())
    assert stage.chat().status_code == 502
    call, request = collector.span("chat gpt-5"), collector.span(REQUEST)
    assert (call.status.code, attributes(call)["error.type"]) == (2, "no_response")
    assert (request.status.code, attributes(request)["error.type"]) == (2, "UPSTREAM_ERROR")


@pytest.mark.usefixtures("stage")
def test_a_job_has_a_span_with_the_class_of_its_error(collector: Collector) -> None:
    @job
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    span = collector.span(f"job {fail.__qualname__}")
    assert (span.status.code, attributes(span)["error.type"]) == (2, "ZeroDivisionError")


def test_without_a_collector_a_caller_still_finds_its_trace_in_the_logs(
    build_app: Callable[..., Flask], sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with gateway_stage(build_app, sqlite_url) as stage:
        stage.behave(lambda exchange: exchange.json(chat_answer()))
        for given in (CALLER, CALLER.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32), "secret"):
            stage.chat(headers={"traceparent": given})
        sent = [dict(asked.headers).get("traceparent") for asked in stage.upstream.asked]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [line.get("trace_id") for line in lines if line.get("route", "").endswith("<rest:path>")] == [
        TRACE_ID, None, None,
    ]  # fmt: skip
    assert sent[0] == CALLER


def test_a_name_that_is_no_text_hides_no_other_span(collector: Collector) -> None:
    telemetry.init_traces(collector.url)
    # A client's JSON can have lone surrogates, and names of any length.
    for name in ("chat \ud800" + "x" * 10_000, "other"):
        span = telemetry.start_span(name, "CLIENT")
        assert span is not None
        span.set(gen_ai__request__model=name)
        span.end()
    collector.span("other")
    [hostile] = [span for name, span in collector.spans().items() if name.startswith("chat ")]
    assert len(hostile.name) == len(attributes(hostile)["gen_ai.request.model"]) == 200  # type: ignore[arg-type]
