"""The provider table: one row with everything specific to an upstream, frozen at startup.

`GATEWAY_PROVIDERS_FILE` adds rows and overrides fields (`configured`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote, urlsplit

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, StringConstraints
from werkzeug.utils import cached_property

from app.core.money import nanos_from_usd
from app.core.request_target import RequestTarget
from app.core.setting_types import HttpUrl
from app.errors import InvalidInput, NotFound
from app.gateway.dialects.request import tool_costs
from app.gateway.dialects.request.cost_params import Dialect, Surface
from app.gateway.pricing import price_table, price_updates
from app.gateway.pricing.price_table import Rates
from app.gateway.pricing.quotes import FixedPrice, PerRpcMethod, PricingRule, ReportedPrice, TokenPrices
from app.gateway.pricing.rates import FallbackRates
from app.gateway.validation.body import BodyKind
from app.gateway.validation.rules import FieldRule, Pattern, QueryParameter, not_allowed_error

_VERSION = re.compile(r"(?:^|/)v[0-9]$", re.ASCII)

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_PREFIXES = ("", "v1/", "v1beta/openai/")
_ROUTE_TEXT = re.compile(rf"({'|'.join(METHODS)})(?: ([^ ]+))?")


@dataclass(frozen=True, slots=True)
class Route:
    """A method and path that are forwarded, and how calls are parsed and priced."""

    text: str
    method: str
    path: Pattern
    rule: PricingRule
    # How a request is parsed for pricing by tokens; None for a fixed price.
    surface: Surface | None = None
    body: BodyKind = BodyKind.NONE


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """A route and the decoded path that matched it, with the values of its placeholders."""

    route: Route
    path: str
    parameters: Mapping[str, str]


def match_route(routes: Iterable[Route], method: str, raw_path: str) -> RouteMatch | None:
    """Return the first route that matches a method and a raw path; HEAD uses the routes of GET.

    The whole decoded path is matched, case-sensitively, and the matched path is what is sent.
    """
    path = unquote(raw_path)
    requested_method = "GET" if method == "HEAD" else method
    for route in routes:
        if route.method == requested_method and (found := route.path.regex.fullmatch(path)):
            return RouteMatch(route, path, found.groupdict())
    return None


class ProviderKind(StrEnum):
    LANGUAGE_MODEL = "language-model"
    CHAIN_RPC = "chain-rpc"
    PRICE_DATA = "price-data"
    WEB_SEARCH = "web-search"
    OTHER = "other"


MAX_MODELS = 8
MODEL_NAME = re.compile(r"[\x21-\x7e]{1,200}")
ModelName = Annotated[str, StringConstraints(pattern=rf"^{MODEL_NAME.pattern}$")]
"""It is part of a header of the response."""
HeaderName = Annotated[str, StringConstraints(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]


@dataclass(frozen=True, slots=True)
class Credential:
    """The header for the operator's key, with `{key}` in its value. Without one, the key is part of the base URL."""

    header: HeaderName
    value: Annotated[str, StringConstraints(pattern=r"^[^\r\n]*\{key\}[^\r\n]*$")] = "{key}"


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A request that shows whether a provider responds as expected; with `is_paid`, the provider bills it."""

    capability: str
    method: str
    path: str
    body: Mapping[str, Any] | None = None
    query: str = ""
    is_paid: bool = False


# Routes below /v1/gateway/ that are not providers of this table.
_RESERVED = frozenset({"shopping"})
_USD = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,9})?", re.ASCII)
_SURFACES = tuple(surface.value for surface in Surface)
STRICT = pydantic.ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,39}", name) or name in _RESERVED:
        raise ValueError("is not a valid name of a provider: lower-case letters, digits, - and _")
    return name


def _check_text(text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError("Input should be a valid string")  # noqa: TRY004 - pydantic reports no other error
    if not text.isprintable():
        raise ValueError("must be one line of printable characters")
    return text


def _nanos(value: Any) -> int:
    """Parse dollars from a string, because TOML numbers are binary fractions."""
    if not isinstance(value, str) or not _USD.fullmatch(value):
        raise ValueError('must be dollars in quotes, such as "0.01"')
    return nanos_from_usd(Decimal(value))


def _nanos_each(value: Any) -> int:
    each, remainder = divmod(_nanos(value), 10**6)
    if remainder or not each:
        raise ValueError("must be a multiple of 0.001, above zero")
    return each


Name = Annotated[str, AfterValidator(_check_name)]
Text = Annotated[str, AfterValidator(_check_text)]
LowerText = Annotated[str, pydantic.StringConstraints(to_lower=True)]
Nanos = Annotated[int, PlainValidator(_nanos)]
NanosEach = Annotated[int, PlainValidator(_nanos_each)]
# The last is the price of a call without tokens.
RateName = Literal[*price_updates.FIELDS, "usd"]  # type: ignore[valid-type]


class PriceRow(pydantic.BaseModel):
    """Prices by tokens, such as `{type = "tokens", table = "openai"}`, or as reported."""

    model_config = STRICT

    type: Literal["tokens", "reported"]
    table: str = ""
    fallback_input_usd_per_million: NanosEach | None = None
    fallback_output_usd_per_million: NanosEach | None = None
    fallback_usd: Nanos = FallbackRates().call_nanos
    models: dict[str, Annotated[dict[RateName, Nanos], Field(min_length=1)]] = {}

    def rule(self) -> TokenPrices | ReportedPrice:
        """Return the pricing rule. Raises: ValueError."""
        if self.type == "reported" and self.model_fields_set == {"type"}:
            return ReportedPrice()
        if self.table not in price_table.table_names():
            raise ValueError("price.table must be a provider of the price table, such as openai")
        fallback = FallbackRates(
            self.fallback_input_usd_per_million, self.fallback_output_usd_per_million, call_nanos=self.fallback_usd
        )
        models = {}
        for model, prices in self.models.items():
            known = [(*price_updates.FIELDS[name], nanos) for name, nanos in prices.items() if name != "usd"]
            models[model] = Rates(**{kind: Decimal(nanos) * scale / 10**9 for kind, scale, nanos in known})
        call_nanos = {name: prices["usd"] for name, prices in self.models.items() if "usd" in prices}
        return TokenPrices(self.table, fallback, models, call_nanos)


def _with_names(routes: Any) -> Any:
    return {text: (text, value) for text, value in routes.items()} if isinstance(routes, dict) else routes


def _parse_route(named: tuple[str, Any], info: pydantic.ValidationInfo) -> Route:
    text, value = named
    if (found := _ROUTE_TEXT.fullmatch(text)) is None:
        raise ValueError(f'{text!r} is not like "POST search", with one of {", ".join(METHODS)}')
    method, path = found[1], Pattern.parse(found[2] or "")
    raw = value if isinstance(value, dict) else {"price": value}
    if set(raw) - {"price", "body"}:
        raise ValueError('must be a price, or look like {price = "0.01", body = "json"}')
    kind = BodyKind(raw.get("body", BodyKind.JSON if method in {"POST", "PUT", "PATCH"} else BodyKind.NONE))
    price, rule = raw.get("price"), info.data.get("price")
    if isinstance(price, str) and _USD.fullmatch(price):
        return Route(text, method, path, FixedPrice(_nanos(price)), body=kind)
    if price not in _SURFACES:
        raise ValueError(f'must be dollars in quotes, such as "0.005", or one of {", ".join(_SURFACES)}')
    if rule is None:
        raise ValueError(f"{price} needs a price by tokens: a dialect, and price.table")
    if isinstance(rule, ReportedPrice) != (price in tool_costs.SEARCH_SURFACES):
        raise ValueError(f'{", ".join(sorted(tool_costs.SEARCH_SURFACES))} require price = {{type = "reported"}}')
    return Route(text, method, path, rule, surface=Surface(price), body=kind)


def _sort_routes(named: dict[str, Route], info: pydantic.ValidationInfo) -> dict[str, Route]:
    """Return the narrow routes first: a wide one of the operator does not override the price of a narrower one."""
    methods = [(Pattern.parse(name), nanos) for name, nanos in info.data.get("methods", {}).items()]
    if methods:
        rule = PerRpcMethod(tuple(sorted(methods, key=lambda method: method[0].breadth)))
        named["methods"] = Route("POST", "POST", Pattern.parse(""), rule, body=BodyKind.JSON)
    if not named:
        raise ValueError("is missing: without routes nothing is forwarded")
    return dict(sorted(named.items(), key=lambda item: item[1].path.breadth))


class Provider(pydantic.BaseModel):
    """A row of the table. `base_url` may contain `{key}` and, with networks, `{network}`: never show it.

    Compared by identity: there is one object for each row.
    """

    model_config = STRICT
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    aliases: tuple[Name, ...] = ()
    kind: ProviderKind = ProviderKind.OTHER
    base_url: Annotated[HttpUrl, Field(repr=False)]
    api_key: Annotated[Text, Field(repr=False)] = ""
    credential: Credential | None = None
    default_headers: dict[HeaderName, Text] = {}
    dialect: Dialect | None = None
    price: Annotated[PriceRow, AfterValidator(PriceRow.rule)] | None = None
    methods: dict[Annotated[str, AfterValidator(lambda name: Pattern.parse(name).text)], Nanos] = {}
    # By their texts, after the prices, which they name; `methods` is the route of the methods.
    routes: Annotated[
        dict[str, Annotated[Route, PlainValidator(_parse_route)]],
        BeforeValidator(_with_names),
        AfterValidator(_sort_routes),
    ] = Field({}, validate_default=True)
    # The only query parameters that are forwarded; None: all.
    parameters: (
        tuple[Annotated[QueryParameter, PlainValidator(lambda text: QueryParameter.parse(_check_text(text)))], ...]
        | None
    ) = None
    refused_fields: tuple[
        Annotated[FieldRule, PlainValidator(lambda text: FieldRule.parse(_check_text(text)))], ...
    ] = ()
    # Maximum numbers, and lengths of lists, in fields of the body.
    limits: dict[str, Annotated[pydantic.StrictInt, Field(ge=0)]] = {}
    # The first segment of the path is one of these names: each maps to a value of `{network}`, or to a base URL.
    networks: dict[LowerText, Text] = {}
    endpoints: Annotated[dict[LowerText, HttpUrl], Field(repr=False)] = {}
    # The minimum price of a call that is paid for with x402; 0: the service's.
    x402_price_usd: Nanos = 0
    probes: tuple[ProbeRequest, ...] = ()
    # Whether streams are asked for their usage; the field for a limit on the output that a request has none of.
    usage_request: pydantic.StrictBool = True
    output_limit_field: Literal["", "max_completion_tokens", "max_tokens", "max_output_tokens", "maxOutputTokens"] = ""

    _slug: str = ""
    _least_nanos: int = 0

    @pydantic.model_validator(mode="after")
    def _check_dialect(self) -> Self:
        if (self.price is None) != (self.dialect is None):
            raise ValueError("dialect and a price by tokens (price.table) require each other")
        return self

    def listed_as(self, slug: str, least_nanos: int) -> Self:
        """Return the row with its place in the table, and the service's minimum price of a payment."""
        self._slug, self._least_nanos = slug, least_nanos
        return self

    # Each call reads them, and pydantic is slow to find private attributes.
    @cached_property
    def slug(self) -> str:
        return self._slug

    @cached_property
    def x402_floor_nanos(self) -> int:
        """Return the minimum price of a call that is paid for with x402: the row's own, or the service's."""
        return self.x402_price_usd or self._least_nanos

    @property
    def is_configured(self) -> bool:
        """Return whether calls can be made."""
        return bool(self.api_key or self.endpoints)

    @property
    def has_network_segment(self) -> bool:
        """Return whether the first segment of the path names a network."""
        return bool(self.networks or self.endpoints)

    def credential_headers(self) -> Mapping[str, str]:
        """Return the headers that carry the operator's key."""
        if self.credential is None or not self.api_key:
            return {}
        return {self.credential.header: self.credential.value.replace("{key}", self.api_key)}

    def path_of(self, surface: Surface) -> str | None:
        """Return the path of a surface of OpenAI's or Anthropic's API; None if the provider does not have it."""
        routes = [route for route in self.routes.values() if route.surface is surface and route.method == "POST"]
        name = "chat/completions" if surface is Surface.CHAT else surface.value
        paths = [f"{prefix}{name}" for prefix in _PREFIXES]
        return next((path for path in paths for route in routes if route.path.regex.fullmatch(path)), None)

    def locate(self, method: str, target: RequestTarget) -> UpstreamLocation:
        """Return the upstream location of a call. Raises: RouteNotAllowed; InvalidInput for an unknown network."""
        if not self.has_network_segment:
            return self._location_at(self.base_url, method, target)
        segment, rest = target.split_first_segment()
        name = segment.lower()
        if name not in self.network_names():
            raise InvalidInput.field("chain", f"must be one of {', '.join(self.network_names())}")
        # A fixed map, so that client input never becomes part of a host name.
        base_url = self.endpoints.get(name) or self.base_url.replace("{network}", self.networks[name])
        return self._location_at(base_url, method, rest)

    def network_names(self) -> tuple[str, ...]:
        has_networks = self.api_key or not self.endpoints
        return tuple(dict.fromkeys([*self.endpoints, *(self.networks if has_networks else ())]))

    def match(self, method: str, raw_path: str) -> RouteMatch:
        """Return the route of a call. Raises: RouteNotAllowed."""
        found = match_route(self.routes.values(), method, raw_path)
        if found is None:
            raise not_allowed_error(f"{method} {raw_path}".strip(), (route.text for route in self.routes.values()))
        return found

    def _location_at(self, base_url: str, method: str, target: RequestTarget) -> UpstreamLocation:
        parts = urlsplit(base_url.replace("{key}", self.api_key))
        base_path = parts.path.rstrip("/")
        raw_path = target.raw_path
        # Clients are configured with and without the base path of the provider, such as /v1 or /openai/v1.
        for repeated in (base_path.strip("/"), base_path.rpartition("/")[2]):
            if _VERSION.search(repeated) and raw_path.startswith(f"{repeated}/"):
                raw_path = raw_path.removeprefix(f"{repeated}/")
                break
        match = self.match(method, raw_path)
        query = "&".join(filter(None, [parts.query, target.query]))
        # Send the path that matched, not another spelling of it.
        sent = RequestTarget(match.path, match.path, query).join_base(base_path)
        return UpstreamLocation(f"{parts.scheme}://{parts.netloc}", sent, match)


@dataclass(frozen=True, slots=True)
class UpstreamLocation:
    """The destination of a call: origin, request target, and the route that matched."""

    origin: str = field(repr=False)
    target: str = field(repr=False)
    match: RouteMatch


class ProviderTable:
    """All rows, by slug or alias."""

    def __init__(self, rows: Mapping[str, Provider], models: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self.rows = tuple(rows.values())
        self.models = dict(models or {})
        self._by_name = {alias: row for row in self.rows for alias in (row.slug, *row.aliases)}

    def has(self, name: str) -> bool:
        return name in self._by_name

    def find(self, name: str) -> Provider:
        """Return a row. Raises: NotFound."""
        found = self._by_name.get(name)
        if found is None:
            raise NotFound("This provider does not exist; GET /v1/providers lists all.")
        return found
