"""The page of a key's passkeys, for owners and for the console, and signing in as an owner with one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from flask import Blueprint, Response, request, url_for

from app.errors import LimitReached, NotFound, Unauthorized
from app.identity.owner_keys import OwnerKeyView
from app.owner.passkeys import challenges
from app.owner.passkeys import service as passkeys
from app.owner.passkeys.service import PasskeyHolder
from app.owner.session import auth, sessions
from app.owner.session.auth import printable
from app.owner.session.sign_in import render_sign_in, safe_return_path


@dataclass(frozen=True, slots=True)
class PasskeyPage:
    """The page at `url`. Devices show `name`; `find_refusal` returns why a form does not prove who sends it."""

    holder: PasskeyHolder
    name: str
    url: str
    find_refusal: Callable[[], str | None]
    render: Callable[..., Response]
    confirms_removal: bool

    def show(self, *, status: int = 200, **values: Any) -> Response:
        """List the passkeys, with the form that adds one."""
        return self.render(
            "passkeys.html", status=status, listed=passkeys.list_passkeys(self.holder), limit=passkeys.MAX_PASSKEYS,
            party=self.holder.relying_party(), prompt=passkeys.prompt_of(self.holder), forms_url=self.url,
            passkeys_done=request.args.get("passkeys"), **values,
        )  # fmt: skip

    def begin(self) -> Response:
        holder, purpose = self.holder, passkeys.purpose("add", self.holder)
        ids = [each.credential_id for each in passkeys.list_passkeys(holder)]
        prompt = challenges.prompt_to_add(purpose, holder.key_id, self.name, ids, holder.relying_party())
        return self._refusal() or self.show(creation=prompt, name=_name())

    def add(self) -> Response:
        purpose = passkeys.purpose("add", self.holder)
        challenge = challenges.challenge_of(purpose, request.form.get("passkey_token", ""))
        try:
            passkeys.add_passkey(self.holder, challenge, request.form.get("passkey", ""), name=_name())
        except (Unauthorized, LimitReached) as failure:
            # A 401 would need a scheme, for which browsers open a dialog of their own.
            status = 403 if isinstance(failure, Unauthorized) else failure.status
            return self.show(error=failure.message, status=status)
        return auth.see_other(f"{self.url}?passkeys=added")

    def remove(self) -> Response:
        """Remove a passkey and sign out the other sessions of its key."""
        if self.confirms_removal and (refusal := self._refusal()):
            return refusal
        if not passkeys.remove_passkey(self.holder, request.form.get("passkey_id", "")[:36]):
            raise NotFound("There is no such passkey.")
        return auth.see_other(f"{self.url}?passkeys=removed")

    def _refusal(self) -> Response | None:
        refusal = self.find_refusal()
        return None if refusal is None else self.show(error=refusal, status=403)


_VIEWS = {
    "show": ("GET", "", PasskeyPage.show), "begin": ("POST", "", PasskeyPage.begin),
    "add": ("POST", "/create", PasskeyPage.add), "remove": ("POST", "/remove", PasskeyPage.remove),
}  # fmt: skip


def add_views(blueprint: Blueprint, path: str, page_of: Callable[..., PasskeyPage]) -> None:
    """Add the views of the page; `page_of` gets the values in the path."""

    def serve(view: Callable[[PasskeyPage], Response], **values: Any) -> Response:
        return view(page_of(**values))

    for name, (method, end, view) in _VIEWS.items():
        blueprint.add_url_rule(path + end, f"{name}_passkeys", partial(serve, view), methods=[method])


@auth.public_pages.post("/owner/sign-in/passkey")
def sign_in_by_passkey() -> Response:
    """Begin a session with a passkey instead of an owner key."""
    return_path = safe_return_path(request.form.get("next"))
    try:
        token, agent_id = passkeys.sign_in(passkeys.AgentOwner, previous_token=auth.session_token())
    except Unauthorized:
        next_step = "You were not signed in. Try again, or use the owner key of your agent."
        return render_sign_in(return_path, status=403, error=("This passkey was not accepted.", next_step))
    page = return_path or url_for("owner.show_agent", agent_id=agent_id)
    return auth.set_session_cookie(auth.see_other(page), token)


def _owner_page(key: OwnerKeyView) -> PasskeyPage:
    if request.method == "POST":
        sessions.acting_owner(key)  # from now on, the result of the claim is not repeated
    agent, url = auth.agent_of(key), url_for("owner.show_passkeys", agent_id=key.agent_id)
    find_refusal, render = partial(passkeys.find_refusal, key), partial(auth.render_page, agent=agent)
    return PasskeyPage(passkeys.owner_here(key), agent.name, url, find_refusal, render, confirms_removal=False)


def _name() -> str:
    return printable(request.form.get("name", ""))[: passkeys.MAX_NAME_CHARACTERS] or "Passkey"


add_views(auth.session_pages, "/agents/<string:agent_id>/passkeys", _owner_page)
