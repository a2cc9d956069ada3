"""The audit log: written in the unit of the act, read in pages, verified from end to end.

The head's row locks out other writers and is taken last in a unit, so that there is one chain without gaps, for any
number of concurrent writers. The only writer of `audit_entries` and `audit_heads`.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

import structlog
from sqlalchemy import JSON, BigInteger, ColumnElement, Index, Row, String, and_, bindparam, insert, or_, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.audit_log import witness
from app.audit_log.actors import Actor, ActorKind
from app.audit_log.witness import AuditHeadView
from app.authenticated import SealedColumn
from app.core import clock
from app.core.identifiers import new_id, require
from app.core.pagination import Page, PageRequest
from app.db.prepared import PreparedInsert, PreparedStatement
from app.db.tables import ID, UtcDateTime, count, having, partial_index, table_of
from app.db.unit_of_work import after_commit, unit_of_work
from app.errors import NotFound, Unauthorized
from app.extensions import Model
from app.identity import master_keys, owner_keys
from app.observability import telemetry


class AuditEntry(Model):
    """One administrative act, append-only; numbers have no gaps, and `hash` covers the entry and the previous hash."""

    __tablename__ = "audit_entries"
    __table_args__ = (
        Index("ix_audit_entries_subject_id", "subject_id", "number"),
        Index("ix_audit_entries_action", "action", "number"),
        partial_index("ix_audit_entries_request_id", "request_id", where="request_id IS NOT NULL"),
    )

    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    id: Mapped[str] = mapped_column(ID, unique=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    actor_kind: Mapped[str] = mapped_column(String(20))
    actor_id: Mapped[str | None] = mapped_column(ID)
    actor_name: Mapped[str] = mapped_column(String(200))
    action: Mapped[str] = mapped_column(String(40))
    subject_kind: Mapped[str] = mapped_column(String(20))
    subject_id: Mapped[str | None] = mapped_column(ID)
    before: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    after: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    request_id: Mapped[str | None] = mapped_column(String(40))
    client_address: Mapped[str | None] = mapped_column(String(60))
    hash: Mapped[str] = mapped_column(String(64))


class AuditHead(Model):
    """The end of the chain, and the lock of its writers; `sealed` is the chain's key, `proof` authenticates the end."""

    __tablename__ = "audit_heads"

    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)
    hash: Mapped[str] = mapped_column(String(64))
    proof: Mapped[str] = mapped_column(String(64))
    sealed: Mapped[str] = mapped_column(String(200))


_log = structlog.get_logger(__name__)
TRAIL_NAME = "platform"
_CHAIN_KEYS = SealedColumn(AuditHead.__tablename__, "sealed")
_MAX_LISTED = 50
_INSERT_BATCH = 200
_INSERT_HEAD = PreparedInsert(AuditHead, unique=[AuditHead.name])
_INSERT_ENTRY = PreparedInsert(AuditEntry)
_HEADS = table_of(AuditHead)
_IS_TRAIL = _HEADS.c.name == bindparam("trail")
_ADVANCE_HEAD = PreparedStatement(
    update(_HEADS).where(_IS_TRAIL).values(number=_HEADS.c.number + bindparam("by")).returning(*_HEADS.c)
)
_MOVE_HEAD = PreparedStatement(
    update(_HEADS).where(_IS_TRAIL).values(hash=bindparam("end"), proof=bindparam("proof_of_end"))
)
_ENTRIES = select(table_of(AuditEntry)).order_by(AuditEntry.number.desc())
GENESIS = "0" * 64
# The acts of operators are witnessed immediately, all others within the hour.
_WITNESSED = frozenset({ActorKind.MASTER_KEY, ActorKind.COMMAND})
ERASED = "erased"


