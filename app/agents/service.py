"""Registration of agents, gateway-only keys, and replacement of claim codes.

A new agent is created in one unit with its wallet and credits: none exists without them.
"""

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy.orm import Session

from app.agents import claims
from app.core import money
from app.credits import accounts as credit_accounts
from app.db.unit_of_work import unit_of_work
from app.errors import AlreadyClaimed
from app.idempotency.service import Claim
from app.identity import service as identity
from app.identity.principal import KeyKind
from app.spending.policy import DEFAULT
from app.state import app_state
from app.wallets.core import custody, wallets
from app.wallets.core.wallets import WalletView

DEFAULT_NAME = "unnamed-agent"


@dataclass(frozen=True, slots=True)
class AgentRegistration:
    """A registered agent with its secrets, which are returned once; the repr does not show them."""

    agent_id: str
    api_key: str = field(repr=False)
    claim_code: str = field(repr=False)
    wallet: WalletView


@dataclass(frozen=True, slots=True)
class IssuedGatewayKey:
    id: str
    api_key: str = field(repr=False)
    email: str | None
    granted_nanos: int
    created_at: datetime


def register(*, name: str | None, email: str | None) -> AgentRegistration:
    """Create an agent with its key, initial credits, wallet under the default controls, and claim code.

    Raises: RateLimited when the day's budget for initial credits is exhausted.
    """
    key = identity.mint_api_key(KeyKind.AGENT)
    wallet_key = custody.new_key()
    with unit_of_work() as session:
        agent_id = identity.add_agent(session, key, name=name or DEFAULT_NAME, email=email)
        wallet = wallets.create(session, agent_id, wallet_key, name=None, controls=DEFAULT)
        code = claims.issue(session, agent_id)
        _open_account(session, agent_id)
    return AgentRegistration(agent_id, key.key, code, wallet)


def issue_gateway_key(*, email: str | None) -> IssuedGatewayKey:
    """Create a gateway-only key with initial credits. Raises: RateLimited when the day's budget is exhausted."""
    key = identity.mint_api_key(KeyKind.GATEWAY)
    with unit_of_work() as session:
        created_at = identity.add_key(session, key, account_id=key.id, email=email)
        granted_nanos = _open_account(session, key.id)
    return IssuedGatewayKey(key.id, key.key, email, granted_nanos, created_at)


def replace_claim_code(agent_id: str, *, claim: Claim) -> str:
    """Revoke the open code of an unclaimed agent and issue another. Raises: AlreadyClaimed, NotFound."""
    with unit_of_work() as session:
        if identity.lock_agent(session, agent_id).claimed_at is not None:
            raise AlreadyClaimed("This agent is already claimed; it needs no new claim code.")
        claims.revoke(session, agent_id)
        claim.bind(session, agent_id)
        return claims.issue(session, agent_id)


def _open_account(session: Session, owner_id: str) -> int:
    """Open a credit account with the initial credits; last in its unit, because the budget is one row for all."""
    settings = app_state().settings
    nanos = money.nanos_from_usd(settings.initial_credits_usd)
    credit_accounts.open_account(session, owner_id)
    if nanos:
        credit_accounts.grant(session, owner_id, nanos, reference=f"initial:{owner_id}")
        if settings.grant_budget_usd_per_day is not None:
            credit_accounts.consume(session, nanos, limit_nanos=money.nanos_from_usd(settings.grant_budget_usd_per_day))
    return nanos
