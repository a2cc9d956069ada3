"""The pages on which an owner takes the keys of a wallet out, and brings a wallet in from its phrase."""

import functools
from collections.abc import Callable
from typing import Any

from flask import Response, request, url_for

from app.core import clock
from app.db.unit_of_work import read_only_unit
from app.errors import ServiceError
from app.identity.owner_keys import OwnerKeyView
from app.owner import wallet_keys
from app.owner.pages import overview
from app.owner.passkeys import service as passkeys
from app.owner.session import auth
from app.owner.session.sessions import acting_owner
from app.wallets.core.models import KeyTransfer

_KEYS = "/agents/<string:agent_id>/wallets/<string:wallet_id>/keys"
_IMPORT = "/agents/<string:agent_id>/import"
_View = Callable[..., Response]


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
    wallet_keys.request_export(acting_owner(key), key, overview.owned_wallet(key, wallet_id).id)
    return auth.see_other(url_for("owner.show_wallet_keys", agent_id=key.agent_id, wallet_id=wallet_id))


@auth.session_pages.post(f"{_KEYS}/cancel")
def cancel_wallet_keys(key: OwnerKeyView, wallet_id: str) -> Response:
    """Cancel the request, without asking for a passkey."""
    wallet_keys.cancel_export(acting_owner(key), key, overview.owned_wallet(key, wallet_id).id)
    return auth.see_other(url_for("owner.show_wallet_keys", agent_id=key.agent_id, wallet_id=wallet_id))


@auth.session_pages.post(f"{_KEYS}/take")
@_signed
def take_wallet_keys(key: OwnerKeyView, wallet_id: str) -> Response:
    """Show the phrase, sealed for the public key that the passkey has signed."""
    wallet, public_key = overview.owned_wallet(key, wallet_id), request.form.get("public_key", "")
    sealed, taken = wallet_keys.take(acting_owner(key), key, wallet.id, public_key)
    return _render(key, wallet_id, sealed=sealed, taken=taken)


@auth.session_pages.post(_IMPORT)
def begin_import(key: OwnerKeyView) -> Response:
    import_id, public_key = wallet_keys.begin_import(key)
    return _render(key, import_id=import_id, public_key=public_key)


@auth.session_pages.post(f"{_IMPORT}/<string:import_id>")
@_signed
def finish_import(key: OwnerKeyView, import_id: str) -> Response:
    made = wallet_keys.finish_import(acting_owner(key), key, import_id, request.form.get("sealed", ""))
    return auth.see_other(url_for("owner.show_wallet", agent_id=key.agent_id, wallet_id=made))


@auth.session_pages.get(_KEYS, endpoint="show_wallet_keys")
def _render(key: OwnerKeyView, wallet_id: str | None = None, *, status: int = 200, **shown: Any) -> Response:
    shown |= {"agent": auth.agent_of(key), "prompt": passkeys.prompt_for(key)}
    if wallet_id is None:
        return auth.render_page("import_wallet.html", status=status, **shown)
    wallet = overview.owned_wallet(key, wallet_id)
    with read_only_unit() as session:
        export = next(iter(wallet_keys.list_open(session, key, KeyTransfer.wallet_id == wallet.id)), None)
    seconds = (export.valid_from - clock.now()).total_seconds() if export else 0
    shown |= {"wallet": wallet, "export": export, "hours_left": -int(-seconds // 3600)}
    return auth.render_page("wallet_keys.html", status=status, **shown)
