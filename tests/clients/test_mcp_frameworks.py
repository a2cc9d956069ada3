"""The agent frameworks of docs/agents.md: each example is executed as it is printed there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.models import ModelServer
from tests.support import compatibility
from tests.support.published import run_python
from tests.support.services import WebService, web_service

# The packages are installed first where they are missing.
pytestmark = pytest.mark.timeout(1200)

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "agents.md"
_EXAMPLE = re.compile(r"^`([a-z-]+)`[^\n]*:\n\n```python\n(.*?)```", re.DOTALL | re.MULTILINE)
EXAMPLES = dict(_EXAMPLE.findall(DOCUMENT.read_text()))


@pytest.fixture(scope="module")
def service(own_sqlite_url: str) -> Iterator[WebService]:
    """The service with the sandbox's model as its provider."""
    model = ModelServer()
    model.start()
    settings = {"OPENAI_BASE_URL": f"{model.url}/v1", "OPENAI_API_KEY": "sk-sandbox"}
    with web_service(own_sqlite_url, settings, workers=1, threads=20) as service:
        yield service
    model.stop()


@pytest.mark.parametrize(
    ("package", "requirements"),
    [
        ("openai-agents", "mcp-agents.txt"),
        ("pydantic-ai", "mcp-agents.txt"),
        ("langchain-mcp-adapters", "mcp-langchain.txt"),
    ],
)
def test_a_framework_gives_the_tools_to_its_model(
    service: WebService, tmp_path: Path, package: str, requirements: str
) -> None:
    key = service.register()["apiKey"]
    file = tmp_path / "example.py"
    file.write_text(EXAMPLES[package].replace("http://127.0.0.1:8000", service.url).replace("ak_…", key))
    [wallet] = service.get("/v1/wallets", key)["wallets"]
    installed = "pydantic-ai-slim" if package == "pydantic-ai" else package
    ran = run_python("documented.py", str(file), installed, requirements=requirements)
    assert wallet["id"] in ran["printed"]
    assert len(service.get("/v1/usage", key)["logs"]) == 2
    compatibility.check("PyPI", installed, ran["version"], ["the example of agents.md"])
