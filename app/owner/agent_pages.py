"""The pages of an agent: its overview, its transactions, and the deeds on it: freeze, lock, keys."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flask import Response, redirect, request, url_for

from app.core.pagination import PageRequest
from app.core.unit_of_work import reading
from app.errors import NotFound, RateLimited
from app.identity import service as identity
from app.identity.limits import client_network
from app.identity.owner_keys import OwnerKeyView
from app.owner import overview, sessions
from app.owner.door import continue_in, current_session, inside, keep_session, key_of, page
from app.platform import actors, fleet, freezes
from app.platform import service as platform
from app.spending.service import Changes
from app.wallets.lifecycle import Status

_AGENT = "/agents/<string:agent_id>"
_PAGE = 25
_LAST_PAGE = 10_000
_GRACE = {"now": timedelta(), "hour": timedelta(hours=1), "day": timedelta(days=1)}
_DONE = {
    "frozen": "The agent is frozen. Nothing new moves; what was already on its way is finished.",
    "unfrozen": "The agent can move money again, within its limits.",
    "locked": "The limits are locked. The agent can tighten them, but no longer raise them.",
    "unlocked": "The limits are unlocked. The agent can change them itself.",
    "limits": "The limits were saved. They hold from now on.",
    "limits-unlocked": "The limits were saved. The agent can still raise them itself: lock them.",
    "unchanged": "Nothing was different, so nothing was changed.",
}


@inside.get("")
def show_agents() -> Response:
    """List the agents that the session opens; of one alone, show it at once."""
    keys = current_session().keys
    if len(keys) == 1:
        return _to(url_for("owner.show_agent", agent_id=keys[0].agent_id))
    return page("agents.html", lines=overview.lines(keys))


@inside.get(_AGENT)
def show_agent(agent_id: str) -> Response:
    """Show an agent with its first wallet."""
    return _show(key_of(agent_id), wallet_id=None)


@inside.get(f"{_AGENT}/wallets/<string:wallet_id>")
def show_wallet(agent_id: str, wallet_id: str) -> Response:
    """Show an agent with one of its wallets."""
    return _show(key_of(agent_id), wallet_id=wallet_id)


@inside.get(f"{_AGENT}/wallets/<string:wallet_id>/transactions")
def show_transactions(agent_id: str, wallet_id: str) -> Response:
    """Show a page of a wallet's transactions, all or those of one status."""
    key = key_of(agent_id)
    wallet = overview.wallet_of(key, wallet_id)
    wanted = request.args.get("status")
    status = wanted if wanted in set(Status) else None
    number = min(max(request.args.get("page", 1, type=int), 1), _LAST_PAGE)
    found = overview.transactions(wallet, PageRequest(_PAGE, (number - 1) * _PAGE), status=status)
    with reading():
        agent = identity.agent(agent_id)
    return page(
        "transactions.html", agent=agent, wallet=wallet, found=found, wanted=status, number=number,
        statuses=list(Status),
    )  # fmt: skip


@inside.post(f"{_AGENT}/freeze")
def freeze(agent_id: str) -> Response:
    """Stop everything new at once; no key is asked for, so that nothing delays it."""
    key = key_of(agent_id)
    freezes.freeze(actors.the_owner(key.id), agent_id)
    return _done(agent_id, "frozen")


@inside.post(f"{_AGENT}/unfreeze")
def unfreeze(agent_id: str) -> Response:
    """Let the agent move again, with the owner key."""
    key = key_of(agent_id)
    if (refusal := _refusal(key, "unfreeze")) is not None:
        return refusal
    freezes.unfreeze(actors.the_owner(key.id), agent_id)
    return _done(agent_id, "unfrozen")


@inside.post(f"{_AGENT}/lock")
def lock(agent_id: str) -> Response:
    """Keep the agent's own key from loosening the limits of any of its wallets."""
    key = key_of(agent_id)
    fleet.set_controls(actors.the_owner(key.id), agent_id, Changes(locked=True))
    return _done(agent_id, "locked")


