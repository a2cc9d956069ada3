"""The agent frameworks of docs/agents.md: each example is executed as it is printed there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.clients.conftest import Scene
from tests.support import compatibility
from tests.support.published import run_python
from tests.support.upstreams import Exchange

# The packages are installed first where they are missing.
pytestmark = pytest.mark.timeout(1200)

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "agents.md"
_EXAMPLE = re.compile(r"^`([a-z-]+)`[^\n]*:\n\n```python\n(.*?)```", re.DOTALL | re.MULTILINE)
EXAMPLES = dict(_EXAMPLE.findall(DOCUMENT.read_text()))


def model(exchange: Exchange) -> None:
    """Call get_balances, then answer with its result."""
    body = exchange.asked.json()
    last = body["messages"][-1]
    message = {"role": "assistant", "content": f"Found: {json.dumps(last['content'])}"}
    if last["role"] != "tool":
        assert "get_balances" in {tool["function"]["name"] for tool in body["tools"]}
        function = {"name": "get_balances", "arguments": "{}"}
        calls = [{"id": "call_1", "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    reason = "tool_calls" if "tool_calls" in message else "stop"
    usage = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [choice]}
    exchange.json({**answer, "usage": usage})


@pytest.mark.parametrize(
    ("package", "requirements"),
    [
        ("openai-agents", "mcp-agents.txt"),
        ("pydantic-ai", "mcp-agents.txt"),
        ("langchain-mcp-adapters", "mcp-langchain.txt"),
    ],
)
def test_a_framework_gives_the_tools_to_its_model(
    scene: Scene, tmp_path: Path, package: str, requirements: str
) -> None:
    example = EXAMPLES[package].replace("http://127.0.0.1:8000", scene.service.url).replace("ak_…", scene.key)
    file = tmp_path / "example.py"
    file.write_text(example)
    [wallet] = scene.service.get("/v1/wallets", scene.key)["wallets"]
    behaved, scene.upstream.behave = scene.upstream.behave, model
    installed = "pydantic-ai-slim" if package == "pydantic-ai" else package
    try:
        ran = run_python("documented.py", str(file), installed, requirements=requirements)
    finally:
        scene.upstream.behave = behaved
    assert wallet["id"] in ran["printed"]
    compatibility.check("PyPI", installed, ran["version"], ["the example of agents.md"])
