"""Probes of the gateway's providers: calls that are validated, read and priced as those of clients."""

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from werkzeug.test import EnvironBuilder
from werkzeug.utils import cached_property

from app.core import clock
from app.core.money import usd_string
from app.gateway.call import GatewayCall
from app.gateway.dialects.request.cost_params import CostParams, Surface
from app.gateway.dialects.response.response_reader import ResponseReader, parse_object
from app.gateway.dialects.response.usage_readers import UsageReading
from app.gateway.pricing import price_table
from app.gateway.pricing.quotes import TokenPrices
from app.gateway.providers.table import ProbeRequest, Provider, ProviderKind, ProviderTable
from app.payments.x402 import guard
from app.ports.errors import Rejected
from app.ports.probes import Probe, UnexpectedAnswer
from app.ports.upstream import Upstream, UpstreamRequest, read_beginning
from app.web.client_request import ClientRequest

_MAX_BYTES = 16 * 2**20
_MAX_QUOTED_CHARACTERS = 200
_HEADERS = (("Accept", "application/json"), ("Accept-Encoding", "identity"), ("User-Agent", "purser"))


def probes(table: ProviderTable, upstream: Upstream) -> Iterator[Probe]:
    for row in table.rows:
        for request in row.probes:
            if not row.is_configured:
                yield Probe(row.slug, request.capability, str, missing=f"{row.slug.upper()}_API_KEY")
                continue
            call = _Call(row, request, upstream)
            max_nanos = call.max_nanos if request.is_paid else None
            yield Probe(row.slug, request.capability, call.run, max_nanos=max_nanos)


class _Call:
    """A request as a call of a client: validated by the row's routes, and priced."""

    def __init__(self, row: Provider, request: ProbeRequest, upstream: Upstream) -> None:
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
        # None, too, if it is compressed although that was not asked for.
        document = parse_object(bytes(received))
        if response.status != HTTPStatus.OK:
            raise Rejected(f"http_{response.status}", details={"answer": _error_text(document)})
        if not isinstance(document, dict):
            raise UnexpectedAnswer("not a JSON object")
        if params is None or params.surface is Surface.FREE:
            return self._describe(document)
        reader = ResponseReader.of(params, response)
        reader.feed(bytes(received))
        reader.flush()
        return self._describe_charge(params, reader.finish())

    def _describe(self, document: Mapping[str, Any]) -> str:
        if self._row.kind is ProviderKind.CHAIN_RPC:
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


def _error_text(document: object) -> str:
    return json.dumps(document, default=str)[:_MAX_QUOTED_CHARACTERS]
