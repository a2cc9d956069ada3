"""Master keys: made, listed, revoked; never is the last active one revoked. In the caller's unit, but for minting."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import select, update

from app.core import clock, row_locks
from app.errors import NotFound, Unauthorized
from app.extensions import db
from app.identity import service
from app.identity.api_keys import truncated
from app.identity.models import MasterKey
from app.identity.service import MintedKey

PREFIX = "mk"


class LastMasterKeyError(Exception):
    """Only one master key is active; revoked, nobody could administer the platform any more."""


@dataclass(frozen=True, slots=True)
class MasterKeyView:
    """A master key: whole while it is active, truncated once it was revoked; the repr does not show it."""

    id: str
    key: str = field(repr=False)
    name: str
    owner_email: str | None
    active: bool
    created_at: datetime
    revoked_at: datetime | None


def mint() -> MintedKey:
    """Make a master key and seal it for its future row. Touches no database."""
    return service.mint(PREFIX, MasterKey.__tablename__)


def seal_given(key: str) -> MintedKey:
    """Seal a master key that an operator chose. Raises: ValueError when it is too short or not `mk_…`."""
    if not service.MASTER_KEY.fullmatch(key):
        msg = "BOOTSTRAP_MASTER_KEY must be mk_ and at least 20 letters, digits, hyphens or underscores"
        raise ValueError(msg)
    return service.seal(key, MasterKey.__tablename__)


def add(key: MintedKey, *, name: str, owner_email: str | None) -> MasterKeyView:
    """Insert a master key."""
    row = MasterKey(
        id=key.id, name=name, owner_email=owner_email, digest=key.digest, sealed=key.sealed,
        active=True, created_at=clock.now(),
    )  # fmt: skip
    db.session.add(row)
    db.session.flush()
    return MasterKeyView(
        row.id, key.key, name, owner_email, active=True, created_at=row.created_at, revoked_at=None
    )


def exists() -> bool:
    """Tell whether there ever was a master key."""
    return db.session.scalar(select(MasterKey.id).limit(1)) is not None


def is_active(key_id: str) -> bool:
    """Tell whether a master key still opens the platform."""
    active = select(MasterKey.id).where(MasterKey.id == key_id, MasterKey.active.is_(True))
    return db.session.scalar(active) is not None


def every() -> list[MasterKeyView]:
    """Return all master keys, the oldest first. The answer that carries them must be `no-store`."""
    return [
        _view(row)
        for row in db.session.scalars(select(MasterKey).order_by(MasterKey.created_at, MasterKey.id))
    ]


def one(key_id: str) -> MasterKeyView:
    """Return one master key. Raises: NotFound."""
    row = db.session.get(MasterKey, key_id, populate_existing=True)
    if row is None:
        raise _no_such_key()
    return _view(row)


def revoke(key_id: str, *, by: str | None) -> tuple[MasterKeyView, bool]:
    """Revoke a master key; return it and whether this call did it. `by` is the key that asks, None for a command.

    All active keys are locked first, so that of two keys that revoke each other one is left.

    Raises: NotFound; Unauthorized when `by` was revoked meanwhile; LastMasterKeyError.
    """
    active = row_locks.lock(MasterKey.id, MasterKey.active.is_(True))
    if by is not None and by not in active:
        raise Unauthorized("This master key was revoked meanwhile.")
    if key_id in active:
        if len(active) == 1:
            raise LastMasterKeyError
        db.session.execute(
            update(MasterKey)
            .where(MasterKey.id == key_id)
            .values(active=False, revoked_at=clock.now())
            .execution_options(synchronize_session=False)
        )
    return one(key_id), key_id in active


def _view(row: MasterKey) -> MasterKeyView:
    key = service.open_sealed(row.sealed, MasterKey.__tablename__, row.id)
    return MasterKeyView(
        id=row.id,
        key=key if row.active else truncated(key),
        name=row.name,
        owner_email=row.owner_email,
        active=row.active,
        created_at=row.created_at,
        revoked_at=row.revoked_at,
    )


def _no_such_key() -> NotFound:
    return NotFound("There is no such master key.")
