"""Released clients of the Model Context Protocol, given nothing but the URL and a key."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.conftest import Scene
from tests.support import compatibility
from tests.support.published import run_node, run_python

# The packages are installed first where they are missing.
pytestmark = pytest.mark.timeout(1200)


def check(ran: list[dict[str, Any]], *, note: str = "") -> None:
    assert {row["package"]: row["failed"] for row in ran if row["failed"]} == {}
    for row in ran:
        compatibility.check(row["registry"], row["package"] + note, row["version"], row["examples"])


def test_the_python_client(scene: Scene) -> None:
    check(run_python("examples.py", scene.service.url, scene.key, "mcp_examples", requirements="mcp.txt"))


def test_the_previous_python_client(scene: Scene) -> None:
    module = "mcp_previous_examples"
    ran = run_python("examples.py", scene.service.url, scene.key, module, requirements="mcp-previous.txt")
    check(ran, note=" of the previous major")


def test_the_npm_clients(scene: Scene) -> None:
    check(run_node("examples.mjs", scene.service.url, scene.key, "mcp_client_npm", "mcp_sdk_npm"))


def test_the_python_clients_log_in(scene: Scene) -> None:
    for module, requirements, note in (
        ("mcp_login_examples", "mcp.txt", ""),
        ("mcp_previous_login_examples", "mcp-previous.txt", " of the previous major"),
    ):
        ran = run_python("examples.py", scene.service.url, scene.key, module, requirements=requirements)
        check(ran, note=f"{note} with OAuth")


def test_the_npm_client_logs_in(scene: Scene) -> None:
    check(run_node("examples.mjs", scene.service.url, scene.key, "mcp_login_npm"), note=" with OAuth")
