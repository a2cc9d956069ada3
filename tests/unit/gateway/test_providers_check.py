"""`flask providers check` compares the provider table with a provider's published OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from flask import Flask

from app.gateway.providers import cli as providers_cli
from app.gateway.providers.table import ProviderTable
from tests.support.provider_rows import table

EXA = {
    "/search": {"post": {}},
    "/contents": {"post": {}, "parameters": []},
    "/answer": {"post": {}},
    "/findSimilar": {"post": {}},
    "/agent/runs": {"get": {}, "post": {}},
    "/agent/runs/{id}": {"delete": {}},
}


@pytest.fixture
def app() -> Iterator[Flask]:
    made = Flask("check")
    made.state = SimpleNamespace(part={ProviderTable: table()}.__getitem__)
    made.cli.add_command(providers_cli.group)
    with made.app_context():
        yield made


def check(app: Flask, file: Path, *options: str) -> Result:
    return app.test_cli_runner().invoke(args=["providers", "check", *options, str(file)])


def test_new_routes_of_a_provider_are_listed_as_refused(app: Flask, tmp_path: Path) -> None:
    file = tmp_path / "exa.json"
    file.write_text(json.dumps({"servers": [{"url": "https://api.exa.ai"}], "paths": EXA}))
    found = check(app, file, "--provider", "exa")
    assert found.exit_code == 0, found.output
    assert found.output.splitlines()[:-1] == ["- DELETE agent/runs/{id}", "- GET agent/runs", "- POST agent/runs"]


def test_an_allowed_route_that_the_document_lacks_is_an_error(app: Flask, tmp_path: Path) -> None:
    file = tmp_path / "exa.yaml"
    file.write_text("openapi: 3.1.0\npaths:\n  /search:\n    post: {}\n  /contents:\n    post: {}\n")
    found = check(app, file, "--provider", "exa")
    assert found.exit_code == 1
    assert found.output.splitlines()[:-1] == ["? POST findSimilar", "? POST answer"]


@pytest.mark.parametrize("text", ["[", "[]", "paths: 5", "\x00", "{'a': {", "a: !!python/object/apply:os.getcwd []"])
def test_a_file_that_is_not_an_openapi_document_is_refused(app: Flask, tmp_path: Path, text: str) -> None:
    file = tmp_path / "document"
    file.write_text(text)
    found = check(app, file, "--provider", "exa")
    assert found.exit_code == 2
    assert str(file) in found.output


def test_an_unknown_provider_is_refused(app: Flask, tmp_path: Path) -> None:
    file = tmp_path / "document"
    file.write_text("{}")
    found = check(app, file, "--provider", "unlisted")
    assert (found.exit_code, "unlisted" in found.output) == (2, True)


@pytest.mark.parametrize(
    ("slug", "server", "path", "method"),
    [
        ("openai", "https://api.openai.com/v1", "/models/{model}", "get"),
        ("openai", "https://api.openai.com", "/v1/audio/{kind}", "post"),
        ("gemini", "https://generativelanguage.googleapis.com/", "/v1beta/models/{model}:generateContent", "post"),
        ("groq", "https://api.groq.com", "/openai/v1/chat/completions", "post"),
        ("coingecko", "https://api.coingecko.com/api/v3", "/coins/{id}/ohlc/range", "get"),
    ],
)
def test_a_path_is_read_below_the_base_of_its_provider(slug: str, server: str, path: str, method: str) -> None:
    document: dict[str, Any] = {"servers": [{"url": server}], "paths": {path: {method: {}}}}
    refused, absent = providers_cli.compare_routes(table().find(slug), document)
    # A placeholder does not match the alternatives in the table.
    assert refused == (["POST audio/{kind}"] if "{kind}" in path else [])
    assert len(absent) < sum(len(route.path.variants()) for route in table().find(slug).routes.values())
