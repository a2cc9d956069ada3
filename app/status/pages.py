"""The public pages: `/`, `/docs`, `/llms.txt`, `/skill.md`, `/openapi.json`.

No page reads the database or a chain. Only `/docs` has scripts: Swagger UI, written by others and served from the
origin of the owners' pages. The browser gives that page an origin of its own and permits it no request, so that its
scripts reach neither an owner's session nor another host.
"""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, make_response, render_template
from markupsafe import Markup

from app.core import clock
from app.core.chains import ChainName
from app.errors import NotFound
from app.state import app_state
from app.version import VERSION
from app.web.openapi_document import OpenApiDocument

pages = Blueprint("pages", __name__)
_CONTACT_VALIDITY = timedelta(days=180)
"""Less than a year, as RFC 9116 recommends; renewed with each response."""
_SKILL = Path(__file__).parents[2] / "skills" / "purser" / "SKILL.md"

_POLICY = "default-src 'none'; style-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
# Icons in Swagger UI's style sheet are data.
_REFERENCE_POLICY = f"{_POLICY}; script-src 'self'; img-src data:; sandbox allow-scripts"
_HEADERS = {
    # RFC 8631: machine-readable description and documentation of the service.
    "Link": '</openapi.json>; rel="service-desc", </docs>; rel="service-doc", </llms.txt>; rel="help"',
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


@pages.after_request
def _set_security_headers(response: Response) -> Response:
    response.headers.update(_HEADERS)
    response.headers.setdefault("Content-Security-Policy", _POLICY)
    # An error may depend on headers that a shared cache does not compare (cache poisoning).
    is_page = response.status_code == HTTPStatus.OK
    response.headers["Cache-Control"] = "public, max-age=300" if is_page else "no-store"
    return response


@pages.get("/")
def front_page() -> Response:
    """Return the front page: what the service is, and how an agent registers."""
    return _page("index.html")


@pages.get("/docs")
def reference_page() -> Response:
    # In a script element "<" could end it, and occurs in strings only.
    document = Markup(app_state().part(OpenApiDocument).text.replace("<", r"\u003c"))  # noqa: S704 - escaped here
    response = _page("docs.html", document=document)
    response.headers["Content-Security-Policy"] = _REFERENCE_POLICY
    return response


@pages.get("/llms.txt")
def llms_txt() -> Response:
    """Return the instructions for agents."""
    text = render_template("llms.txt", **_template_context())
    return Response(text, mimetype="text/plain")


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
    """Return the OpenAPI document."""
    return Response(app_state().part(OpenApiDocument).text, mimetype="application/json")


def _page(template: str, **values: Any) -> Response:
    return make_response(render_template(template, **_template_context(), **values))


def _template_context() -> dict[str, Any]:
    state = app_state()
    settings, chains = state.settings, state.ports.chains
    movable = [chain.value for chain in ChainName if chain in chains]
    return {"url": settings.public_url, "settings": settings, "version": VERSION, "movable": movable}
