"""The pages on which an owner connects an application to an agent, and those that list and end connections.

The page that an application opens shows who asks, and changes nothing. The owner continues on it, because the browser
sends the session's cookie only from pages of this site.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from authlib.oauth2 import OAuth2Error
from flask import Response, request, url_for
from itsdangerous import BadData
from sqlalchemy.orm import Session
from werkzeug.datastructures import MultiDict

from app.agents import service as registration
from app.core import clock
from app.core.identifiers import require
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.device import service as device
from app.errors import InvalidInput, LimitReached, NotFound
from app.identity import limits
from app.identity.owner_keys import OwnerKeyView
from app.identity.principal import Grant, Scope
from app.oauth import clients, connections, tokens
from app.oauth.clients import Client
from app.oauth.connections import Consent
from app.oauth.server import Server, request_of
from app.oauth.tokens import OAuthToken
from app.owner.pages import overview
from app.owner.pages.limits import dollars_of
from app.owner.passkeys import service as passkeys
from app.owner.session import auth, sessions
from app.owner.session.auth import serializer

_PARAMETERS = (
    "response_type", "client_id", "redirect_uri", "scope", "state", "code_challenge", "code_challenge_method",
)  # fmt: skip
_MAX_STATE = 1000
LIFETIMES = {"1": "One day", "7": "One week", "30": "30 days", "90": "90 days", "365": "One year"}
_CONNECT = "/connect/<string:signed>"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What an application asks for: a redirect with a code, or the answer to a device code."""

    client: Client
    parameters: dict[str, str]
    token_id: str | None = None

    @property
    def redirect_uri(self) -> str | None:
        return None if self.token_id else self.parameters.get("redirect_uri") or self.client.get_default_redirect_uri()

    @property
    def scopes(self) -> list[str]:
        return self.client.get_allowed_scope(self.parameters.get("scope")).split()

    @property
    def host(self) -> str:
        return self.client.host(self.redirect_uri)

    @property
    def redirect_host(self) -> str:
        """Return where the code goes, if that is another place than the host that is shown."""
        shown = Client("", "", ()).host(self.redirect_uri)
        return "" if shown == self.host or self.redirect_uri is None else shown


@auth.public_pages.get("/oauth/authorize")
def authorize() -> Response:
    """Show which application asks; the owner continues to sign in, or to make an agent."""
    values = MultiDict(request.args)
    try:
        client = clients.find(values.get("client_id", ""), network=limits.client_network(request.remote_addr))
    except InvalidInput as failure:
        return _refused(failure.message)
    if client is None:
        return _refused("This application is not registered here, or its registration has expired.")
    asked = _Asked(client, {name: values[name] for name in _PARAMETERS if name in values})
    if asked.redirect_uri is None or not client.check_redirect_uri(asked.redirect_uri):
        return _refused("The application wants the answer at an address that it has not registered.")
    if len(values.get("state", "")) > _MAX_STATE or any(len(values.getlist(name)) > 1 for name in _PARAMETERS):
        return _refused("The application's request is too long, or has a parameter twice.")
    server_request = request_of("GET", values)
    with read_only_unit() as session:
        server = Server(session, client)
        try:
            server.get_consent_grant(server_request)
        except OAuth2Error as failure:
            answered = server.handle_error_response(server_request, failure)
            server.execute_hook("after_create_authorization_response", answered)
            return _render_mistake(asked, answered, str(failure.error))
    return _render_start(asked)


@auth.public_pages.route("/oauth/device", methods=["GET", "POST"])
def find_device() -> Response:
    """Ask for the code that a program shows, and then show which program waits with it."""
    user_code = (request.form if request.method == "POST" else request.args).get("user_code", "")
    error = ""
    if request.method == "POST" and not auth.is_form_valid():
        error = "This form has expired or was opened in another browser. Submit it again."
    elif request.method == "POST":
        with read_only_unit() as session:
            found = tokens.find_unanswered(session, user_code=user_code)
        if found is not None:
            return _render_start(_Asked(_waiting(found), {"scope": found.scope}, found.id))
        error = "No program is waiting for this code. Start again in the program; a code is valid for 15 minutes."
    return auth.render_page("connect_device.html", status=400 if error else 200, user_code=user_code[:20], error=error)


