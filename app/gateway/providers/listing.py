"""The list of providers for `GET /v1/providers`, without upstream URLs and keys."""

from collections.abc import Iterator
from typing import Any

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
