"""The conformance suite of the Model Context Protocol, with the failures that are expected and why."""

from __future__ import annotations

import pytest

from tests.clients.conftest import Scene
from tests.support import compatibility
from tests.support.published import PROGRAMS, run_conformance

# The packages are installed first where they are missing.
pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize(
    ("package", "version", "revision", "options"),
    [
        ("@modelcontextprotocol/conformance", "0.2.0-alpha.12", "2026-07-28", ("--spec-version", "2026-07-28")),
        ("conformance-previous", "0.1.16", "2025-11-25", ()),
    ],
)
def test_only_what_is_not_offered_fails(
    scene: Scene, package: str, version: str, revision: str, options: tuple[str, ...]
) -> None:
    url = f"{scene.service.url}/mcp"
    expected = str(PROGRAMS / f"conformance-{revision}.yml")
    code, printed = run_conformance(package, "--url", url, "--suite", "all", "--expected-failures", expected, *options)
    assert code == 0, printed
    assert "✓ tools-list" in printed
    scenarios = f"all scenarios except those in conformance-{revision}.yml"
    compatibility.check("npm", f"@modelcontextprotocol/conformance of {revision}", version, [scenarios])
