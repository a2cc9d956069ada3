"""Digests: a mailbox or browser gets few messages, each with all that waits for it.

The first notice is sent immediately; after three within ten minutes, what happens waits for the next one.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core import clock
from app.events.models import EventTarget
from app.events.targets import TargetKind

MAX_MESSAGES = 3
WINDOW = timedelta(minutes=10)


def is_digested(target: EventTarget) -> bool:
    """Return whether a target is one that a person reads."""
    return target.kind != TargetKind.WEBHOOK.value


def next_message_at(session: Session, target: EventTarget) -> datetime:
    """Return when the next message may be sent: to a mailbox, whatever agents or spellings it was entered for."""
    of_target = EventTarget.id == target.id
    if target.kind == TargetKind.EMAIL.value:
        of_target = EventTarget.queue == target.queue
    sent = sorted(at for times in session.scalars(select(EventTarget.sent).where(of_target)) for at in times or ())
    if len(sent) < MAX_MESSAGES:
        return target.created_at
    return datetime.fromisoformat(sent[-MAX_MESSAGES]) + WINDOW


def note_message(target: EventTarget, at: datetime) -> None:
    """Note the time of a message on the target that it was sent to."""
    if is_digested(target):
        target.sent = [*(target.sent or ()), clock.isoformat(at)][-MAX_MESSAGES:]