@inside.post(f"{_AGENT}/unlock")
def unlock(agent_id: str) -> Response:
    """Let the agent change its limits itself, with the owner key."""
    key = key_of(agent_id)
    if (refusal := _refusal(key, "unlock")) is not None:
        return refusal
    fleet.set_controls(actors.the_owner(key.id), agent_id, Changes(locked=False))
    return _done(agent_id, "unlocked")


@inside.get(f"{_AGENT}/keys")
def show_keys(agent_id: str) -> Response:
    """Offer what can be done about keys; none is on this page."""
    return _keys(key_of(agent_id))


@inside.post(f"{_AGENT}/keys/show")
def show_api_key(agent_id: str) -> Response:
    """Show the API key, with the owner key."""
    key = key_of(agent_id)
    if (refusal := _refusal(key, "show")) is not None:
        return refusal
    view = platform.show(actors.the_owner(key.id), agent_id)
    if view.api_key is None:
        raise NotFound("This agent has no valid API key; make a new one.")
    return _keys(key, api_key=view.api_key)


@inside.post(f"{_AGENT}/keys/rotate")
def rotate_api_key(agent_id: str) -> Response:
    """Make a new API key, with the owner key; the one before works until the grace is over."""
    key = key_of(agent_id)
    if (refusal := _refusal(key, "rotate")) is not None:
        return refusal
    grace = _GRACE.get(request.form.get("grace", ""), timedelta())
    made = platform.rotate_key(actors.the_owner(key.id), agent_id, grace=grace)
    return _keys(key, api_key=made.api_key, older_until=made.older_until if grace else None, rotated=True)


@inside.post(f"{_AGENT}/keys/replace-owner-key")
def replace_owner_key(agent_id: str) -> Response:
    """Make a new owner key, with the present one; whoever else has that one is shut out."""
    key = key_of(agent_id)
    if (refusal := _refusal(key, "replace")) is not None:
        return refusal
    owner_key, token = sessions.replace_owner_key(actors.the_owner(key.id), current_session(), key)
    continue_in(token)
    return keep_session(_keys(key, owner_key=owner_key), token)


def proven(key: OwnerKeyView) -> tuple[bool, str]:
    """Tell whether the form has the agent's owner key, or what to say to whoever sent it without."""
    typed = request.form.get("owner_key", "").strip()
    if not typed:
        return False, "Your owner key is needed for this. Nothing was changed."
    try:
        if sessions.is_proven(typed, key, network=client_network()):
            return True, ""
    except RateLimited:
        return False, "Too many wrong keys were sent from your address. Wait before you try again."
    return False, "This is not the owner key of this agent. Nothing was changed."


def _refusal(key: OwnerKeyView, deed: str) -> Response | None:
    """Return the page that asks for the owner key once more, or None when it was given."""
    is_owner, trouble = proven(key)
    if is_owner:
        return None
    with reading():
        agent = identity.agent(key.agent_id)
    return page(
        "prove.html", status=403, agent=agent, deed=deed, trouble=trouble, grace=request.form.get("grace")
    )


def _show(key: OwnerKeyView, *, wallet_id: str | None) -> Response:
    picture = overview.of_agent(key, wallet_id=wallet_id)
    what = request.args.get("done", "")
    done = _DONE.get(f"{what}-unlocked" if what == "limits" and not picture.locked else what)
    return page("agent.html", picture=picture, agent=picture.agent, shown=picture.shown, done=done)


def _keys(key: OwnerKeyView, **shown: Any) -> Response:
    with reading():
        agent = identity.agent(key.agent_id)
    return page("keys.html", agent=agent, owner_key_since=key.created_at, **shown)


def _done(agent_id: str, what: str) -> Response:
    return _to(url_for("owner.show_agent", agent_id=agent_id, done=what))


def _to(path: str) -> Response:
    return redirect(path, 303)  # type: ignore[return-value]
