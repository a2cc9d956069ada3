"""Locks on several rows, always in the order of their keys, so that units do not deadlock."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session


def lock_rows(session: Session, key: InstrumentedAttribute[Any], *conditions: ColumnElement[bool]) -> list[Any]:
    """Lock the rows that meet the conditions until the unit ends; return their keys in order.

    The rows must be read after this, not before.
    """
    if session.get_bind().dialect.name == "postgresql":
        rows = select(key).where(*conditions).order_by(key).with_for_update(key_share=True)
        return list(session.scalars(rows))
    # SQLite has one lock for the database, which any write takes.
    touch = update(key.class_).where(*conditions).values({key: key}).returning(key)
    return sorted(session.scalars(touch, execution_options={"synchronize_session": False}))
