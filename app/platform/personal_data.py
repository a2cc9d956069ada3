"""Personal data of an agent's owner, or of the holder of a gateway-only key: export, erasure and retention.

`personal_data.toml` says of every table what is personal in it, why and how long it is kept, and what an erasure does.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Date, and_, exists, not_, or_, select, text
from sqlalchemy.orm import Session

from app.agents import claims
from app.audit_log import trail
from app.audit_log.actors import Actor, ActorKind
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import Authenticated, change
from app.core import clock, identifiers
from app.db import lock_order
from app.db.tables import delete_rows, in_list, rows_after, table_of, update_rows
from app.db.unit_of_work import read_only_unit, run_in_batches, unit_of_work
from app.errors import NotFound, TransactionInProgress
from app.extensions import Base
from app.identity.models import Agent, ApiKey, OwnerKey
from app.state import app_state

TABLES: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
ENDING = [name for name, entry in TABLES.items() if "ends" in entry]
_OF_OWNERS = [name for name, entry in TABLES.items() if "of" in entry]
WITH_AGENT = [name for name, entry in TABLES.items() if "with_agent" in entry]
_PAGE = 500


def export(actor: Actor, subject_id: str) -> Iterator[str]:
    """Record an export, and return it as JSON in parts: all that is stored, without secrets. Raises: NotFound."""
    with unit_of_work() as session:
        subject_id = _lock(session, subject_id)
        trail.record(session, actor, AuditEvent(AuditAction.PERSONAL_DATA_SHOWN, subject_id))
        # An earlier owner key may have been another person's.
        earlier = exists().where(OwnerKey.agent_id == subject_id, OwnerKey.id != actor.id)
        rule = "earlier" if actor.kind is ActorKind.OWNER and session.scalar(select(earlier)) else ""
    return _parts(subject_id, rule)


def erase(actor: Actor, subject_id: str) -> dict[str, int]:
    """Erase personal data in one unit; return how many rows of each table were changed or deleted.

    Raises: NotFound; TransactionInProgress with what is unfinished: then nothing is erased.
    """
    with unit_of_work() as session:
        subject_id = _lock(session, subject_id)
        # Twice: the second check would miss what ends during the changes, and this one what begins then.
        _assert_finished(session, subject_id)
        # First, as some of its rows are found through rows that are deleted.
        audited = trail.erase(session, _rows("audit_entries", subject_id), TABLES["audit_entries"]["actions"])
        done = erase_rows(session, subject_id, _OF_OWNERS) | {"audit_entries": audited}
        claims.revoke(session, subject_id)
        claims.end_connections(session, subject_id, reason="personal_data_erased")
        _assert_finished(session, subject_id)
        counts = {name: number for name, number in sorted(done.items()) if number}
        trail.record(session, actor, AuditEvent(AuditAction.PERSONAL_DATA_ERASED, subject_id, after=counts))
    return counts


def erase_rows(session: Session, subject_id: str, names: Sequence[str]) -> dict[str, int]:
    """Erase what the rows of some tables hold of a locked agent; return how many rows by table."""
    done = {}
    for name in names:
        model, entry = _model(name), TABLES[name]
        are_meant = _rows(name, subject_id, "only", "finished")
        columns, values = table_of(model).columns, dict(entry.get("erased", {}))
        values |= {each: None for each, value in values.items() if value == "" and columns[each].nullable}
        # Those that are locked now: others that meet the conditions meanwhile would be changed without a new MAC.
        ids = lock_order.lock_rows(session, model.id, are_meant) if values else []
        pages = (in_list(session, model.id, ids[start : start + _PAGE]) for start in range(0, len(ids), _PAGE))
        done[name] = sum(_update(session, model, page, values) for page in pages)
        if "deleted" in entry:
            done[name] = delete_rows(session, model, are_meant)
    return done


def prune(name: str, now: datetime) -> int:
    """Delete the rows of a table whose time is over, or clear their columns, in short units; return how many."""
    model, entry = _model(name), TABLES[name]
    ((column, days),), (key,) = entry["ends"].items(), (table := table_of(model)).primary_key
    before = now - timedelta(days=app_state().settings.retention_days if days == "RETENTION_DAYS" else days)
    instant = table.columns[column]
    is_over = instant < (before.date() if isinstance(instant.type, Date) else before), text(entry.get("where", "true"))
    old = select(key).where(*is_over).order_by(instant).with_for_update(skip_locked=True)

    def step(limit: int) -> int:
        with unit_of_work() as session:
            are_meant = in_list(session, key, session.scalars(old.limit(limit)).all())
            if "cleared" not in entry:
                return delete_rows(session, model, are_meant)
            return _update(session, model, are_meant, dict.fromkeys(entry["cleared"].split()))

    return run_in_batches(step, batch_size=1000, max_batches=10)


def _lock(session: Session, subject_id: str) -> str:
    """Lock an agent, also a deleted one, or find a gateway-only key; return its id. Raises: NotFound."""
    canonical = identifiers.require_id(subject_id, unknown := NotFound("There is no such agent or gateway-only key."))
    of_key = select(ApiKey.id).where(ApiKey.id == canonical, ApiKey.account_id == canonical)
    locked = lock_order.lock_rows(session, Agent.id, Agent.id == canonical)
    identifiers.require(locked or session.scalar(of_key), unknown)
    return canonical


def _assert_finished(session: Session, subject_id: str) -> None:
    unfinished = {}
    for name in (each for each in _OF_OWNERS if "finished" in TABLES[each]):
        key = _model(name).id
        is_open = _rows(name, subject_id, "only"), not_(_rows(name, subject_id, "finished"))
        if ids := session.scalars(select(key).where(*is_open).limit(20)).all():
            unfinished[name] = ids
    if unfinished:
        message = f"Nothing was erased, because this is unfinished: {', '.join(unfinished)}. Repeat it afterwards."
        raise TransactionInProgress(message, details={"unfinished": unfinished})


def _update(session: Session, model: Any, are_meant: ColumnElement[bool], values: Mapping[str, Any]) -> int:
    return (change if issubclass(model, Authenticated) else update_rows)(session, model, are_meant, **values)


def _rows(name: str, subject_id: str, *rules: str) -> ColumnElement[bool]:
    """Return the condition of a table's rows that belong to an agent or account, and have the values in some rules."""
    columns, entry = table_of(_model(name)).columns, TABLES[name]
    parents = ((columns[column], parent) for column, each in entry["of"].items() for parent in each.split())
    are_meant = or_(*(
        column == subject_id if parent == "self"
        else column.in_(select(_model(parent).id).where(_rows(parent, subject_id)))
        for column, parent in parents
    ))  # fmt: skip
    return and_(are_meant, *(columns[each].in_(have) for rule in rules for each, have in entry.get(rule, {}).items()))


