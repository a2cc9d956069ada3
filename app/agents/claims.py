"""Codes that make a person an agent's owner: claim codes, and owner codes, which replace the owner.

There are 24^4 * 10^4 = 3.3 * 10^9 claim codes: few enough to be guessed without rate limits, and to be found from a
plain digest, hence the pepper. An agent has one open code at a time. A claim locks the agent first, then the code; so
does a replacement.

An owner code belongs to an owner key, as passkeys do, and ends with it. Only its digest is stored, until it is used.
"""

import hashlib
import hmac
import re
import secrets
import unicodedata
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ForeignKey, Integer, String, Text, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import Authenticated, SealedColumn, change, seal_of
from app.core import clock, identifiers
from app.db.prepared import PreparedInsert
from app.db.tables import ID, UtcDateTime, delete_rows, update_rows
from app.db.unit_of_work import unit_of_work
from app.errors import AlreadyClaimed, NotFound, Unauthorized
from app.events import outbox
from app.events.outbox import EventType
from app.extensions import Model
from app.identity import grants, owner_keys
from app.identity import service as identity
from app.identity.owner_keys import OwnerKeyView
from app.identity.principal import Grant
from app.identity.service import AgentSnapshot
from app.state import app_state


class ClaimCode(Authenticated, Model):
    """A code that an agent received: open, claimed or revoked.

    `answer_sealed` holds the owner's key while the claim's response may be replayed, `receipt_digest` the SHA-256 of
    the receipt that a replay with the owner's key requires.
    """

    __tablename__ = "claim_codes"
    __allow_unmapped__ = True
    not_authenticated = frozenset({"pepper_id", "answer_sealed", "repeats", "created_at"})

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    agent_id: Mapped[str] = mapped_column(ID, ForeignKey("agents.id", ondelete="CASCADE"), index=True)
    code_hmac: Mapped[str] = mapped_column(String(64), unique=True)
    pepper_id: Mapped[str] = mapped_column(String(32))
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    claimed_at: Mapped[datetime | None] = mapped_column(UtcDateTime, index=True)
    claim_email: Mapped[str | None] = mapped_column(String(254))
    answer_sealed: Mapped[str | None] = mapped_column(Text)
    receipt_digest: Mapped[str | None] = mapped_column(String(64))
    repeats: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)

    agent: AgentSnapshot
    """Its agent, of a code that was found."""

    @property
    def is_claimed(self) -> bool:
        return self.claimed_at is not None

    @property
    def is_email_required(self) -> bool:
        """Return whether its agent was registered with an email address, which a claim must name."""
        return self.agent.email is not None

    def is_replayable(self, now: datetime) -> bool:
        """Return whether the response may be replayed: within 24 hours and before the owner's first action."""
        return self.claimed_at is not None and self.answer_sealed is not None and now < self.claimed_at + REPLAY_WINDOW


# Without I and O, which look like 1 and 0.
CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
CODE_LIFETIME = timedelta(seconds=315_360_000)

_CODE = re.compile(rf"([{CODE_LETTERS}]{{4}})([0-9]{{4}})", re.ASCII)
_MAX_INPUT_LENGTH = 64
REPLAY_WINDOW = timedelta(hours=24)
MAX_REPLAYS = 20
"""Replays of a claim's response; as many more are reserved for the holder of its receipt."""
RECEIPT_PREFIX = "cr"
_ANSWERS = SealedColumn("claim_codes", "answer_sealed")
_INSERT = PreparedInsert(ClaimCode, unique=[ClaimCode.code_hmac])


def generate_code() -> str:
    """Return a new random code such as `KHTM-4821`."""
    letters, digits = ("".join(secrets.choice(each) for _ in range(4)) for each in (CODE_LETTERS, "0123456789"))
    return f"{letters}-{digits}"


