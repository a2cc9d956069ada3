"""`/device`: enter the code, see its agent, claim it. Only the last form claims.

Before the claim the browser gets a receipt cookie; the result of the claim is shown again in that browser only.
"""

import re
from typing import Any

from flask import Response, request, url_for
from marshmallow import ValidationError

from app.agents import claims
from app.core import identifiers
from app.db.unit_of_work import read_only_unit
from app.device import service
from app.errors import AlreadyClaimed, EmailMismatch, InvalidInput, NotFound, RateLimited, ServiceError
from app.identity import limits
from app.identity import service as identity
from app.identity.limits import client_network
from app.owner.pages import overview
from app.owner.session import auth, sessions
from app.owner.session.auth import public_pages, render_page, session_token, set_session_cookie, use_session_token
from app.wallets.core import wallets
from app.web.fields import Email

_PATH = "/device"
_NEXT_STEPS: dict[type[ServiceError], str] = {
    NotFound: "A code has four letters and four digits.",
    EmailMismatch: "Use the email address that the agent was registered with. "
    "If you do not know it, ask the person who set up the agent.",
    AlreadyClaimed: "If you claimed it, sign in with your owner key. The key is shown again only in the "
    "browser in which you claimed the agent, within 24 hours and until your first change or sign-in. "
    "If you did not claim it, contact the operator of this service immediately.",
    RateLimited: "Wait before you try again. Paste the code instead of typing it.",
}
_EXPIRED = "This form has expired or was opened in another browser. Cookies must be enabled for this site."
_RECEIPT_COOKIE = "purser_claim"
_RECEIPT = re.compile(rf"{claims.RECEIPT_PREFIX}_[A-Za-z0-9_-]{{43}}", re.ASCII)


@public_pages.get(_PATH)
def show_code_form() -> Response:
    """Ask for the code; a code in the link is filled in."""
    return _render_code_form(code=request.args.get("code", ""))


@public_pages.post(_PATH)
def look_up_code() -> Response:
    """Show the agent of a code, without claiming it."""
    code = request.form.get("code", "").strip()
    if not auth.is_form_valid():
        return _render_code_form(code=code, error=_invalid(_EXPIRED, "code"))
    try:
        candidate = _find_code(code)
    except ServiceError as failure:
        return _render_code_form(code=code, error=failure)
    return _render_agent_form(candidate)


@public_pages.get("/device/claim")
def start_again() -> Response:
    """Show the empty code form at the URL of the last form, which a browser may open again."""
    return _render_code_form(code="")


@public_pages.post("/device/claim")
def submit_claim() -> Response:
    """Claim the agent, show its keys and sign its owner in; or show an error with its remedy."""
    code, typed = request.form.get("code", "").strip(), request.form.get("email", "")
    if not auth.is_form_valid():
        return _render_again(code, typed, _invalid(_EXPIRED, "email"))
    try:
        claimed = service.claim_agent(
            code, email=_email(typed), network=client_network(request.remote_addr), receipt=_receipt()
        )
        if claimed.owner_key is None or claimed.claim_receipt is None:
            # Unlike the API, a page without the owner key would be of no use in another browser.
            raise AlreadyClaimed
    except ServiceError as failure:
        return _render_again(code, typed, failure)
    token, codes = sessions.open_claimed_agent(claimed.owner_key, current=session_token())
    use_session_token(token)
    holdings = overview.read_holdings(claimed.wallet) if claimed.wallet else None
    agent_url = url_for("owner.show_agent", agent_id=claimed.agent.id)
    response = render_page("claimed.html", claimed=claimed, holdings=holdings, agent_url=agent_url, codes=codes)
    _set_receipt_cookie(response, claimed.claim_receipt)
    return set_session_cookie(response, token)


def _find_code(code: str) -> dict[str, Any]:
    """Return the agent of a claim code, as it is shown before the claim. Raises: NotFound, RateLimited."""
    if not code:
        raise InvalidInput("Enter the claim code.")
    found = service.describe(code, network=client_network(request.remote_addr))
    # Live balances cost chain requests, so holders of a code are rate-limited like keys.
    limits.count_authenticated_request(f"claim {found.agent_id}")
    with read_only_unit() as session:
        agent = identity.get_agent(session, found.agent_id)
        owned = [] if found.is_claimed else wallets.all_of(session, found.agent_id)
    return {
        "code": claims.normalise_code(code) or code, "name": agent.name, "created_at": agent.created_at,
        "email_required": found.is_email_required, "claimed": found.is_claimed,
        "holdings": overview.read_holdings(owned[0]) if owned else None,
    }  # fmt: skip


def _render_again(code: str, email: str, error: ServiceError) -> Response:
    """Show the form of the field that an error concerns again, with what was typed."""
    if isinstance(error, EmailMismatch) or "email" in error.details.get("fields", {}):
        try:
            return _render_agent_form(_find_code(code), email=email, error=error)
        except ServiceError as unknown:
            error = unknown
    return _render_code_form(code=code, error=error)


def _render_agent_form(candidate: dict[str, Any], *, email: str = "", error: ServiceError | None = None) -> Response:
    response = render_page("claim_agent.html", **_shown(error), candidate=candidate, email=email[:254])
    if not candidate["claimed"]:
        # Set before the claim, so that the browser can repeat a claim after a lost response.
        _set_receipt_cookie(response, _receipt() or identifiers.new_key(claims.RECEIPT_PREFIX))
    return response


def _render_code_form(*, code: str, error: ServiceError | None = None) -> Response:
    return render_page("claim_code.html", **_shown(error), code=(claims.normalise_code(code) or code)[:64])


def _shown(error: ServiceError | None) -> dict[str, Any]:
    """Return what a page needs of an error: its status, itself, and what to do."""
    if error is None:
        return {"error": None}
    next_step = _NEXT_STEPS.get(type(error), "Correct it and submit the form again. Nothing was claimed.")
    seconds = error.retry_after_seconds
    return {"status": error.status, "retry_after_seconds": seconds, "error": error, "next_step": next_step}


def _receipt() -> str | None:
    """Return the browser's receipt; one serves all its claims."""
    found = auth.get_cookie(_RECEIPT_COOKIE) or ""
    return found if _RECEIPT.fullmatch(found) else None


def _set_receipt_cookie(response: Response, receipt: str) -> None:
    auth.set_cookie(response, _RECEIPT_COOKIE, receipt, max_age=int(claims.REPLAY_WINDOW.total_seconds()))


def _email(typed: str) -> str | None:
    try:
        email: str | None = Email(allow_none=True).deserialize(typed)
    except ValidationError:
        raise _invalid("This is not an email address.", "email") from None
    return email


def _invalid(message: str, field: str) -> InvalidInput:
    return InvalidInput(message, details={"fields": {field: ["is not valid"]}})
