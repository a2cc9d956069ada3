"""Wallets' keys that their owner takes out of the service, or brings in.

A phrase is never in clear outside of this process: it is sealed for a key that the owner's browser made, or by that
browser for a key that is made for one import and deleted with it.
"""

from datetime import datetime, timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import SealedColumn, change, seal_of
from app.core import clock, hpke, identifiers
from app.db.tables import table_of
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput, LimitReached, NotFound, Unauthorized, WalletFrozen
from app.events import outbox
from app.events.outbox import EventType
from app.identity import owner_keys
from app.identity import service as identity
from app.identity.owner_keys import OwnerKeyView
from app.ports.errors import Rejected
from app.state import app_state
from app.wallets.core import custody, wallets
from app.wallets.core.models import KeyTransfer, Wallet
from app.wallets.core.wallets import WalletView

_TAKEABLE_FOR = timedelta(days=3)
TAKEABLE_AGAIN_FOR = timedelta(hours=1)
"""How long the keys can be taken once more: an answer may be lost, and to ask again takes days."""
_IMPORT_LASTS = timedelta(minutes=30)
_IMPORT_KEYS = SealedColumn(KeyTransfer.__tablename__, "key_sealed")
_HINT = "If you did not expect this, sign in and cancel it, replace your owner key, or ask the operator for a freeze."


def find_export(session: Session, owner: OwnerKeyView, wallet_id: str) -> KeyTransfer | None:
    """Return the owner's open request to take the keys of a wallet out, whether its waiting time has passed or not."""
    return _find(session, owner, KeyTransfer.wallet_id == wallet_id)


def request_export(actor: Actor, owner: OwnerKeyView, wallet_id: str) -> None:
    """Begin the waiting time, unless it has begun. Raises: NotFound, Unauthorized, WalletFrozen."""
    with unit_of_work() as session:
        _lock(session, owner, may_be_frozen=False)
        _owned(session, owner, wallet_id)
        if find_export(session, owner, wallet_id) is not None:
            return
        # One of a former owner, or one that has expired.
        session.execute(delete(KeyTransfer).where(KeyTransfer.wallet_id == wallet_id))
        start = clock.now() + timedelta(seconds=app_state().settings.wallet_export_wait_seconds)
        made = _add(session, owner, wallet_id=wallet_id, valid_from=start, expires_at=start + _TAKEABLE_FOR)
        times = {"valid_from": clock.isoformat(made.valid_from), "expires_at": clock.isoformat(made.expires_at)}
        _announce(session, actor, EventType.WALLET_EXPORT_REQUESTED, owner, wallet_id, **times)


def cancel_export(actor: Actor, owner: OwnerKeyView, wallet_id: str) -> None:
    """End a request to take the keys of a wallet out, if there is one. Raises: NotFound, Unauthorized."""
    with unit_of_work() as session:
        _lock(session, owner)
        found = find_export(session, owner, wallet_id)
        if found is not None:
            session.execute(delete(KeyTransfer).where(KeyTransfer.id == found.id))
            _announce(session, actor, EventType.WALLET_EXPORT_CANCELLED, owner, wallet_id)


def take(actor: Actor, owner: OwnerKeyView, wallet_id: str, public_key: str) -> str:
    """Return a wallet's phrase, sealed for a key of the owner's browser; from now on the wallet counts as exported.

    That is recorded before the phrase is given away, and after it was sealed. Raises: InvalidInput, NotFound,
    Unauthorized, WalletFrozen.
    """
    with read_only_unit() as session:
        export = _takeable(session, owner, wallet_id)
    try:
        info = f"purser export\n{wallet_id}\n{export.id}"
        sealed = hpke.seal(custody.phrase_of(wallet_id).encode(), public_key, info)
    except ValueError:
        raise InvalidInput.field("public_key", "must be a point of P-256") from None
    except Rejected:
        raise NotFound("This wallet has no phrase.") from None
    with unit_of_work() as session:
        _lock(session, owner, may_be_frozen=False)
        _owned(session, owner, wallet_id)
        now = clock.now()
        exported_at = func.coalesce(Wallet.exported_at, now)
        session.execute(update(table_of(Wallet)).where(Wallet.id == wallet_id).values(exported_at=exported_at))
        current = _takeable(session, owner, wallet_id)
        if current.id != export.id:
            raise NotFound("This request was cancelled.")
        is_meant = KeyTransfer.id == export.id
        change(session, KeyTransfer, is_meant, expires_at=min(current.expires_at, now + TAKEABLE_AGAIN_FOR))
        _announce(session, actor, EventType.WALLET_EXPORTED, owner, wallet_id)
    return sealed


