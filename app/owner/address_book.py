"""The names that an owner gives addresses, shown where the owner decides by them; foreign tokens go to no others.

The only writer of `address_names`; agents can neither read nor write it. On its page, a name needs the owner key,
because it makes a payment look familiar.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from flask import Response, request, url_for
from markupsafe import Markup
from sqlalchemy import delete, select

from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import change, seal_of
from app.core import chains, clock
from app.core.chains import AddressError, ChainName, address_for_chain
from app.db.tables import count
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import LimitReached
from app.identity import service as identity
from app.identity.owner_keys import OwnerKeyView
from app.owner.address_names import MAX_NAME_CHARACTERS, AddressName
from app.owner.pages.template_filters import abbreviate
from app.owner.passkeys import service as passkeys
from app.owner.session import auth, sessions
from app.spending import controls as spending_controls
from app.wallets.core import wallets
from app.wallets.views import history

MAX_ADDRESSES = 200
_PAGE = "/agents/<string:agent_id>/addresses"


def entries(agent_id: str) -> Sequence[AddressName]:
    """Return the names of an agent's owner, by name; read once per request."""
    cache: dict[str, Sequence[AddressName]] = request.environ.setdefault("purser.address_book", {})
    if agent_id not in cache:
        seal = seal_of(AddressName)
        with read_only_unit() as session:
            rows = session.scalars(select(AddressName).where(AddressName.agent_id == agent_id)).all()
            shown = [row for row in rows if seal.accepts(session, row)]
        cache[agent_id] = sorted(shown, key=lambda each: (each.name.casefold(), each.chain))
    return cache[agent_id]


def set_name(actor: Actor, agent_id: str, chain: str, address: str, name: str | None) -> None:
    """Name an address on a chain, rename it, or with None remove its name. Raises: LimitReached."""
    row = {"agent_id": agent_id, "chain": chain, "address": address}
    is_meant = [getattr(AddressName, column) == value for column, value in row.items()]
    with unit_of_work() as session:
        identity.lock_agent(session, agent_id)
        before = session.scalar(select(AddressName.name).where(*is_meant))
        if name is None:
            session.execute(delete(AddressName).where(*is_meant))
        elif before is not None:
            change(session, AddressName, *is_meant, name=name)
        elif count(session, AddressName, AddressName.agent_id == agent_id) >= MAX_ADDRESSES:
            raise LimitReached(f"An address book has at most {MAX_ADDRESSES} addresses.")
        else:
            session.add(AddressName(**row, name=name, created_at=clock.now()))
        if name != before:
            old, new = ({"address": address, "chain": chain, "name": each} for each in (before, name))
            trail.record(session, actor, AuditEvent(AuditAction.ADDRESS_NAMED, agent_id, before=old, after=new))


def look_alikes(agent_id: str, others: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return which addresses could be taken for others that were named, allowed or paid before.

    Only one that the owner named is beyond doubt: an agent may have paid or allowed an address itself.
    """
    named = {each.address for each in entries(agent_id)}
    known = set(named)
    with read_only_unit() as session:
        owned = [each.id for each in wallets.all_of(session, agent_id)]
        known |= set(history.recipients_of(session, owned))
        for each in spending_controls.controls_of(session, owned).values():
            known |= set(each.allowed_addresses)
    found = {each: chains.look_alikes(each, known - {each}) for each in others if each not in named}
    return {address: alike for address, alike in found.items() if alike}


def address_name(address: str | None, chain: str | None = None) -> str:
    """Return the owner's name of an address on a chain, or on any; empty without one. For pages of one agent."""
    key: OwnerKeyView | None = (request.view_args or {}).get("key")
    book = entries(key.agent_id) if key else ()
    named = {each.name for each in book if each.address == address and chain in (None, each.chain)}
    return " / ".join(sorted(named))


def payee(address: str, chain: str | None = None) -> Markup:
    """Return the owner's name of an address with its abbreviation, or that alone."""
    short, name = abbreviate(address), address_name(address, chain)
    return Markup("<bdi>{}</bdi> {}").format(name, short) if name else short


@auth.session_pages.get(_PAGE)
def show_addresses(key: OwnerKeyView) -> Response:
    """List the addresses that have names, with the form that names another one."""
    return _render(key, {name: request.args.get(name, "")[:100] for name in ("address", "chain")})


@auth.session_pages.post(_PAGE)
def name_address(key: OwnerKeyView) -> Response:
    """Name an address; first show the known ones that it could be taken for."""
    typed = {name: auth.printable(request.form.get(name, "")).strip() for name in ("name", "address", "chain")}
    typed["name"] = typed["name"][:MAX_NAME_CHARACTERS]
    problems = {} if typed["name"] else {"name": "Enter a name."}
    if typed["chain"] not in set(ChainName):
        problems["chain"] = "Choose the network on which you know this address."
    else:
        try:
            typed["address"] = address_for_chain(typed["address"], ChainName(typed["chain"]))
        except AddressError as error:
            problems["address"] = f"It {error}."
    if problems:
        return _render(key, typed, status=400, problems=problems)
    alike = look_alikes(key.agent_id, [typed["address"]]).get(typed["address"], ())
    if alike and request.form.get("checked") != typed["address"]:
        return _render(key, typed, status=400, alike=alike)
    if (refusal := passkeys.find_refusal(key)) is not None:
        return _render(key, typed, status=403, alike=alike, key_error=refusal)
    try:
        set_name(sessions.acting_owner(key), key.agent_id, typed["chain"], typed["address"], typed["name"])
    except LimitReached as failure:
        return _render(key, typed, status=400, problems={"name": failure.message})
    return auth.see_other(url_for("owner.show_addresses", agent_id=key.agent_id, done="named"))


@auth.session_pages.post(f"{_PAGE}/remove")
def remove_address(key: OwnerKeyView) -> Response:
    """Remove a name, without asking for the owner key."""
    chain, address = (auth.printable(request.form.get(name, "")) for name in ("chain", "address"))
    set_name(sessions.acting_owner(key), key.agent_id, chain, address, None)
    return auth.see_other(url_for("owner.show_addresses", agent_id=key.agent_id, done="removed"))


def _render(key: OwnerKeyView, typed: dict[str, str], *, status: int = 200, **values: Any) -> Response:
    usual: dict[str, Any] = {"problems": {}, "alike": (), "key_error": "", "done": request.args.get("done")}
    return auth.render_page(
        "addresses.html", status=status, agent=auth.agent_of(key), listed=entries(key.agent_id), typed=typed,
        chains=[each.value for each in ChainName], prompt=passkeys.prompt_for(key), **usual | values,
    )  # fmt: skip
