"""The conformance suites of the Model Context Protocol, with the failures that are expected and why.

What their scenarios call is offered through this service's transport (`tests/support/mcp_offer.py`).
"""

from __future__ import annotations

import pytest

from tests.support import compatibility
from tests.support.published import PROGRAMS, run_conformance
from tests.support.services import web_service

# The packages are installed first where they are missing.
pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize(
    ("package", "version", "revision", "options"),
    [
        ("@modelcontextprotocol/conformance", "0.2.0-alpha.12", "2026-07-28", ("--spec-version", "2026-07-28")),
        ("conformance-previous", "0.1.16", "2025-11-25", ()),
    ],
)
def test_only_what_needs_a_stream_fails(
    own_sqlite_url: str, package: str, version: str, revision: str, options: tuple[str, ...]
) -> None:
    expected = str(PROGRAMS / f"conformance-{revision}.yml")
    settings, application = {"mcp_offer": revision}, "tests.support.conformance_wsgi:app"
    with web_service(own_sqlite_url, settings, workers=1, threads=20, application=application) as service:
        asked = ("--url", f"{service.url}/mcp", "--suite", "all", "--expected-failures", expected, *options)
        code, printed = run_conformance(package, *asked)
    assert code == 0, printed
    assert "✓ tools-list" in printed
    scenarios = f"all scenarios except those in conformance-{revision}.yml"
    compatibility.check("npm", f"@modelcontextprotocol/conformance of {revision}", version, [scenarios])
