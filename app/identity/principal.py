"""The authenticated client of a request, as frozen values, and what the access token of an application permits.

No scope shows a key, changes limits, opens a budget or answers for the owner.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Self

from app.errors import InsufficientScope, ModelNotAllowed
from app.web.client_request import ClientRequest


class KeyKind(StrEnum):
    """The kinds of key for the X-API-Key header, by their prefix."""

    AGENT = "ak"
    GATEWAY = "gw"


class Scope(StrEnum):
    """What an owner may permit an application."""

    WALLET_READ = "wallet:read"
    WALLET_PAY = "wallet:pay"
    GATEWAY = "gateway"
    CATALOG = "catalog"


@dataclass(frozen=True, slots=True)
class Grant:
    """What an agent's owner has permitted an application: scopes, one wallet, and a session as the budget."""

    id: str
    agent_id: str
    client_id: str
    client_name: str
    client_host: str
    scopes: tuple[Scope, ...]
    wallet_id: str | None
    session_id: str | None
    expires_at: datetime
    created_at: datetime
    used_at: datetime | None


class BudgetPeriod(StrEnum):
    """How often the budget of a key begins anew, in UTC; weeks begin on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What a further key of an agent may do besides its budget; None, and no `models`, are no limit."""

    models: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def allow(self, provider: str, model: str) -> bool:
        """Return whether a model is listed. A pattern of providers includes no service: sellers choose their paths."""
        patterns = [each.partition("/") for each in self.models]
        return not patterns or any(
            (of == provider or (":" not in provider and fnmatchcase(provider, of)))
            and (not separator or fnmatchcase(model, name))
            for of, separator, name in patterns
        )


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of an API key. Limits and idempotency belong to the agent; a gateway-only key has none.

    `account_id` is the credit account that pays: the agent's id, or a gateway-only key's own id. An application has
    the agent, and the `grant` of its owner; a key with `limits` has the agent's account, and no agent.
    """

    kind: KeyKind
    key_id: str
    account_id: str
    agent_id: str | None
    grant: Grant | None = None
    limits: KeyLimits | None = None
    has_budgets: bool = False
    """Whether it spends from a budget that it shares with others."""
    requests_per_minute: int | None = None
    """What an operator permits its agent, instead of RATE_LIMIT_PER_KEY; None for that."""

    @property
    def scopes(self) -> tuple[Scope, ...] | None:
        """Return what an application or a key with limits was permitted; None if it is not restricted."""
        if self.grant is not None:
            return self.grant.scopes
        return None if self.limits is None else (Scope.GATEWAY, Scope.CATALOG)

    @property
    def client_id(self) -> str:
        """Return who keys of idempotent requests belong to: the account, or a key that may see less."""
        return self.account_id if self.scopes is None else self.key_id

    def may_call(self, provider: str, model: str) -> bool:
        return self.limits is None or self.limits.allow(provider, model)

    def assert_may_call(self, provider: str, model: str) -> None:
        """Check that a model is one of this key's. Raises: ModelNotAllowed."""
        if not self.may_call(provider, model):
            patterns = list(self.limits.models) if self.limits else []
            raise ModelNotAllowed(f"This key may not call {provider}/{model}.", details={"models": patterns})

    @property
    def only_wallet_id(self) -> str | None:
        """Return the wallet that an application was permitted; None for the agent itself, whose wallets are all."""
        return None if self.grant is None else self.grant.wallet_id

    def agent_of_wallet(self, wallet_id: str) -> str | None:
        """Return the agent whose wallet this may be; None for a wallet that an application was not permitted."""
        return self.agent_id if self.grant is None or self.grant.wallet_id == wallet_id else None