class AuditAction(StrEnum):
    """The kinds of acts that change who may do what, including reading keys."""

    AGENT_CREATED = "agent.created"
    AGENT_CHANGED = "agent.changed"
    AGENT_DELETED = "agent.deleted"
    AGENT_FROZEN = "agent.frozen"
    AGENT_UNFROZEN = "agent.unfrozen"
    AGENT_SHOWN = "agent.shown"
    AGENTS_SHOWN = "agents.shown"
    PERSONAL_DATA_SHOWN = "agent.personal_data_shown"
    PERSONAL_DATA_ERASED = "agent.personal_data_erased"
    KEY_ROTATED = "agent.key_rotated"
    KEY_ADDED = "agent.key_added"
    KEY_CHANGED = "agent.key_changed"
    KEY_REVOKED = "agent.key_revoked"
    CONTROLS_SET = "agent.controls_set"
    OWNER_KEY_REPLACED = "agent.owner_key_replaced"
    OWNER_CHANGED = "agent.owner_changed"
    CONTROLS_LOOSENED = "agent.controls_loosened"
    PAYEE_REMOVED = "agent.payee_removed"
    SESSION_OPENED = "agent.session_opened"
    CONNECTION_OPENED = "agent.connection_opened"
    CONNECTION_ENDED = "agent.connection_ended"
    CLAIMED = "agent.claimed"
    OWNER_SIGN_IN = "agent.owner_sign_in"
    OWNER_KEY_REFUSED = "agent.owner_key_refused"
    NOTICE_LINK_SENT = "agent.notice_link_sent"
    NOTICE_ADDED = "agent.notice_added"
    NOTICE_REMOVED = "agent.notice_removed"
    NOTICE_TESTED = "agent.notice_tested"
    WEBHOOK_CREATED = "webhook.created"
    WEBHOOK_CHANGED = "webhook.changed"
    WEBHOOK_SECRET_ROTATED = "webhook.secret_rotated"  # noqa: S105 - the name of an act
    WEBHOOK_TESTED = "webhook.tested"
    WEBHOOK_REPLAYED = "webhook.replayed"
    WEBHOOK_DELETED = "webhook.deleted"
    CREDITS_GRANTED = "agent.credits_granted"
    CLAIM_REPEATED = "claim.repeated"
    CLAIM_CODE_REVOKED = "agent.claim_code_revoked"
    CONSOLE_SIGN_IN = "master_key.console_sign_in"
    MASTER_KEY_PASSKEY_ADDED = "master_key.passkey_added"
    MASTER_KEY_PASSKEY_REMOVED = "master_key.passkey_removed"
    MASTER_KEY_PASSKEY_REFUSED = "master_key.passkey_refused"
    MASTER_KEY_PASSKEY_SIGN_IN = "master_key.passkey_sign_in"
    SERVICE_PAUSED = "service.paused"
    SERVICE_RESUMED = "service.resumed"
    SERVICE_PAID = "service.paid"
    SERVICE_WRITTEN_OFF = "service.written_off"
    SERVICE_CALL_REFUNDED = "service.call_refunded"
    PAYMENT_REFUNDED = "payment.refunded"
    GATEWAY_KEYS_SHOWN = "gateway_keys.shown"
    BUDGET_CREATED = "budget.created"
    BUDGET_CHANGED = "budget.changed"
    BUDGET_DELETED = "budget.deleted"
    GATEWAY_KEY_REVOKED = "gateway_key.revoked"
    MASTER_KEYS_SHOWN = "master_keys.shown"
    MASTER_KEY_CREATED = "master_key.created"
    MASTER_KEY_REVOKED = "master_key.revoked"
    WALLET_EXPORT_REQUESTED = "wallet.export_requested"
    WALLET_EXPORT_CANCELLED = "wallet.export_cancelled"
    WALLET_EXPORTED = "wallet.exported"
    WALLET_IMPORTED = "wallet.imported"
    RETIRED_KEY_EXPORTED = "retired_key.exported"
    RETIRED_KEY_PURGED = "retired_key.purged"
    APPROVAL_APPROVED = "approval.approved"
    APPROVAL_REJECTED = "approval.rejected"
    PAYEE_WITHDRAWN = "agent.payee_withdrawn"
    ADDRESS_NAMED = "agent.address_named"
    PASSKEY_ADDED = "agent.passkey_added"
    PASSKEY_REMOVED = "agent.passkey_removed"
    PASSKEY_REFUSED = "agent.passkey_refused"
    PASSKEY_SIGN_IN = "agent.passkey_sign_in"
    BRIDGE_WRITTEN_OFF = "bridge.written_off"
    ENCRYPTION_ROTATION_STARTED = "encryption.rotation_begun"
    ENCRYPTION_ROTATED = "encryption.rotated"
    ROWS_ACCEPTED = "rows.accepted"
    DATABASE_RESTORED = "database.set_back"

    @property
    def subject_kind(self) -> str:
        """Return the kind of the act's subject; acts on the service as a whole have no subject id."""
        return _SUBJECT_KINDS.get(self.value.partition(".")[0], "service")


