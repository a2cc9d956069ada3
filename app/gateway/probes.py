"""Probes of the gateway's providers: calls that are validated, read and priced as those of clients."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from werkzeug.test import EnvironBuilder

from app.core import clock
from app.core.money import usd_string
from app.gateway.call import GatewayCall
from app.gateway.dialects.request.cost_params import CostParams, Surface
from app.gateway.dialects.response.response_reader import ResponseReader, parse_object
from app.gateway.dialects.response.usage_readers import UsageReading
from app.gateway.pricing import price_table
from app.gateway.pricing.quotes import TokenPrices
from app.gateway.providers.table import ProviderKind, ProviderTable
from app.ports.errors import Rejected
from app.ports.probes import Probe, UnexpectedAnswer
from app.ports.upstream import Upstream, UpstreamRequest, read_beginning
from app.web.client_request import ClientRequest

_MAX_BYTES = 16 * 2**20
_MAX_QUOTED_CHARACTERS = 200
_HEADERS = (("Accept", "application/json"), ("Accept-Encoding", "identity"), ("User-Agent", "purser"))


def probes(table: ProviderTable, upstream: Upstream) -> Iterator[Probe]:
    for row in table.rows:
        for sent in row.probes:
            if not row.is_configured:
                yield Probe(row.slug, sent.capability, str, missing=f"{row.slug.upper()}_API_KEY")
                continue
            path = f"/v1/gateway/{row.slug}/{sent.path}"
            builder = EnvironBuilder(path, method=sent.method, json=sent.body, query_string=sent.query)
            request = ClientRequest(builder.get_environ())
            call = GatewayCall(request, row, row.slug, _MAX_BYTES)
            max_nanos = partial(_max_nanos, call) if sent.is_paid else None
            yield Probe(row.slug, sent.capability, partial(_ask, upstream, call), max_nanos=max_nanos)


def _max_nanos(call: GatewayCall) -> int:
    return call.quote.worst_case.cost_nanos


def _ask(upstream: Upstream, call: GatewayCall) -> str:
    """Make a call. Raises: Rejected, Unreachable, OutcomeUnknown, UnexpectedAnswer."""
    headers = [*call.provider.credential_headers().items(), *call.provider.default_headers.items(), *_HEADERS]
    location, body, _, params, _ = call.validated
    if body:
        headers.append(("Content-Type", "application/json"))
    response = upstream.send(UpstreamRequest(call.request.method, location.origin, location.target, headers, body))
    received, failure = read_beginning(response, _MAX_BYTES)
    if failure is not None:
        raise failure
    if len(received) > _MAX_BYTES:
        raise UnexpectedAnswer(f"more than {_MAX_BYTES} bytes")
    # None, too, if it is compressed although that was not asked for.
    document = parse_object(received)
    if response.status != HTTPStatus.OK:
        raise Rejected(f"http_{response.status}", details={"answer": _error_text(document)})
    if not isinstance(document, dict):
        raise UnexpectedAnswer("not a JSON object")
    if params is None or params.surface is Surface.FREE:
        return _describe(call, document)
    reader = ResponseReader(params, response)
    reader.feed(received)
    reader.flush()
    return _describe_charge(call, params, reader.finish())


def _describe(call: GatewayCall, document: Mapping[str, Any]) -> str:
    if call.provider.kind is ProviderKind.CHAIN_RPC:
        if not isinstance(document.get("result"), str):
            raise UnexpectedAnswer(f"no result: {_error_text(document)}")
        return f"block {document['result']}"
    rule = call.validated.location.match.route.rule
    if not isinstance(rule, TokenPrices):
        return "it responds"
    models = [str(each.get("id") or each["name"]) for each in document.get("data") or document["models"]]
    priced = sum(price_table.find_model(rule.table, model) is not None for model in models)
    return f"{len(models)} models, {priced} of them with a price"


def _describe_charge(call: GatewayCall, params: CostParams, reading: UsageReading) -> str:
    """Describe the reported usage. Raises: UnexpectedAnswer if calls would be charged by estimate."""
    rule, max_nanos = call.quote.rule, _max_nanos(call)
    if rule is None or reading.usage is None:
        raise UnexpectedAnswer("it reports no usage, so that the charge would be an estimate")
    metered = rule.settle(params, reading, clock.now())
    if metered.cost_nanos > max_nanos:
        raise UnexpectedAnswer(
            f"it costs {usd_string(metered.cost_nanos)} USD, more than the maximum of {usd_string(max_nanos)} USD that"
            " would be held"
        )
    return f"{metered.tokens_in} tokens in, {metered.tokens_out} out, {usd_string(metered.cost_nanos)} USD"


def _error_text(document: object) -> str:
    return json.dumps(document, default=str)[:_MAX_QUOTED_CHARACTERS]
