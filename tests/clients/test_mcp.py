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


@pytest.mark.parametrize(
    ("requirements", "note"),
    # The first release with this transport; it speaks 2025-03-26.
    [("mcp-previous.txt", " of the previous major"), ("mcp-oldest.txt", " of 2025-03-26")],
)
def test_an_earlier_python_client(scene: Scene, requirements: str, note: str) -> None:
    module = "mcp_previous_examples"
    check(run_python("examples.py", scene.service.url, scene.key, module, requirements=requirements), note=note)


def test_the_npm_clients(scene: Scene) -> None:
    check(run_node("examples.mjs", scene.service.url, scene.key, "mcp_client_npm", "mcp_sdk_npm"))


@pytest.mark.parametrize(
    ("module", "requirements", "note"),
    [
        ("mcp_login_examples", "mcp.txt", " with OAuth"),
        ("mcp_previous_login_examples", "mcp-previous.txt", " of the previous major with OAuth"),
        ("mcp_previous_login_examples", "mcp-oldest.txt", " of 2025-03-26 with OAuth"),
        ("google_mcp_examples", "llm.txt", " with MCP"),
        ("fastmcp_examples", "mcp-fastmcp.txt", ""),
        ("openai_agents_login_examples", "mcp-agents.txt", " with OAuth"),
        ("pydantic_ai_login_examples", "mcp-agents.txt", " with OAuth"),
        ("langchain_mcp_login_examples", "mcp-langchain.txt", " with OAuth"),
    ],
)
def test_a_python_client(scene: Scene, module: str, requirements: str, note: str) -> None:
    check(run_python("examples.py", scene.service.url, scene.key, module, requirements=requirements), note=note)


@pytest.mark.parametrize(
    ("modules", "note"),
    [
        (("mcp_login_npm", "mcp_client_login_npm"), " with OAuth"),
        (("langchain_mcp_npm", "mcp_inspector_npm"), ""),
        (("mcp_remote_npm",), ""),
    ],
)
def test_an_npm_client(scene: Scene, modules: tuple[str, ...], note: str) -> None:
    check(run_node("examples.mjs", scene.service.url, scene.key, *modules, newer=True), note=note)
