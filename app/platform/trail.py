"""The audit trail: written in the unit of the act, read in pages, verified from end to end.

The head's row is the lock of all writers and is taken last in a unit, so there is one chain, without gaps, whoever
writes at once. Alone writes `audit_entries` and `audit_heads`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Row, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from app.core import clock, logs
from app.core.identifiers import new_id
from app.core.pagination import Page, PageRequest
from app.core.unit_of_work import after_commit
from app.errors import NotFound, Unauthorized
from app.extensions import db
from app.identity import master_keys, owner_keys
from app.platform import chain_of_hashes
from app.platform.actors import Actor, ActorKind
from app.platform.models import AuditEntry, AuditHead
from app.ports import provider
from app.ports.vault import Place

_log = structlog.get_logger(__name__)
NAME = "platform"
_MAX_LISTED = 50
_INSERTED_AT_ONCE = 200
_UNHASHED = frozenset({"hash"})


class Action(StrEnum):
    """What was done, or which keys were shown."""

    AGENT_CREATED = "agent.created"
    AGENT_CHANGED = "agent.changed"
    AGENT_DELETED = "agent.deleted"
    AGENT_FROZEN = "agent.frozen"
    AGENT_UNFROZEN = "agent.unfrozen"
    AGENT_SHOWN = "agent.shown"
    AGENTS_SHOWN = "agents.shown"
    KEY_ROTATED = "agent.key_rotated"
    CONTROLS_SET = "agent.controls_set"
    OWNER_KEY_REPLACED = "agent.owner_key_replaced"
    CREDITS_GRANTED = "agent.credits_granted"
    CLAIM_CODE_REVOKED = "agent.claim_code_revoked"
    GATEWAY_KEYS_SHOWN = "gateway_keys.shown"
    GATEWAY_KEY_REVOKED = "gateway_key.revoked"
    MASTER_KEYS_SHOWN = "master_keys.shown"
    MASTER_KEY_CREATED = "master_key.created"
    MASTER_KEY_REVOKED = "master_key.revoked"
    RETIRED_KEY_EXPORTED = "retired_key.exported"
    RETIRED_KEY_PURGED = "retired_key.purged"
    BRIDGE_WRITTEN_OFF = "bridge.written_off"
    ENCRYPTION_ROTATION_BEGUN = "encryption.rotation_begun"
    ENCRYPTION_ROTATED = "encryption.rotated"
    DATABASE_SET_BACK = "database.set_back"


class SubjectKind(StrEnum):
    """What an act is about."""

    AGENT = "agent"
    GATEWAY_KEY = "gateway_key"
    MASTER_KEY = "master_key"
    WALLET = "wallet"
    SERVICE = "service"
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class Act:
    """What is to be noted: values are texts, whole numbers, truths and lists of these; never a secret."""

    action: Action
    subject_kind: SubjectKind
    subject_id: str | None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    id: str = field(default_factory=new_id)
    """The id of its entry, known beforehand: a request's Idempotency-Key is bound to it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the trail."""

    number: int
    id: str
    at: datetime
    actor_kind: str
    actor_id: str | None
    actor_name: str
    action: str
    subject_kind: str
    subject_id: str | None
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    request_id: str | None
    client_address: str | None
    hash: str


@dataclass(frozen=True, slots=True)
class Head:
    """The end of the trail: how many entries there are, and the hash of the last one."""

    number: int
    hash: str


def record(actor: Actor, *acts: Act) -> None:
    """Append entries to the trail, last in the unit that does what they say.

    The head is logged as well, so that a trail that was set back to an earlier state can be told from the logs.

    Raises: Unauthorized when the acting master or owner key was revoked meanwhile: then the whole unit is undone.
    """
    if not acts:
        _assert_may_act(actor)
        return
    last, previous, key = _extend(len(acts))
    # Asked under the head's lock: a revocation noted before has been committed and is seen.
    _assert_may_act(actor)
    now = clock.now()
    rows = []
    for number, act in enumerate(acts, last - len(acts) + 1):
        row = {
            "number": number,
            "id": act.id,
            "at": now,
            "actor_kind": actor.kind.value,
            "actor_id": actor.id,
            "actor_name": logs.blank(actor.name),
            "action": act.action.value,
            "subject_kind": act.subject_kind.value,
            "subject_id": act.subject_id,
            "before": _clean(act.before),
            "after": _clean(act.after),
            "request_id": actor.request_id,
            "client_address": actor.client_address,
        }
        previous = chain_of_hashes.hash_of(key, previous, _hashed(row))
        rows.append({**row, "hash": previous})
    for start in range(0, len(rows), _INSERTED_AT_ONCE):
        db.session.execute(insert(AuditEntry), rows[start : start + _INSERTED_AT_ONCE])
    db.session.execute(
        update(AuditHead)
        .where(AuditHead.name == NAME)
        .values(hash=previous, proof=chain_of_hashes.proof_of(key, last, previous))
        .execution_options(synchronize_session=False)
    )
    after_commit(lambda: _log.info("audit_head", number=last, hash=previous))