def normalise_code(text: str) -> str | None:
    """Return a typed code in its canonical form, whatever its case, spaces and dashes; None when it is malformed."""
    if len(text) > _MAX_INPUT_LENGTH:
        return None
    folded = unicodedata.normalize("NFKC", text).upper()
    # Without spaces, punctuation with all dashes and the minus sign, and invisible characters of pasted text.
    kinds = ((each, unicodedata.category(each)) for each in folded if each != "\u2212")
    kept = "".join(each for each, kind in kinds if kind[0] not in "ZP" and kind not in ("Cc", "Cf"))
    found = _CODE.fullmatch(kept)
    return f"{found[1]}-{found[2]}" if found else None


def keyed_hashes(code: str, peppers: Sequence[tuple[str, bytes]]) -> list[str]:
    """Return the HMAC-SHA256 of a normalised code by each pepper, newest first; nothing else of it is stored."""
    return [hmac.new(pepper, code.encode(), hashlib.sha256).hexdigest() for _, pepper in peppers]


def emails_equal(one: str | None, other: str | None) -> bool:
    """Compare two optional addresses in constant time."""
    return hmac.compare_digest((one or "").encode(), (other or "").encode())


def issue(session: Session, agent_id: str) -> str:
    """Generate an unused code, store its hash and return it; it is never available again."""
    peppers = app_state().settings.code_pepper_list()
    created_at = clock.now()
    for _ in range(20):
        code = generate_code()
        # The unique column covers hashes under the first pepper only; those under older ones are looked up.
        newest, *older = keyed_hashes(code, peppers)
        if older and session.scalar(select(ClaimCode.id).where(ClaimCode.code_hmac.in_(older))):
            continue
        row = {
            "id": identifiers.new_id(), "agent_id": agent_id, "code_hmac": newest,
            "pepper_id": peppers[0][0], "expires_at": created_at + CODE_LIFETIME, "created_at": created_at,
        }  # fmt: skip
        # Both databases have ON CONFLICT DO NOTHING; an IntegrityError would abort PostgreSQL's transaction.
        if _INSERT.execute(session, row):
            return code
    raise RuntimeError("no unused claim code was found: nearly all are taken")


def revoke(session: Session, agent_id: str) -> bool:
    """Revoke the agent's open code; return whether there was one."""
    is_open = (ClaimCode.agent_id == agent_id, ClaimCode.claimed_at.is_(None), ClaimCode.revoked_at.is_(None))
    return bool(change(session, ClaimCode, *is_open, revoked_at=clock.now()))


def find(session: Session, text: str) -> ClaimCode | None:
    """Return a typed code with its agent; None if it is malformed, unknown, expired, revoked or of a deleted agent."""
    code = normalise_code(text)
    if code is None:
        return None
    hashes = keyed_hashes(code, app_state().settings.code_pepper_list())
    is_meant = ClaimCode.code_hmac.in_(hashes), identity.exists_with(ClaimCode.agent_id)
    query = select(ClaimCode).where(*is_meant, ClaimCode.revoked_at.is_(None), ClaimCode.expires_at > clock.now())
    # Queried again after a lost race, when the session's copy is stale.
    found = session.scalars(query, execution_options={"populate_existing": True}).one_or_none()
    if found is None or not seal_of(ClaimCode).accepts(session, found):
        return None
    found.agent = identity.get_agent(session, found.agent_id)
    return found


def redeem(session: Session, claim_code: ClaimCode, *, email: str | None, receipt: str) -> str | None:
    """Claim the agent and return the owner's key, or None when another claim was first.

    Raises: NotFound if the code was concurrently replaced or revoked.
    """
    now = clock.now()
    owner_key = identifiers.new_key("ok")
    sealed = _ANSWERS.seal(owner_key, claim_code.id)
    if not identity.record_claim(session, claim_code.agent_id, owner_key, email=email, at=now):
        return None
    is_open = (ClaimCode.id == claim_code.id, ClaimCode.claimed_at.is_(None), ClaimCode.revoked_at.is_(None))
    answer: dict[str, Any] = {"answer_sealed": sealed, "receipt_digest": identifiers.digest(receipt)}
    if not change(session, ClaimCode, *is_open, claimed_at=now, claim_email=email, **answer):
        raise NotFound("This code is not valid.")
    return owner_key


