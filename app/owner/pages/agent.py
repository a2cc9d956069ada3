"""The pages of an agent: overview, freeze, lock and keys."""

import functools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from flask import Response, request, url_for

from app.agents import claims
from app.agents import keys as agent_keys
from app.agents.claims import CodeKind
from app.core.pagination import PageRequest
from app.db.unit_of_work import read_only_unit
from app.errors import NotFound
from app.events import targets
from app.events.targets import Audience, Subscriber, TargetKind
from app.idempotency.service import Claim
from app.identity.api_keys import MAX_KEYS
from app.identity.owner_keys import OwnerKeyView
from app.owner import notices
from app.owner.pages import overview
from app.owner.passkeys import service as passkeys
from app.owner.session import auth, sessions
from app.platform import personal_data
from app.platform.agents import fleet
from app.platform.agents import service as platform
from app.spending.controls import ControlsChange
from app.wallets.core import wallets
from app.web.blueprint import json_file

_AGENT = "/agents/<string:agent_id>"
_View = Callable[[OwnerKeyView], Response]
_GRACE_PERIODS = {"now": timedelta(), "hour": timedelta(hours=1), "day": timedelta(days=1)}


def _requires_owner_key(operation: str) -> Callable[[_View], _View]:
    """Call a view if the form contains its owner key; otherwise ask for it again."""

    def decorate(view: _View) -> _View:
        @functools.wraps(view)
        def wrapper(key: OwnerKeyView) -> Response:
            refusal = passkeys.find_refusal(key)
            if refusal is None:
                return view(key)
            return auth.render_page(
                "confirm_owner_key.html", status=403, agent=auth.agent_of(key), operation=operation, error=refusal,
                grace=request.form.get("grace"), kind=request.form.get("kind"), prompt=passkeys.prompt_for(key),
            )  # fmt: skip

        return wrapper

    return decorate


@auth.session_pages.get("")
def show_agents() -> Response:
    """List the agents of the session; if there is only one, show it."""
    keys = auth.current_session().keys
    if len(keys) == 1:
        return auth.see_other(url_for("owner.show_agent", agent_id=keys[0].agent_id))
    return auth.render_page("agents.html", agents=overview.agent_summaries(keys))


@auth.session_pages.get(_AGENT, endpoint="show_agent")
@auth.session_pages.get(f"{_AGENT}/wallets/<string:wallet_id>")
def show_wallet(key: OwnerKeyView, wallet_id: str | None = None) -> Response:
    """Show an agent with one of its wallets, the first if none is named."""
    content = overview.agent_overview(key, wallet_id=wallet_id)
    return auth.render_page(
        "agent.html", overview=content, agent=content["agent"], selected=content["selected"],
        prompt=passkeys.prompt_for(key), done=request.args.get("done"),
    )  # fmt: skip


@auth.session_pages.get(f"{_AGENT}/limits")
def show_agent_limits(key: OwnerKeyView) -> Response:
    """Show the limits of the agent's first wallet."""
    with read_only_unit() as session:
        owned = wallets.all_of(session, key.agent_id)
    if not owned:
        return auth.see_other(url_for("owner.show_agent", agent_id=key.agent_id))
    return auth.see_other(url_for("owner.show_limits", agent_id=key.agent_id, wallet_id=owned[0].id))


@auth.session_pages.post(f"{_AGENT}/freeze")
def freeze(key: OwnerKeyView) -> Response:
    """Freeze the agent immediately, without asking for the owner key."""
    block_keys = request.form.get("block_keys") == "on"
    platform.set_frozen(sessions.acting_owner(key), key.agent_id, frozen=True, block_keys=block_keys)
    return _redirect_done(key, "blocked" if block_keys else "frozen")


@auth.session_pages.post(f"{_AGENT}/unfreeze")
@_requires_owner_key("unfreeze")
def unfreeze(key: OwnerKeyView) -> Response:
    platform.set_frozen(sessions.acting_owner(key), key.agent_id, frozen=False)
    return _redirect_done(key, "unfrozen")


@auth.session_pages.post(f"{_AGENT}/lock")
def lock(key: OwnerKeyView) -> Response:
    """Prevent the agent's own key from loosening the limits of any of its wallets."""
    fleet.set_agent_controls(sessions.acting_owner(key), key.agent_id, ControlsChange(locked=True))
    return _redirect_done(key, "locked")


@auth.session_pages.post(f"{_AGENT}/unlock")
@_requires_owner_key("unlock")
def unlock(key: OwnerKeyView) -> Response:
    """Permit the agent to change its limits itself, with the owner key."""
    fleet.set_agent_controls(sessions.acting_owner(key), key.agent_id, ControlsChange(locked=False))
    return _redirect_done(key, "unlocked")