_SUBJECT_KINDS: Mapping[str, str] = {
    "agent": "agent", "budget": "budget", "claim": "agent", "gateway_key": "gateway_key", "service": "service",
    "webhook": "webhook", "master_key": "master_key", "retired_key": "wallet", "bridge": "transaction",
    "approval": "approval", "wallet": "wallet", "payment": "payment",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """An act to be recorded: values are texts, integers, booleans and lists of these; never a secret."""

    action: AuditAction
    subject_id: str | None = None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    id: str = field(default_factory=new_id)
    """The id of its entry, chosen in advance: a request's Idempotency-Key is bound to it."""


AuditEntryRow: TypeAlias = Row[*tuple[Any, ...]]
"""The columns of an entry."""


def record(session: Session, actor: Actor, *acts: AuditEvent) -> None:
    """Append entries to the trail, last in the unit that makes the change.

    The head is logged, and an operator's appended to the witness, which reveal a return to an earlier state.

    Raises: Unauthorized when the acting master or owner key has been revoked: then the whole unit is rolled back.
    """
    if not acts:
        _assert_authorized(session, actor)
        return
    last, previous, key = _advance_head(session, len(acts))
    # Checked under the head's lock: an earlier recorded revocation is committed and visible.
    _assert_authorized(session, actor)
    now = clock.now()
    rows = []
    for number, act in enumerate(acts, last - len(acts) + 1):
        row = {
            "number": number, "id": act.id, "at": now,
            "actor_kind": actor.kind.value, "actor_id": actor.id, "actor_name": telemetry.redact(actor.name),
            "action": act.action.value, "subject_kind": act.action.subject_kind, "subject_id": act.subject_id,
            # An operator may have typed a key as a name.
            "before": telemetry.redact_value(act.before), "after": telemetry.redact_value(act.after),
            "request_id": actor.request_id, "client_address": actor.client_address,
        }  # fmt: skip
        previous = entry_hash(key, previous, hashed_values(row))
        rows.append({**row, "hash": previous})
    if len(rows) == 1:
        _INSERT_ENTRY.execute(session, rows[0])
    else:
        for start in range(0, len(rows), _INSERT_BATCH):
            session.execute(insert(AuditEntry), rows[start : start + _INSERT_BATCH])
    _MOVE_HEAD.execute(session, {"trail": TRAIL_NAME, "end": previous, "proof_of_end": head_proof(key, last, previous)})
    after_commit(lambda: _log.info("audit_head", number=last, hash=previous))
    if actor.kind in _WITNESSED:
        was_restored = any(act.action is AuditAction.DATABASE_RESTORED for act in acts)
        after_commit(lambda: witness.append(AuditHeadView(last, previous), was_restored=was_restored))


def erase(session: Session, are_meant: ColumnElement[bool], naming: Sequence[str]) -> int:
    """Remove the details of acts that may name somebody, and network addresses except operators'; return how many.

    An entry keeps its hash, so that the chain goes on, and gets a proof of what is left of it.
    """
    is_named, is_operators = AuditEntry.action.in_(naming), AuditEntry.actor_kind.in_(_WITNESSED)
    has_address = and_(~is_operators, AuditEntry.client_address.is_not(None))
    found = session.execute(_ENTRIES.where(are_meant, or_(is_named, has_address))).mappings()
    rows = [each for each in found if ERASED not in (each["after"] or {})]
    key = unseal_chain_key(session.scalars(select(AuditHead.sealed).filter_by(name=TRAIL_NAME)).one()) if rows else b""
    for row in rows:
        left = {"before": None, "after": {}} if row["action"] in naming else {"after": row["after"] or {}}
        left |= {} if row["actor_kind"] in _WITNESSED else {"client_address": None}
        left["after"] = {**left["after"], ERASED: _proof_of_rest(key, {**row, **left})}
        session.execute(update(AuditEntry).where(AuditEntry.number == row["number"]).values(left))
    return len(rows)


def record_alone(actor: Actor, action: AuditAction, subject_id: str | None = None, **after: Any) -> None:
    """Record an act that changes nothing, such as reading keys, in a unit of its own. Raises: Unauthorized."""
    with unit_of_work() as session:
        record(session, actor, AuditEvent(action, subject_id, after=after or None))


def list_entries(
    session: Session, page: PageRequest, **filters: str | None
) -> tuple[Page[AuditEntryRow], AuditHeadView]:
    """Return a page of the trail, newest first, and its head: entries with these values of columns; None means any.

    Works in a read-only unit.
    """
    conditions = having(AuditEntry, filters)
    head = get_head(session)
    # Without a filter the numbers give the total.
    total = head.number
    if conditions:
        total = count(session, AuditEntry, *conditions)
        rows = _ENTRIES.where(*conditions).limit(page.limit).offset(page.offset)
    else:
        rows = _ENTRIES.where(AuditEntry.number <= head.number - page.offset).limit(page.limit)
    return Page(session.execute(rows).all(), total, page), head


def get_entry(session: Session, entry_id: str) -> AuditEntryRow:
    """Return one entry. Works in a read-only unit. Raises: NotFound."""
    row = session.execute(_ENTRIES.where(AuditEntry.id == entry_id)).one_or_none()
    return require(row, NotFound("No audit entry has this id."))


def get_head(session: Session) -> AuditHeadView:
    """Return the end of the trail as stored. Works in a read-only unit."""
    row = session.execute(select(AuditHead.number, AuditHead.hash).where(AuditHead.name == TRAIL_NAME)).one_or_none()
    return AuditHeadView(0, GENESIS) if row is None else AuditHeadView(row.number, row.hash)


def summarized_list(values: Sequence[str]) -> Any:
    """Return a list as an entry stores it: a long one by its length and the first few."""
    if len(values) <= _MAX_LISTED:
        return list(values)
    return {"count": len(values), "first": list(values[:_MAX_LISTED])}


def hashed_values(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.isoformat(timespec="microseconds") if isinstance(value, datetime) else value
        for name, value in entry.items()
        if name != "hash"
    }


def unseal_chain_key(sealed: str) -> bytes:
    """Open the chain's key. Raises: Rejected."""
    return _CHAIN_KEYS.open(sealed, TRAIL_NAME)


def _assert_authorized(session: Session, actor: Actor) -> None:
    if actor.kind is ActorKind.MASTER_KEY and not master_keys.is_active(session, actor.id or ""):
        raise Unauthorized("This master key was revoked.")
    if actor.kind is ActorKind.OWNER and not owner_keys.is_valid(session, actor.id or ""):
        raise Unauthorized("This owner key was replaced.")


def _advance_head(session: Session, by: int) -> tuple[int, str, bytes]:
    """Lock the head and reserve numbers; return the last one, the hash before the first, and the key."""
    advance = {"trail": TRAIL_NAME, "by": by}
    row = _ADVANCE_HEAD.one_or_none(session, advance)
    if row is None:
        key = secrets.token_bytes(32)
        head = {"name": TRAIL_NAME, "number": 0, "hash": GENESIS, "proof": head_proof(key, 0, GENESIS)}
        _INSERT_HEAD.execute(session, {**head, "sealed": _CHAIN_KEYS.seal(key, TRAIL_NAME)})
        row = _ADVANCE_HEAD.one(session, advance)
    return row.number, row.hash, unseal_chain_key(row.sealed)


def entry_hash(key: bytes, previous: str, entry: Mapping[str, Any]) -> str:
    """Return the hash of an entry with JSON values (times as text, no float): an HMAC over it and the previous hash.

    The key is not stored in the clear, so that write access to the database alone does not suffice to change an entry
    or to forge a head. It does suffice to delete the last entries and put an earlier head back, which only a head that
    was recorded elsewhere reveals (`witness`).
    """
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return _hmac_hex(key, f"entry:{previous}:{text}")


def is_authentic(key: bytes, previous: str, entry: Mapping[str, Any]) -> bool:
    """Return whether an entry is as it was recorded, or as an erasure left it."""
    proof = (entry["after"] or {}).get(ERASED)
    is_recorded = entry["hash"] == entry_hash(key, previous, hashed_values(entry))
    return is_recorded or (proof is not None and proof == _proof_of_rest(key, entry))


def _proof_of_rest(key: bytes, entry: Mapping[str, Any]) -> str:
    """Return an HMAC over what an erasure left of an entry, and over its hash."""
    after = {name: value for name, value in entry["after"].items() if name != ERASED}
    return entry_hash(key, f"erased:{entry['hash']}", hashed_values({**entry, "after": after}))


def head_proof(key: bytes, number: int, head_hash: str) -> str:
    return _hmac_hex(key, f"head:{number}:{head_hash}")


def _hmac_hex(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
