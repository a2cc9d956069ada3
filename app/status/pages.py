"""The public pages: `/`, `/docs`, `/receipts`, `/llms.txt`, `/skill.md`, `/openapi.json`.

None reads the database or a chain.
"""

from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, make_response, render_template, request

from app import signing
from app.core import clock
from app.core.chains import ChainName
from app.errors import NotFound
from app.state import app_state
from app.version import VERSION
from app.web.openapi import OpenApiDocument
from app.web.reference import Reference, json_text, prose

pages = Blueprint("pages", __name__)
pages.add_app_template_filter(prose)
pages.add_app_template_filter(json_text)
_CONTACT_VALIDITY = timedelta(days=180)
"""Less than a year, as RFC 9116 recommends; renewed with each response."""
_MAX_FORM_BYTES = 65_536
_SKILL = Path(__file__).parents[2] / "skills" / "purser" / "SKILL.md"

_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
_FORM_POLICY = _POLICY.replace("form-action 'none'", "form-action 'self'")
_REFERENCE_POLICY = f"{_FORM_POLICY}; script-src 'self'; require-trusted-types-for 'script'"
# RFC 8631: machine-readable description and documentation of the service.
_LINK = '</openapi.json>; rel="service-desc", </docs>; rel="service-doc", </llms.txt>; rel="help"'
_HEADERS = {"Link": _LINK, "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"}


@pages.after_request
def _set_security_headers(response: Response) -> Response:
    response.headers.update(_HEADERS)
    response.headers.setdefault("Content-Security-Policy", _POLICY)
    # An error may depend on headers that a shared cache does not compare (cache poisoning).
    is_page = response.status_code == HTTPStatus.OK and request.method != "POST"
    response.headers["Cache-Control"] = "public, max-age=300" if is_page else "no-store"
    return response


@pages.get("/")
def front_page() -> Response:
    return make_response(render_template("index.html", **_template_context()))


@pages.get("/docs")
def reference_page() -> Response:
    query = request.args.get("q", "").strip()
    return _reference_page("docs/search.html" if query else "docs/overview.html", query=query)


@pages.get("/docs/errors")
def error_codes() -> Response:
    return _reference_page("docs/errors.html")


@pages.get("/docs/<tag>")
@pages.get("/docs/<tag>/<operation>")
def operation_page(tag: str, operation: str = "") -> Response:
    found = app_state().part(Reference).tags.get(tag)
    one = next((each for each in found.operations if each.id == operation), None) if found else None
    if found is None or (operation and one is None):
        raise NotFound
    return _reference_page("docs/operation.html" if one else "docs/tag.html", tag=found, operation=one)


def _reference_page(template: str, **values: Any) -> Response:
    reference = app_state().part(Reference)
    page = reference.pages.get(request.path)
    if page is None or request.args:
        page = render_template(template, **_template_context(), reference=reference, **values).encode()
        reference.pages |= {} if request.args else {request.path: page}
    return Response(page, mimetype="text/html", headers={"Content-Security-Policy": _REFERENCE_POLICY})


@pages.route("/receipts", methods=["GET", "POST"])
def receipt_page() -> Response:
    """Show what a receipt states, and whether this service has signed it. Nothing of it is stored or logged."""
    request.max_content_length = _MAX_FORM_BYTES
    text = "".join(request.form.get("receipt", "").split())
    page = render_template("receipt.html", **_template_context(), text=text, found=signing.verify(text))
    return Response(page, mimetype="text/html", headers={"Content-Security-Policy": _FORM_POLICY})


@pages.get("/llms.txt")
def llms_txt() -> Response:
    return Response(render_template("llms.txt", **_template_context()), mimetype="text/plain")


@pages.get("/skill.md")
def skill() -> Response:
    """Return the skill for agents that read such files, with the address of this service."""
    text = _SKILL.read_text(encoding="utf-8").replace("http://127.0.0.1:8000", app_state().settings.public_url)
    return Response(text, mimetype="text/markdown")


@pages.get("/.well-known/security.txt")
def security_txt() -> Response:
    """Return where to report a vulnerability (RFC 9116). Raises: NotFound where no contact is set."""
    settings = app_state().settings
    if not settings.security_contact:
        raise NotFound
    expires = (clock.now() + _CONTACT_VALIDITY).strftime("%Y-%m-%dT00:00:00Z")
    address = f"{settings.public_url}/.well-known/security.txt"
    text = f"Contact: {settings.security_contact}\nExpires: {expires}\nPreferred-Languages: en\nCanonical: {address}\n"
    return Response(text, mimetype="text/plain")


@pages.get("/openapi.json")
def openapi_document() -> Response:
    return Response(app_state().part(OpenApiDocument).text, mimetype="application/json")


def _template_context() -> dict[str, Any]:
    state = app_state()
    settings, chains = state.settings, state.ports.chains
    movable = [chain.value for chain in ChainName if chain in chains]
    return {"url": settings.public_url, "settings": settings, "version": VERSION, "movable": movable}