class MasterKeyRole(StrEnum):
    """What a master key may do. Its text has the role (`mk_viewer_…`), so that no change of a row can raise it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    @classmethod
    def of(cls, key: str) -> Self:
        return next((role for role in (cls.VIEWER, cls.OPERATOR) if key.startswith(role.prefix)), cls.ADMIN)

    @property
    def prefix(self) -> str:
        return "mk_" if self is MasterKeyRole.ADMIN else f"mk_{self.value}_"


@dataclass(frozen=True, slots=True)
class MasterKeyPrincipal:
    key_id: str
    name: str
    role: MasterKeyRole = MasterKeyRole.ADMIN
    in_console: bool = False

    @property
    def sees_keys(self) -> bool:
        """Return whether responses list whole keys: for an admin, and neither in a browser nor at a shell."""
        return self.role is MasterKeyRole.ADMIN and not self.in_console


SHELL = MasterKeyPrincipal("00000000-0000-4000-8000-0000000005e1", "shell", in_console=True)
"""The caller of `flask platform`, who owns its idempotency keys; no master key has this id."""
_OPERATOR_ACTS = frozenset({
    "platform.freeze_agent", "platform.unfreeze_agent", "platform.revoke_claim_code", "platform.revoke_gateway_key",
    "platform.pause_service", "platform.resume_service", "platform_events.test_platform_webhook",
    "platform_events.replay_platform_webhook",
})  # fmt: skip
"""What an operator's master key may do besides reading; all else needs an admin's."""


_PAID = "fund transfer withdraw swap bridge"
_READ = "list_wallets get_wallet get_balances get_controls list_transactions get_transaction list_sessions get_session"
_OPERATIONS: dict[Scope, tuple[str, ...]] = {
    Scope.WALLET_READ: (
        *(f"wallets.{each}" for each in _READ.split()),
        "x402.list_service_purchases", "x402.get_service_purchase", "x402.list_payees",
        "approvals.list_approvals", "approvals.get_approval", "balance.get_balance",
    ),
    Scope.WALLET_PAY: (
        *(f"wallets.{each}" for each in _PAID.split()), "x402.fetch_paid_resource",
        "x402_checks.validate_paid_resource", "credits.top_up", "shopping.buy", "shopping.list_purchases",
        "shopping.get_purchase", "trading.call_perpdex",
    ),
    Scope.GATEWAY: ("gateway.", "models.", "usage.", "balance.get_balance"),
    Scope.CATALOG: (
        "proxy.", "x402_services.", "catalog.list_catalog", "catalog.get_catalog_service",
        "usage.", "balance.get_balance",
    ),
}  # fmt: skip
"""The endpoints, or the blueprints of forwarded calls, of each scope."""
_OF_EVERY_SCOPE = frozenset({"mcp.post_message", "providers.list_providers"})
_FORWARDED = {"/v1/gateway/": "gateway.", "/v1/proxy/": "proxy.", "/v1/x402/services/": "x402_services."}
ALL_SCOPES = tuple(Scope)


def assert_permitted(request: ClientRequest, principal: Principal) -> None:
    """Check that the scopes of an application or a key with limits include the request. Raises: InsufficientScope."""
    scopes = principal.scopes
    if scopes is None:
        return
    target = request.raw_target
    endpoint = request.endpoint or next((found for start, found in _FORWARDED.items() if target.startswith(start)), "")
    names = {endpoint, endpoint.partition(".")[0] + "."}
    needed = [scope for scope, known in _OPERATIONS.items() if not names.isdisjoint(known)]
    if endpoint not in _OF_EVERY_SCOPE and not set(needed) & set(scopes):
        if principal.grant is None:
            raise InsufficientScope("A key with limits only calls models and services; this needs the agent's key.")
        challenge = {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{" ".join(needed)}"'}
        raise InsufficientScope(details={"scopes": needed}, headers=challenge if needed else {})


def session_of(principal: Principal, named: str | None, *, is_counted: bool = True) -> str | None:
    """Return the session that a payment counts against: the budget of an application, or the one it named.

    Raises: InsufficientScope for a payment that no budget counts, and for another session than the budget.
    """
    if principal.limits is not None and named is not None:
        raise InsufficientScope("A key with limits has its own budget, and cannot name a session.")
    grant: Grant | None = principal.grant
    if grant is None or grant.session_id is None:
        return named
    if not is_counted:
        raise InsufficientScope("This connection has a budget, which cannot count this kind of payment.")
    if named not in (None, grant.session_id):
        raise InsufficientScope("This connection has a budget; its payments cannot name another session.")
    return grant.session_id


def needed_role(endpoint: str | None) -> MasterKeyRole:
    """Return the least role that an act of `/v1/platform` needs."""
    return MasterKeyRole.OPERATOR if endpoint in _OPERATOR_ACTS else MasterKeyRole.ADMIN


def assert_role(request: ClientRequest, caller: MasterKeyPrincipal) -> None:
    """Check that a master key's role includes the requested operation. Raises: InsufficientScope."""
    needed = needed_role(request.endpoint)
    if caller.role in {MasterKeyRole.ADMIN, needed} or request.method in {"GET", "HEAD"}:
        return
    raise InsufficientScope(f"This operation needs the master key of an {needed}; this one has the role {caller.role}.")