def _model(name: str) -> Any:
    return next(each.class_ for each in Base.registry.mappers if table_of(each.class_).name == name)


def _parts(subject_id: str, rule: str) -> Iterator[str]:
    yield f'{{"id": "{subject_id}", "exported_at": "{clock.isoformat(clock.now())}", "tables": {{'
    for place, name in enumerate(_OF_OWNERS):
        yield f'{", " if place else ""}"{name}": ['
        for number, row in enumerate(_exported(name, subject_id, rule)):
            yield (", " if number else "") + json.dumps(row)
        yield "]"
    yield "}}"


def _exported(name: str, subject_id: str, rule: str) -> Iterator[dict[str, Any]]:
    table, withheld = table_of(_model(name)), f"{TABLES[name].get('withheld', '')} {TABLES[name].get(rule, '')}".split()
    columns = [each for each in table.columns if each.name not in withheld]
    rows: Sequence[Any] = [None]
    while rows:
        with read_only_unit() as session:
            are_meant = _rows(name, subject_id, "shown")
            rows = rows_after(session, table, columns, rows[-1], are_meant, limit=_PAGE)
        yield from ({name: _shown(value) for name, value in row._asdict().items()} for row in rows)


def _shown(value: Any) -> Any:
    """Return a value for JSON: amounts as texts, since many readers round large numbers."""
    as_text = clock.isoformat(value) if isinstance(value, datetime) else str(value)
    return value if isinstance(value, bool | str | list | dict | None) else as_text
