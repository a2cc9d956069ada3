"""Parsing of the provider table: `providers.toml`, with additions and overrides from GATEWAY_PROVIDERS_FILE.

Both are TOML, with a table for each row: `[providers.<slug>]`. All errors are reported, one per line.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from app.config import Settings
from app.core.chains import ChainName
from app.core.money import nanos_from_usd
from app.core.setting_types import HttpUrl
from app.gateway.dialects.request import tool_costs
from app.gateway.dialects.request.cost_params import Dialect, Surface
from app.gateway.pricing import price_table, price_updates
from app.gateway.pricing.price_table import Rates
from app.gateway.pricing.quotes import FixedPrice, PerRpcMethod, ReportedPrice, TokenPrices
from app.gateway.pricing.rates import FallbackRates
from app.gateway.providers.table import (
    MAX_MODELS,
    Credential,
    HeaderName,
    ModelName,
    ProbeRequest,
    Provider,
    ProviderKind,
    ProviderTable,
    Route,
    parse_route_text,
)
from app.gateway.validation.body import BodyKind
from app.gateway.validation.rules import FieldRule, Pattern, QueryParameter

# Routes below /v1/gateway/ that are not providers of this table.
_RESERVED = frozenset({"shopping"})
_USD = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,9})?", re.ASCII)
_BUILT_IN = Path(__file__).with_name("providers.toml")
_MERGED_FIELDS = ("routes", "methods", "networks", "endpoints", "limits")
_REFUSED = "refused_fields"
_SURFACES = tuple(surface.value for surface in Surface)
_PLAIN = re.compile(r"[\w-]+")
_PROBLEMS = {
    "extra_forbidden": "is unknown", "unexpected_keyword_argument": "is unknown", "missing": "is missing",
    "model_type": "must be a table", "dict_type": "must be a table", "dataclass_type": "must be a table",
}  # fmt: skip
_STRICT = pydantic.ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,39}", name) or name in _RESERVED:
        raise ValueError("is not a valid name of a provider: lower-case letters, digits, - and _")
    return name


def _check_text(text: str) -> str:
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

    model_config = _STRICT

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
    method, path = parse_route_text(text)
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


def _sort_routes(named: dict[str, Route], info: pydantic.ValidationInfo) -> Any:
    """Return the narrow routes first: a wide one of the operator does not override the price of a narrower one."""
    routes = list(named.values())
    methods = [(Pattern.parse(name), nanos) for name, nanos in info.data.get("methods", {}).items()]
    if methods:
        rule = PerRpcMethod(tuple(sorted(methods, key=lambda method: method[0].breadth)))
        routes.append(Route("POST", "POST", Pattern.parse(""), rule, body=BodyKind.JSON))
    if not routes:
        raise ValueError("is missing: without routes nothing is forwarded")
    return tuple(sorted(routes, key=lambda route: route.path.breadth))


class ProviderRow(pydantic.BaseModel):
    """A row as it is written; fields of the same name as in `Provider` are passed on."""

    model_config = _STRICT

    aliases: tuple[Name, ...] = ()
    kind: ProviderKind = ProviderKind.OTHER
    base_url: Annotated[HttpUrl, Field(repr=False)]
    api_key: Annotated[Text, Field(repr=False)] = ""
    credential: Credential | None = None
    default_headers: dict[HeaderName, Text] = {}
    dialect: Dialect | None = None
    price: Annotated[PriceRow, AfterValidator(PriceRow.rule)] | None = None
    methods: dict[Annotated[str, AfterValidator(lambda name: Pattern.parse(name).text)], Nanos] = {}
    # After the prices, which its values name.
    routes: Annotated[
        dict[str, Annotated[Route, PlainValidator(_parse_route)]],
        BeforeValidator(_with_names),
        AfterValidator(_sort_routes),
    ] = Field({}, validate_default=True)
    parameters: tuple[Annotated[Text, AfterValidator(QueryParameter.parse)], ...] | None = None
    refused_fields: tuple[Annotated[Text, AfterValidator(FieldRule.parse)], ...] = ()
    limits: dict[str, Annotated[pydantic.StrictInt, Field(ge=0)]] = {}
    networks: dict[LowerText, Text] = {}
    endpoints: dict[LowerText, HttpUrl] = {}
    x402_price_usd: Nanos = 0
    probes: tuple[ProbeRequest, ...] = ()
    usage_request: pydantic.StrictBool = True
    output_limit_field: Literal["", "max_completion_tokens", "max_tokens", "max_output_tokens", "maxOutputTokens"] = ""

    @pydantic.model_validator(mode="after")
    def _check_dialect(self) -> Self:
        if (self.price is None) != (self.dialect is None):
            raise ValueError("dialect and a price by tokens (price.table) require each other")
        return self


def _check_names(rows: dict[str, ProviderRow]) -> dict[str, ProviderRow]:
    owners: dict[str, str] = {}
    for slug, row in rows.items():
        for name in (slug, *row.aliases):
            if owners.setdefault(name, slug) != slug:
                raise ValueError(f"the name {name} of {slug} is taken by {owners[name]}")
    return rows


class ProvidersFile(pydantic.BaseModel):
    model_config = _STRICT

    providers: Annotated[dict[Name, ProviderRow], AfterValidator(_check_names)]
    models: dict[ModelName, Annotated[tuple[ModelName, ...], Field(min_length=1, max_length=MAX_MODELS)]] = {}

    @pydantic.model_validator(mode="after")
    def _check_models(self) -> Self:
        known = {name for slug, row in self.providers.items() for name in (slug, *row.aliases)}
        named = [each.partition("/") for targets in self.models.values() for each in targets]
        if not all(slash and slug in known for slug, slash, _ in named):
            raise ValueError("models must be lists of provider/name, such as openai/gpt-5")
        return self


def load_table(settings: Settings) -> ProviderTable:
    """Parse the table. Raises: SystemExit with one line for each error in the file."""
    document: dict[str, Any] = {"providers": _built_in(settings)}
    if settings.gateway_providers_file:
        document = _merge(document["providers"], _read_file(Path(settings.gateway_providers_file)))
    try:
        parsed = ProvidersFile.model_validate(document)
    except pydantic.ValidationError as error:
        raise SystemExit("\n".join(["GATEWAY_PROVIDERS_FILE is invalid:", *_lines(error)])) from None
    floor_nanos = nanos_from_usd(settings.x402_price_usd)
    names = ProviderRow.model_fields.keys() & Provider.__slots__
    table = {
        slug: Provider(
            slug=slug,
            x402_floor_nanos=row.x402_price_usd or floor_nanos,
            **{name: getattr(row, name) for name in names},
        )
        for slug, row in parsed.providers.items()
    }
    row = table["alchemy"]
    table["alchemy"] = replace(row, endpoints={**_sandbox_chains(settings), **row.endpoints})
    return ProviderTable(table, parsed.models)


def _lines(error: pydantic.ValidationError) -> Iterator[str]:
    """Yield a line with its place for each mistake, without the value, which may be a key."""
    for each in error.errors(include_url=False, include_input=False):
        parts = [str(part) for part in each["loc"] if part != "[key]"]
        problem = _PROBLEMS.get(each["type"]) or each["msg"].removeprefix("Value error, ")
        if each["type"] == "extra_forbidden" and parts[2:] == parts[-1:]:
            problem += f"; known are {', '.join(ProviderRow.model_fields)}"
        yield f"{'.'.join(part if _PLAIN.fullmatch(part) else repr(part) for part in parts)}: {problem}"


def _built_in(settings: Settings) -> dict[str, Any]:
    """Return the tables of `providers.toml` with the operator's URLs and keys."""
    found: dict[str, Any] = tomllib.loads(_BUILT_IN.read_text("utf-8"))["providers"]
    for row in found.values():
        base_url, api_key = row.pop("settings")
        row["base_url"] = getattr(settings.upstreams, base_url)
        row["api_key"] = getattr(settings.upstreams, api_key).get_secret_value()
    if "pro-api" in settings.upstreams.coingecko_base_url:
        found["coingecko"]["credential"]["header"] = "x-cg-pro-api-key"
    return found


