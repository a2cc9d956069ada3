"""Locks on several rows at once, always in the order of their keys, so that two units never wait for each other."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import InstrumentedAttribute

from app.extensions import db


def lock(key: InstrumentedAttribute[Any], *conditions: ColumnElement[bool]) -> list[Any]:
    """Lock the rows that meet the conditions until the unit ends; return their keys in order.

    What the rows say must be read after this, not before.
    """
    if db.session.get_bind().dialect.name == "postgresql":
        rows = select(key).where(*conditions).order_by(key).with_for_update(key_share=True)
        return list(db.session.scalars(rows))
    # SQLite has one lock for all, which any write takes.
    touch = update(key.class_).where(*conditions).values({key: key}).returning(key)
    return sorted(db.session.scalars(touch, execution_options={"synchronize_session": False}))
