"""The pages for people and programs that know only the address: `/`, `/docs`, `/llms.txt`, `/openapi.json`."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify, render_template

from app.extensions import api
from app.ports import provider

pages = Blueprint("pages", __name__)


@pages.get("/openapi.json")
def openapi_document() -> Response:
    """Serve the OpenAPI document."""
    return jsonify(api.spec.to_dict())


@pages.get("/llms.txt")
def for_language_models() -> Response:
    """Serve what an agent needs to do the main job knowing only the address."""
    text = render_template("llms.txt", url=provider.settings().public_url, settings=provider.settings())
    return Response(text, mimetype="text/plain")