@auth.session_pages.get(f"{_AGENT}/personal-data")
def show_personal_data(key: OwnerKeyView) -> Response:
    """Show what is stored and why, and the forms that export or erase it."""
    tables, prompt = personal_data.TABLES, passkeys.prompt_for(key)
    return auth.render_page("personal_data.html", agent=auth.agent_of(key), tables=tables, prompt=prompt)


@auth.session_pages.post(f"{_AGENT}/personal-data/export")
@_requires_owner_key("export_data")
def export_personal_data(key: OwnerKeyView) -> Response:
    return json_file(personal_data.export(sessions.acting_owner(key), key.agent_id), "personal-data")


@auth.session_pages.post(f"{_AGENT}/personal-data/erase")
@_requires_owner_key("erase_data")
def erase_personal_data(key: OwnerKeyView) -> Response:
    """Erase personal data, and with it all sessions of the agent; the entry of that has no address."""
    told = targets.list_of(Subscriber(Audience.OWNER, key.agent_id), PageRequest(targets.MAX_TARGETS, 0)).items
    personal_data.erase(replace(sessions.acting_owner(key), client_address=None), key.agent_id)
    for each in told:
        if each.kind == TargetKind.EMAIL:
            notices.send_farewell(key.agent_id, each.url.removeprefix("mailto:"))
    return auth.render_page("personal_data.html", agent=auth.agent_of(key), erased=True)


@auth.session_pages.post(f"{_AGENT}/keys/show")
@_requires_owner_key("show")
def show_api_key(key: OwnerKeyView) -> Response:
    view = platform.get_agent(sessions.acting_owner(key), key.agent_id)
    if view.api_key is None:
        raise NotFound("This agent has no valid API key; create a new one.")
    return _render_keys(key, api_key=view.api_key)


@auth.session_pages.post(f"{_AGENT}/keys/rotate")
@_requires_owner_key("rotate")
def rotate_api_key(key: OwnerKeyView) -> Response:
    """Create a new API key, with the owner key; the previous one works until its grace period ends."""
    grace = _GRACE_PERIODS.get(request.form.get("grace", ""), timedelta())
    made = platform.rotate_key(sessions.acting_owner(key), key.agent_id, grace=grace, claim=Claim.none())
    return _render_keys(key, api_key=made.api_key, older_until=made.older_until if grace else None, rotated=True)


@auth.session_pages.post(f"{_AGENT}/keys/revoke")
def revoke_key(key: OwnerKeyView) -> Response:
    with suppress(NotFound):
        agent_keys.revoke(sessions.acting_owner(key), key.agent_id, request.form.get("key_id", ""))
    return auth.see_other(url_for("owner.show_keys", agent_id=key.agent_id))


@auth.session_pages.post(f"{_AGENT}/keys/replace-owner-key")
@_requires_owner_key("replace")
def replace_owner_key(key: OwnerKeyView) -> Response:
    """Create a new owner key, with the current one; other holders of the current key lose access."""
    owner_key, token = sessions.replace_owner_key(sessions.acting_owner(key), auth.current_session(), key)
    auth.use_session_token(token)
    return auth.set_session_cookie(_render_keys(key, owner_key=owner_key), token)


@auth.session_pages.post(f"{_AGENT}/keys/codes")
@_requires_owner_key("codes")
def create_owner_codes(key: OwnerKeyView) -> Response:
    kind = CodeKind.HANDOVER if request.form.get("kind") == CodeKind.HANDOVER else CodeKind.RECOVERY_CODE
    codes, _, until = claims.create_owner_codes(sessions.acting_owner(key), key.agent_id, kind)
    return _render_keys(key, kind=kind, codes=codes, until=until)


@auth.session_pages.post(f"{_AGENT}/keys/cancel")
def cancel_owner_codes(key: OwnerKeyView) -> Response:
    """Cancel a recovery and a handover, without asking for the owner key."""
    claims.cancel_owner_codes(sessions.acting_owner(key), key.agent_id)
    return auth.see_other(url_for("owner.show_keys", agent_id=key.agent_id))


@auth.session_pages.get(f"{_AGENT}/keys", endpoint="show_keys")
def _render_keys(key: OwnerKeyView, **shown: Any) -> Response:
    """Show the key operations, and no key but one that an operation gives."""
    with read_only_unit() as session:
        opened = claims.list_owner_codes(session, key.id)
    return auth.render_page(
        "keys.html",
        agent=auth.agent_of(key),
        opened=opened,
        owner_key_since=key.created_at,
        further=agent_keys.list_keys(key.agent_id, PageRequest(MAX_KEYS, 0), with_revoked=False).items,
        # A new owner key has no passkeys yet.
        prompt=None if "owner_key" in shown else passkeys.prompt_for(key),
        **shown,
    )


def _redirect_done(key: OwnerKeyView, what: str) -> Response:
    return auth.see_other(url_for("owner.show_agent", agent_id=key.agent_id, done=what))
