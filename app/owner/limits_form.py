"""The form of a wallet's limits and allowlists. Tightening is done at once; loosening asks for the owner key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from flask import Response, redirect, request, url_for
from marshmallow import ValidationError

from app.core.unit_of_work import reading
from app.identity import service as identity
from app.owner import overview
from app.owner.agent_pages import proven
from app.owner.door import inside, key_of, page
from app.owner.wording import usd_exact
from app.platform import actors, fleet
from app.platform.fleet import LoosensError
from app.spending.service import Changes, ControlsView
from app.wallets.schemas import ControlsBody

AMOUNTS = {
    "per_tx_limit_usd": "Per transaction",
    "daily_limit_usd": "Per day",
    "weekly_limit_usd": "Per week",
    "monthly_limit_usd": "Per month",
}
LISTS = {"allowed_addresses": "Allowed addresses", "allowed_domains": "Allowed shop and service domains"}
_PATH = "/agents/<string:agent_id>/wallets/<string:wallet_id>/limits"
# A comma stands before three digits only: "12,50" is twelve dollars and a half to half of the world.
_NUMBER = re.compile(r"\$?\s*((?:[0-9]{1,3}(?:[,'][0-9]{3}){1,6}|[0-9]{1,21})(?:\.[0-9]{1,9})?)", re.ASCII)
_MOST_TYPED = 60_000
_SHOWN_ENTRIES = 3
_SHOWN_LETTERS = 60
_NEEDS_KEY = "This raises a limit or allows more than before, so your owner key is needed."


@inside.get(_PATH)
def show_limits(agent_id: str, wallet_id: str) -> Response:
    """Show the limits of a wallet, to be changed."""
    wallet = overview.wallet_of(key_of(agent_id), wallet_id)
    return _form(agent_id, wallet_id, _written(wallet.spending_controls))


@inside.post(_PATH)
def save_limits(agent_id: str, wallet_id: str) -> Response:
    """Save the limits of a wallet; they hold for the next movement."""
    key = key_of(agent_id)
    wallet = overview.wallet_of(key, wallet_id)
    typed = {name: request.form.get(name, "")[:_MOST_TYPED] for name in (*AMOUNTS, *LISTS)}
    changes, problems = _read(typed)
    if changes is None:
        return _form(agent_id, wallet_id, typed, problems=problems, status=400)
    is_owner, trouble = proven(key) if request.form.get("owner_key", "").strip() else (False, "")
    if trouble:
        return _form(agent_id, wallet_id, typed, key_trouble=trouble, status=403)
    try:
        changed = fleet.set_controls_of_wallet(actors.the_owner(key.id), wallet, changes, may_loosen=is_owner)
    except LoosensError:
        return _form(agent_id, wallet_id, typed, key_trouble=_NEEDS_KEY, status=403)
    done = "limits" if changed else "unchanged"
    path = url_for("owner.show_wallet", agent_id=agent_id, wallet_id=wallet_id, done=done)
    return redirect(path, 303)  # type: ignore[return-value]


def _read(typed: Mapping[str, str]) -> tuple[Changes | None, dict[str, str]]:
    """Read the form as the JSON API reads a body: one set of rules for both."""
    body: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name in AMOUNTS:
        number = _number(typed[name])
        if number is None:
            problems[name] = "Write a number of dollars such as 50 or 12.50; leave it empty for no limit."
        else:
            body[name] = number
    for name in LISTS:
        body[name] = typed[name].replace(",", " ").split()
    try:
        values = ControlsBody().load(body)
    except ValidationError as error:
        problems |= {name: _sentence(of, body[name]) for name, of in error.messages_dict.items()}
        return None, problems
    return (None, problems) if problems else (Changes(**values), {})


def _number(text: str) -> Decimal | None:
    """Read dollars as people write them; nothing at all is no limit."""
    stripped = text.strip()
    if not stripped:
        return Decimal(0)
    found = _NUMBER.fullmatch(stripped)
    if found is None:
        return None
    try:
        return Decimal(found[1].replace(",", "").replace("'", ""))
    except InvalidOperation:
        return None


def _sentence(problems: Any, typed: Any) -> str:
    """Say what is wrong with a number, or with which entries of a list."""
    if not isinstance(problems, Mapping):
        return f"It {'; '.join(map(str, problems))}."
    said = [
        f"“{typed[place][:_SHOWN_LETTERS]}” {'; '.join(map(str, of))}."
        for place, of in problems.items()
        if isinstance(place, int)
    ]
    more = [f"And {len(said) - _SHOWN_ENTRIES} more."] if len(said) > _SHOWN_ENTRIES else []
    return " ".join([*said[:_SHOWN_ENTRIES], *more])


def _written(controls: ControlsView | None) -> dict[str, str]:
    if controls is None:
        return dict.fromkeys((*AMOUNTS, *LISTS), "")
    amounts = {name: getattr(controls, name.replace("_usd", "_nanos")) for name in AMOUNTS}
    return {
        **{name: usd_exact(nanos) if nanos else "" for name, nanos in amounts.items()},
        **{name: "\n".join(getattr(controls, name)) for name in LISTS},
    }


def _form(
    agent_id: str,
    wallet_id: str,
    values: Mapping[str, str],
    *,
    problems: Mapping[str, str] | None = None,
    key_trouble: str = "",
    status: int = 200,
) -> Response:
    with reading():
        agent = identity.agent(agent_id)
    wallet = overview.wallet_of(key_of(agent_id), wallet_id)
    return page(
        "limits.html", status=status, agent=agent, wallet=wallet, values=values, amounts=AMOUNTS, lists=LISTS,
        problems=problems or {}, key_trouble=key_trouble,
    )  # fmt: skip