@auth.public_pages.post("/oauth/agent")
def make_agent() -> Response:
    """Register and claim an agent for a person without one, who continues with it."""
    signed = request.form.get("request", "")
    asked = _read(signed)
    if not auth.is_form_valid():
        return _refused("This form has expired or was opened in another browser.", status=403)
    network = limits.client_network(request.remote_addr)
    limits.count_registration(network)
    made = registration.register(name=None, email=None)
    claimed = device.claim_agent(made.claim_code, email=None, network=network)
    token, codes = sessions.open_claimed_agent(str(claimed.owner_key), current=auth.session_token())
    auth.use_session_token(token)
    page = auth.render_page("connect_new.html", owner_key=claimed.owner_key, codes=codes, asked=asked, signed=signed)
    return auth.set_session_cookie(page, token)


@auth.session_pages.get(_CONNECT)
def show_consent(signed: str) -> Response:
    return _render_consent(_read(signed), signed)


@auth.session_pages.post(_CONNECT)
def answer(signed: str) -> Response:
    """Store the owner's answer, and send the browser back to the application."""
    asked = _read(signed)
    if request.form.get("decision") != "allow":
        with unit_of_work() as session:
            if asked.token_id is None:
                return _redirected(session, asked, None)
            tokens.answer(session, asked.token_id, grant_id=None)
            return auth.render_page("connected.html", asked=asked, allowed=False, agent=None)
    try:
        consent = _consent()
        key = auth.owner_key_of(consent.agent_id)
        if not _is_fresh() and (refusal := passkeys.find_refusal(key)) is not None:
            return _render_consent(asked, signed, error=refusal, status=403)
        return _allow(asked, consent, key)
    except (InvalidInput, LimitReached) as failure:
        return _render_consent(asked, signed, error=failure.message, status=failure.status)


@auth.session_pages.get("/agents/<string:agent_id>/connections")
def show_connections(key: OwnerKeyView) -> Response:
    listed = connections.list_of(key.agent_id)
    return auth.render_page("connections.html", agent=auth.agent_of(key), listed=listed, done=request.args.get("done"))


@auth.session_pages.post("/agents/<string:agent_id>/connections/end")
def end_connection(key: OwnerKeyView) -> Response:
    """End a connection immediately, without asking for the owner key."""
    actor = sessions.acting_owner(key)
    connections.end_by_owner(actor, key.agent_id, request.form.get("connection_id", "")[:36])
    return auth.see_other(url_for("owner.show_connections", agent_id=key.agent_id, done="ended"))


def _allow(asked: _Asked, consent: Consent, key: OwnerKeyView) -> Response:
    if consent.wallet_id is not None and auth.owned_wallet(key, consent.wallet_id).agent_id != consent.agent_id:
        raise NotFound("This agent has no such wallet.")
    actor = sessions.acting_owner(key)
    with unit_of_work() as session:
        grant = connections.open_connection(session, asked.client, consent, redirect_uri=asked.redirect_uri)
        response = None if asked.token_id else _redirected(session, asked, grant)
        if asked.token_id and not tokens.answer(session, asked.token_id, grant_id=grant.id):
            raise InvalidInput("The program is no longer waiting. Start again in the program.")
        connections.announce_opened(session, actor, grant)
    return response or auth.render_page("connected.html", asked=asked, allowed=True, agent=auth.agent_of(key))


def _redirected(session: Session, asked: _Asked, grant: Grant | None) -> Response:
    server, server_request = Server(session, asked.client), request_of("GET", MultiDict(asked.parameters))
    flow = server.get_consent_grant(server_request, end_user=grant)
    response: Response = server.create_authorization_response(server_request, grant_user=grant, grant=flow)
    return auth.see_other(response.headers["Location"])


