"""Probes of the gateway's providers: calls that are validated, read and priced as those of clients."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from werkzeug.test import EnvironBuilder
from werkzeug.utils import cached_property

from app.core import clock
from app.core.content_decoding import UndecodableResponse, decoder_for
from app.core.money import usd_string
from app.gateway.call import GatewayCall
from app.gateway.dialects.request.cost_params import CostParams, Surface
from app.gateway.dialects.response.response_reader import ResponseReader, parse_object
from app.gateway.dialects.response.usage_readers import UsageReading
from app.gateway.pricing import price_table
from app.gateway.pricing.quotes import TokenPrices
from app.gateway.providers.table import Provider, ProviderTable
from app.payments.x402 import guard
from app.ports.errors import Rejected
from app.ports.probes import Probe, UnexpectedAnswer
from app.ports.upstream import Upstream, UpstreamRequest, read_beginning
from app.web.client_request import ClientRequest

_MAX_BYTES = 16 * 2**20
_MAX_QUOTED_CHARACTERS = 200
_HEADERS = (("Accept", "application/json"), ("Accept-Encoding", "identity"), ("User-Agent", "purser"))
_RPC_CALL = {"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}
_MESSAGES = [{"role": "user", "content": "Hi"}]


@dataclass(frozen=True, slots=True)
class _ProbeRequest:
    capability: str
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    query: str = ""
    is_paid: bool = False


def _models_and_chat(model: str) -> tuple[_ProbeRequest, ...]:
    body = {"model": model, "messages": _MESSAGES, "max_tokens": 1}
    return (
        _ProbeRequest("model list", "GET", "models"),
        _ProbeRequest("chat of one token", "POST", "chat/completions", body, is_paid=True),
    )


_REQUESTS: Mapping[str, tuple[_ProbeRequest, ...]] = {
    "openai": _models_and_chat("gpt-4.1-nano"),
    "anthropic": (
        _ProbeRequest("model list", "GET", "v1/models", query="limit=1000"),
        _ProbeRequest(
            "message of one token", "POST", "v1/messages",
            {"model": "claude-haiku-4-5", "messages": _MESSAGES, "max_tokens": 1}, is_paid=True,
        ),
    ),
    "gemini": (
        _ProbeRequest("model list", "GET", "v1beta/models", query="pageSize=1000"),
        _ProbeRequest(
            "content of one token", "POST", "v1beta/models/gemini-2.5-flash-lite:generateContent",
            {"contents": [{"parts": [{"text": "Hi"}]}], "generationConfig": {"maxOutputTokens": 1}}, is_paid=True,
        ),
    ),
    "openrouter": _models_and_chat("meta-llama/llama-3.1-8b-instruct"),
    "groq": _models_and_chat("llama-3.1-8b-instant"),
    "alchemy": (_ProbeRequest("block number", "POST", "ethereum", _RPC_CALL),),
    "coingecko": (_ProbeRequest("ping", "GET", "ping"),),
    "brave": (_ProbeRequest("search", "GET", "web/search", query="q=x402&count=1", is_paid=True),),
    "exa": (_ProbeRequest("search", "POST", "search", {"query": "x402", "numResults": 1}, is_paid=True),),
    "tavily": (
        _ProbeRequest(
            "search", "POST", "search", {"query": "x402", "max_results": 1, "include_usage": True}, is_paid=True
        ),
    ),
}  # fmt: skip


def probes(table: ProviderTable, upstream: Upstream) -> Iterator[Probe]:
    for row in table.rows:
        for request in _REQUESTS.get(row.slug, ()):
            if not row.is_configured:
                yield Probe(row.slug, request.capability, str, missing=f"{row.slug.upper()}_API_KEY")
                continue
            call = _Call(row, request, upstream)
            max_nanos = call.max_nanos if request.is_paid else None
            yield Probe(row.slug, request.capability, call.run, max_nanos=max_nanos)


class _Call:
    """A request as a call of a client: validated by the row's routes, and priced."""

    def __init__(self, row: Provider, request: _ProbeRequest, upstream: Upstream) -> None:
        self._row = row
        self._request = request
        self._upstream = upstream

    @cached_property
    def _call(self) -> GatewayCall:
        sent = self._request
        path, query = f"/v1/gateway/{self._row.slug}/{sent.path}", sent.query
        environ = EnvironBuilder(path, method=sent.method, json=sent.body, query_string=query).get_environ()
        request = ClientRequest(environ)
        return GatewayCall(request, self._row, self._row.slug, guard.payable(request), _MAX_BYTES)

    def max_nanos(self) -> int:
        """Return the most that the call may cost."""
        return self._call.quote.worst_case.cost_nanos

    def run(self) -> str:
        """Make the call. Raises: Rejected, Unreachable, OutcomeUnknown, UnexpectedAnswer."""
        headers = [*self._row.credential_headers().items(), *self._row.default_headers.items(), *_HEADERS]
        location, body, _, params, _ = self._call.validated
        if body:
            headers.append(("Content-Type", "application/json"))
        response = self._upstream.send(
            UpstreamRequest(self._request.method, location.origin, location.target, headers, body)
        )
        received, failure = read_beginning(response, _MAX_BYTES)
        if failure is not None:
            raise failure
        if len(received) > _MAX_BYTES:
            raise UnexpectedAnswer(f"more than {_MAX_BYTES} bytes")
        fields = {name.lower(): value for name, value in response.headers}
        content = _decoded(received, fields.get("content-encoding"))
        document = parse_object(content)
        if response.status != HTTPStatus.OK:
            raise Rejected(f"http_{response.status}", details={"answer": _error_text(document)})
        if not isinstance(document, dict):
            raise UnexpectedAnswer("not a JSON object")
        if params is None or params.surface is Surface.FREE:
            return self._describe(document)
        reader = ResponseReader(
            params,
            status=response.status,
            content_type=fields.get("content-type"),
            content_encoding=fields.get("content-encoding"),
        )
        reader.feed(bytes(received))
        reader.flush()
        return self._describe_charge(params, reader.finish())

    def _describe(self, document: Mapping[str, Any]) -> str:
        if self._request.body is _RPC_CALL:
            if not isinstance(document.get("result"), str):
                raise UnexpectedAnswer(f"no result: {_error_text(document)}")
            return f"block {document['result']}"
        rule = self._call.validated.location.match.route.rule
        if not isinstance(rule, TokenPrices):
            return "it responds"
        models = [str(each.get("id") or each["name"]) for each in document.get("data") or document["models"]]
        priced = sum(price_table.find_model(rule.table, model) is not None for model in models)
        return f"{len(models)} models, {priced} of them with a price"

    def _describe_charge(self, params: CostParams, reading: UsageReading) -> str:
        """Describe the reported usage. Raises: UnexpectedAnswer if calls would be charged by estimate."""
        rule = self._call.quote.rule
        if rule is None or reading.usage is None:
            raise UnexpectedAnswer("it reports no usage, so that the charge would be an estimate")
        metered = rule.settle(params, reading, clock.now())
        if metered.cost_nanos > self.max_nanos():
            raise UnexpectedAnswer(
                f"it costs {usd_string(metered.cost_nanos)} USD, more than the maximum of"
                f" {usd_string(self.max_nanos())} USD that would be held"
            )
        return f"{metered.tokens_in} tokens in, {metered.tokens_out} out, {usd_string(metered.cost_nanos)} USD"


def _decoded(body: bytes, content_encoding: str | None) -> bytes:
    decoder = decoder_for(content_encoding)
    if decoder is None:
        raise UnexpectedAnswer("an encoding that was not requested")
    try:
        return b"".join(decoder.feed(body))
    except UndecodableResponse:
        raise UnexpectedAnswer("it cannot be decoded") from None


def _error_text(document: object) -> str:
    return json.dumps(document, default=str)[:_MAX_QUOTED_CHARACTERS]