def _sandbox_chains(settings: Settings) -> Mapping[str, str]:
    """Return the RPC URLs of the sandbox's chains, which replace Alchemy if no key is set."""
    if not settings.is_sandbox or settings.upstreams.alchemy_api_key.get_secret_value():
        return {}
    urls = {name.value: settings.rpc_urls(name) for name in ChainName}
    return {name: urls[name][0] for name in urls if urls[name]}


def _merge(built_in: dict[str, Any], read: dict[str, Any]) -> dict[str, Any]:
    rows = read.get("providers", {})
    if not isinstance(rows, dict):
        return read
    merged = {
        slug: _merge_row(built_in[slug], row) if slug in built_in and isinstance(row, dict) else row
        for slug, row in rows.items()
    }
    return {**read, "providers": {**built_in, **merged}}


def _merge_row(present: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with fields replaced.

    New routes and methods precede the present ones, and false removes one; refused fields are added.
    """
    merged = {**present, **given}
    for name in _MERGED_FIELDS:
        if isinstance(present.get(name), dict) and isinstance(given.get(name), dict):
            both = given[name] | {key: old for key, old in present[name].items() if key not in given[name]}
            merged[name] = {key: value for key, value in both.items() if value is not False}
    if isinstance(present.get(_REFUSED), list) and isinstance(given.get(_REFUSED), list):
        merged[_REFUSED] = [*present[_REFUSED], *given[_REFUSED]]
    return merged


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        problem = error.strerror
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        problem = "is not valid TOML"
    raise SystemExit(f"GATEWAY_PROVIDERS_FILE is invalid:\n{path}: {problem}")
