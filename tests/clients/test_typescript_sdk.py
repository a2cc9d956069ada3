"""The npm package, installed from its tarball in an empty folder, walks the tutorial; it is what the document says."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.adapters.evm.contracts.deployments import DEPLOYMENTS
from app.core.chains import ChainName
from app.web.reference import Reference
from tests.support import typescript_package
from tests.support.published import PROGRAMS, make_node
from tests.support.samples import samples_of
from tests.support.sellers import PAYEE
from tests.support.started import StartedService
from tests.support.typescript_package import GENERATED, SOURCES, run
from tests.support.upstreams import Exchange, MisbehavingUpstream, misbehaving_upstream

# The packages are installed first where they are missing.
pytestmark = pytest.mark.timeout(1200)

_PROGRAMS = Path(__file__).parent / "typescript"
_MODEL = "This is the sandbox's model. You said: hello"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the package, and these programs."""
    folder = typescript_package.install(tmp_path_factory.mktemp("install") / "empty")
    for program in _PROGRAMS.iterdir():
        shutil.copy(program, folder)
    return folder


@pytest.fixture(scope="module")
def with_openai(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = typescript_package.install(tmp_path_factory.mktemp("install") / "openai")
    for program in _PROGRAMS.iterdir():
        shutil.copy(program, folder)
    (folder / "node_modules" / "openai").symlink_to(make_node(PROGRAMS) / "node_modules" / "openai")
    return folder


@pytest.fixture
def upstream() -> Iterator[MisbehavingUpstream]:
    with misbehaving_upstream() as server:
        yield server


def test_regeneration_makes_no_difference(client: FlaskClient, tmp_path: Path) -> None:
    """`UPDATE_SDK=1 ./test tests/clients/test_typescript_sdk.py -k regeneration` writes the generated files."""
    generated = typescript_package.generate(client.get("/openapi.json").get_json(), tmp_path)
    if os.environ.get("UPDATE_SDK"):
        for name, text in generated.items():
            (SOURCES / "src" / name).write_text(text)
    differing = [name for name in GENERATED if (SOURCES / "src" / name).read_text() != generated[name]]
    assert differing == [], "UPDATE_SDK=1 ./test tests/clients/test_typescript_sdk.py -k regeneration"


def test_at_most_350_lines_are_written_by_hand() -> None:
    """Besides what is generated, and the types that this is written in."""
    by_hand = [path for path in (SOURCES / "src").iterdir() if path.name not in {*GENERATED, "types.ts"}]
    lines = [line for path in by_hand for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) <= 350


def test_the_package_has_its_code_and_no_dependency(installed: Path) -> None:
    tarball = typescript_package.built()
    listed = run(installed, "tar", "-tzf", str(tarball)).split()
    assert {"package/package.json", "package/README.md", "package/LICENSE", "package/dist/index.js"} <= set(listed)
    assert all(name.startswith("package/dist/") or name.count("/") == 1 for name in listed)
    assert [path.name for path in (installed / "node_modules").iterdir() if path.is_dir()] == ["purser-sdk"]


def compile_strictly(folder: Path, *programs: str) -> None:
    tsc = make_node(SOURCES) / "node_modules" / ".bin" / "tsc"
    options = ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext"]
    run(folder, str(tsc), *options, *programs)


def test_a_strict_consumer_with_openai_compiles(with_openai: Path) -> None:
    compile_strictly(with_openai, "consumer.ts")


def test_a_strict_consumer_and_the_samples_of_the_reference_compile(
    installed: Path, app: Flask, client: FlaskClient
) -> None:
    folder = installed / "samples"
    folder.mkdir()
    # Of Node's types, the samples need one function.
    (folder / "node.d.ts").write_text(
        'declare module "node:fs" { export function openAsBlob(path: string): Promise<Blob>; }'
    )
    for each in app.state.part(Reference).operations.values():
        (folder / f"{each.id}.mts").write_text(samples_of(client, each)["typescript"])
    compile_strictly(installed, "consumer.ts", *sorted(f"samples/{path.name}" for path in folder.iterdir()))


def _forward(exchange: Exchange, url: str) -> tuple[bytes, int]:
    asked = exchange.asked
    names = ("x-api-key", "idempotency-key", "content-type")
    headers = {name: value for name in names if (value := asked.header(name))}
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection:
        connection.request(asked.method, asked.target, asked.body or None, headers)
        answer = connection.getresponse()
        return answer.read(), answer.status


@pytest.mark.chain
@pytest.mark.redis
def test_the_package_walks_the_tutorial(
    with_openai: Path, started: StartedService, upstream: MisbehavingUpstream
) -> None:
    faults = ["lost", "busy", "answered", "answered"]

    def behave(exchange: Exchange) -> None:
        fault = faults.pop(0) if faults and exchange.asked.method == "POST" else ""
        if fault == "busy":
            exchange.json({"code": "OVERLOADED", "error": "busy"}, 503, ("Retry-After", "1"))
        elif fault == "lost":
            exchange.hang_up()
        else:
            body, status = _forward(exchange, started.url)
            if fault:
                exchange.hang_up()
            else:
                exchange.answer(body, status, ("Content-Type", "application/json"))

    upstream.behave = behave
    base = DEPLOYMENTS["sandbox", ChainName.BASE]
    offer = {
        "scheme": "exact", "network": f"eip155:{base.chain_id}", "amount": "10000", "asset": base.usdc, "payTo": PAYEE,
        "maxTimeoutSeconds": 60, "extra": {"name": base.usdc_domain_name, "version": "2"},
    }  # fmt: skip
    variables = {"PURSER_FAUCET_URL": started.faucet_url, "OFFER": json.dumps(offer)}
    walked = json.loads(run(with_openai, "node", "walk.mjs", started.url, upstream.url, variables=variables))
    assert walked == {
        "held": "25", "sent": "confirmed", "limit": ["DAILY_LIMIT_EXCEEDED", 403, 20, 12.5], "swapped": "confirmed",
        "bridged": "confirmed", "ticker": "3000.25", "preview": "NOT_IMPLEMENTED", "order": "order", "chain": "0xddca5",
        "unconfigured": "PROVIDER_NOT_CONFIGURED", "said": [_MODEL, _MODEL], "bought": "POST so {}",
        "dear": "PER_TX_LIMIT_EXCEEDED",
        "gone": "UPSTREAM_ERROR", "denied": "APPROVAL_CANCELLED", "event": "webhook.test",
        "forged": "WEBHOOK_SIGNATURE", "old": "WEBHOOK_TIMESTAMP", "events": ["transaction.confirmed"] * 3,
    }  # fmt: skip
    posted = [asked for asked in upstream.asked if asked.method == "POST"]
    assert len(posted) == 5
    assert len({asked.header("idempotency-key") for asked in posted}) == 1
    readme = (SOURCES / "README.md").read_text()
    [(example, shown)] = re.findall(r"```js\n(.*?)```\n\n```text\n(.*?)```", readme, re.DOTALL)
    (with_openai / "example.mjs").write_text(example.replace("http://127.0.0.1:8000", started.url))
    assert run(with_openai, "node", "example.mjs") == shown


_CALLS = """
import { Purser } from "purser-sdk";
const options = { apiKey: "ak_x", walletId: "w", timeout: 20000, maxRetries: 2 };
const client = (number, others) => new Purser({ baseUrl: process.argv[2 + number], ...options, ...others });
const refused = ({ name, code, status, idempotencyKey }) => [name, code, status, Boolean(idempotencyKey)];
const show = (promise) => promise.then(() => "returned", refused);
"""
_TRANSFER = "purser.transfer({ chain: 'base', currency: 'USDC', amount: '1', to: 'x' })"
_BUSY = (503, {"code": "OVERLOADED", "error": "busy"}, "1")
_UNKNOWN = (503, {"code": "OVERLOADED", "error": "lost", "details": {"outcome": "unknown"}}, None)
_LATER = (503, {"code": "PRICE_UNAVAILABLE", "error": "later"}, "1")
_RUNNING = (409, {"code": "IDEMPOTENCY_CONFLICT", "error": "running"}, "1")
_OTHER = (409, {"code": "IDEMPOTENCY_CONFLICT", "error": "another request"}, None)
_LIMITED = (429, {"code": "RATE_LIMITED", "error": "slower"}, "1")
_LONG = (429, {"code": "RATE_LIMITED", "error": "slower"}, "3600")


Answer = tuple[int, dict[str, object], str | None] | None
_REPEATED: list[tuple[str, list[Answer], object, int]] = [
    (_TRANSFER, [None, _BUSY, None], ["ConnectionFailed", "CONNECTION_FAILED", 0, True], 3),
    (_TRANSFER, [None, _RUNNING, _RUNNING, _RUNNING], "returned", 5),
    (_TRANSFER, [_UNKNOWN, _LATER], "returned", 3),
    (_TRANSFER, [_OTHER], ["Conflict", "IDEMPOTENCY_CONFLICT", 409, True], 1),
    (_TRANSFER, [_LONG], ["RateLimited", "RATE_LIMITED", 429, True], 1),
    ("purser.getBalances()", [None, _LIMITED], "returned", 3),
    ("purser.register({})", [None], ["ConnectionFailed", "CONNECTION_FAILED", 0, False], 1),
    ("purser.register({})", [_UNKNOWN], ["ServerError", "OVERLOADED", 503, False], 1),
    ("purser.createGatewayKey({})", [_BUSY, _LIMITED], "returned", 3),
    ("purser.deleteWallet({ wallet_id: 'w' })", [None], ["ConnectionFailed", "CONNECTION_FAILED", 0, False], 1),
    ("purser.callPerpdex({ action: 'status' })", [_LATER], ["ServerError", "PRICE_UNAVAILABLE", 503, False], 1),
    (
        "purser.forwardPost({ provider: 'openai', path: 'x' })", [None],
        ["ConnectionFailed", "CONNECTION_FAILED", 0, False], 1,
    ),
    ("purser.proxyGet({ service_id: 's', path: 'a/b' })", [_BUSY], "returned", 1),
]  # fmt: skip
"""Calls, what they are answered before it works (None is a lost connection), what they return, and their requests."""


def test_a_call_is_repeated_only_where_that_has_no_second_effect(installed: Path) -> None:
    with ExitStack() as stack:
        upstreams = [stack.enter_context(misbehaving_upstream(answering(each[1]))) for each in _REPEATED]
        shown = ",\n".join(f"show(((purser) => {each[0]})(client({number})))" for number, each in enumerate(_REPEATED))
        (installed / "calls.mjs").write_text(f"{_CALLS}console.log(JSON.stringify(await Promise.all([\n{shown}\n])));")
        results = json.loads(run(installed, "node", "calls.mjs", *(each.url for each in upstreams)))
    for (call, answers, result, requests), found, upstream in zip(_REPEATED, results, upstreams, strict=True):
        assert (found, len(upstream.asked)) == (result, requests), (call, answers)
        assert len(Counter(asked.header("idempotency-key") for asked in upstream.asked)) == 1, (call, answers)
        assert {asked.header("x-api-key") for asked in upstream.asked} == {"ak_x"}, (call, answers)


def answering(answers: list[Answer]) -> Callable[[Exchange], None]:
    remaining = list(answers)

    def behave(exchange: Exchange) -> None:
        answer = remaining.pop(0) if remaining else (200, {"apiKey": "ak_x", "wallet": {"id": "w"}}, None)
        if answer is None:
            exchange.hang_up()
        else:
            status, body, seconds = answer
            exchange.json(body, status, *([("Retry-After", seconds)] if seconds else []))

    return behave


def test_a_fetch_that_is_repeated_after_no_answer_is_the_same_purchase(
    installed: Path, upstream: MisbehavingUpstream
) -> None:
    """Libraries repeat a request by themselves, with other headers: it must not be paid for twice."""
    faults = ["lost"]
    answer = {"status": 200, "headers": {}, "body": "sunny", "body_encoding": "text", "payment": None}

    def behave(exchange: Exchange) -> None:
        if faults:
            faults.pop()
            exchange.hang_up()
        else:
            exchange.json(answer)

    upstream.behave = behave
    program = f"""{_CALLS}
    const purser = client(0, {{ maxRetries: 0, maxAmountUsd: 1 }});
    const asked = (retry) => ({{ method: "POST", body: "b", headers: {{ "X-Retry": retry }} }});
    const get = (retry) => purser.fetch("https://shop.example/a", asked(retry));
    const first = await show(get("0"));
    console.log(JSON.stringify([first, await (await get("1")).text(), await (await get("2")).text()]));"""
    (installed / "repeated.mjs").write_text(program)
    ran = json.loads(run(installed, "node", "repeated.mjs", upstream.url))
    assert ran == [["ConnectionFailed", "CONNECTION_FAILED", 0, True], "sunny", "sunny"]
    lost, repeated, another = upstream.asked
    assert lost.header("idempotency-key") == repeated.header("idempotency-key") != another.header("idempotency-key")
    assert lost.body == repeated.body != another.body
