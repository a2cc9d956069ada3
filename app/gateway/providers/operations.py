"""The lists of providers and models, without upstream URLs and keys, and the providers' operations in the document.

The generic operation serves them all, but generated clients encode the slashes of its path, and name no route.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import product
from typing import Any

from app.core import clock
from app.core.money import NANOS_PER_USD
from app.gateway.dialects.request.cost_params import Surface
from app.gateway.pricing import price_table, price_updates
from app.gateway.pricing.quotes import FixedPrice, PerRpcMethod, ReportedPrice, TokenPrices
from app.gateway.providers.table import Provider, ProviderTable, Route
from app.gateway.validation.body import BodyKind
from app.gateway.validation.rules import Pattern
from app.state import app_state
from app.web.openapi import FREE_QUERY, JSON_BODY, MULTIPART_BODY


def list_providers() -> list[dict[str, Any]]:
    """Return all providers in the order of the table, then those of other packages."""
    state = app_state()
    price_updates.follow()
    base = state.settings.public_url
    rows = [
        {
            "slug": row.slug, "aliases": list(row.aliases), "kind": row.kind.value,
            "route": f"{base}/v1/gateway/{row.slug}{'/{chain}' if row.has_network_segment else ''}",
            "configured": row.is_configured, "chains": list(row.network_names()),
            "routes": [route.text for route in row.routes.values()], "pricing": _pricing(row),
            "x402_price_usd": row.x402_floor_nanos,
        }
        for row in state.part(ProviderTable).rows
    ]  # fmt: skip
    return [*rows, *(describe() for describe in state.provider_listings)]


def _pricing(row: Provider) -> dict[str, Any]:
    rules = {route.text: route.rule for route in row.routes.values()}
    fixed = {text: rule.nanos for text, rule in rules.items() if isinstance(rule, FixedPrice)}
    found = {"model": "per_path", "nanos": None, "prices": fixed, "table": None}
    match next((rule for rule in rules.values() if not isinstance(rule, FixedPrice)), None):
        case TokenPrices(table=table):
            return found | {"model": "per_token", "table": f"{table} {price_updates.version() or price_table.VERSION}"}
        case ReportedPrice():
            return found | {"model": "reported"}
        case PerRpcMethod(prices=prices):
            return found | {"model": "per_method", "prices": {pattern.text: nanos for pattern, nanos in prices}}
    if len(set(fixed.values())) == 1:
        return found | {"model": "per_call", "nanos": next(iter(fixed.values())), "prices": {}}
    return found


def list_models() -> list[dict[str, Any]]:
    """Return the operator's own names, and the models of configured providers that the price table has."""
    table, hour = app_state().part(ProviderTable), clock.now().replace(minute=0, second=0, microsecond=0)
    price_updates.follow()
    listed = [each for row in table.rows if row.is_configured for each in _models(row, price_updates.version(), hour)]
    known = {each["id"]: each["pricing"] for each in listed}
    own = [_model(name, "operator", known.get(targets[0])) for name, targets in table.models.items()]
    return [*own, *listed]


@lru_cache(maxsize=64)
def _models(row: Provider, _version: str, at: datetime) -> list[dict[str, Any]]:
    surfaces = [surface for surface in (Surface.CHAT, Surface.MESSAGES, Surface.EMBEDDINGS) if row.path_of(surface)]
    rule = next((each.rule for each in row.routes.values() if each.surface in surfaces), None)
    if not isinstance(rule, TokenPrices):
        return []
    rates = {name: rule.rates_for(name, at, 0)[0] for name in price_table.model_names(rule.table)}
    prices = {name: {"prompt": each.input or 0, "completion": each.output or 0} for name, each in rates.items()}
    return [
        _model(f"{row.slug}/{name}", row.slug, {kind: f"{nanos / NANOS_PER_USD:f}" for kind, nanos in each.items()})
        for name, each in prices.items()
    ]


def _model(name: str, owner: str, pricing: dict[str, str] | None) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner, "pricing": pricing}


def list_paid_routes() -> Iterator[tuple[str, str, str, int]]:
    """Yield the provider, method, path and minimum price of each route of configured providers with a fixed path.

    That is the price, unless it depends on the request: then the terms of the request have it.
    """
    for row in app_state().part(ProviderTable).rows:
        for route in row.routes.values() if row.is_configured else ():
            nanos = max(row.x402_floor_nanos, route.rule.nanos if isinstance(route.rule, FixedPrice) else 0)
            for path, parameters in _paths(row, route):
                names = [each["name"] for each in parameters]
                for chosen in product(*(_listed_values(row, each) for each in parameters)):
                    yield row.slug, route.method, path.format(**dict(zip(names, chosen, strict=True))), nanos


