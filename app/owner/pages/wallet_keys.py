"""The pages on which an owner takes the keys of a wallet out, and brings a wallet in from its phrase."""

import functools
from collections.abc import Callable
from typing import Any

from flask import Response, request, url_for

from app.core import clock
from app.db.unit_of_work import read_only_unit
from app.errors import ServiceError, Unauthorized
from app.identity.owner_keys import OwnerKeyView
from app.owner import wallet_keys
from app.owner.pages import overview
from app.owner.passkeys import service as passkeys
from app.owner.session import auth, sessions

_KEYS = "/agents/<string:agent_id>/wallets/<string:wallet_id>/keys"
_IMPORT = "/agents/<string:agent_id>/import"


def _shows_refusals(view: Callable[..., Response]) -> Callable[..., Response]:
    """Show why nothing was done on the page of the form."""

    @functools.wraps(view)
    def wrapper(key: OwnerKeyView, wallet_id: str | None = None, **more: str) -> Response:
        try:
            return view(key, **more) if wallet_id is None else view(key, wallet_id)
        except ServiceError as failure:
            # A 401 would need a scheme, for which browsers open a dialog of their own.
            status = 403 if isinstance(failure, Unauthorized) else failure.status
            return _render(key, wallet_id, status=status, error=failure.message)

    return wrapper


@auth.session_pages.get(_KEYS)
def show_wallet_keys(key: OwnerKeyView, wallet_id: str) -> Response:
    """Show whether the keys of a wallet were asked for, and can be taken; no key is on this page."""
    return _render(key, wallet_id)


@auth.session_pages.post(_KEYS)
@_shows_refusals
def request_wallet_keys(key: OwnerKeyView, wallet_id: str) -> Response:
    _confirm(key)
    wallet_keys.request_export(sessions.acting_owner(key), key, wallet_id)
    return auth.see_other(url_for("owner.show_wallet_keys", agent_id=key.agent_id, wallet_id=wallet_id))


@auth.session_pages.post(f"{_KEYS}/cancel")
def cancel_wallet_keys(key: OwnerKeyView, wallet_id: str) -> Response:
    """Cancel the request, without asking for the owner key."""
    wallet_keys.cancel_export(sessions.acting_owner(key), key, wallet_id)
    return auth.see_other(url_for("owner.show_wallet_keys", agent_id=key.agent_id, wallet_id=wallet_id))


@auth.session_pages.post(f"{_KEYS}/take")
@_shows_refusals
def take_wallet_keys(key: OwnerKeyView, wallet_id: str) -> Response:
    """Show the phrase, sealed for the public key that the passkey has signed."""
    _confirm(key, by_passkey=True)
    public_key = request.form.get("public_key", "")
    return _render(key, wallet_id, sealed=wallet_keys.take(sessions.acting_owner(key), key, wallet_id, public_key))


@auth.session_pages.get(_IMPORT)
def show_import(key: OwnerKeyView) -> Response:
    return _render(key)


@auth.session_pages.post(_IMPORT)
def begin_import(key: OwnerKeyView) -> Response:
    """Show the form for a phrase, with a key that its browser seals it for."""
    import_id, public_key = wallet_keys.begin_import(key)
    return _render(key, import_id=import_id, public_key=public_key)


@auth.session_pages.post(f"{_IMPORT}/<string:import_id>")
@_shows_refusals
def finish_import(key: OwnerKeyView, import_id: str) -> Response:
    _confirm(key, by_passkey=True)
    sealed = request.form.get("sealed", "")
    wallet = wallet_keys.finish_import(sessions.acting_owner(key), key, import_id, sealed)
    return auth.see_other(url_for("owner.show_wallet", agent_id=key.agent_id, wallet_id=wallet.id))


def _confirm(key: OwnerKeyView, *, by_passkey: bool = False) -> None:
    """Check the owner key or passkey. A passkey signs what is sent, so that it is not replaced on the way.

    Raises: Unauthorized.
    """
    if by_passkey and not request.form.get("passkey"):
        raise Unauthorized("This needs a passkey. Nothing was changed.")
    is_owner, problem = passkeys.check_owner(key)
    if not is_owner:
        raise Unauthorized(problem)


def _render(key: OwnerKeyView, wallet_id: str | None = None, *, status: int = 200, **values: Any) -> Response:
    shown = {"agent": auth.agent_of(key), "prompt": passkeys.prompt_for(key), **values}
    if wallet_id is None:
        return auth.render_page("import_wallet.html", status=status, **shown)
    wallet = overview.owned_wallet(key, wallet_id)
    with read_only_unit() as session:
        export = wallet_keys.find_export(session, key, wallet.id)
    seconds_left = (export.valid_from - clock.now()).total_seconds() if export else 0
    return auth.render_page(
        "wallet_keys.html", status=status, wallet=wallet, export=export, hours_left=-int(-seconds_left // 3600), **shown
    )
