"""The pages for whoever knows only the address: `/`, `/docs`, `/llms.txt`, `/openapi.json`.

Plain HTML without scripts; nothing here reads the database or a chain.
"""

from __future__ import annotations

import re
from typing import Any

from flask import Blueprint, Response, current_app, make_response, render_template
from markupsafe import Markup, escape

from app.core.chains import ChainName
from app.ports import provider
from app.status import reference
from app.status.reference import Reference
from app.version import VERSION
from app.web import documentation

pages = Blueprint("pages", __name__)

_CODE = re.compile(r"`([^`]+)`")
_HEADERS = {
    "Cache-Control": "public, max-age=300",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    ),
    # RFC 8631: where a program finds the description of the service, and a person its documentation.
    "Link": '</openapi.json>; rel="service-desc", </docs>; rel="service-doc", </llms.txt>; rel="help"',
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


@pages.after_request
def _be_strict(response: Response) -> Response:
    response.headers.update(_HEADERS)
    return response


@pages.app_template_filter("inline")
def inline(text: str) -> Markup:
    """Set what stands between backticks as code; everything else is text."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped just before


@pages.get("/")
def front_page() -> Response:
    """Say what this is and how an agent starts."""
    return _page("index.html")


@pages.get("/docs")
def reference_page() -> Response:
    """Show the OpenAPI document to people."""
    return _page("docs.html", reference=_reference())


@pages.get("/llms.txt")
def for_language_models() -> Response:
    """Serve what an agent needs to do the main job knowing only the address."""
    text = render_template("llms.txt", **_facts())
    return Response(text, mimetype="text/plain")


@pages.get("/openapi.json")
def openapi_document() -> Response:
    """Serve the OpenAPI document."""
    return Response(documentation.text(), mimetype="application/json")


def _page(template: str, **values: Any) -> Response:
    return make_response(render_template(template, **_facts(), **values))


def _facts() -> dict[str, Any]:
    ports, settings = provider.current(), provider.settings()
    movable = [chain.value for chain in ChainName if chain in ports.chains]
    return {"url": settings.public_url, "settings": settings, "version": VERSION, "movable": movable}


def _reference() -> Reference:
    """Return the document as values, read once per application: it never changes while the service runs."""
    found: Reference | None = current_app.extensions.get("reference")
    if found is None:
        found = current_app.extensions["reference"] = reference.read(documentation.read())
    return found
