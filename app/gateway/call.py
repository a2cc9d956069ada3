"""The gateway call: validate, quote, hold or accept a payment, forward, settle. Every exit ends the hold."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, NamedTuple
from urllib.parse import quote

from werkzeug.test import EnvironBuilder
from werkzeug.utils import cached_property
from werkzeug.wrappers import Response

from app.core import clock, money
from app.core.redaction import redact_keys
from app.core.request_target import RequestTarget, parse_target
from app.errors import InvalidInput, PaymentRequired, ProviderNotConfigured
from app.forwarding import call as forwarding
from app.forwarding import filters
from app.forwarding.call import MAX_BODY_BYTES
from app.forwarding.relay import ForwardingOptions
from app.gateway import operator_errors
from app.gateway.call_charges import FixedCharge, GatewayCharge, HeldCharge, MeteredCharge, max_call_nanos
from app.gateway.dialects.request import injection
from app.gateway.dialects.request.cost_params import CostParams, Surface
from app.gateway.dialects.request.parse import read_cost_params
from app.gateway.pricing import price_updates
from app.gateway.pricing.quotes import CallQuote, PerRpcMethod, PricedRequest, rpc_methods
from app.gateway.providers.table import MAX_MODELS, MODEL_NAME, Provider, ProviderTable, UpstreamLocation
from app.gateway.validation.body import BodyKind, RequestBody, parse_body
from app.gateway.validation.rules import check_fields, check_parameters
from app.identity import guards
from app.identity.principal import Principal
from app.payments.presented import PaymentPrice
from app.payments.x402 import gate, guard
from app.ports.upstream import UpstreamRequest
from app.state import app_state
from app.web import request_bodies
from app.web.client_request import ClientRequest
from app.web.request_bodies import parse_json

# The output of a prepaid call that sets no bound on it.
_DEFAULT_PREPAID_TOKENS_OUT = 4_000
_DEFAULT_PREPAID_CALLS = 10
_MAX_OWN_BYTES = 64 * 1024
_MIN_KEY_LENGTH = 20
_MAX_REMEMBERED_LINE = 200
_MODEL_NAMES = "must be provider/name, such as openai/gpt-5, or one of the names in GET /v1/models"
_CREDENTIAL_PARAMETERS = guards.CREDENTIAL_PARAMETERS | {"$httpmethod", "_method"}


class ValidatedRequest(NamedTuple):
    """What the provider's rules allowed: where it goes, its body, and what that says about its cost.

    The parsed body is not kept: it takes many times the memory of the raw one.
    """

    location: UpstreamLocation
    body: bytes
    is_form: bool
    params: CostParams | None
    # The method of each call in a JSON-RPC body.
    methods: tuple[str, ...]


class PrepaidQuote(NamedTuple):
    """The price of a prepaid call, and its parameters with the output bounded to that price."""

    price: PaymentPrice
    quote: CallQuote
    params: CostParams | None


@dataclass(frozen=True)
class GatewayCall:
    """The call of a provider by a request, which gives the provider this name.

    It is validated and priced when that is first asked for, once: the terms of a refusal, the gate and the charge
    share it.
    """

    request: ClientRequest
    provider: Provider
    provider_name: str
    max_bytes: int
    timeout_seconds: int | None = None
    """The time limit of the whole exchange; None for clients, who may disconnect."""

    @cached_property
    def validated(self) -> ValidatedRequest:
        """The request, checked against the provider's rules.

        Raises: RouteNotAllowed, InvalidInput, PayloadTooLarge above `max_bytes`.
        """
        request, provider = self.request, self.provider
        line, query = self._line, request.environ["QUERY_STRING"]
        is_remembered = (
            not query and len(line) <= _MAX_REMEMBERED_LINE and not guards.has_key_segment(request.environ["PATH_INFO"])
        )
        locate = _remembered_location if is_remembered else _locate
        location = locate(provider, self.provider_name, request.method, line, query)
        route = location.match.route
        body = self._body(route.body)
        check_fields(provider.refused_fields, provider.limits, body.parsed)
        params = None
        if provider.dialect is not None and route.surface is not None:
            known = CostParams(
                route.surface, provider.dialect, location.match.parameters.get("model") or "", body=body.raw,
                output_limit_field=provider.output_limit_field,
            )  # fmt: skip
            params = read_cost_params(
                known, body.fields, is_form=body.is_form, files=body.files, requests_usage=provider.usage_request,
                is_streaming_path=location.match.path.endswith(":streamGenerateContent"),
            )  # fmt: skip
        methods = rpc_methods(body.parsed) if isinstance(route.rule, PerRpcMethod) else ()
        return ValidatedRequest(location, body.raw, body.is_form, params, tuple(methods))

    @property
    def _line(self) -> str:
        return self.request.raw_target

    def _body(self, kind: BodyKind) -> RequestBody:
        raw = forwarding.decoded_body(self.request, self.max_bytes)
        return parse_body(kind, raw, self.request.content_type, parse_json=partial(parse_json, self.request))

    @cached_property
    def quote(self) -> CallQuote:
        """The possible cost of the call as it was sent. Raises: as `validated`; InvalidInput above one call's limit."""
        return self._quote(self.validated.params)

    @cached_property
    def prepaid(self) -> PrepaidQuote:
        """The quote of the call if it is paid for in advance, its output bounded. Raises: as `quote`."""
        params, quote = self.validated.params, self.quote
        if params is not None:
            if params.tools.bounded is not None:
                # A payment pays for the worst case: a few searches, and one image or one advice.
                is_costly = params.tools.image is not None or bool(params.tools.sub_calls)
                params = injection.limit_calls(params, 1 if is_costly else _DEFAULT_PREPAID_CALLS)
                quote = self._quote(params)
                params = quote.params or params
            limited = injection.limit_tools(self.validated.body, params.tools.limits)
            params = params._replace(body=limited, usage_injected=False)
            if params.is_output_unbounded:
                default_tokens = max(_DEFAULT_PREPAID_TOKENS_OUT, params.min_tokens_out)
                affordable = quote.affordable(max_call_nanos())
                params = injection.limit_output(params, min([default_tokens, *affordable.values()]))
                quote = self._quote(params)
        price = self._price(quote.worst_case.cost_nanos, body=self.validated.body)
        price = replace(price, is_metered=quote.rule is not None)
        return PrepaidQuote(price, quote, params)

    def advertised_price(self) -> PaymentPrice:
        """Price a request without a payment. Without a body it asks for the terms, and gets them even if it is invalid.

        Raises: RouteNotAllowed, InvalidInput, PayloadTooLarge for a request that would be refused in any case.
        """
        try:
            price = self.prepaid.price
        except InvalidInput as refusal:
            if request_bodies.raw_body(self.request):
                raise
            reason = f"this request would be refused. {refusal.message}"
        else:
            if self.provider.is_configured:
                return price
            reason = "this provider is not configured on this service."
        return self._price(0, unavailable_reason=reason)

    def _quote(self, params: CostParams | None) -> CallQuote:
        validated = self.validated
        match = validated.location.match
        price_updates.follow()
        now = clock.now()
        found = match.route.rule.quote(PricedRequest(now, match.path, validated.methods, params))
        found = found.within(max_call_nanos(), now)
        found.check(max_call_nanos())
        return found

    def _price(self, nanos: int, *, body: bytes = b"", unavailable_reason: str | None = None) -> PaymentPrice:
        slug = self.provider.slug
        price = guard.payable(self.request).price(
            max(self.provider.x402_floor_nanos, nanos), body, provider_name=slug,
            description=f"One call of {slug} through this gateway", unavailable_reason=unavailable_reason,
        )  # fmt: skip
        return replace(price, resource=redact_keys(price.resource))


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelCall(GatewayCall):
    """The call of one of the models that a request names; they share its parsed `fields`."""

    surface: Surface
    model: str
    fields: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.provider.slug}/{self.model}"

    @property
    def _line(self) -> str:
        return f"/v1/gateway/{self.provider_name}/{self.provider.path_of(self.surface)}"

    def _body(self, kind: BodyKind) -> RequestBody:  # noqa: ARG002 - all of these endpoints take JSON
        raw = injection.name_model(forwarding.decoded_body(self.request, self.max_bytes), self.model)
        fields = {name: value for name, value in self.fields.items() if name != "models"}
        return RequestBody(raw, {**fields, "model": self.model})


