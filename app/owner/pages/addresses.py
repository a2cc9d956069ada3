"""The page of an agent's address book. A name needs the owner key, because it makes a payment look familiar."""

from typing import Any

from flask import Response, request, url_for

from app.core.chains import AddressError, ChainName, address_for_chain
from app.errors import LimitReached
from app.identity.owner_keys import OwnerKeyView
from app.owner import address_book
from app.owner.passkeys import service as passkeys
from app.owner.session import sessions
from app.owner.session.auth import agent_of, printable, render_page, see_other, session_pages

_PAGE = "/agents/<string:agent_id>/addresses"


@session_pages.get(_PAGE)
def show_addresses(key: OwnerKeyView) -> Response:
    """List the addresses that have names, with the form that names another one."""
    return _render(key, {name: request.args.get(name, "")[:100] for name in ("address", "chain")})


@session_pages.post(_PAGE)
def name_address(key: OwnerKeyView) -> Response:
    """Name an address; first show the known ones that it could be taken for."""
    typed = {name: printable(request.form.get(name, "")).strip() for name in ("name", "address", "chain")}
    typed["name"] = typed["name"][: address_book.MAX_NAME_CHARACTERS]
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
    alike = address_book.look_alikes(key.agent_id, [typed["address"]]).get(typed["address"], ())
    if alike and request.form.get("checked") != typed["address"]:
        return _render(key, typed, status=400, alike=alike)
    if (refusal := passkeys.find_refusal(key)) is not None:
        return _render(key, typed, status=403, alike=alike, key_error=refusal)
    try:
        address_book.set_name(sessions.acting_owner(key), key.agent_id, typed["chain"], typed["address"], typed["name"])
    except LimitReached as failure:
        return _render(key, typed, status=400, problems={"name": failure.message})
    return see_other(url_for("owner.show_addresses", agent_id=key.agent_id, done="named"))


@session_pages.post(f"{_PAGE}/remove")
def remove_address(key: OwnerKeyView) -> Response:
    """Remove a name, without asking for the owner key."""
    chain, address = (printable(request.form.get(name, "")) for name in ("chain", "address"))
    address_book.set_name(sessions.acting_owner(key), key.agent_id, chain, address, None)
    return see_other(url_for("owner.show_addresses", agent_id=key.agent_id, done="removed"))


def _render(key: OwnerKeyView, typed: dict[str, str], *, status: int = 200, **values: Any) -> Response:
    usual: dict[str, Any] = {"problems": {}, "alike": (), "key_error": "", "done": request.args.get("done")}
    return render_page(
        "addresses.html", status=status, agent=agent_of(key), listed=address_book.entries(key.agent_id), typed=typed,
        chains=[each.value for each in ChainName], prompt=passkeys.prompt_for(key), **usual | values,
    )  # fmt: skip
