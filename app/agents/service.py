"""The stories of agents: register, hand out gateway-only keys, replace a claim code.

Everything that belongs to a new agent is made in one unit: there is never an agent without wallet or credits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from app.agents import claims
from app.core import money
from app.core.unit_of_work import unit_of_work
from app.credits import budget
from app.credits import service as credits_service
from app.identity import service as identity
from app.identity.caller import KeyKind
from app.ports import provider
from app.wallets import service as wallets
from app.wallets.service import WalletView
from app.web import idempotency

DEFAULT_NAME = "unnamed-agent"


@dataclass(frozen=True, slots=True)
class Registration:
    """What a registering agent is told, once; the repr shows no secret."""

    agent_id: str
    api_key: str = field(repr=False)
    claim_code: str = field(repr=False)
    wallet: WalletView


@dataclass(frozen=True, slots=True)
class GatewayKey:
    """A new gateway-only key; the repr does not show it."""

    id: str
    api_key: str = field(repr=False)
    email: str | None
    granted_nanos: int
    created_at: datetime


def register(*, name: str | None, email: str | None) -> Registration:
    """Make an agent with its key, initial credits, wallet under the default controls, and claim code.

    Raises: RateLimited when the day's budget for initial credits is used up.
    """
    key = identity.mint_api_key(KeyKind.AGENT)
    wallet_key = wallets.new_wallet()
    with unit_of_work():
        agent = identity.add_agent(key, name=name or DEFAULT_NAME, email=email)
        wallet = wallets.create(agent.id, wallet_key, name=None, controls="default")
        code = claims.issue(agent.id)
        _open_account(agent.id)
    return Registration(agent.id, key.key, code, wallet)


def issue_gateway_key(*, email: str | None) -> GatewayKey:
    """Make a gateway-only key with initial credits. Raises: RateLimited when the day's budget is used up."""
    key = identity.mint_api_key(KeyKind.GATEWAY)
    with unit_of_work():
        created_at = identity.add_gateway_key(key, email=email)
        granted_nanos = _open_account(key.id)
    return GatewayKey(key.id, key.key, email, granted_nanos, created_at)


def replace_claim_code(agent_id: str) -> str:
    """Give an agent that nobody has claimed another code; the one it had is worthless from then on.

    Raises: AlreadyClaimed.
    """
    with unit_of_work():
        code = claims.replace(agent_id)
        idempotency.bind(agent_id)
        return code


def _open_account(owner_id: str) -> int:
    """Open a credit account with the initial credits; last in its unit, for the budget is one row for all."""
    settings = provider.settings()
    nanos = money.nanos_from_usd(settings.initial_credits_usd)
    credits_service.open_account(owner_id)
    if nanos:
        credits_service.grant(owner_id, nanos, reference=f"initial:{owner_id}")
        if settings.grant_budget_usd_per_day is not None:
            budget.take(nanos, limit_nanos=money.nanos_from_usd(settings.grant_budget_usd_per_day))
    return nanos
