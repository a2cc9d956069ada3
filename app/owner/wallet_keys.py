"""Wallets' keys that their owner takes out of the service, or imports, and the pages for that.

A phrase is in clear only where wallets' keys are opened: it is sealed for a key that the owner's browser made, or by
that browser for a key that is made for one import and deleted with it.
"""

import functools
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from flask import Response, request, url_for
from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import seal_of
from app.core import clock, hpke, identifiers
from app.db.tables import update_rows
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput, LimitReached, NotFound, ServiceError, WalletFrozen
from app.events import outbox
from app.events.outbox import EventType
from app.identity import owner_keys
from app.identity import service as identity
from app.identity.owner_keys import OwnerKeyView
from app.owner.passkeys import service as passkeys
from app.owner.session import auth, sessions
from app.ports.errors import Rejected
from app.state import app_state
from app.wallets.core import custody, wallets
from app.wallets.core.models import KeyTransfer, Wallet

_KEYS = "/agents/<string:agent_id>/wallets/<string:wallet_id>/keys"
_IMPORT = "/agents/<string:agent_id>/import"
_View = Callable[..., Response]
_HINT = "If you did not expect this, sign in and cancel it, replace your owner key, or ask the operator for a freeze."


def list_open(session: Session, owner: OwnerKeyView, *are_meant: ColumnElement[bool]) -> list[KeyTransfer]:
    """Return the owner's requests and imports that meet conditions and have not expired."""
    are_open = KeyTransfer.owner_key_id == owner.id, KeyTransfer.expires_at > clock.now()
    rows = session.scalars(select(KeyTransfer).where(*are_open, *are_meant)).all()
    return [row for row in rows if seal_of(KeyTransfer).accepts(session, row)]


def request_export(actor: Actor, owner: OwnerKeyView, wallet_id: str) -> None:
    """Begin the waiting time, unless it has begun. Raises: NotFound, WalletFrozen, KeyServiceUnavailable."""
    with unit_of_work() as session:
        _lock(session, owner, exports=wallet_id)
        is_of_wallet = KeyTransfer.wallet_id == wallet_id
        if not list_open(session, owner, is_of_wallet):
            # One of a former owner, or one that has expired.
            session.execute(delete(KeyTransfer).where(is_of_wallet))
            start = clock.now() + timedelta(seconds=app_state().settings.wallet_export_wait_seconds)
            # Any number of times in a day: an answer may be lost, and to ask again takes days.
            times = {"valid_from": start, "expires_at": start + timedelta(days=1)}
            request_id, signer = identifiers.new_id(), app_state().ports.signer
            session.add(KeyTransfer(owner_key_id=owner.id, id=request_id, wallet_id=wallet_id, **times))
            session.flush()
            if signer is not None:
                signer.announce_export(wallet_id, request_id)
            _announce(session, actor, EventType.WALLET_EXPORT_REQUESTED, owner, wallet_id, **times)


def take(actor: Actor, owner: OwnerKeyView, wallet_id: str, public_key: str) -> tuple[str, KeyTransfer]:
    """Mark a wallet as exported; return its sealed phrase, and the request.

    Raises: InvalidInput, NotFound, WalletFrozen, KeyServiceUnavailable.
    """
    try:
        hpke.point(public_key)
    except ValueError:
        raise InvalidInput.field("public_key", "must be a point of P-256") from None
    with unit_of_work() as session:
        _lock(session, owner, exports=wallet_id)
        now = clock.now()
        found = list_open(session, owner, KeyTransfer.wallet_id == wallet_id, KeyTransfer.valid_from <= now)
        if not found:
            raise NotFound("These keys were not asked for, or the waiting time has not passed.")
        update_rows(session, Wallet, Wallet.id == wallet_id, exported_at=func.coalesce(Wallet.exported_at, now))
        _announce(session, actor, EventType.WALLET_EXPORTED, owner, wallet_id)
    info = f"purser export\n{wallet_id}\n{found[0].id}"
    try:
        return custody.seal_phrase(wallet_id, public_key, info), found[0]
    except Rejected:
        raise NotFound("The signer process does not know this request: cancel it, and ask again.") from None


def begin_import(owner: OwnerKeyView) -> tuple[str, str]:
    """Make an import's key; return its id and the public key. Raises: NotFound, KeyServiceUnavailable."""
    now, import_id = clock.now(), identifiers.new_id()
    sealed, public = custody.assert_network().import_key(custody.import_location(import_id))
    with unit_of_work() as session:
        _lock(session, owner)
        session.execute(delete(KeyTransfer).filter_by(owner_key_id=owner.id, wallet_id=None))
        times = {"valid_from": now, "expires_at": now + timedelta(minutes=30)}
        session.add(KeyTransfer(owner_key_id=owner.id, id=import_id, key_sealed=sealed, **times))
    return import_id, public


def finish_import(actor: Actor, owner: OwnerKeyView, import_id: str, sealed: str) -> str:
    """Add the wallet of a sealed phrase to the agent; return its id. Raises: InvalidInput, LimitReached, NotFound."""
    with unit_of_work() as session:
        _lock(session, owner)
        is_meant = KeyTransfer.id == identifiers.parse_id(import_id), KeyTransfer.key_sealed.is_not(None)
        found = list_open(session, owner, *is_meant)
        if not found:
            raise NotFound("This form was used, or has expired.")
        session.execute(delete(KeyTransfer).where(*is_meant))
    try:
        info = f"purser import\n{owner.agent_id}\n{found[0].id}"
        key = custody.import_phrase(sealed, info, found[0].key_sealed or "", found[0].id)
    except ValueError:
        problem = "must be 12 or 24 words of the English list in order: one is wrong, missing or misplaced"
        raise InvalidInput.field("The phrase", problem) from None
    try:
        with unit_of_work() as session:
            _lock(session, owner)
            wallets.add(session, owner.agent_id, key, name=None, imported=True)
            _announce(session, actor, EventType.WALLET_IMPORTED, owner, key.wallet_id)
    except IntegrityError:
        raise LimitReached("There is a wallet with these addresses already.") from None
    return key.wallet_id


