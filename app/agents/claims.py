"""Claim codes in the database: issued, replaced, revoked, found, spent. All verbs run in the caller's unit.

One code of an agent is open at a time. A claim locks the agent first, then the code; so does a replacement.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from app.agents import claim_codes
from app.agents.models import ClaimCode
from app.core import clock, identifiers
from app.errors import AlreadyClaimed, NotFound
from app.extensions import db
from app.identity import service as identity
from app.ports import provider
from app.ports.vault import Place

REPEATABLE_FOR = timedelta(hours=24)
_MAX_DRAWS = 20


@dataclass(frozen=True, slots=True)
class FoundCode:
    """A code that exists, has not expired and was not revoked, with its agent's name and e-mail lock."""

    id: str
    agent_id: str
    agent_name: str
    locked_to: str | None
    expires_at: datetime
    claimed_at: datetime | None
    claim_email: str | None
    answer_sealed: str | None = field(repr=False)

    @property
    def is_claimed(self) -> bool:
        """Tell whether it was spent."""
        return self.claimed_at is not None

    def repeats(self, email: str | None, now: datetime) -> bool:
        """Tell whether the same person asks again, soon enough to be given the first answer once more."""
        return self.is_repeatable(now) and same_email(self.claim_email, email)

    def is_repeatable(self, now: datetime) -> bool:
        """Tell whether the answer of the claim may still be given again to whoever made it."""
        return (
            self.claimed_at is not None
            and self.answer_sealed is not None
            and now < self.claimed_at + REPEATABLE_FOR
        )


def same_email(one: str | None, other: str | None) -> bool:
    """Compare two optional addresses in constant time."""
    return hmac.compare_digest((one or "").encode(), (other or "").encode())


def issue(agent_id: str) -> str:
    """Draw a code that nobody has, store its hash and return it: the only time that it is seen."""
    peppers = provider.settings().code_pepper_list()
    pepper_id, pepper = peppers[0]
    created_at = clock.now()
    for _ in range(_MAX_DRAWS):
        code = claim_codes.draw()
        # The unique column sees hashes under the first pepper only; codes under older ones are looked up.
        older = claim_codes.keyed_hashes(code, peppers[1:])
        if older and db.session().scalar(select(ClaimCode.id).where(ClaimCode.code_hmac.in_(older))):
            continue
        row = {
            "id": identifiers.new_id(),
            "agent_id": agent_id,
            "code_hmac": claim_codes.keyed_hash(code, pepper),
            "pepper_id": pepper_id,
            "expires_at": created_at + claim_codes.VALID_FOR,
            "created_at": created_at,
        }
        if _insert_unless_taken(row):
            return code
    msg = "no free claim code was found: are nearly all taken?"
    raise RuntimeError(msg)


def replace(agent_id: str) -> str:
    """Revoke the agent's open code and issue another. Raises: AlreadyClaimed, NotFound."""
    if identity.lock_agent(agent_id).claimed_at is not None:
        raise AlreadyClaimed("This agent was claimed already; it needs no new claim code.")
    revoke(agent_id)
    return issue(agent_id)


def revoke(agent_id: str) -> bool:
    """Make the agent's open code, if there is one, worthless; tell whether there was one."""
    revoked = db.session().execute(
        update(ClaimCode)
        .where(ClaimCode.agent_id == agent_id, ClaimCode.claimed_at.is_(None), ClaimCode.revoked_at.is_(None))
        .values(revoked_at=clock.now())
    )
    return bool(revoked.rowcount)  # type: ignore[attr-defined, unused-ignore]


def bury(agent_id: str) -> None:
    """Make all codes of an agent that is being deleted worthless, with what their claims were answered."""
    revoke(agent_id)
    db.session().execute(
        update(ClaimCode)
        .where(ClaimCode.agent_id == agent_id)
        .values(
            claim_email=None, answer_sealed=None, revoked_at=func.coalesce(ClaimCode.revoked_at, clock.now())
        )
    )


def find(typed: str) -> FoundCode | None:
    """Return what a typed code says; None when it is malformed, unknown, expired or revoked."""
    code = claim_codes.normalise(typed)
    if code is None:
        return None
    hashes = claim_codes.keyed_hashes(code, provider.settings().code_pepper_list())
    query = select(ClaimCode).where(
        ClaimCode.code_hmac.in_(hashes), ClaimCode.revoked_at.is_(None), ClaimCode.expires_at > clock.now()
    )
    # Looked up again after a lost race, when the session's copy is stale.
    code_row = db.session().scalars(query, execution_options={"populate_existing": True}).one_or_none()
    if code_row is None:
        return None
    agent = identity.agent(code_row.agent_id)
    return FoundCode(
        id=code_row.id, agent_id=agent.id, agent_name=agent.name, locked_to=agent.email,
        expires_at=code_row.expires_at, claimed_at=code_row.claimed_at,
        claim_email=code_row.claim_email, answer_sealed=code_row.answer_sealed,
    )  # fmt: skip


def spend(found: FoundCode, *, email: str | None) -> str | None:
    """Claim the agent and return the owner's key, or None when somebody else was first.

    Raises: NotFound when the code was replaced or revoked meanwhile.
    """
    now = clock.now()
    owner_key = identifiers.new_key("ok")
    sealed = provider.current().vault.seal(owner_key.encode(), _place(found.id))
    if not identity.claim_first(found.agent_id, owner_key, email=email, at=now):
        return None
    spent = db.session().execute(
        update(ClaimCode)
        .where(ClaimCode.id == found.id, ClaimCode.claimed_at.is_(None), ClaimCode.revoked_at.is_(None))
        .values(claimed_at=now, claim_email=email, answer_sealed=sealed)
    )
    if spent.rowcount != 1:  # type: ignore[attr-defined, unused-ignore]
        raise NotFound("This code is not valid.")
    return owner_key


def owner_key_again(found: FoundCode) -> str:
    """Return the owner's key of a claim that `repeats`."""
    if found.answer_sealed is None:
        msg = "the claim's answer was forgotten: ask `repeats` first"
        raise ValueError(msg)
    return provider.current().vault.open(found.answer_sealed, _place(found.id)).decode()


def forget_answers(now: datetime) -> int:
    """Erase owners' keys of claims whose answer is no longer repeated; return how many."""
    done = db.session().execute(
        update(ClaimCode)
        .where(ClaimCode.claimed_at < now - REPEATABLE_FOR, ClaimCode.answer_sealed.is_not(None))
        .values(answer_sealed=None)
    )
    return int(done.rowcount)  # type: ignore[attr-defined, unused-ignore]


def forget_answer_of(agent_id: str) -> None:
    """Erase the owner's key that an agent's claim was answered with: it was replaced."""
    db.session().execute(update(ClaimCode).where(ClaimCode.agent_id == agent_id).values(answer_sealed=None))


def _insert_unless_taken(row: dict[str, Any]) -> bool:
    # Both databases have ON CONFLICT DO NOTHING; an IntegrityError would abort PostgreSQL's transaction.
    session = db.session()
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    statement = insert(ClaimCode).values(row).on_conflict_do_nothing(index_elements=["code_hmac"])
    return session.execute(statement.returning(ClaimCode.id)).one_or_none() is not None


def _place(code_id: str) -> Place:
    return Place("claim_codes", "answer_sealed", code_id)