def replay(session: Session, claim_code: ClaimCode, *, receipt: str | None) -> str | None:
    """Count a replay of a claim; return the owner's key to the holder of the claim's receipt, otherwise None.

    Raises: AlreadyClaimed when the owner has acted since, or the response was replayed too often.
    """
    kept = claim_code.receipt_digest
    holds_receipt = receipt is not None and kept is not None and hmac.compare_digest(kept, identifiers.digest(receipt))
    is_left = ClaimCode.repeats < (2 * MAX_REPLAYS if holds_receipt else MAX_REPLAYS)
    is_meant = ClaimCode.id == claim_code.id, ClaimCode.answer_sealed.is_not(None), is_left
    counted = update_rows(session, ClaimCode, *is_meant, repeats=ClaimCode.repeats + 1)
    if not counted or claim_code.answer_sealed is None:
        raise AlreadyClaimed
    if not holds_receipt:
        return None
    return _ANSWERS.open(claim_code.answer_sealed, claim_code.id).decode()


def erase_response_of(session: Session, agent_id: str) -> None:
    """End the replay of an agent's claim: its owner has acted, or a key was replaced."""
    are_meant = ClaimCode.agent_id == agent_id, ClaimCode.answer_sealed.is_not(None)
    change(session, ClaimCode, *are_meant, answer_sealed=None, receipt_digest=None)


class CodeKind(StrEnum):
    """Who gives a code: the owner to themselves, an operator after a waiting time, or the owner to the next one."""

    RECOVERY_CODE = "recovery_code"
    RECOVERY = "recovery"
    HANDOVER = "handover"