def candidates(request: ClientRequest, surface: Surface) -> list[ModelCall]:
    """Return the calls of the models that a request names. Raises: InvalidInput, ProviderNotConfigured, and others."""
    raw, table = forwarding.decoded_body(request, MAX_BODY_BYTES), app_state().part(ProviderTable)
    fields = {**parse_body(BodyKind.JSON, raw, None, parse_json=partial(parse_json, request)).fields}
    calls = []
    for name in _named(fields, table.models):
        slug, _, model = name.partition("/")
        if not model or not table.has(slug):
            raise InvalidInput.field("model", _MODEL_NAMES)
        provider = table.find(slug)
        if provider.path_of(surface) is None:
            offered = ", ".join(row.slug for row in table.rows if row.path_of(surface))
            raise InvalidInput.field("model", f"is {name}, and the providers of this endpoint are {offered}")
        if provider.is_configured:
            call = ModelCall(request, provider, slug, MAX_BODY_BYTES, surface=surface, model=model, fields=fields)
            calls.append(call)
    if not calls:
        raise ProviderNotConfigured
    return calls


def _named(fields: Mapping[str, Any], known: Mapping[str, tuple[str, ...]]) -> list[str]:
    others = fields.get("models")
    given = [fields.get("model"), *(others if isinstance(others, list) else [others])]
    names = [name for name in given if name is not None]
    if not names or not all(isinstance(name, str) and MODEL_NAME.fullmatch(name) for name in names):
        raise InvalidInput.field("model", _MODEL_NAMES)
    found = list(dict.fromkeys(each for name in names for each in known.get(name, (name,))))
    if len(found) > MAX_MODELS:
        raise InvalidInput.field("models", f"must be at most {MAX_MODELS}, with `model`")
    return found


