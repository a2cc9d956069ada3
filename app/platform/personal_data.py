"""Personal data of an agent's owner, or of the holder of a gateway-only key: export and erasure.

`personal_data.toml` says of every table what is personal in it, why it is kept, and what an erasure does with it.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, and_, not_, select, true, tuple_
from sqlalchemy.orm import Session

from app.agents import claims
from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import Authenticated, change
from app.core import clock, identifiers
from app.db import lock_order
from app.db.tables import delete_rows, in_list, table_of, update_rows
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import NotFound, TransactionInProgress
from app.extensions import Base
from app.identity import grants
from app.identity.models import Agent, ApiKey

TABLES: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_OF_OWNERS = {name: entry for name, entry in TABLES.items() if "of" in entry}
_PAGE = 500


def export(actor: Actor, subject_id: str) -> Iterator[str]:
    """Record an export, and return it as JSON in parts: all that is stored, without secrets. Raises: NotFound."""
    with unit_of_work() as session:
        subject_id = _lock(session, subject_id)
        trail.record(session, actor, AuditEvent(AuditAction.PERSONAL_DATA_SHOWN, subject_id))
    return _parts(subject_id)


def erase(actor: Actor, subject_id: str) -> dict[str, int]:
    """Erase personal data in one unit; return how many rows of each table were changed or deleted.

    Raises: NotFound; TransactionInProgress with what is unfinished: then nothing is erased.
    """
    with unit_of_work() as session:
        subject_id = _lock(session, subject_id)
        done = {name: _erase_rows(session, name, subject_id) for name in _OF_OWNERS}
        claims.revoke(session, subject_id)
        for grant in grants.list_live(session, subject_id):
            grants.end(session, grant.id)
        # After the changes, so that what began in the meantime is seen.
        if unfinished := {name: ids for name in _OF_OWNERS if (ids := _unfinished(session, name, subject_id))}:
            message = f"Nothing was erased, because this is unfinished: {', '.join(unfinished)}. Repeat it afterwards."
            raise TransactionInProgress(message, details={"unfinished": unfinished})
        subjects = [subject_id, *_ids(session, "approvals", subject_id)]
        done["audit_entries"] = trail.erase(session, subjects, TABLES["audit_entries"]["actions"])
        counts = {name: number for name, number in sorted(done.items()) if number}
        trail.record(session, actor, AuditEvent(AuditAction.PERSONAL_DATA_ERASED, subject_id, after=counts))
    return counts


def _lock(session: Session, subject_id: str) -> str:
    """Lock an agent, also a deleted one, or find a gateway-only key; return its id. Raises: NotFound."""
    canonical = identifiers.require_id(subject_id, unknown := NotFound("There is no such agent or gateway-only key."))
    of_key = select(ApiKey.id).where(ApiKey.id == canonical, ApiKey.account_id == canonical)
    if not lock_order.lock_rows(session, Agent.id, Agent.id == canonical) and session.scalar(of_key) is None:
        raise unknown
    return canonical


def _erase_rows(session: Session, name: str, subject_id: str) -> int:
    model, entry = _model(name), TABLES[name]
    are_meant = _rows(session, name, subject_id) & _have(name, "only") & _have(name, "finished")
    if "deleted" in entry:
        return delete_rows(session, model, are_meant)
    columns, values = table_of(model).columns, dict(entry.get("erased", {}))
    values |= {each: None for each, value in values.items() if value == "" and columns[each].nullable}
    update = change if issubclass(model, Authenticated) else update_rows
    return update(session, model, are_meant, **values) if values else 0


def _unfinished(session: Session, name: str, subject_id: str) -> Sequence[str]:
    if "finished" not in TABLES[name]:
        return []
    is_open = _rows(session, name, subject_id), _have(name, "only"), not_(_have(name, "finished"))
    return session.scalars(select(_model(name).id).where(*is_open).limit(20)).all()


def _rows(session: Session, name: str, subject_id: str) -> ColumnElement[bool]:
    """Return the condition of a table's rows that belong to an agent or account."""
    ((column, parent),) = TABLES[name]["of"].items()
    ids = _ids(session, parent, subject_id) if parent else [subject_id]
    return in_list(session, getattr(_model(name), column), ids)


def _ids(session: Session, name: str, subject_id: str) -> Sequence[str]:
    return session.scalars(select(_model(name).id).where(_rows(session, name, subject_id))).all()


def _have(name: str, rule: str) -> ColumnElement[bool]:
    """Return the condition of the rows that have the values in a rule of their table."""
    values: Mapping[str, list[str]] = TABLES[name].get(rule, {})
    return and_(true(), *(getattr(_model(name), column).in_(each) for column, each in values.items()))


def _model(name: str) -> Any:
    return next(each.class_ for each in Base.registry.mappers if table_of(each.class_).name == name)


def _parts(subject_id: str) -> Iterator[str]:
    yield f'{{"id": "{subject_id}", "exported_at": "{clock.isoformat(clock.now())}", "tables": {{'
    for place, name in enumerate(_OF_OWNERS):
        yield f'{", " if place else ""}"{name}": ['
        for number, row in enumerate(_exported(name, subject_id)):
            yield (", " if number else "") + json.dumps(row, default=str)
        yield "]"
    yield "}}"


def _exported(name: str, subject_id: str) -> Iterator[dict[str, Any]]:
    table, withheld = table_of(_model(name)), TABLES[name].get("withheld", "").split()
    shown = select(*(each for each in table.columns if each.name not in withheld)).order_by(*table.primary_key)
    keys, after = tuple_(*table.primary_key), and_(true())
    while True:
        with read_only_unit() as session:
            rows = session.execute(shown.where(_rows(session, name, subject_id), after).limit(_PAGE)).all()
        yield from (row._asdict() for row in rows)
        if len(rows) < _PAGE:
            return
        last = [getattr(rows[-1], key.name) for key in table.primary_key]
        after = and_(keys > tuple_(*last, types=[key.type for key in table.primary_key]))
