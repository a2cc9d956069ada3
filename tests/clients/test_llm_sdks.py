"""Released packages run their documented examples against the gateway, given nothing but a base URL and a key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import Scene
from tests.support import compatibility
from tests.support.published import PROGRAMS, run_node, run_python

ROOT = Path(__file__).resolve().parents[2]
_PIN = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)

# The packages are installed first where they are missing.
pytestmark = pytest.mark.timeout(1200)


def check(scene: Scene, ran: list[dict[str, Any]], providers: set[str]) -> None:
    """Check what ran, that it was paid for, and that the client's key was not forwarded."""
    assert {row["package"]: row["failed"] for row in ran if row["failed"]} == {}
    for row in ran:
        compatibility.check(row["registry"], row["package"], row["version"], row["examples"])
    for asked in scene.upstream.asked:
        assert scene.key not in str(asked.headers) + asked.target
        assert scene.key.encode() not in asked.body
    logs = scene.usage()
    assert {log["provider"] for log in logs if log["cost_usd"]} == providers
    balance = scene.service.get("/v1/balance", scene.key)
    usage = scene.service.get("/v1/usage", scene.key)["summary"]["by_provider"]
    assert balance["total_spent"] == pytest.approx(sum(each["total_cost"] for each in usage.values()))


def test_python_packages_of_openai_and_anthropic(scene: Scene) -> None:
    modules = ("openai_examples", "anthropic_examples", "openrouter_examples")
    ran = run_python("examples.py", scene.service.url, scene.key, *modules)
    check(scene, ran, {"openai", "anthropic", "openrouter"})


def test_python_packages_of_google_and_groq_and_wrappers(scene: Scene) -> None:
    modules = (
        "google_examples", "groq_examples", "litellm_examples", "langchain_examples", "openrouter_sdk_examples",
    )  # fmt: skip
    ran = run_python("examples.py", scene.service.url, scene.key, *modules, requirements="llm.txt")
    check(scene, ran, {"openai", "anthropic", "gemini", "groq", "openrouter"})


def test_npm_packages(scene: Scene) -> None:
    modules = ("openai_npm", "anthropic_npm", "google_npm", "groq_npm", "vercel_ai")
    ran = run_node("examples.mjs", scene.service.url, scene.key, *modules)
    check(scene, ran, {"openai", "anthropic", "gemini", "groq"})


def test_every_row_of_the_table_names_a_package_that_is_locked_for_these_tests() -> None:
    requirements = [ROOT / "requirements-dev.txt", *PROGRAMS.glob("*.txt")]
    python = {pin for path in requirements for pin in _PIN.findall(path.read_text())}
    tree = json.loads((PROGRAMS / "package-lock.json").read_text())["packages"]
    locked = {
        "PyPI": python,
        "npm": {
            (each.get("name", path.removeprefix("node_modules/")), each.get("version")) for path, each in tree.items()
        },
    }
    rows = compatibility.packages()
    assert rows
    for name, registry, version in rows:
        # With an extra of the package, or what it was run with.
        package = name.partition("[")[0].partition(" of ")[0].partition(" with ")[0]
        assert (package, version) in locked[registry]