def forward(request: ClientRequest, provider: Provider, caller: Principal | None, *, provider_name: str) -> Response:
    """Forward a request to a provider, which it calls by this name, and return the upstream's response.

    The caller's credits pay for it; without a caller, or if they do not suffice, the payment in the request.

    Raises: PaymentRequired, ProviderNotConfigured, RouteNotAllowed, InvalidInput, NotFound, PayloadTooLarge,
    Unauthorized, InsufficientCredits, PaymentInvalid, PaymentAlreadyUsed, PaymentPending, Overloaded, UpstreamError,
    UpstreamTimeout.
    """
    max_bytes = MAX_BODY_BYTES if caller else request_bodies.MAX_KEYLESS_BYTES
    call = GatewayCall(request, provider, provider_name, max_bytes)
    has_payment = guard.payable(request).headers.has_payment
    if caller is None and not has_payment:
        raise gate.attach(call.advertised_price(), PaymentRequired())
    if not provider.is_configured:
        raise ProviderNotConfigured
    return guard.choose_payer(
        caller, lambda: call.prepaid.price, has_payment=has_payment, on_credits=partial(forward_on_credits, call),
        prepaid=partial(_forward_prepaid, call),
    )  # fmt: skip


def _locate(provider: Provider, name: str, method: str, line: str, query: str) -> UpstreamLocation:
    """Return where a request line goes. Raises: as `validated`."""
    target = parse_target(line, query, "v1", "gateway", name).without_parameters(_CREDENTIAL_PARAMETERS)
    if guards.has_key_segment(f"/{target.path}"):
        path = guards.without_key_segment(target.path)
        target = RequestTarget(quote(path), path, target.query)
    location = provider.locate(method, target)
    check_parameters(provider.parameters, target.query)
    return location


# Agents repeat the same few lines. Clients choose them, so their number and length have limits.
_remembered_location = lru_cache(maxsize=1024)(_locate)


def forward_on_credits(call: GatewayCall, caller: Principal) -> Response:
    """Forward a call that an account's credits pay for. Raises: as `forward`, without a payment."""
    quote = call.quote
    kind = FixedCharge if quote.rule is None else HeldCharge
    paid = kind(caller, call.provider.slug, quote, quote.params or call.validated.params)
    return _exchange(call, paid, client_id=caller.account_id)


