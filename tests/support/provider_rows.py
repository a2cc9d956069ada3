"""The provider table and the parsing of requests without an application."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from app.core.request_target import RequestTarget
from app.gateway.dialects.request.cost_params import CostParams, Dialect, Surface
from app.gateway.dialects.request.parse import read_cost_params
from app.gateway.providers import configured
from app.gateway.providers.table import ProviderTable, UpstreamLocation
from app.gateway.validation import body as request_body
from tests.support.applications import settings_for
from tests.support.gateway import provider_settings

UPSTREAM = "https://upstream.example"
FORM = "multipart/form-data; boundary=-----limit"


@cache
def table(providers_file: Path | None = None) -> ProviderTable:
    """Return the provider table with a key for every provider."""
    more = {"gateway_providers_file": str(providers_file)} if providers_file else {}
    return configured.load_table(settings_for("sqlite://", **provider_settings(UPSTREAM, **more)))


def place(slug: str, method: str, path: str) -> UpstreamLocation:
    """Return the route of a request to a provider."""
    raw_path, _, query = path.partition("?")
    return table().find(slug).locate(method, RequestTarget(raw_path, raw_path, query))


def read_request(
    dialect: Dialect, method: str, path: str, *, body: bytes, content_type: str | None = None
) -> CostParams:
    """Parse a request by the built-in row of a dialect."""
    row = next(row for row in table().rows if row.dialect is dialect)
    match = row.match(method, path)
    read = request_body.parse_body(match.route.body, body, content_type)
    model = match.parameters.get("model") or ""
    return read_cost_params(
        CostParams(match.route.surface or Surface.OPAQUE, dialect, model, body=body),
        read.fields,
        is_form=read.is_form,
        files=read.files,
        is_streaming_path=path.endswith(":streamGenerateContent"),
    )


def form_of(*parts: tuple[str, bytes]) -> bytes:
    """Return a multipart form; each part has a name, header parameters and content."""
    written = []
    for name, content_ in parts:
        plain, semicolon, more = name.partition(";")
        head = f'Content-Disposition: form-data; name="{plain}"{semicolon}{more}'.encode()
        written.append(b"-------limit\r\n" + head + b"\r\n\r\n" + content_ + b"\r\n")
    return b"".join(written) + b"-------limit--\r\n"
