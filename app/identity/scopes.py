"""Scopes: the operations that the access token of an application can do, and no others.

None of them shows a key, changes limits, opens a budget or answers for the owner.
"""

from __future__ import annotations

from app.errors import InsufficientScope
from app.identity.principal import Grant, Principal, Scope
from app.web.client_request import ClientRequest

_PAID = "fund transfer withdraw swap bridge"
_READ = "list_wallets get_wallet get_balances get_controls list_transactions get_transaction list_sessions get_session"
_OPERATIONS: dict[Scope, tuple[str, ...]] = {
    Scope.WALLET_READ: (
        *(f"wallets.{each}" for each in _READ.split()),
        "x402.list_service_purchases", "x402.get_service_purchase", "x402.list_payees",
        "approvals.list_approvals", "approvals.get_approval", "balance.get_balance",
    ),
    Scope.WALLET_PAY: (
        *(f"wallets.{each}" for each in _PAID.split()), "x402.fetch_paid_resource", "credits.top_up",
        "shopping.buy", "shopping.get_purchase", "trading.call_perpdex",
    ),
    Scope.GATEWAY: ("gateway.", "usage.get_usage", "balance.get_balance"),
    Scope.CATALOG: (
        "proxy.", "x402_services.", "catalog.list_catalog", "catalog.get_catalog_service",
        "usage.get_usage", "balance.get_balance",
    ),
}  # fmt: skip
"""The endpoints, or the blueprints of forwarded calls, of each scope."""
_OF_EVERY_SCOPE = frozenset({"mcp.post_message", "providers.list_providers"})
_FORWARDED = {"/v1/gateway/": "gateway.", "/v1/proxy/": "proxy.", "/v1/x402/services/": "x402_services."}
ALL = tuple(Scope)


def assert_permitted(request: ClientRequest, principal: Principal) -> None:
    """Check that an application's scopes include what it asks for. Raises: InsufficientScope."""
    grant = principal.grant
    if grant is None:
        return
    endpoint = request.endpoint or _forwarded(request.raw_target)
    needed = [scope for scope, known in _OPERATIONS.items() if endpoint in known or _blueprint(endpoint) in known]
    if endpoint not in _OF_EVERY_SCOPE and not set(needed) & set(grant.scopes):
        raise InsufficientScope(details={"scopes": needed}, headers=_challenge(needed) if needed else {})


def session_of(principal: Principal, named: str | None, *, is_counted: bool = True) -> str | None:
    """Return the session that a payment counts against: the budget of an application, or the one it named.

    Raises: InsufficientScope for a payment that no budget counts, and for another session than the budget.
    """
    grant: Grant | None = principal.grant
    if grant is None or grant.session_id is None:
        return named
    if not is_counted:
        raise InsufficientScope("This connection has a budget, and no budget counts this kind of payment.")
    if named not in (None, grant.session_id):
        raise InsufficientScope("This connection has a budget; its payments cannot name another session.")
    return grant.session_id


def _challenge(needed: list[Scope]) -> dict[str, str]:
    return {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{" ".join(needed)}"'}


def _forwarded(target: str) -> str:
    return next((endpoint for prefix, endpoint in _FORWARDED.items() if target.startswith(prefix)), "")


def _blueprint(endpoint: str) -> str:
    return endpoint.partition(".")[0] + "."
