"""`/device`: the code, then the agent it stands for, then the claim. Looking never claims; only the last form does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from flask import Response, request, url_for
from marshmallow import ValidationError

from app.agents import claim_codes
from app.core.chains import ChainName
from app.core.unit_of_work import reading
from app.device import service
from app.device.service import CodeInfo
from app.errors import AlreadyClaimed, EmailMismatch, InvalidInput, NotFound, RateLimited, ServiceError
from app.identity import limits
from app.identity import service as identity
from app.identity.limits import client_network
from app.owner import forms, holdings, sessions
from app.owner.door import continue_in, entrance, keep_session, page, session_token
from app.owner.holdings import Holdings
from app.wallets import service as wallets
from app.web.fields import Email

_PATH = "/device"
_LONGEST_CODE = 64
_LONGEST_EMAIL = 254
_NEXT_STEPS: dict[type[ServiceError], str] = {
    NotFound: "Type the code exactly as the agent gave it to you: four letters and four digits. "
    "If it still does not work, ask the agent for another code.",
    EmailMismatch: "Use the e-mail address that the agent was registered with. "
    "If you do not know it, ask whoever set the agent up.",
    AlreadyClaimed: "If it was you, sign in with the owner key that you were shown. "
    "If it was not, tell the operator of this service at once.",
    RateLimited: "Wait before you try again, and paste the code rather than type it.",
}
_TOO_OLD = "This form is too old, or was not opened in this browser."


@dataclass(frozen=True, slots=True)
class _Trouble:
    """What went wrong, what the person can do now, and which field it is about."""

    message: str
    next_step: str
    field: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    """The agent that a code stands for, as the person sees it before claiming."""

    code: str
    name: str
    created_at: datetime
    email_required: bool
    claimed: bool
    holdings: Holdings | None


@entrance.get(_PATH)
def show_code_form() -> Response:
    """Ask for the code; that of a link is already in the field."""
    return _code_form(code=request.args.get("code", ""))


@entrance.post(_PATH)
def look_up_code() -> Response:
    """Show the agent that a code stands for. Nothing is claimed."""
    code = request.form.get("code", "").strip()
    if not forms.is_genuine():
        return _code_form(code=code, trouble=_too_old("code"), status=400)
    try:
        candidate = _find(code)
    except ServiceError as failure:
        return _code_form(code=code, trouble=_trouble(failure), status=failure.status, failure=failure)
    return _agent_form(candidate)


@entrance.get("/device/claim")
def start_again() -> Response:
    """Begin with the code when somebody opens the address of the last form."""
    return _code_form(code="")


@entrance.post("/device/claim")
def claim() -> Response:
    """Claim the agent, show it with its keys and sign its owner in; or say what to do next."""
    code, typed = request.form.get("code", "").strip(), request.form.get("email", "")
    if not forms.is_genuine():
        return _again(code, typed, _too_old("email"), status=400)
    try:
        claimed = service.claim(code, email=_email(typed), network=client_network())
    except ServiceError as failure:
        return _again(code, typed, _trouble(failure), status=failure.status, failure=failure)
    token = sessions.after_claim(claimed.owner_key, current=session_token())
    continue_in(token)
    response = page(
        "claimed.html",
        claimed=claimed,
        holdings=holdings.of(claimed.wallet) if claimed.wallet else None,
        receive=holdings.receiving(claimed.wallet) if claimed.wallet else (),
        agent_url=url_for("owner.show_agent", agent_id=claimed.agent_id),
    )
    return keep_session(response, token)


def _find(code: str) -> _Candidate:
    if not code:
        raise InvalidInput("The claim code is missing.")
    found = service.describe(code, network=client_network())
    return _candidate(code, found)


def _candidate(code: str, found: CodeInfo) -> _Candidate:
    # Live balances cost questions to chains, so whoever has a code asks for them at the rate of a key.
    limits.count_call_of_key(f"claim {found.agent_id}")
    with reading():
        agent = identity.agent(found.agent_id)
        owned = [] if found.claimed else wallets.all_of(found.agent_id)
    return _Candidate(
        code=claim_codes.normalise(code) or code,
        name=agent.name,
        created_at=agent.created_at,
        email_required=found.email_required,
        claimed=found.claimed,
        holdings=holdings.of(owned[0]) if owned else None,
    )


def _again(
    code: str, email: str, trouble: _Trouble, *, status: int, failure: ServiceError | None = None
) -> Response:
    """Show the form that the trouble is about once more, with what was typed."""
    if trouble.field == "email":
        try:
            return _agent_form(_find(code), email=email, trouble=trouble, status=status)
        except ServiceError as unknown:
            trouble, status, failure = _trouble(unknown), unknown.status, unknown
    return _code_form(code=code, trouble=trouble, status=status, failure=failure)


def _agent_form(
    candidate: _Candidate, *, email: str = "", trouble: _Trouble | None = None, status: int = 200
) -> Response:
    return page(
        "claim_agent.html",
        status=status,
        candidate=candidate,
        email=email[:_LONGEST_EMAIL],
        trouble=trouble,
        wallet_chains=[name.value for name in ChainName],
    )


def _code_form(
    *, code: str, trouble: _Trouble | None = None, status: int = 200, failure: ServiceError | None = None
) -> Response:
    shown = claim_codes.normalise(code) or code
    response = page("claim_code.html", status=status, code=shown[:_LONGEST_CODE], trouble=trouble)
    if failure is not None and failure.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(failure.retry_after_seconds)
    return response


def _email(typed: str) -> str | None:
    try:
        email: str | None = Email(allow_none=True).deserialize(typed)
    except ValidationError:
        raise InvalidInput.field("email", "is not an e-mail address") from None
    return email


def _trouble(failure: ServiceError) -> _Trouble:
    about_email = isinstance(failure, EmailMismatch) or "email" in failure.details.get("fields", {})
    message = failure.message
    if about_email and isinstance(failure, InvalidInput):
        message = "This agent can be claimed with its e-mail address only."
        if "is not an e-mail address" in failure.message:
            message = "This is not an e-mail address."
    next_step = _NEXT_STEPS.get(type(failure), "Correct it and send the form once more. Nothing was claimed.")
    return _Trouble(message, next_step, "email" if about_email else "code")


def _too_old(field: str) -> _Trouble:
    return _Trouble(
        _TOO_OLD,
        "Nothing was claimed. Send the form below once more, with cookies allowed for this site.",
        field,
    )
