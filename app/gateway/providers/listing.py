"""The lists of providers and of models for `/v1/providers` and `/v1/models`, without upstream URLs and keys."""

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any

from app.core import clock
from app.core.money import NANOS_PER_USD
from app.gateway.dialects.request.cost_params import Surface
from app.gateway.pricing import price_table, price_updates
from app.gateway.pricing.quotes import FixedPrice, PerRpcMethod, ReportedPrice, TokenPrices
from app.gateway.providers.table import Provider, ProviderTable
from app.state import app_state


def list_providers() -> list[dict[str, Any]]:
    """Return all providers in the order of the table, then those of other packages."""
    state = app_state()
    price_updates.follow()
    rows = _table_providers(state.part(ProviderTable), base=state.settings.public_url)
    return [*rows, *(describe() for describe in state.provider_listings)]


def _table_providers(table: ProviderTable, *, base: str) -> Iterator[dict[str, Any]]:
    for row in table.rows:
        yield {
            "slug": row.slug,
            "aliases": list(row.aliases),
            "kind": row.kind.value,
            "route": f"{base}/v1/gateway/{row.slug}{'/{chain}' if row.has_network_segment else ''}",
            "configured": row.is_configured,
            "chains": list(row.network_names()),
            "routes": [route.text for route in row.routes],
            "pricing": _pricing(row),
            "x402_price_usd": row.x402_floor_nanos,
        }


def _pricing(row: Provider) -> dict[str, Any]:
    rules = {route.text: route.rule for route in row.routes}
    fixed = {text: rule.nanos for text, rule in rules.items() if isinstance(rule, FixedPrice)}
    for rule in rules.values():
        if isinstance(rule, TokenPrices):
            return {
                **_pricing_document("per_token", None, **fixed),
                "table": f"{rule.table} {price_updates.version() or price_table.VERSION}",
            }
        if isinstance(rule, ReportedPrice):
            return _pricing_document("reported", None, **fixed)
        if isinstance(rule, PerRpcMethod):
            return _pricing_document("per_method", None, **{pattern.text: nanos for pattern, nanos in rule.prices})
    if len(set(fixed.values())) == 1:
        return _pricing_document("per_call", next(iter(fixed.values())))
    return _pricing_document("per_path", None, **fixed)


def _pricing_document(model: str, nanos: int | None, **prices: int) -> dict[str, Any]:
    return {"model": model, "nanos": nanos, "prices": prices, "table": None}


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
    rule = next((each.rule for each in row.routes if each.surface in surfaces), None)
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