def begin_import(owner: OwnerKeyView) -> tuple[str, str]:
    """Make the key that one phrase is sealed for; return the id of the import and the public key. Raises: NotFound."""
    private, public = hpke.new_key()
    with unit_of_work() as session:
        _lock(session, owner)
        are_open = KeyTransfer.owner_key_id == owner.id, KeyTransfer.key_sealed.is_not(None)
        session.execute(delete(KeyTransfer).where(*are_open))
        now, import_id = clock.now(), identifiers.new_id()
        sealed = _IMPORT_KEYS.seal(private, import_id)
        _add(session, owner, id=import_id, key_sealed=sealed, valid_from=now, expires_at=now + _IMPORT_LASTS)
    return import_id, public


def finish_import(actor: Actor, owner: OwnerKeyView, import_id: str, sealed: str) -> WalletView:
    """Add the wallet of a sealed phrase to the owner's agent. What was sealed is tried once, so that the key goes.

    Raises: InvalidInput, LimitReached, NotFound, Unauthorized.
    """
    with unit_of_work() as session:
        _lock(session, owner)
        found = _find(session, owner, KeyTransfer.id == import_id, KeyTransfer.key_sealed.is_not(None))
        if found is None:
            raise NotFound("This form was used, or has expired.")
        session.execute(delete(KeyTransfer).where(KeyTransfer.id == found.id))
    private = _IMPORT_KEYS.open(found.key_sealed or "", found.id)
    try:
        words = hpke.unseal(sealed, private, f"purser import\n{owner.agent_id}\n{found.id}").decode()
    except ValueError:
        raise InvalidInput.field("sealed", "must be sealed for this form") from None
    try:
        key = custody.import_phrase(" ".join(words.split()))
    except ValueError:
        problem = "must have 12 or 24 words of the English list in their order: a word is wrong, missing or misplaced"
        raise InvalidInput.field("phrase", problem) from None
    exists = LimitReached("There is a wallet with these addresses already, or there was one.")
    try:
        with unit_of_work() as session:
            _lock(session, owner)
            if wallets.agent_with_address(session, key.evm_address) is not None:
                raise exists
            made = wallets.add(session, owner.agent_id, key, name=None, imported=True)
            _announce(session, actor, EventType.WALLET_IMPORTED, owner, made.id)
            return made
    except IntegrityError:
        raise exists from None  # by a concurrent import


def prune(session: Session, now: datetime) -> None:
    """Delete what has expired, and so the keys of imports that were not finished."""
    session.execute(delete(KeyTransfer).where(KeyTransfer.expires_at <= now))


def _lock(session: Session, owner: OwnerKeyView, *, may_be_frozen: bool = True) -> None:
    """Lock the agent of an owner. Raises: NotFound, Unauthorized, WalletFrozen."""
    if owner_keys.lock_owner(session, owner.agent_id).id != owner.id:
        raise Unauthorized("This owner key was replaced.")
    if not may_be_frozen and identity.get_agent(session, owner.agent_id).is_frozen:
        raise WalletFrozen


def _owned(session: Session, owner: OwnerKeyView, wallet_id: str) -> None:
    """Check that a wallet is the agent's: those of the operator belong to no agent that can be claimed."""
    wallet = session.get(Wallet, wallet_id)
    if wallet is None or wallet.agent_id != owner.agent_id:
        raise NotFound("This agent has no wallet with this id.")
    seal_of(Wallet).verify(session, wallet)


def _takeable(session: Session, owner: OwnerKeyView, wallet_id: str) -> KeyTransfer:
    _owned(session, owner, wallet_id)
    found = find_export(session, owner, wallet_id)
    if found is None or found.valid_from > clock.now():
        raise NotFound("These keys cannot be taken now: they were not asked for, or the waiting time has not passed.")
    return found


def _find(session: Session, owner: OwnerKeyView, *conditions: object) -> KeyTransfer | None:
    is_open = KeyTransfer.owner_key_id == owner.id, KeyTransfer.expires_at > clock.now()
    found = session.scalars(select(KeyTransfer).where(*is_open, *conditions)).one_or_none()  # type: ignore[arg-type]
    return found if found is not None and seal_of(KeyTransfer).accepts(session, found) else None


def _add(session: Session, owner: OwnerKeyView, **values: object) -> KeyTransfer:
    row = KeyTransfer(**{"id": identifiers.new_id(), "owner_key_id": owner.id, **values})
    session.add(row)
    session.flush()
    return row


def _announce(
    session: Session, actor: Actor, what: EventType, owner: OwnerKeyView, wallet_id: str, **details: str
) -> None:
    """Record what happens to a wallet's keys, for all targets of the owner and the audit log, last in a unit."""
    data = {"wallet_id": wallet_id, **details, "message": _HINT}
    outbox.record(session, what, agent_id=owner.agent_id, object_id=wallet_id, data=data)
    after = {"agent_id": owner.agent_id, **details}
    trail.record(session, actor, AuditEvent(AuditAction(what.value), wallet_id, after=after))
