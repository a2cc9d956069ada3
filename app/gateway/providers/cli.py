"""Operator commands for the provider table: `flask --app wsgi providers …`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import yaml  # type: ignore[import-untyped]
from flask.cli import AppGroup

from app.errors import NotFound
from app.gateway.pricing import price_table, price_updates
from app.gateway.providers.table import METHODS, Provider, ProviderTable, match_route
from app.state import app_state

group = AppGroup("providers", help="The providers of the gateway.")
# libyaml's loader if available: it is twenty times faster, and such documents have megabytes.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")


@group.command("check")
@click.option("--provider", "slug", required=True, help="Slug or alias of the provider, such as openai.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def check(slug: str, file: Path) -> None:
    """Compare a provider's routes with FILE, its OpenAPI document in JSON or YAML.

    Lists routes of the document that are refused ("-") and allowed routes that the document lacks ("?").
    Exits with 1 if there are any of the latter, with 2 if the document or the provider cannot be read.
    """
    try:
        row = app_state().part(ProviderTable).find(slug)
    except NotFound:
        raise click.UsageError(f"There is no provider {slug!r} in the table.") from None
    try:
        document = yaml.load(file.read_bytes(), Loader=_LOADER)  # noqa: S506 - a safe loader, both of them
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise click.UsageError(f"{file} is neither JSON nor YAML.") from None
    if not isinstance(document, dict) or not isinstance(document.get("paths"), dict):
        raise click.UsageError(f"{file} is not an OpenAPI document: it has no paths.")
    refused, absent = compare_routes(row, document)
    for text in refused:
        click.echo(f"- {text}")
    for text in absent:
        click.echo(f"? {text}")
    click.echo(f"{len(refused)} routes of the document are refused; {len(absent)} allowed routes are not in it.")
    if absent:
        raise click.exceptions.Exit(1)


@group.command("prices")
@click.option("--refresh", is_flag=True, help="Read GATEWAY_PRICES_URL now, instead of within an hour.")
def prices(*, refresh: bool) -> None:
    """Show the list of prices in use. Exits with 1 if the last one was refused, with 2 without GATEWAY_PRICES_URL."""
    if not app_state().settings.gateway_prices_url:
        raise click.UsageError("GATEWAY_PRICES_URL is not set: the bundled prices are used.")
    if refresh:
        price_updates.refresh()
    price_updates.follow()
    click.echo(f"In use: {price_updates.version() or price_table.VERSION}")
    if problem := price_updates.problem_since_accepted():
        click.echo(f"The last list was refused: {problem}")
        raise click.exceptions.Exit(1)


def compare_routes(row: Provider, document: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the routes of an OpenAPI document that a row refuses, and the allowed routes that it lacks."""
    documented = sorted(set(_documented_operations(row, document)))
    refused = [
        f"{method} {path}"
        for method, path in documented
        if match_route(row.routes.values(), method, _PLACEHOLDER.sub("x", path)) is None
    ]
    examples = [
        (method, _PLACEHOLDER.sub("x", path), re.compile("[^/]+".join(map(re.escape, _PLACEHOLDER.split(path)))))
        for method, path in documented
    ]
    absent = [
        f"{route.method} {variant.text}".strip()
        for route in row.routes.values()
        for variant in route.path.variants()
        if not any(
            method == route.method
            and (variant.regex.fullmatch(example) or regex.fullmatch(_PLACEHOLDER.sub("x", variant.text)))
            for method, example, regex in examples
        )
    ]
    return refused, absent


def _documented_operations(row: Provider, document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the method of each operation and its path below the row's base."""
    servers = document.get("servers")
    first = servers[0] if isinstance(servers, list) and servers and isinstance(servers[0], dict) else {}
    start = urlsplit(str(first.get("url", ""))).path.rstrip("/")
    base = urlsplit(row.base_url).path.rstrip("/")
    for path, operations in document["paths"].items():
        whole = f"{start}/{str(path).lstrip('/')}"
        below = whole.removeprefix(f"{base}/") if whole.startswith(f"{base}/") else str(path)
        for name in operations if isinstance(operations, dict) else ():
            if str(name).upper() in METHODS:
                yield str(name).upper(), below.strip("/")