class OwnerCode(Authenticated, Model):
    """A code that was not used yet."""

    __tablename__ = "owner_codes"
    not_authenticated = frozenset()

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    owner_key_id: Mapped[str] = mapped_column(ID, ForeignKey("owner_keys.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str] = mapped_column(String(13))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    valid_from: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


_NUMBERS_AND_DAYS = {CodeKind.RECOVERY_CODE: (8, 36_500), CodeKind.RECOVERY: (1, 7), CodeKind.HANDOVER: (1, 3)}
# Crockford's base 32, which reads O as 0, and I and L as 1. 28 characters have 140 bits.
_ALPHABET, _READ_AS, _CHARACTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ", str.maketrans("OIL", "011"), 28


def create_owner_codes(
    actor: Actor, agent_id: str, kind: CodeKind, *, only_first: bool = False
) -> tuple[list[str], datetime, datetime]:
    """Replace the codes of a kind; return them and their times. Of a recovery, the first call only begins the wait.

    Raises: NotFound; Unauthorized if the actor is an owner whose key was replaced.
    """
    now, is_recovery, (number, days) = clock.now(), kind is CodeKind.RECOVERY, _NUMBERS_AND_DAYS[kind]
    start = now + timedelta(seconds=app_state().settings.owner_recovery_wait_seconds if is_recovery else 0)
    end = start + timedelta(days=days)
    with unit_of_work() as session:
        owner = owner_keys.lock_owner(session, agent_id)
        if found := list_owner_codes(session, owner.id)[kind]:
            start, end = (found[0].valid_from, found[0].expires_at) if is_recovery else (start, end)
            if only_first or start > now:
                return [], start, end
        delete_rows(session, OwnerCode, OwnerCode.owner_key_id == owner.id, OwnerCode.kind == kind.value)
        codes = ["".join(secrets.choice(_ALPHABET) for _ in range(_CHARACTERS)) for _ in range(number)]
        values = {"owner_key_id": owner.id, "kind": kind.value, "valid_from": start, "expires_at": end}
        for each in codes:
            session.add(OwnerCode(id=identifiers.new_id(), digest=identifiers.digest(each), **values))
        session.flush()
        times = {"valid_from": clock.isoformat(start), "expires_at": clock.isoformat(end)}
        announce(session, actor, owner.agent_id, f"{kind}_created", is_told=not only_first, **times)
    return codes if start <= now else [], start, end


def find_owner_code(session: Session, typed: str) -> tuple[OwnerCode, OwnerKeyView] | None:
    """Return a valid code and the owner whom it replaces, or None."""
    now, digest = clock.now(), identifiers.digest(re.sub("[^0-9A-Z]", "", typed.upper()).translate(_READ_AS))
    is_meant = OwnerCode.digest == digest, OwnerCode.valid_from <= now, OwnerCode.expires_at > now
    found = session.scalars(select(OwnerCode).where(*is_meant)).one_or_none()
    if found is None or not seal_of(OwnerCode).accepts(session, found):
        return None
    return next(((found, owner) for owner in owner_keys.list_valid(session, [found.owner_key_id])), None)


def list_owner_codes(session: Session, key_id: str) -> dict[str, list[Any]]:
    """Return the rows of an owner key's codes by kind."""
    seal, is_meant = seal_of(OwnerCode), (OwnerCode.owner_key_id == key_id, OwnerCode.expires_at > clock.now())
    rows = session.execute(select(*seal.columns).where(*is_meant)).all()
    return {kind: [row for row in rows if row.kind == kind and seal.accepts(session, row)] for kind in CodeKind}


def use_owner_code(session: Session, code: OwnerCode, *, new_key_id: str) -> None:
    """Delete a code with all others of its owner; only recovery codes pass to the new key. Raises: Unauthorized."""
    of_owner = OwnerCode.owner_key_id == code.owner_key_id
    if not delete_rows(session, OwnerCode, OwnerCode.id == code.id, of_owner):
        raise Unauthorized("This code was used or cancelled.")
    if code.kind == CodeKind.RECOVERY_CODE:
        change(session, OwnerCode, of_owner, OwnerCode.kind == code.kind, owner_key_id=new_key_id)
    delete_rows(session, OwnerCode, of_owner)


def end_connections(session: Session, agent_id: str, *, reason: str) -> None:
    """End what owners have permitted applications to do for an agent, with an event for each."""
    for grant in grants.list_live(session, agent_id):
        end_connection(session, grant, reason=reason)


def end_connection(session: Session, grant: Grant, *, reason: str) -> bool:
    """End what an owner has permitted an application, with an event; return whether this call did so."""
    has_ended = grants.end(session, grant.id)
    if has_ended:
        data = {"connection_id": grant.id, **grants.as_json(grant), "reason": reason}
        outbox.record(session, EventType.CONNECTION_ENDED, agent_id=grant.agent_id, object_id=grant.id, data=data)
    return has_ended


def cancel_owner_codes(actor: Actor, agent_id: str) -> None:
    """Cancel an operator's recovery and a handover. Raises: NotFound."""
    with unit_of_work() as session:
        owner = owner_keys.lock_owner(session, agent_id)
        are_others = OwnerCode.owner_key_id == owner.id, OwnerCode.kind != CodeKind.RECOVERY_CODE.value
        if delete_rows(session, OwnerCode, *are_others):
            announce(session, actor, agent_id, "cancelled")


def announce(session: Session, actor: Actor, agent_id: str, what: str, *, is_told: bool = True, **details: str) -> None:
    """Record who may become the owner, for all targets of the present one and the audit log, last in a unit."""
    data = {"change": what, **details}
    told = {**data, "message": "If you did not expect this, sign in and cancel it, or ask the operator for a freeze."}
    if is_told:
        outbox.record(session, EventType.OWNER_CHANGED, agent_id=agent_id, object_id=agent_id, data=told)
    trail.record(session, actor, AuditEvent(AuditAction.OWNER_CHANGED, agent_id, after=data))
