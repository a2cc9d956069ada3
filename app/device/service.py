"""The stories of claiming: what a code stands for, and the claim itself.

Each looks the code up and counts a miss in one unit, so that no number of guesses at once gets past
the limits; a miss is returned out of the unit, which commits it, and raised only then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from app.agents import claims
from app.agents.claims import FoundCode
from app.core import clock
from app.core.unit_of_work import unit_of_work
from app.credits import service as credits_service
from app.device import guesses
from app.errors import AlreadyClaimed, EmailMismatch, InvalidInput, NotFound, RateLimited, ServiceError
from app.identity import service as identity
from app.wallets import service as wallets
from app.wallets.service import WalletView


@dataclass(frozen=True, slots=True)
class CodeInfo:
    """What anybody may know who has the code."""

    agent_id: str
    agent_name: str
    email_required: bool
    expires_at: datetime
    claimed: bool


@dataclass(frozen=True, slots=True)
class ClaimedAgent:
    """The whole agent, for the person who claimed it; the repr shows no key."""

    agent_id: str
    name: str
    email: str | None
    api_key: str = field(repr=False)
    credits_nanos: int
    created_at: datetime
    claimed_at: datetime
    owner_key: str = field(repr=False)
    wallet: WalletView | None


def describe(typed: str, *, network: str) -> CodeInfo:
    """Return what a code stands for. Raises: NotFound, RateLimited."""
    with unit_of_work():
        guesses.enter(network)
        wait = guesses.service_wide_wait()
        if wait:
            raise _guessed_out(wait)
        found = claims.find(typed)
        if found is None:
            guesses.count_miss(network)
    if found is None:
        raise _no_such_code()
    return CodeInfo(
        agent_id=found.agent_id,
        agent_name=found.agent_name,
        email_required=found.locked_to is not None,
        expires_at=found.expires_at,
        claimed=found.is_claimed,
    )


def claim(typed: str, *, email: str | None, network: str) -> ClaimedAgent:
    """Claim the code's agent, or give the same person the same answer again within 24 hours.

    Raises: NotFound, InvalidInput (its e-mail is missing), EmailMismatch, AlreadyClaimed, RateLimited.
    """
    with unit_of_work():
        guesses.enter(network)
        wait = guesses.service_wide_wait()
        if wait and email is None:
            raise _guessed_out(wait)
        found = claims.find(typed)
        failure = _refusal(found, email, only_locked=wait > 0)
        if failure is None and found is not None:
            owner_key = (
                claims.owner_key_again(found) if found.is_claimed else claims.spend(found, email=email)
            )
            if owner_key is not None:
                return _claimed(found.agent_id, owner_key)
            # Somebody else was first. If it was the same person's other click, both get the one answer.
            found = claims.find(typed)
            failure = _refusal(found, email, only_locked=False) or AlreadyClaimed()
            if found is not None and found.repeats(email, clock.now()):
                return _claimed(found.agent_id, claims.owner_key_again(found))
        elif _is_guess(failure, found):
            guesses.count_miss(network)
    if wait:
        raise _guessed_out(wait)
    raise failure or _no_such_code()


def _refusal(found: FoundCode | None, email: str | None, *, only_locked: bool) -> ServiceError | None:
    """Return why a code cannot be used with that e-mail, or None when it can.

    `only_locked`: the whole service is guessed out, and only a code with its registered e-mail passes.
    """
    if found is None or (only_locked and found.locked_to is None):
        return _no_such_code()
    if found.is_claimed:
        return None if found.repeats(email, clock.now()) else AlreadyClaimed()
    if found.locked_to is None:
        return None
    if email is None:
        return InvalidInput.field("email", "is required: this agent was registered with an e-mail address")
    return None if claims.same_email(found.locked_to, email) else EmailMismatch()


def _is_guess(failure: ServiceError | None, found: FoundCode | None) -> bool:
    """Tell whether a refusal is a wrong code or address, against which the limits stand."""
    if isinstance(failure, AlreadyClaimed):
        # While the answer may be repeated, another e-mail is a guess at the one that opens it.
        return found is not None and found.is_repeatable(clock.now())
    return isinstance(failure, NotFound | EmailMismatch)


def _claimed(agent_id: str, owner_key: str) -> ClaimedAgent:
    agent = identity.agent(agent_id)
    try:
        wallet = wallets.first_of(agent_id)
    except NotFound:
        # The agent may have deleted its wallets; it can be claimed all the same.
        wallet = None
    return ClaimedAgent(
        agent_id=agent.id,
        name=agent.name,
        email=agent.email or agent.claimed_email,
        api_key=identity.reveal_api_key(agent_id),
        credits_nanos=credits_service.balance(agent_id).credits_nanos,
        created_at=agent.created_at,
        claimed_at=agent.claimed_at or clock.now(),
        owner_key=owner_key,
        wallet=wallet,
    )


def _no_such_code() -> NotFound:
    return NotFound(
        "This code is not valid. Compare it with what the agent gave you, or ask it for another one."
    )


def _guessed_out(seconds: int) -> RateLimited:
    return RateLimited("Too many wrong codes were tried; try again later.", retry_after_seconds=seconds)
