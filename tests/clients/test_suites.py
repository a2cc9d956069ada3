"""Published suites of checks for x402 and MCP, with the findings that are expected and why.

A finding that is not listed fails the test, and so does a listed one that is no longer found.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from app.core.chains import ChainName
from app.payments import treasury
from sandbox.evm import EvmNode
from tests.support import compatibility
from tests.support.applications import key_of, make_app, settings_for
from tests.support.gateway import QUESTION, provider_settings
from tests.support.published import PROGRAMS, run_command, run_python
from tests.support.services import WebService, web_service
from tests.support.stand_ins import StandIns
from tests.support.upstreams import misbehaving_upstream

_REQUIREMENTS = "x402-suites.txt"
_PATH = "/v1/gateway/brave/web/search"
# Its cost is known after it: its terms have the scheme `upto`, too.
_METERED = "/v1/gateway/openai/chat/completions"
_EXCEPT = "except those in test_suites.py"

# `x402-conformance-suite`, by the page that it was asked to check.
_OF_THE_ORIGIN = {
    "manifest_discovery": "it wants `accepts`, `products` or `routes`; others read the list of URLs in `resources`",
    "caip2_compliance": "the home page is free, so that it has no terms of payment with a network",
}
_OF_A_RESOURCE = {
    "manifest_discovery": "it asks for `.well-known/x402` below the path of the resource, and not at the origin",
    "accepts_completeness": "it wants `accepts[].resource`, which only version 1 has; version 2 has it once",
    "discovery_resource_listing": "it reads objects with `url` in `resources`; others read URLs, which are there",
}

# `agent-security-harness`.
_NO_ATTESTATION = "operator attestations (OATR) are not a part of x402"
_OF_X402 = {
    "X4-001": "it wants a header x-payment-network; the network is in x-payment-chain and in the terms",
    "X4-017": "it takes the header x-request-id for one of debugging; it is the identifier that support asks for",
    "X4-021": _NO_ATTESTATION,
    "X4-022": _NO_ATTESTATION,
    "X4-023": _NO_ATTESTATION,
    "X4-054": "the recipient is in each refusal of a payment, because it is a part of the terms",
    "X4-055": "it takes the instructions in the body and the header x-payment-chain for a second payment",
}
_NOT_EVALUATED_OF_X402 = {
    "X4-007": "there are no session tokens and no cookies",
    "X4-011": "twenty unpaid requests in a row are within the limits",
    "X4-042": "nothing that was sent is returned, so that it finds nothing to judge",
    "X4-056": "it has no payment that is valid in a header, to compare with",
    "X4-057": "no allowance is accepted that could be overdrawn",
}
_OF_MCP = {
    "MCP-008": "two of its messages have no id, and a notification has no answer (202 without a body)",
    "MCP-018": "it does not read the answer 413, because it is still sending when the connection is closed",
}
_NO_STATE = "no tool asks for input in the middle of a call"
_NOT_EVALUATED_OF_MCP = {
    "MCP-006": "there are no prompts",
    "MCP-007": "the server samples nothing from the client's model",
    "MCP-017": "there is no transport by standard input",
    "MCP-021": "the list of tools is public; its requests with an invalid key are refused",
    "MCP-022": "the list of tools is public; the token of another issuer is refused (MCP-RC-012)",
    "MCP-RC-002": _NO_STATE,
    "MCP-RC-003": _NO_STATE,
    "MCP-RC-004": _NO_STATE,
    "MCP-RC-005": _NO_STATE,
    "MCP-RC-006": "a refused tool answers with `isError`, which it takes for success",
    "MCP-RC-008": "the list of tools is the same for all, so that none can be revoked",
    "MCP-RC-010": "there are no tasks",
    "MCP-RC-011": "the context of a trace is only recorded",
}

# The environment is created first where it is missing; the x402 suites need terms that can be settled.
pytestmark = [pytest.mark.chain, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def service(own_sqlite_url: str) -> Iterator[WebService]:
    """The service with all providers, which settles on a chain with the identifiers of Base."""
    nothing = "http://127.0.0.1:1"
    with EvmNode("base", network_ids="mainnet", block_time=1) as base, misbehaving_upstream(StandIns()) as upstream:
        chains = {"base_rpc_url": base.url, "ethereum_rpc_url": nothing, "solana_rpc_url": nothing}
        with make_app(settings_for(own_sqlite_url, network="mainnet")).app_context():
            base.fund_eth(treasury.settler(ChainName.BASE), 10**18)
        # The suites send more from one address than any client: a 429 would hide what they look for.
        limits = dict.fromkeys(("keyless_rate_limit", "x402_miss_limit"), "3000 per minute")
        own = {"receipt_signing_keys": key_of("r1"), **limits}
        settings = {"network": "mainnet", **own, **chains, **provider_settings(upstream.url)}
        with web_service(own_sqlite_url, settings, workers=1, threads=20) as service:
            yield service


run = partial(run_command, requirements=_REQUIREMENTS)


def pinned(package: str) -> str:
    """Return the version of a suite."""
    [version] = re.findall(rf"^{re.escape(package)}==(\S+)", (PROGRAMS / _REQUIREMENTS).read_text(), re.MULTILINE)
    return str(version)


def by_get(service: WebService) -> list[str]:
    """Return the listed resources that a GET buys: these suites send no other request."""
    items = requests.get(f"{service.url}/discovery/resources?limit=100", timeout=60).json()["items"]
    return [each["resource"] for each in items if each["extensions"]["bazaar"]["info"]["input"]["method"] == "GET"]


def test_x402_conformance_finds_no_fault_in_any_listed_resource(service: WebService, tmp_path: Path) -> None:
    urls = by_get(service)
    assert service.url + _PATH in urls
    code, printed = run("x402conf", "resource", "--fail-on-error", *urls, home=tmp_path)
    found = json.loads(printed)["results"]
    assert [(each["target"], check) for each in found for check in each["checks"] if not check["pass"]] == []
    assert (code, {len(each["checks"]) for each in found}, len(found)) == (0, {7}, len(urls))
    metered = run_python("x402_checks.py", service.url + _METERED, json.dumps(QUESTION), requirements=_REQUIREMENTS)
    assert ([each for each in metered if not each["pass"]], len(metered)) == ([], 7)
    examples = ["checks of a paid resource", "checks of a metered one (upto)"]
    compatibility.check("PyPI", "x402-conformance", pinned("x402-conformance"), examples)


def test_the_terms_that_are_checked_have_signed_offers_and_those_of_a_metered_call_upto(service: WebService) -> None:
    fixed = requests.get(service.url + _PATH, timeout=60)
    metered = requests.post(service.url + _METERED, json=QUESTION, timeout=60)
    found = [json.loads(base64.b64decode(each.headers["PAYMENT-REQUIRED"])) for each in (fixed, metered)]
    assert [[each["scheme"] for each in terms["accepts"]] for terms in found] == [["exact"], ["exact", "upto"]]
    offers = [terms["extensions"]["offer-receipt"]["info"]["offers"] for terms in found]
    assert [[each["acceptIndex"] for each in offered] for offered in offers] == [[0], [0, 1]]


def test_x402_conformance_suite_finds_only_what_is_expected(service: WebService, tmp_path: Path) -> None:
    expected = {service.url: _OF_THE_ORIGIN, service.url + _PATH: _OF_A_RESOURCE}
    asked, report = tmp_path / "asked.txt", tmp_path / "report.json"
    asked.write_text("\n".join(expected))
    options = ("--output", "json", "--output-path", str(report))
    code, printed = run("x402-validate", str(asked), *options, home=tmp_path)
    assert code == 0, printed
    results = json.loads(report.read_text())["results"]
    assert {each["target_url"]: len(each["checks"]) for each in results} == dict.fromkeys(expected, 7)
    for each in results:
        found = {check["check_name"]: check["message"] for check in each["checks"] if check["status"] != "PASS"}
        assert found.keys() == expected[each["target_url"]].keys(), found
    examples = [f"checks of the origin {_EXCEPT}", f"checks of a paid resource {_EXCEPT}"]
    compatibility.check("PyPI", "x402-conformance-suite", pinned("x402-conformance-suite"), examples)


def harness(report: Path, subject: str, *options: str) -> tuple[dict[str, str], dict[str, str]]:
    """Run the checks of a protocol, and return the details of those that failed and of those without a verdict."""
    run("agent-security", "test", subject, "--report", str(report), *options, home=report.parent)
    results: list[dict[str, Any]] = json.loads(report.read_text())["results"]
    assert sum(each["passed"] for each in results) > 10, results
    failed, unknown = (
        {each["test_id"]: each["details"] for each in results if not each["passed"] and each["not_evaluated"] is unsure}
        for unsure in (False, True)
    )
    return failed, unknown


def test_agent_security_harness_finds_only_what_is_expected(service: WebService, tmp_path: Path) -> None:
    paid = ("--url", service.url, "--paid-path", f"{_PATH}?q=agents")
    failed, unknown = harness(tmp_path / "x402.json", "x402", *paid)
    assert failed.keys() == _OF_X402.keys(), failed
    assert unknown.keys() == _NOT_EVALUATED_OF_X402.keys(), unknown
    asked = ("--url", service.url, "--paid-path", _METERED, "--method", "POST", "--body", json.dumps(QUESTION))
    failed, unknown = harness(tmp_path / "upto.json", "x402", *asked)
    assert failed.keys() == _OF_X402.keys(), failed
    assert unknown.keys() == _NOT_EVALUATED_OF_X402.keys(), unknown

    wallets = f"{service.url}/v1/wallets"
    read = json.dumps({"method": "resources/read", "params": {"uri": wallets}})
    failed, unknown = harness(
        tmp_path / "mcp.json", "mcp", "--transport", "http", "--url", f"{service.url}/mcp",
        "--protocol-version", "2026-07-28", "--header", f"Authorization:Bearer {service.register()['apiKey']}",
        "--cache-resource-uri", wallets,
        "--issuer-probe", read, "--issuer-attacker-header", f"Authorization:Bearer {foreign_token()}",
    )  # fmt: skip
    assert failed.keys() == _OF_MCP.keys(), failed
    assert unknown.keys() == _NOT_EVALUATED_OF_MCP.keys(), unknown
    examples = [
        f"checks of x402 {_EXCEPT}",
        f"checks of a metered call {_EXCEPT}",
        f"checks of MCP 2026-07-28 {_EXCEPT}",
    ]
    compatibility.check("PyPI", "agent-security-harness", pinned("agent-security-harness"), examples)


def foreign_token() -> str:
    """Return a token in the form that another authorization server issues."""
    parts = ({"alg": "RS256", "typ": "at+jwt"}, {"iss": "https://login.example.com", "sub": "someone"}, "signature")
    return ".".join(base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts)
