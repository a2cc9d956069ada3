"""Parsing of the provider table: `providers.toml`, with additions and overrides from GATEWAY_PROVIDERS_FILE.

Both are TOML, with a table for each row: `[providers.<slug>]`. All errors are reported, one per line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from app.config import Settings
from app.core.chains import ChainName
from app.core.money import nanos_from_usd
from app.gateway.dialects.request import search_costs
from app.gateway.dialects.request.cost_params import Dialect, Surface
from app.gateway.dialects.request.injection import OUTPUT_LIMIT_FIELDS
from app.gateway.pricing import price_table, price_updates
from app.gateway.pricing.price_table import Rates
from app.gateway.pricing.quotes import FixedPrice, PerRpcMethod, ReportedPrice, TokenPrices
from app.gateway.pricing.rates import FallbackRates
from app.gateway.providers.table import (
    Credential,
    Provider,
    ProviderKind,
    ProviderTable,
    Route,
    parse_route_text,
)
from app.gateway.validation.body import BodyKind
from app.gateway.validation.patterns import Pattern
from app.gateway.validation.rules import FieldRule, QueryParameter

Read = TypeVar("Read")
Prices: TypeAlias = TokenPrices | ReportedPrice
_SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}", re.ASCII)
# Routes below /v1/gateway/ that are not providers of this table.
_RESERVED = frozenset({"shopping"})
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_USD = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,9})?", re.ASCII)
_BUILT_IN = Path(__file__).with_name("providers.toml")
_MERGED_FIELDS = ("routes", "methods", "networks", "endpoints", "limits")
_REFUSED = "refused_fields"
_SURFACES = tuple(surface.value for surface in Surface)
_PRICE_FIELDS = frozenset(
    {
        "type", "table", "models", "fallback_input_usd_per_million", "fallback_output_usd_per_million", "fallback_usd",
    }
)  # fmt: skip


def load_table(settings: Settings) -> ProviderTable:
    """Parse the table. Raises: SystemExit with one line for each error in the file."""
    errors: list[str] = []
    configured = _built_in(settings)
    if settings.gateway_providers_file:
        for slug, row in _read_tables(Path(settings.gateway_providers_file), errors).items():
            present = configured.get(slug)
            configured[slug] = _merge_rows(present, row) if present and isinstance(row, dict) else row
    floor_nanos = nanos_from_usd(settings.x402_price_usd)
    rows = {slug: _parse_row(slug, row, floor_nanos, errors) for slug, row in configured.items()}
    table = {slug: row for slug, row in rows.items() if row is not None}
    if "alchemy" in table:
        row = table["alchemy"]
        table["alchemy"] = replace(row, endpoints={**_sandbox_chains(settings), **row.endpoints})
    errors += _duplicate_names(table)
    if errors:
        raise SystemExit("\n".join(["GATEWAY_PROVIDERS_FILE is invalid:", *errors]))
    return ProviderTable(table)


def _built_in(settings: Settings) -> dict[str, Any]:
    """Return the tables of `providers.toml` with the operator's URLs and keys."""
    found: dict[str, Any] = tomllib.loads(_BUILT_IN.read_text("utf-8"))["providers"]
    for slug, row in found.items():
        row["base_url"] = getattr(settings, f"{slug}_base_url")
        row["api_key"] = getattr(settings, f"{slug}_api_key").get_secret_value()
    if "pro-api" in settings.coingecko_base_url:
        found["coingecko"]["credential"]["header"] = "x-cg-pro-api-key"
    return found


def _sandbox_chains(settings: Settings) -> Mapping[str, str]:
    """Return the RPC URLs of the sandbox's chains, which replace Alchemy if no key is set."""
    if not settings.is_sandbox or settings.alchemy_api_key.get_secret_value():
        return {}
    urls = {name.value: settings.rpc_urls(name) for name in ChainName}
    return {name: urls[name][0] for name in urls if urls[name]}


