"""Released clients of the Model Context Protocol, given nothing but the URL and a key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.clients.conftest import Scene
from tests.support import compatibility
from tests.support.published import run_node, run_python

# The packages are installed first where they are missing.
pytestmark = pytest.mark.timeout(1200)


_OAUTH = " with OAuth"
_PREVIOUS, _OLDEST = " of the previous major", " of 2025-03-26"
# Modules of the same environment share a process: importing takes most of its time.
_PYTHON = {
    "mcp.txt": {"mcp_examples": "", "mcp_login_examples": _OAUTH},
    "mcp-previous.txt": {"mcp_previous_examples": _PREVIOUS, "mcp_previous_login_examples": _PREVIOUS + _OAUTH},
    # The first release with this transport; it speaks 2025-03-26.
    "mcp-oldest.txt": {"mcp_previous_examples": _OLDEST, "mcp_previous_login_examples": _OLDEST + _OAUTH},
    "llm.txt": {"google_mcp_examples": " with MCP"},
    "mcp-fastmcp.txt": {"fastmcp_examples": ""},
    "mcp-agents.txt": {"openai_agents_login_examples": _OAUTH, "pydantic_ai_login_examples": _OAUTH},
    "mcp-langchain.txt": {"langchain_mcp_login_examples": _OAUTH},
}
_NPM = {"mcp_client_npm": "", "mcp_sdk_npm": ""}
_NEWER_NPM = {
    "mcp_login_npm": _OAUTH, "mcp_client_login_npm": _OAUTH, "langchain_mcp_npm": "", "mcp_inspector_npm": "",
    "mcp_remote_npm": "",
}  # fmt: skip


def check(ran: list[dict[str, Any]], notes: Iterable[str]) -> None:
    assert {row["package"] + note: row["failed"] for row, note in zip(ran, notes, strict=True) if row["failed"]} == {}
    for row, note in zip(ran, notes, strict=True):
        compatibility.check(row["registry"], row["package"] + note, row["version"], row["examples"])


@pytest.mark.parametrize("requirements", _PYTHON)
def test_the_python_clients(scene: Scene, requirements: str) -> None:
    modules = _PYTHON[requirements]
    ran = run_python("examples.py", scene.service.url, scene.key, *modules, requirements=requirements)
    check(ran, modules.values())


@pytest.mark.parametrize(("modules", "newer"), [(_NPM, False), (_NEWER_NPM, True)], ids=["npm", "newer Node"])
def test_the_npm_clients(scene: Scene, modules: dict[str, str], *, newer: bool) -> None:
    check(run_node("examples.mjs", scene.service.url, scene.key, *modules, newer=newer), modules.values())
