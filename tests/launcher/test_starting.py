from __future__ import annotations

import json

import pytest

from launcher.starting import response_to

_BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def _answer(headers: str) -> tuple[str, str]:
    head, _, body = (
        response_to(f"GET /owner HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode()).decode().partition("\r\n\r\n")
    )
    assert head.startswith("HTTP/1.1 503 ")
    assert "\r\nRetry-After: 1\r\nVary: Accept\r\n" in head
    assert f"\r\nContent-Length: {len(body)}" in head
    return head, body


def test_a_browser_gets_a_page_that_reloads_while_the_service_starts() -> None:
    head, body = _answer(f"accept: {_BROWSER}\r\n")
    assert "Content-Type: text/html" in head
    assert 'http-equiv="refresh"' in body


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "text/html, application/json"])
def test_a_program_gets_json_while_the_service_starts(accept: str | None) -> None:
    head, body = _answer("" if accept is None else f"Accept: {accept}\r\nX-Note: text/html\r\n")
    assert "Content-Type: application/json" in head
    assert json.loads(body)["code"] == "STARTING"
