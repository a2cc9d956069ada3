"""The provider table: one row with everything specific to an upstream, frozen at startup.

`GATEWAY_PROVIDERS_FILE` adds rows and overrides fields (`configured`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import StringConstraints

from app.core.request_target import RequestTarget
from app.errors import InvalidInput, NotFound
from app.gateway.dialects.request.cost_params import Dialect, Surface
from app.gateway.pricing.quotes import PricingRule
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


def parse_route_text(text: str) -> tuple[str, Pattern]:
    """Parse `METHOD path`; the path may be missing. Raises: ValueError."""
    found = _ROUTE_TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f'{text!r} is not like "POST search", with one of {", ".join(METHODS)}')
    return found[1], Pattern.parse(found[2] or "")


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


@dataclass(frozen=True, slots=True, eq=False)
class Provider:
    """A row of the table. `base_url` may contain `{key}` and, with networks, `{network}`: never show it.

    Compared by identity: there is one object for each row.
    """

    slug: str
    kind: ProviderKind
    base_url: str = field(repr=False)
    routes: tuple[Route, ...]
    aliases: tuple[str, ...] = ()
    api_key: str = field(repr=False, default="")
    credential: Credential | None = None
    default_headers: Mapping[str, str] = field(default_factory=dict)
    dialect: Dialect | None = None
    # The only query parameters that are forwarded; None: all.
    parameters: tuple[QueryParameter, ...] | None = None
    refused_fields: tuple[FieldRule, ...] = ()
    # Maximum numbers, and lengths of lists, in fields of the body.
    limits: Mapping[str, int] = field(default_factory=dict)
    # The first segment of the path is one of these names: each maps to a value of `{network}`, or to a base URL.
    networks: Mapping[str, str] = field(default_factory=dict)
    endpoints: Mapping[str, str] = field(repr=False, default_factory=dict)
    # Whether streams are asked for their usage; the field for a limit on the output that a request has none of.
    usage_request: bool = True
    output_limit_field: str = ""
    probes: tuple[ProbeRequest, ...] = ()
    # The minimum price of a call that is paid for with x402: the row's own, or the service's.
    x402_floor_nanos: int = 0

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
        routes = [route for route in self.routes if route.surface is surface and route.method == "POST"]
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
        found = match_route(self.routes, method, raw_path)
        if found is None:
            raise not_allowed_error(f"{method} {raw_path}".strip(), (route.text for route in self.routes))
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
