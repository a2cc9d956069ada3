"""`/device`: the form with which a person claims an agent. Plain HTML, no script; looking never claims."""

from __future__ import annotations

from dataclasses import dataclass

from flask import Blueprint, Response, make_response, render_template, request
from marshmallow import ValidationError

from app.device import csrf, service
from app.errors import (
    AlreadyClaimed,
    EmailMismatch,
    InvalidInput,
    NotFound,
    RateLimited,
    ServiceError,
)
from app.identity.limits import client_network
from app.web.fields import Email

page = Blueprint("device_page", __name__)

_PATH = "/device"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex, nofollow",
}
_NEXT_STEPS: dict[type[ServiceError], str] = {
    NotFound: "Type the code exactly as the agent gave it to you: four letters and four digits. "
    "If it still does not work, ask the agent for another code.",
    EmailMismatch: "Use the e-mail address that the agent was registered with.",
    AlreadyClaimed: "If it was you, sign in with the owner key that you were shown. "
    "If it was not, tell the operator.",
    RateLimited: "Wait before you try again, and paste the code rather than type it.",
}


@dataclass(frozen=True, slots=True)
class _Trouble:
    """What went wrong and what the person can do now."""

    message: str
    next_step: str


@page.after_request
def _be_strict(response: Response) -> Response:
    response.headers.update(_HEADERS)
    return response


@page.get(_PATH)
def show_form() -> Response:
    """Show the form, with the code of the link already in it."""
    return _form(code=request.args.get("code", ""), email="")


@page.post(_PATH)
def send_form() -> Response:
    """Claim the agent and show it, or show the form again and say what to do next."""
    code, typed_email = request.form.get("code", "").strip(), request.form.get("email", "")
    if not csrf.is_valid(request.form.get(csrf.FIELD, "")):
        trouble = _Trouble(
            "This form is too old, or was not opened in this browser.",
            "Nothing was claimed. Send the form below once more, with cookies allowed for this site.",
        )
        return _form(code=code, email=typed_email, trouble=trouble, status=400)
    try:
        if not code:
            raise InvalidInput("The claim code is missing.")
        claimed = service.claim(code, email=_email(typed_email), network=client_network())
    except ServiceError as failure:
        trouble = _Trouble(failure.message, _next_step(failure))
        return _form(code=code, email=typed_email, trouble=trouble, status=failure.status, failure=failure)
    return make_response(render_template("device.html", claimed=claimed))


def _form(
    *,
    code: str,
    email: str,
    trouble: _Trouble | None = None,
    status: int = 200,
    failure: ServiceError | None = None,
) -> Response:
    nonce, token = csrf.issue()
    body = render_template(
        "device.html",
        code=code[:64],
        email=email[:254],
        csrf_field=csrf.FIELD,
        csrf_token=token,
        trouble=trouble,
    )
    response = make_response(body, status)
    csrf.remember(response, nonce, path=_PATH)
    if failure is not None and failure.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(failure.retry_after_seconds)
    return response


def _email(typed: str) -> str | None:
    try:
        email: str | None = Email(allow_none=True).deserialize(typed)
    except ValidationError:
        raise InvalidInput("This is not an e-mail address.") from None
    return email


def _next_step(failure: ServiceError) -> str:
    return _NEXT_STEPS.get(type(failure), "Correct it and send the form once more. Nothing was claimed.")