def _listed_values(row: Provider, parameter: Mapping[str, Any]) -> list[str]:
    """Return the values of a parameter with which a path is listed: one name of each network, else the first."""
    values = parameter["schema"].get("enum", ())
    if parameter["name"] == "chain":
        return list(reversed({row.networks.get(each, each): each for each in reversed(values)}.values()))
    return list(values[:1])


_PREFIX = "/v1/gateway/"
_PIECE = re.compile(r"\{([^{}]*)\}")
_VERSIONS = re.compile(r"v[0-9]\w*(\|v[0-9]\w*)+")
_WORD = re.compile(r"[A-Z]?[a-z0-9]+")
_BODIES = {BodyKind.JSON: JSON_BODY, BodyKind.FORM: MULTIPART_BODY, BodyKind.EITHER: {**JSON_BODY, **MULTIPART_BODY}}


def add_operations(document: dict[str, Any], providers: ProviderTable) -> None:
    """Add an operation for each route of each provider to a document."""
    generic = document["paths"][f"{_PREFIX}{{provider}}/{{path}}"]
    shared = document["components"]["responses"]
    shared |= {f"Gateway{status}": each for status, each in generic["post"]["responses"].items() if status != "default"}
    for row in providers.rows:
        document["tags"].append({"name": row.slug, "description": f"Calls that are forwarded to {row.slug}."})
        for route in row.routes.values():
            method = route.method.lower()
            if method in generic:
                for path, parameters in _paths(row, route):
                    operation = _operation(generic[method], row, route, path, parameters)
                    document["paths"].setdefault(path, {}).setdefault(method, operation)


def _operation(
    generic: Mapping[str, Any], row: Provider, route: Route, path: str, parameters: list[dict[str, Any]]
) -> dict[str, Any]:
    sent = path.removeprefix(_PREFIX)
    headers = [each for each in generic["parameters"] if each["in"] != "query"]
    query = [FREE_QUERY] if row.parameters is None else [
        {
            "in": "query",
            "name": each.name,
            "description": f"Forwarded to {row.slug}.",
            "schema": {"type": "string", **({"enum": sorted(each.values)} if each.values else {})},
        }
        for each in row.parameters
        # `$alt` is another spelling of `alt`, and no name in a program.
        if each.name.isidentifier()
    ]  # fmt: skip
    operation = {
        **generic,
        "tags": [row.slug],
        "operationId": _operation_id(route.method, sent),
        "summary": f"Forward `{route.text}` to {row.slug} and return its response unchanged.",
        "description": f"The body and the response are those of {row.slug}'s API. `GET /v1/providers` has the price.",
        "parameters": [*parameters, *query, *headers],
        "responses": {
            status: each if "$ref" in each else {"$ref": f"#/components/responses/Gateway{status}"}
            for status, each in generic["responses"].items()
        },
    }
    operation.pop("requestBody", None)
    if content := _BODIES.get(route.body):
        operation["requestBody"] = {"content": content, "required": True}
    return operation


def _operation_id(method: str, path: str) -> str:
    """Return the words of a path in snake case; those of a read begin with `get` and end with its parameters."""
    literal = [word.lower() for word in _WORD.findall(_PIECE.sub("", path))]
    names = [name for name in _PIECE.findall(path) if name not in {"version", "chain"}]
    words = literal[:1] + ([] if method == "POST" else [method.lower()]) + (literal[1:] or ([] if names else ["call"]))
    return "_".join([*words, *(["by", *"/and/".join(names).split("/")] if names and method != "POST" else [])])


def _paths(row: Provider, route: Route) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield a path for each choice of words, with its parameters.

    Versions of an API, and the words before the rest of a path, are values of a parameter instead.
    """
    values: dict[str, list[str]] = {"chain": list(row.network_names())} if row.has_network_segment else {}
    text = route.path.text

    def named(match: re.Match[str]) -> str:
        name = "version" if _VERSIONS.fullmatch(match[1]) else "group" if "**" in text and "|" in match[1] else ""
        if name:
            values[name] = match[1].split("|")
        return f"{{{name}}}" if name else match[0]

    for each in Pattern.parse(_PIECE.sub(named, text)).variants():
        segments = filter(None, [row.slug, "{chain}" if "chain" in values else "", each.text.replace("*", "")])
        path = f"{_PREFIX}{'/'.join(segments)}"
        yield path, [_path_parameter(name, values.get(name)) for name in _PIECE.findall(path)]


def _path_parameter(name: str, values: list[str] | None) -> dict[str, Any]:
    schema = {"type": "string", **({"enum": values} if values else {"minLength": 1})}
    text = f"The part `{{{name}}}` of the provider's path."
    return {"in": "path", "name": name, "required": True, "description": text, "schema": schema}