def page_of(
    page: PageRequest, *, action: str | None = None, subject_id: str | None = None
) -> tuple[Page[Entry], Head]:
    """Return a page of the trail, the newest first, and its head. Works in a reading unit."""
    conditions: list[ColumnElement[bool]] = []
    if action is not None:
        conditions.append(AuditEntry.action == action)
    if subject_id is not None:
        conditions.append(AuditEntry.subject_id == subject_id)
    head = head_of_trail()
    # Without a filter the numbers say how many there are.
    total = head.number
    if conditions:
        total = db.session.scalar(select(func.count()).select_from(AuditEntry).where(*conditions)) or 0
        rows = _entries().where(*conditions).limit(page.limit).offset(page.offset)
    else:
        rows = _entries().where(AuditEntry.number <= head.number - page.offset).limit(page.limit)
    return Page([_entry(row) for row in db.session.execute(rows)], total, page), head


def one(entry_id: str) -> Entry:
    """Return one entry. Works in a reading unit. Raises: NotFound."""
    row = db.session.execute(_entries().where(AuditEntry.id == entry_id)).one_or_none()
    if row is None:
        raise NotFound("There is no such entry.")
    return _entry(row)


def head_of_trail() -> Head:
    """Return the end of the trail as the database has it. Works in a reading unit."""
    row = db.session.execute(
        select(AuditHead.number, AuditHead.hash).where(AuditHead.name == NAME)
    ).one_or_none()
    return Head(0, chain_of_hashes.GENESIS) if row is None else Head(row.number, row.hash)


def listed(values: Sequence[str]) -> Any:
    """Return a list as an entry has it: a long one by its length and the first few."""
    if len(values) <= _MAX_LISTED:
        return list(values)
    return {"count": len(values), "first": list(values[:_MAX_LISTED])}


def columns() -> tuple[Any, ...]:
    """Return the columns of an entry, in its order."""
    return tuple(getattr(AuditEntry, name) for name in Entry.__dataclass_fields__)


def hashed(entry: Entry) -> dict[str, Any]:
    """Return what the hash of an entry covers."""
    return _hashed({name: getattr(entry, name) for name in Entry.__dataclass_fields__})


def key_of(sealed: str) -> bytes:
    """Open the chain's key. Raises: Rejected."""
    return provider.current().vault.open(sealed, _place())


def _assert_may_act(actor: Actor) -> None:
    if actor.kind is ActorKind.MASTER_KEY and not master_keys.is_active(actor.id or ""):
        raise Unauthorized("This master key was revoked meanwhile.")
    if actor.kind is ActorKind.OWNER and not owner_keys.is_valid(actor.id or ""):
        raise Unauthorized("This owner key was replaced meanwhile.")


def _extend(by: int) -> tuple[int, str, bytes]:
    """Lock the head and count so many entries; return the last number, the hash before the first, and the key."""
    locked = (
        update(AuditHead)
        .where(AuditHead.name == NAME)
        .values(number=AuditHead.number + by)
        .returning(AuditHead.number, AuditHead.hash, AuditHead.sealed)
        .execution_options(synchronize_session=False)
    )
    row = db.session.execute(locked).one_or_none()
    if row is None:
        _begin()
        row = db.session.execute(locked).one()
    return row.number, row.hash, key_of(row.sealed)


def _begin() -> None:
    key = secrets.token_bytes(chain_of_hashes.KEY_BYTES)
    insert_ = postgresql.insert if db.session.get_bind().dialect.name == "postgresql" else sqlite.insert
    db.session.execute(
        insert_(AuditHead)
        .values(
            name=NAME,
            number=0,
            hash=chain_of_hashes.GENESIS,
            proof=chain_of_hashes.proof_of(key, 0, chain_of_hashes.GENESIS),
            sealed=provider.current().vault.seal(key, _place()),
        )
        .on_conflict_do_nothing(index_elements=[AuditHead.name])
    )


def _place() -> Place:
    return Place(AuditHead.__tablename__, "sealed", NAME)


def _entries() -> Any:
    return select(*columns()).order_by(AuditEntry.number.desc())


def _entry(row: Row[*tuple[Any, ...]]) -> Entry:
    return Entry(*row)


def _hashed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.isoformat(timespec="microseconds") if isinstance(value, datetime) else value
        for name, value in row.items()
        if name not in _UNHASHED
    }


def _clean(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Blank what looks like a key: somebody may have typed one as a name."""
    return None if values is None else {name: _clean_value(value) for name, value in values.items()}


def _clean_value(value: Any) -> Any:
    if isinstance(value, str):
        return logs.blank(value)
    if isinstance(value, Mapping):
        return _clean(value)
    return [_clean_value(each) for each in value] if isinstance(value, list | tuple) else value