def _forward_prepaid(call: GatewayCall, caller: Principal | None) -> Response:
    price, quote, params = call.prepaid
    grant = gate.accept_payment(price, payer=caller)
    if grant.metered is not None:
        metered = MeteredCharge(grant, call.provider.slug, call.quote, call.quote.params or call.validated.params)
        try:
            return _exchange(call, metered, client_id=grant.payment_id)
        except BaseException:
            metered.collect()
            raise
    paid = FixedCharge(grant, call.provider.slug, quote, params)
    # Each payment counts as a separate client: it shares neither limits nor idempotency keys with another.
    return _exchange(call, paid, client_id=grant.payment_id)


def _exchange(call: GatewayCall, paid: GatewayCharge, *, client_id: str) -> Response:
    return forwarding.forward(call.request, outgoing(call, paid), paid, options(call, paid, client_id=client_id))


def outgoing(call: GatewayCall, paid: GatewayCharge) -> UpstreamRequest:
    """Return the request to the provider, with the operator's credential."""
    request, provider, validated = call.request, call.provider, call.validated
    body = validated.body if paid.params is None else paid.params.body
    scope = call.name if isinstance(call, ModelCall) else provider.slug
    own_headers = {**provider.credential_headers(), **forwarding.idempotency_key(request, paid.client_id, scope)}
    if body and not validated.is_form:
        # It was parsed as JSON, and is sent as JSON whatever type the client gave.
        own_headers["Content-Type"] = "application/json"
    headers = filters.for_upstream(
        # The body was decoded to be priced, and is sent decoded.
        [header for header in request.headers if header[0] != "Content-Encoding"],
        own_headers=own_headers,
        defaults=provider.default_headers,
        # A short value is a placeholder for a key, which may occur in any header by chance.
        secrets=[key for key in guards.sdk_keys(request) if len(key) >= _MIN_KEY_LENGTH],
    )
    return UpstreamRequest(
        request.method, validated.location.origin, validated.location.target, headers, body, call.timeout_seconds
    )


def options(call: GatewayCall, paid: GatewayCharge, *, client_id: str) -> ForwardingOptions:
    """Return how the call is sent and its response relayed."""
    provider, validated = call.provider, call.validated
    body = validated.body if paid.params is None else paid.params.body
    return ForwardingOptions(
        app_state().ports.upstream, lambda _incoming: paid.is_streamed, account_id=client_id,
        drain_on_disconnect=isinstance(paid, HeldCharge), secrets=(provider.api_key,) if provider.api_key else (),
        screen_error=partial(operator_errors.screen, provider, client_id, validated.location.target, body),
        keep_alive_seconds=app_state().settings.stream_keep_alive_seconds,
    )  # fmt: skip


def chat(
    payer: Principal, model: str, body: Mapping[str, Any], *, max_cost_nanos: int, timeout_seconds: int
) -> tuple[int, bytes, int]:
    """Complete a chat of this service itself with `provider/model`, charged to an account's credits.

    Returns status, body and cost in nano-dollars. Raises: InvalidInput if it may cost more than `max_cost_nanos`;
    ServiceError, as `forward` does.
    """
    builder = EnvironBuilder("/v1/chat/completions", method="POST", json={**body, "model": model})
    first = candidates(ClientRequest(builder.get_environ()), Surface.CHAT)[0]
    call = replace(first, max_bytes=_MAX_OWN_BYTES, timeout_seconds=timeout_seconds)
    if call.quote.worst_case.cost_nanos > max_cost_nanos:
        raise InvalidInput("This call may cost more than is left for it.")
    response = forward_on_credits(call, payer)
    content, _ = read_and_close(response, _MAX_OWN_BYTES)
    cost_usd = response.headers.get("X-Cost-Usd")
    # A response that came as a stream is charged at its end.
    cost_nanos = call.quote.worst_case.cost_nanos if cost_usd is None else money.nanos_from_usd(Decimal(cost_usd))
    return response.status_code, content, cost_nanos


def read_and_close(response: Response, most_bytes: int) -> tuple[bytes, bool]:
    """Return the content of a response, and whether it was cut because it is longer."""
    found = bytearray()
    try:
        for piece in response.iter_encoded():
            found += piece
            if len(found) > most_bytes:
                break
    finally:
        response.close()
    return bytes(found[:most_bytes]), len(found) > most_bytes