def _lock(session: Session, owner: OwnerKeyView, *, exports: str | None = None) -> None:
    """Lock the agent of an owner; the agent of the operator's wallets has none. Raises: NotFound, WalletFrozen."""
    if owner_keys.lock_owner(session, owner.agent_id).id != owner.id:
        raise NotFound("This owner key was replaced.")
    if exports is not None:
        # Its agent can delete it meanwhile.
        wallet = session.get(Wallet, exports, with_for_update={"read": True, "key_share": True})
        if wallet is None or wallet.agent_id != owner.agent_id:
            raise NotFound("This agent has no wallet with this id.")
        seal_of(Wallet).verify(session, wallet)
        if identity.get_agent(session, owner.agent_id).is_frozen:
            raise WalletFrozen


def _announce(
    session: Session, actor: Actor, what: EventType, owner: OwnerKeyView, wallet_id: str, **times: datetime
) -> None:
    """Record what happens to a wallet's keys, for all targets of the owner and the audit log, last in a unit."""
    data = {"agent_id": owner.agent_id, **{name: clock.isoformat(each) for name, each in times.items()}}
    told = {**data, "wallet_id": wallet_id, "message": _HINT}
    outbox.record(session, what, agent_id=owner.agent_id, object_id=wallet_id, data=told)
    trail.record(session, actor, AuditEvent(AuditAction(what.value), wallet_id, after=data))


def _signed(view: _View) -> _View:
    """Call a view if a passkey has signed what is sent, which an owner key would not; show why nothing was done."""

    @functools.wraps(view)
    def wrapper(key: OwnerKeyView, **names: str) -> Response:
        refusal = (
            passkeys.find_refusal(key) if request.form.get("passkey") else "This needs a passkey. Nothing was changed."
        )
        if refusal is not None:
            return _render(key, names.get("wallet_id"), status=403, error=refusal)
        try:
            return view(key, **names)
        except ServiceError as failure:
            shown: dict[str, Any] = {"error": failure.message, "retry_after_seconds": failure.retry_after_seconds}
            return _render(key, names.get("wallet_id"), status=failure.status, **shown)

    return wrapper


@auth.session_pages.post(_KEYS)
@_signed
def request_wallet_keys(key: OwnerKeyView, wallet_id: str) -> Response:
    request_export(sessions.acting_owner(key), key, auth.owned_wallet(key, wallet_id).id)
    return auth.see_other(url_for("owner.show_wallet_keys", agent_id=key.agent_id, wallet_id=wallet_id))


@auth.session_pages.post(f"{_KEYS}/cancel")
def cancel_wallet_keys(key: OwnerKeyView, wallet_id: str) -> Response:
    """Cancel the request, if there is one, without asking for a passkey."""
    actor, wallet = sessions.acting_owner(key), auth.owned_wallet(key, wallet_id)
    with unit_of_work() as session:
        _lock(session, key)
        is_open = KeyTransfer.owner_key_id == key.id, KeyTransfer.expires_at > clock.now()
        of_wallet = delete(KeyTransfer).where(KeyTransfer.wallet_id == wallet.id, *is_open)
        if session.scalar(of_wallet.returning(KeyTransfer.id)):
            _announce(session, actor, EventType.WALLET_EXPORT_CANCELLED, key, wallet.id)
    return auth.see_other(url_for("owner.show_wallet_keys", agent_id=key.agent_id, wallet_id=wallet_id))


@auth.session_pages.post(f"{_KEYS}/take")
@_signed
def take_wallet_keys(key: OwnerKeyView, wallet_id: str) -> Response:
    """Show the phrase, sealed for the public key that the passkey has signed."""
    wallet, public_key = auth.owned_wallet(key, wallet_id), request.form.get("public_key", "")
    sealed, taken = take(sessions.acting_owner(key), key, wallet.id, public_key)
    return _render(key, wallet_id, sealed=sealed, taken=taken)


@auth.session_pages.post(_IMPORT)
def begin_wallet_import(key: OwnerKeyView) -> Response:
    import_id, public_key = begin_import(key)
    return _render(key, import_id=import_id, public_key=public_key)


@auth.session_pages.post(f"{_IMPORT}/<string:import_id>")
@_signed
def finish_wallet_import(key: OwnerKeyView, import_id: str) -> Response:
    made = finish_import(sessions.acting_owner(key), key, import_id, request.form.get("sealed", ""))
    return auth.see_other(url_for("owner.show_wallet", agent_id=key.agent_id, wallet_id=made))


@auth.session_pages.get(_KEYS, endpoint="show_wallet_keys")
def _render(key: OwnerKeyView, wallet_id: str | None = None, *, status: int = 200, **shown: Any) -> Response:
    shown |= {"agent": auth.agent_of(key), "prompt": passkeys.prompt_for(key)}
    if wallet_id is None:
        return auth.render_page("import_wallet.html", status=status, **shown)
    wallet = auth.owned_wallet(key, wallet_id)
    with read_only_unit() as session:
        export = next(iter(list_open(session, key, KeyTransfer.wallet_id == wallet.id)), None)
    seconds = (export.valid_from - clock.now()).total_seconds() if export else 0
    shown |= {"wallet": wallet, "export": export, "hours_left": -int(-seconds // 3600)}
    return auth.render_page("wallet_keys.html", status=status, **shown)
