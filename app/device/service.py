"""Claiming: look up a claim code, and claim its agent.

A code is looked up and a miss counted in one unit, so that concurrent guesses cannot exceed the limits; a miss is
raised after the unit, which commits its count.
"""

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy.orm import Session

from app.agents import claims
from app.agents.claims import ClaimCode
from app.audit_log import actors, trail
from app.audit_log.trail import AuditAction, AuditEvent
from app.core import clock, identifiers
from app.credits import accounts as credit_accounts
from app.db.unit_of_work import unit_of_work
from app.device import guess_limits
from app.errors import AlreadyClaimed, EmailMismatch, InvalidInput, NotFound, RateLimited, ServiceError
from app.identity import service as identity
from app.identity.service import AgentSnapshot
from app.wallets.core import wallets
from app.wallets.core.wallets import WalletView

_NO_SUCH_CODE = (
    "This code is not valid. Compare it with the one that the agent gave you, or ask the agent for another one."
)


@dataclass(frozen=True, slots=True)
class ClaimedAgent:
    agent: AgentSnapshot
    email: str | None
    api_key: str = field(repr=False)
    credits_nanos: int
    claimed_at: datetime
    owner_key: str | None = field(repr=False)
    """None in a replay to a client without the claim's receipt."""
    claim_receipt: str | None = field(repr=False)
    wallet: WalletView | None


def describe(code: str, *, network: str) -> ClaimCode:
    """Return a code with its agent. Raises: NotFound, RateLimited."""
    with unit_of_work() as session:
        guess_limits.lock_counter(session, network)
        if wait := guess_limits.service_wide_retry_after(session):
            raise _too_many_attempts(wait)
        claim_code = claims.find(session, code)
        if claim_code is None:
            guess_limits.record_miss(session, network)
    return identifiers.require(claim_code, NotFound(_NO_SUCH_CODE))


def claim_agent(code: str, *, email: str | None, network: str, receipt: str | None = None) -> ClaimedAgent:
    """Claim a code's agent, or replay the response within 24 hours; with the owner key only for the claim's `receipt`.

    Raises: NotFound, InvalidInput (its email is missing), EmailMismatch, AlreadyClaimed, RateLimited.
    """
    with unit_of_work() as session:
        guess_limits.lock_counter(session, network)
        wait = guess_limits.service_wide_retry_after(session)
        if wait and email is None:
            raise _too_many_attempts(wait)
        # Twice, as another claim may be first; one with the same email address is replayed.
        for is_first in (True, False):
            found = claims.find(session, code)
            failure = _validation_failure(found, email, check_email_only=is_first and wait > 0)
            if failure is not None or found is None:
                if is_first and _is_miss(failure, found):
                    guess_limits.record_miss(session, network)
                break
            if found.is_claimed:
                return _replayed_claim(session, found, receipt, network)
            kept = receipt or identifiers.new_key(claims.RECEIPT_PREFIX)
            if (owner_key := claims.redeem(session, found, email=email, receipt=kept)) is not None:
                act = AuditEvent(AuditAction.CLAIMED, found.agent_id)
                claimed = _claimed_agent(session, found.agent_id, owner_key, kept)
                trail.record(session, actors.anonymous_actor(network), act)
                return claimed
    if wait:
        raise _too_many_attempts(wait)
    raise failure or AlreadyClaimed()


def _validation_failure(found: ClaimCode | None, email: str | None, *, check_email_only: bool) -> ServiceError | None:
    """Return the error of a code with that email address, or None when they are valid.

    `check_email_only`: the service-wide limit is exceeded, and only codes with a required email address are accepted.
    """
    if found is None or (check_email_only and not found.is_email_required):
        return NotFound(_NO_SUCH_CODE)
    if found.is_claimed:
        repeats = found.is_replayable(clock.now()) and claims.emails_equal(found.claim_email, email)
        return None if repeats else AlreadyClaimed()
    if not found.is_email_required:
        return None
    if email is None:
        missing = {"fields": {"email": ["is required"]}}
        return InvalidInput("This agent can be claimed only with its email address.", details=missing)
    return None if claims.emails_equal(found.agent.email, email) else EmailMismatch()


def _is_miss(failure: ServiceError | None, found: ClaimCode | None) -> bool:
    """Return whether an error is a wrong code or address, which counts as a guess."""
    if isinstance(failure, AlreadyClaimed):
        # While the claim may be replayed, another email address is a guess at the one that permits it.
        return found is not None and found.is_replayable(clock.now())
    return isinstance(failure, NotFound | EmailMismatch)


def _replayed_claim(session: Session, found: ClaimCode, receipt: str | None, network: str) -> ClaimedAgent:
    """Replay a claim's response, and record it for the owner. Raises: AlreadyClaimed."""
    owner_key = claims.replay(session, found, receipt=receipt)
    claimed = _claimed_agent(session, found.agent_id, owner_key, None if owner_key is None else receipt)
    act = AuditEvent(AuditAction.CLAIM_REPEATED, found.agent_id, after={"owner_key_shown": owner_key is not None})
    trail.record(session, actors.anonymous_actor(network), act)
    return claimed


def _claimed_agent(session: Session, agent_id: str, owner_key: str | None, receipt: str | None) -> ClaimedAgent:
    agent = identity.get_agent(session, agent_id)
    try:
        wallet = wallets.first_wallet(session, agent_id)
    except NotFound:
        # The agent may have deleted its wallets; it can be claimed all the same.
        wallet = None
    key = identity.newest_keys_of(session, [agent_id]).get(agent_id)
    return ClaimedAgent(
        agent=agent, email=agent.email or agent.claimed_email,
        api_key=identifiers.require(key, NotFound("This agent has no valid key.")),
        credits_nanos=credit_accounts.balance(session, agent_id).credits_nanos,
        claimed_at=agent.claimed_at or clock.now(), owner_key=owner_key, claim_receipt=receipt, wallet=wallet,
    )  # fmt: skip


def _too_many_attempts(seconds: int) -> RateLimited:
    return RateLimited("Too many wrong codes were tried; try again later.", retry_after_seconds=seconds)