def _merge_rows(present: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with fields replaced.

    New routes and methods precede the present ones, and false removes one; refused fields are added.
    """
    merged = {**present, **given}
    for name in _MERGED_FIELDS:
        if isinstance(present.get(name), dict) and isinstance(given.get(name), dict):
            both = {
                **given[name],
                **{key: present[name][key] for key in present[name] if key not in given[name]},
            }
            merged[name] = {key: value for key, value in both.items() if value is not False}
    if isinstance(present.get(_REFUSED), list) and isinstance(given.get(_REFUSED), list):
        merged[_REFUSED] = [*present[_REFUSED], *given[_REFUSED]]
    return merged


def _read_tables(path: Path, errors: list[str]) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            read = tomllib.load(file)
    except OSError as error:
        errors.append(f"{path}: {error.strerror}")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        errors.append(f"{path}: is not valid TOML")
        return {}
    errors += [f"{name}: is unknown; must be [providers.<slug>]" for name in read if name != "providers"]
    found = read.get("providers", {})
    if not isinstance(found, dict):
        errors.append("providers: must be a table")
        return {}
    return found


def _duplicate_names(table: Mapping[str, Provider]) -> list[str]:
    owners: dict[str, str] = {}
    return [
        f"providers.{row.slug}: the name {name} is taken by {owners[name]}"
        for row in table.values()
        for name in (row.slug, *row.aliases)
        if owners.setdefault(name, row.slug) != row.slug
    ]


def _parse_row(slug: str, raw: Any, floor_nanos: int, errors: list[str]) -> Provider | None:
    """Return the row of one table; None if it has errors, which are added to the list."""
    problems: list[str] = []

    def read(name: str, parse: Callable[[Any], Read], value: Any) -> Read | None:
        try:
            return parse(value)
        except (ValueError, TypeError, re.error) as error:
            problems.append(f".{name}: {error}")
            return None

    given: Mapping[str, Any] = raw if isinstance(raw, dict) else {}
    fields: dict[str, Any] = {"x402_price_usd": floor_nanos, "kind": ProviderKind.OTHER}
    for name, value in given.items():
        if name in _FIELD_PARSERS:
            fields[name] = read(name, _FIELD_PARSERS[name], value)
        else:
            problems.append(f".{name}: is unknown; known are {', '.join(_FIELD_PARSERS)}")
    if "base_url" not in given:
        problems.append(".base_url: is missing")
    prices, methods = fields.pop("price", None), fields.pop("methods", None)
    if (prices is None) != ("dialect" not in given) and not problems:
        problems.append(".dialect: and a price by tokens (price.table) require each other")
    routes = [
        route
        for text, value in (fields.pop("routes", None) or {}).items()
        if (route := read(f"routes.{text!r}", partial(_parse_route, text, prices), value)) is not None
    ]
    if methods:
        routes.append(Route("POST", "POST", Pattern.parse(""), PerRpcMethod(methods), body=BodyKind.JSON))
    checks = {
        ".routes: is missing: without routes nothing is forwarded": not routes,
        ": must be a table": not isinstance(raw, dict),
        ": is not a valid name of a provider": not _SLUG.fullmatch(slug) or slug in _RESERVED,
    }
    problems += [problem for problem, is_present in checks.items() if is_present]
    errors += [f"providers.{slug}{problem}" for problem in problems]
    if problems:
        return None
    # Narrow routes first: a wide route added by the operator does not override the price of a narrower one.
    routes.sort(key=lambda route: route.path.breadth)
    fields["x402_floor_nanos"] = fields.pop("x402_price_usd") or floor_nanos
    return Provider(slug=slug, routes=tuple(routes), **fields)


def _parse_route(text: str, prices: Prices | None, value: Any) -> Route:
    method, path = parse_route_text(text)
    raw = value if isinstance(value, dict) else {"price": value}
    if set(raw) - {"price", "body"}:
        raise ValueError('must be a price, or look like {price = "0.01", body = "json"}')
    kind = BodyKind(raw.get("body", BodyKind.JSON if method in {"POST", "PUT", "PATCH"} else BodyKind.NONE))
    price = _text(raw.get("price"))
    if _USD.fullmatch(price):
        return Route(text, method, path, FixedPrice(_nanos(price)), body=kind)
    if price not in _SURFACES:
        raise ValueError(f'must be dollars in quotes, such as "0.005", or one of {", ".join(_SURFACES)}')
    if prices is None:
        raise ValueError(f"{price} needs a price by tokens: a dialect, and price.table")
    if isinstance(prices, ReportedPrice) != (Surface(price) in search_costs.SEARCH_SURFACES):
        raise ValueError(
            f'{", ".join(sorted(search_costs.SEARCH_SURFACES))} require price = {{type = "reported"}}'
        )
    return Route(text, method, path, prices, surface=Surface(price), body=kind)


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("must be a table")
    return value


def _prices(value: Any) -> Prices:
    return ReportedPrice() if value == {"type": "reported"} else parse_token_prices(_table(value))


def _methods(value: Any) -> tuple[tuple[Pattern, int], ...]:
    methods = [(Pattern.parse(name), _nanos(usd)) for name, usd in _table(value).items()]
    return tuple(sorted(methods, key=lambda method: method[0].breadth))


def _limits(value: Any) -> Mapping[str, int]:
    limits = _table(value)
    if not all(type(most) is int and most >= 0 for most in limits.values()):
        raise ValueError("must contain whole numbers")
    return limits


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("must be a string")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("must be a list of strings")
    return tuple(_text(each) for each in value)


def _names(value: Any) -> tuple[str, ...]:
    names = _texts(value)
    if not all(_SLUG.fullmatch(name) and name not in _RESERVED for name in names):
        raise ValueError("must be lower-case letters, digits, hyphens and underscores")
    return names


def _base_url(value: Any) -> str:
    text = _text(value)
    parts = urlsplit(text.replace("{network}", "network").replace("{key}", "key"))
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.fragment:
        raise ValueError("must look like https://host/path")
    return text.rstrip("/")


def _map(value: Any) -> Mapping[str, str]:
    return {name: _text(each) for name, each in _table(value).items()}


def _lower_map(value: Any) -> Mapping[str, str]:
    return {name.lower(): text for name, text in _map(value).items()}


def _headers(value: Any) -> Mapping[str, str]:
    headers = _map(value)
    if not all(_HEADER.fullmatch(name) for name in headers):
        raise ValueError("must have valid header names")
    return headers


def _credential(value: Any) -> Credential:
    raw = _map(value)
    if set(raw) - {"header", "value"} or not _HEADER.fullmatch(raw.get("header", "")):
        raise ValueError('must look like {header = "Authorization", value = "Bearer {key}"}')
    credential = Credential(**raw)
    if "{key}" not in credential.value:
        raise ValueError("value must contain {key}")
    return credential


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("must be true or false")
    return value


def _output_limit_field(value: Any) -> str:
    names = sorted({name for names in OUTPUT_LIMIT_FIELDS.values() for name in names})
    if value not in names:
        raise ValueError(f"must be one of {', '.join(names)}")
    return str(value)


def _nanos(value: Any) -> int:
    """Parse dollars from a string, because TOML numbers are binary fractions."""
    if not isinstance(value, str) or not _USD.fullmatch(value):
        raise ValueError('must be dollars in quotes, such as "0.01"')
    return nanos_from_usd(Decimal(value))


def parse_token_prices(row: Mapping[str, Any]) -> TokenPrices:
    """Parse the token prices of a provider, such as `{type = "tokens", table = "openai"}`. Raises: ValueError."""
    if row.get("type") != "tokens":
        raise ValueError(
            'price.type must be "tokens"; other prices are set per route, such as "POST search" = "0.005"'
        )
    unknown_fields = set(row) - _PRICE_FIELDS
    if unknown_fields:
        raise ValueError(f"price has unknown fields: {', '.join(sorted(map(str, unknown_fields)))}")
    table = row.get("table")
    if table not in price_table.table_names():
        raise ValueError("price.table must be a provider of the price table, such as openai")
    defaults = FallbackRates()
    models = row.get("models", {})
    if not isinstance(models, dict) or not all(isinstance(model, dict) for model in models.values()):
        raise ValueError('price.models must be tables such as [providers.openai.price.models."o5*"]')
    return TokenPrices(
        str(table),
        FallbackRates(
            input_nanos_each=_parse_nanos_each(row, "fallback_input_usd_per_million"),
            output_nanos_each=_parse_nanos_each(row, "fallback_output_usd_per_million"),
            call_nanos=_price_nanos(row, "fallback_usd") if "fallback_usd" in row else defaults.call_nanos,
        ),
        models={name: _model_rates(model) for name, model in models.items()},
        call_nanos={name: _price_nanos(model, "usd") for name, model in models.items() if "usd" in model},
    )


def _model_rates(model: Mapping[str, Any]) -> Rates:
    unknown_fields = set(model) - set(price_updates.FIELDS) - {"usd"}
    if unknown_fields or not model:
        raise ValueError(
            f"price.models takes {', '.join(price_updates.FIELDS)} and usd (of a call without tokens)"
        )
    return Rates(
        **{
            rate: Decimal(_price_nanos(model, name)) * scale / 10**9
            for name, (rate, scale) in price_updates.FIELDS.items()
            if name in model
        }
    )


def _parse_nanos_each(row: Mapping[str, Any], name: str) -> int | None:
    if name not in row:
        return None
    each, remainder = divmod(_price_nanos(row, name), 10**6)
    if remainder or not each:
        raise ValueError(f"price.{name} must be a multiple of 0.001, above zero")
    return each


def _price_nanos(row: Mapping[str, Any], name: str) -> int:
    try:
        return _nanos(row.get(name))
    except ValueError as error:
        raise ValueError(f"price.{name} {error}") from None


_FIELD_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "aliases": _names,
    "kind": ProviderKind,
    "base_url": _base_url,
    "api_key": _text,
    "credential": _credential,
    "default_headers": _headers,
    "dialect": Dialect,
    "price": _prices,
    "routes": _table,
    "methods": _methods,
    "parameters": lambda value: tuple(QueryParameter.parse(text) for text in _texts(value)),
    "refused_fields": lambda value: tuple(FieldRule.parse(text) for text in _texts(value)),
    "limits": _limits,
    "networks": _lower_map,
    "endpoints": lambda value: {name: _base_url(url) for name, url in _lower_map(value).items()},
    "x402_price_usd": _nanos,
    "usage_request": _flag,
    "output_limit_field": _output_limit_field,
}
