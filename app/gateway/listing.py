"""What `GET /v1/providers` tells of each row; never an address or a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flask import current_app

from app.gateway import price_table, providers
from app.gateway.pricing import FixedPrice, PerPath, PerRpcMethod, Rule, TokenPrices
from app.gateway.providers import Provider
from app.ports import provider as ports

_EXTENSION = "listed-providers"


def add(row: Callable[[], dict[str, Any]]) -> None:
    """Let a room that has a route of its own below `/v1/gateway/` be listed as well."""
    current_app.extensions.setdefault(_EXTENSION, []).append(row)


def rows() -> list[dict[str, Any]]:
    """Return all providers in the order of the table, then those with routes of their own."""
    return [*_rows(), *(row() for row in current_app.extensions.get(_EXTENSION, ()))]


def _rows() -> Iterator[dict[str, Any]]:
    base = ports.settings().public_url
    for row in providers.table().rows:
        yield {
            "slug": row.slug,
            "aliases": list(row.aliases),
            "kind": row.kind.value,
            "route": f"{base}/v1/gateway/{row.slug}{'/{chain}' if row.chooses_network else ''}",
            "configured": row.is_configured,
            "chains": _chains(row),
            "pricing": _price(row.price),
            "x402_price_usd": row.x402_floor_nanos,
        }


def _chains(row: Provider) -> list[str]:
    return list(row.segments()) if row.is_configured else list(row.networks)


def _price(price: Rule) -> dict[str, Any]:
    match price:
        case FixedPrice():
            return _shape("per_call", price.nanos)
        case PerPath():
            return _shape("per_path", price.default_nanos, **price.by_beginning)
        case PerRpcMethod():
            return _shape("per_method", price.default_nanos, **price.by_method)
        case TokenPrices():
            return {**_shape("per_token", None), "table": f"{price.table} {price_table.VERSION}"}


def _shape(model: str, nanos: int | None, **prices: int) -> dict[str, Any]:
    return {"model": model, "nanos": nanos, "prices": prices, "table": None}
