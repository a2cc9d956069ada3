"""Master keys: mint, list, revoke. An admin's active one always remains."""

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.authenticated import change, seal_of
from app.core import clock
from app.core.identifiers import require
from app.db import lock_order
from app.errors import NotFound, SelfRevoke, Unauthorized
from app.identity import service
from app.identity.api_keys import mask_key
from app.identity.models import MasterKey
from app.identity.principal import MasterKeyPrincipal, MasterKeyRole
from app.identity.service import MintedKey


@dataclass(frozen=True, slots=True)
class MasterKeyView:
    """A master key: whole while it is active, masked once it was revoked; the repr does not show it."""

    id: str
    key: str = field(repr=False)
    name: str
    role: MasterKeyRole
    owner_email: str | None
    active: bool
    created_at: datetime
    revoked_at: datetime | None


def mint(role: MasterKeyRole = MasterKeyRole.ADMIN) -> MintedKey:
    return service.mint_key(role.prefix.rstrip("_"), MasterKey.__tablename__)


def seal_supplied_key(key: str) -> MintedKey:
    """Seal a master key that an operator chose. Raises: ValueError when it is too short or not `mk_…`."""
    if not service.MASTER_KEY.fullmatch(key) or MasterKeyRole.of(key) is not MasterKeyRole.ADMIN:
        msg = "BOOTSTRAP_MASTER_KEY must be mk_ and at least 20 letters, digits, hyphens or underscores"
        raise ValueError(msg)
    return service.seal_key(key, MasterKey.__tablename__)


def add(session: Session, key: MintedKey, *, name: str, owner_email: str | None) -> MasterKeyView:
    sealed = {"id": key.id, "digest": key.digest, "sealed": key.sealed}
    row = MasterKey(**sealed, name=name, owner_email=owner_email, active=True, created_at=clock.now())
    session.add(row)
    session.flush()
    return _view(row)


def exists(session: Session) -> bool:
    return session.scalar(select(MasterKey.id).limit(1)) is not None


def is_active(session: Session, key_id: str) -> bool:
    return session.scalar(select(MasterKey.id).where(MasterKey.id == key_id, MasterKey.active.is_(True))) is not None


def find(session: Session, key_id: str) -> MasterKeyPrincipal | None:
    """Lock a master key and return its holder in the console, with the role of its text; None if it is not active."""
    lock_order.lock_rows(session, MasterKey.id, MasterKey.id == key_id)
    row = session.get(MasterKey, key_id, populate_existing=True)
    if row is None or not row.active or not seal_of(MasterKey).accepts(session, row):
        return None
    return MasterKeyPrincipal(row.id, row.name, _view(row).role, in_console=True)


def list_all(session: Session) -> list[MasterKeyView]:
    """Return all master keys, oldest first. The response must be `no-store`."""
    return [_view(row) for row in session.scalars(select(MasterKey).order_by(MasterKey.created_at, MasterKey.id))]


def get(session: Session, key_id: str) -> MasterKeyView:
    """Return one master key. Raises: NotFound."""
    row = session.get(MasterKey, key_id, populate_existing=True)
    return _view(require(row, NotFound("There is no such master key.")))


def revoke(session: Session, key_id: str, *, revoked_by: str | None) -> tuple[MasterKeyView, bool]:
    """Revoke a master key; return it and whether this call did so. `revoked_by` is the acting key, None for a command.

    All active keys are locked first, so that of two keys that revoke each other one is left.

    Raises: NotFound; Unauthorized if `revoked_by` was concurrently revoked; SelfRevoke for an admin's last one.
    """
    active = lock_order.lock_rows(session, MasterKey.id, MasterKey.active.is_(True))
    if revoked_by is not None and revoked_by not in active:
        raise Unauthorized("This master key was revoked.")
    if key_id in active:
        others = [each for each in list_all(session) if each.active and each.id != key_id]
        if all(each.role is not MasterKeyRole.ADMIN for each in others):
            raise SelfRevoke("This is the last active master key of an admin. Create another one first.")
        change(session, MasterKey, MasterKey.id == key_id, active=False, revoked_at=clock.now())
    return get(session, key_id), key_id in active


def _view(row: MasterKey) -> MasterKeyView:
    key = service.open_key(row.sealed, MasterKey.__tablename__, row.id)
    shown, role = key if row.active else mask_key(key), MasterKeyRole.of(key)
    return MasterKeyView(row.id, shown, row.name, role, row.owner_email, row.active, row.created_at, row.revoked_at)