def _consent() -> Consent:
    """Return what was chosen in the form. Raises: InvalidInput."""
    form = request.form
    agent_id, _, wallet_id = form.get("account", "").partition(" ")
    if form.get("days") not in LIFETIMES:
        raise InvalidInput("Select when the connection ends.")
    typed = form.get("budget_usd", "").strip()
    budget_nanos = dollars_of(typed)
    if typed and not budget_nanos:
        raise InvalidInput("The budget must be an amount in dollars, such as 50 or 12.50, or empty.")
    chosen = tuple(each for each in Scope if each.value in form.getlist("scope"))
    return Consent(agent_id, wallet_id or None, chosen, budget_nanos, timedelta(days=int(form["days"])))


def _is_fresh() -> bool:
    """Return whether the session is so young that its owner has just shown the key or a passkey."""
    return clock.now() < auth.current_session().expires_at - sessions.SESSION_LIFETIME + timedelta(minutes=10)


def _read(signed: str) -> _Asked:
    """Return the request that this service has checked and signed. Raises: NotFound, InvalidInput."""
    try:
        parameters, token_id = serializer("oauth-request").loads(signed, max_age=1800)
    except (BadData, ValueError):
        raise NotFound("The application's request has expired. Start again in the application.") from None
    if token_id is None:
        found = clients.find(parameters["client_id"], network=limits.client_network(request.remote_addr))
    else:
        with read_only_unit() as session:
            waiting = tokens.find_unanswered(session, token_id=token_id)
        found = None if waiting is None else _waiting(waiting)
    missing = NotFound("The application is no longer waiting. Start again in the application.")
    return _Asked(require(found, missing), parameters, token_id)


def _waiting(token: OAuthToken) -> Client:
    return Client(token.client_id, token.client_name, ())


def _render_start(asked: _Asked) -> Response:
    signed = serializer("oauth-request").dumps([asked.parameters, asked.token_id])
    return auth.render_page("connect_start.html", asked=asked, signed=signed)


def _render_consent(asked: _Asked, signed: str, *, error: str = "", status: int = 200) -> Response:
    keys, is_fresh = auth.current_session().keys, _is_fresh()
    with read_only_unit() as session:
        accounts = [each for key in keys for each in overview.accounts_of(session, key)]
    if asked.redirect_uri is not None:
        auth.allow_form_target(_form_target(asked.redirect_uri))
    form: Any = request.form
    return auth.render_page(
        "connect.html", status=status, asked=asked, signed=signed, accounts=accounts, error=error,
        chosen=form.getlist("scope") if form else asked.scopes,
        account=form.get("account", ""), budget=form.get("budget_usd", "")[:30], lifetimes=LIFETIMES,
        days=form.get("days") or "90", needs_proof=not is_fresh,
        prompt=passkeys.prompt_for(keys[0]) if len(keys) == 1 and not is_fresh else None,
    )  # fmt: skip


def _form_target(redirect_uri: str) -> str:
    """Return the source expression of the redirect after the form: an origin, or the scheme of an application."""
    parts = urlsplit(redirect_uri)
    # An address of IPv6 cannot be written in a policy.
    has_origin = parts.scheme in ("http", "https") and ":" not in (parts.hostname or "")
    return f"{parts.scheme}://{parts.netloc}" if has_origin else f"{parts.scheme}:"


def _render_mistake(asked: _Asked, answered: Response, error: str) -> Response:
    """Send the error of a request to a program on the owner's computer; to others, only when the owner follows a link.

    Anybody can register an address, and people trust the address of this service (RFC 9700 §4.11.2).
    """
    if clients.is_loopback(urlsplit(asked.redirect_uri or "")):
        return auth.see_other(answered.headers["Location"])
    problem = f"The application's request is not valid ({error})."
    return _refused(problem, back=answered.headers["Location"], host=asked.redirect_host or asked.host)


def _refused(message: str, *, status: int = 400, **back: Any) -> Response:
    return auth.render_page(
        "error.html", status=status, title="This application cannot be connected", message=message,
        next_step="Nothing was permitted. Go back to the application and start again.", **back,
    )  # fmt: skip
