"""Credits are never overdrawn: the forwarded limit restricts the output to what the hold covers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from flask import g
from hypothesis import given, settings
from hypothesis import strategies as st

from app.authenticated import VerifiedRows
from app.core import clock
from app.core.identifiers import new_id
from app.credits import accounts as credit_accounts
from app.credits.accounts import Balance
from app.errors import InsufficientCredits, InvalidInput
from app.gateway.call_charges import HeldCharge
from app.gateway.dialects.request import injection
from app.gateway.dialects.request.cost_params import CostParams, Dialect, Surface
from app.gateway.dialects.response.usage_readers import UsageReading
from app.gateway.pricing.quotes import PricedRequest, TokenPrices
from app.identity import service as identity
from app.identity.principal import KeyKind, Principal
from app.identity.service import MintedKey
from app.ports.upstream import RelayOutcome, UpstreamRequest, UpstreamResponse
from app.usage.grouped import StepGroups
from tests.support.ledger import clear, ledger_app, read, unit, violations
from tests.support.provider_rows import read_request
from tests.support.response_readers import reader_of

# In a file: steps use a connection of their own, which would be another database in memory.
FOLDER = TemporaryDirectory()
APP = ledger_app(f"sqlite:///{FOLDER.name}/ledger.sqlite")
APP.state.part = {StepGroups: StepGroups(is_postgresql=False), VerifiedRows: VerifiedRows()}.__getitem__
# The output of an upstream without a limit.
UNBOUNDED = 128_000
PATHS = {
    "chat": (Dialect.OPENAI, "chat/completions"),
    "completions": (Dialect.OPENAI, "completions"),
    "responses": (Dialect.OPENAI, "responses"),
    "openrouter": (Dialect.OPENROUTER, "chat/completions"),
    "messages": (Dialect.ANTHROPIC, "v1/messages"),
    "gemini": (Dialect.GEMINI, "v1beta/models/gemini-2.5-pro:generateContent"),
}


def params_of(kind: str, body: bytes) -> CostParams:
    dialect, path = PATHS[kind]
    return read_request(dialect, "POST", path, body=body, content_type="application/json")


@pytest.mark.parametrize(
    ("kind", "body", "forwarded"),
    [
        ("chat", '{"max_tokens":9000}', '{"max_tokens":700}'),
        (
            "chat",
            '{ "max_completion_tokens" : 9000 ,\n"temperature": 1.50 }',
            '{ "max_completion_tokens" : 700 ,\n"temperature": 1.50 }',
        ),
        ("chat", '{"max_tokens":9000,"max_completion_tokens":8000}', '{"max_tokens":700,"max_completion_tokens":700}'),
        ("chat", '{"max_tokens":100,"max_completion_tokens":8000}', '{"max_tokens":100,"max_completion_tokens":700}'),
        ("chat", '{"max_tokens":0}', '{"max_tokens":700}'),
        ("chat", '{"max_tokens":null}', '{"max_completion_tokens":700,"max_tokens":null}'),
        ("chat", '{"max_completion_tokens":null}', '{"max_completion_tokens":700}'),
        ("chat", '{"max\\u005ftokens":9e3}', '{"max\\u005ftokens":700}'),
        ("chat", '{"user":{"max_tokens":9000},"max_tokens":9000}', '{"user":{"max_tokens":9000},"max_tokens":700}'),
        ("chat", "{}", '{"max_completion_tokens":700}'),
        ("chat", '\ufeff{ "a":"\u00fc"}', '\ufeff{"max_completion_tokens":700, "a":"\u00fc"}'),
        ("completions", '{"prompt":"x"}', '{"max_tokens":700,"prompt":"x"}'),
        ("responses", '{"max_output_tokens":9000}', '{"max_output_tokens":700}'),
        # A field that this surface does not read limits nothing.
        ("responses", '{"max_tokens":9000}', '{"max_output_tokens":700,"max_tokens":9000}'),
        ("messages", '{"max_tokens":9000}', '{"max_tokens":700}'),
        ("gemini", '{"generationConfig":{"maxOutputTokens":"9000"}}', '{"generationConfig":{"maxOutputTokens":700}}'),
        (
            "gemini",
            '{"generation_config":{"max_output_tokens":9000,"topK":4}}',
            '{"generation_config":{"max_output_tokens":700,"topK":4}}',
        ),
        ("gemini", '{"generationConfig":{}}', '{"generationConfig":{"maxOutputTokens":700}}'),
        ("gemini", '{"generationConfig":null}', '{"generationConfig":{"maxOutputTokens":700}}'),
        ("gemini", '{"contents":[]}', '{"generationConfig":{"maxOutputTokens":700},"contents":[]}'),
        (
            "gemini",
            '{"generationConfig":null,"generation_config":{}}',
            '{"generationConfig":null,"generation_config":{"maxOutputTokens":700}}',
        ),
    ],
)
def test_a_lowered_limit_changes_nothing_else_in_the_body(kind: str, body: str, forwarded: str) -> None:
    params = params_of(kind, body.encode())._replace(body=body.encode())
    bounded = injection.limit_output(params, 700)
    assert bounded.body.decode() == forwarded
    assert (bounded.tokens_out, bounded.is_tokens_out_set, bounded.applied_max_tokens) == (700, True, 700)
    assert params_of(kind, bounded.body).tokens_out == 700


def test_a_limit_is_not_lowered_below_the_thinking_budget() -> None:
    for kind, thinking in (
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 20_000}}),
        ("openrouter", {"reasoning": {"max_tokens": 20_000}}),
        ("gemini", {"generationConfig": {"thinkingConfig": {"thinkingBudget": 20_000}}}),
        ("gemini", {"generation_config": {"thinking_config": {"thinking_budget": 20_000}}}),
    ):
        assert params_of(kind, json.dumps(thinking).encode()).min_tokens_out == 20_256


def test_unlimited_output_is_held_in_full_or_refused() -> None:
    params = params_of("chat", b"{}")._replace(model="gpt-5", tokens_in=1000)
    openai = TokenPrices("openai")
    opaque = read_request(Dialect.OPENAI, "POST", "images/edits", body=b'{"max_tokens":1000,"n":3}')
    for each in (opaque, read_request(Dialect.OPENAI, "POST", "embeddings", body=b'{"input":"x"}')):
        announced = openai.quote(PricedRequest(at=clock.now(), params=each))
        assert announced.minimum_nanos == announced.unbounded_nanos == announced.worst_case.cost_nanos
        assert announced.affordable(10**9) == {}
    announced = openai.quote(PricedRequest(at=clock.now(), params=params))
    # 1000 tokens at 1.25 USD a million, and 128 000 at 10, of which 16 000 are held where that is too much.
    assert announced.unbounded_nanos == 1_250_000 + 1_280_000_000
    assert announced.worst_case.cost_nanos == 1_250_000 + 160_000_000


def test_the_hold_covers_each_model_that_may_answer() -> None:
    # At 30 and 60 USD a million, and at 15 and 120: which is more expensive depends on the output.
    models = ("openai/gpt-4", "openai/gpt-5-pro")
    body = json.dumps({"models": models, "max_tokens": 20_000}).encode()
    params = params_of("openrouter", body)._replace(tokens_in=50_000)
    rule = TokenPrices("openrouter")
    announced = rule.quote(PricedRequest(at=clock.now(), params=params))
    assert announced.output_bound(announced.minimum_nanos) == 256
    for model in models:
        alone = params._replace(model=model, alternatives=(), tokens_out=256)
        assert rule.quote(PricedRequest(at=clock.now(), params=alone)).worst_case.cost_nanos <= announced.minimum_nanos
    # The context window of the first allows 8 191 tokens, the second writes 128 000.
    models = ("openai/gpt-4", "openai/gpt-5")
    params = params_of("openrouter", json.dumps({"models": models}).encode())
    announced = rule.quote(PricedRequest(at=clock.now(), params=params))
    assert announced.output_bound(announced.worst_case.cost_nanos) is not None


@dataclass
class Head:
    """The head of a response."""

    content_type: str
    status: int = 200

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Content-Type", self.content_type),)


@dataclass
class Account:
    """Calls of one account through the real meter, with an upstream that honours the forwarded limit."""

    id: str
    open: list[tuple[HeldCharge, TokenPrices, CostParams, bytes]] = field(default_factory=list)
    delivered_nanos: int = 0
    answered: int = 0

    def call(self, kind: str, body: Mapping[str, Any]) -> None:
        params = params_of(kind, json.dumps(body).encode())
        rule = TokenPrices("google" if kind == "gemini" else params.dialect.value)
        quote = rule.quote(PricedRequest(at=clock.now(), params=params))
        try:
            quote.check(5 * 10**9)
        except InvalidInput:
            return  # refused before anything is held
        caller = Principal(KeyKind.GATEWAY, self.id, self.id, None)
        meter = HeldCharge(caller, "p", quote, params)
        available = self.balance().available_nanos
        try:
            outgoing = meter.begin(UpstreamRequest("POST", "", "", (), params.body))
        except InsufficientCredits:
            assert available < quote.minimum_nanos
            return
        lowered = dict(meter.headers()).get("X-Max-Tokens-Applied")
        assert (lowered is None) == (outgoing.body == params.body)
        assert int(lowered or UNBOUNDED) >= min(params.min_tokens_out, params.tokens_out // params.candidates)
        self.open.append((meter, rule, params, outgoing.body))

    def end(self, number: int, share: float, *, streamed: bool) -> None:
        """End one of the open calls with a share of its maximum input and output."""
        meter, rule, params, body = self.open.pop(number % len(self.open))
        tokens_out = int(max_written(params, json.loads(body)) * params.candidates * share)
        model = params.alternatives[-1] if params.alternatives else params.model
        answer = answer_of(params, model, int(params.tokens_in * share), tokens_out)
        head = Head("text/event-stream" if streamed else "application/json")
        answer = b"data: " + answer + b"\n\n" if streamed else answer
        meter.on_response_head(cast("UpstreamResponse", head))  # the rest is not read
        meter.feed(answer)
        meter.finish()
        meter.end(RelayOutcome.COMPLETE)
        self.delivered_nanos += rule.settle(params, read_answer(params, head, answer), clock.now()).cost_nanos
        self.answered += 1
        assert self.delivered_nanos <= self.balance().spent_nanos + self.answered

    def balance(self) -> Balance:
        return read(credit_accounts.balance, self.id)


def max_written(params: CostParams, body: Mapping[str, Any]) -> int:
    """Return the output of an upstream that uses the largest limit in a body, and treats zero as no limit."""
    place = body
    if params.surface is Surface.GENERATE:
        place = body.get("generationConfig") or body.get("generation_config") or {}
    stated = [place[name] for name in injection.OUTPUT_LIMIT_FIELDS[params.surface] if place.get(name) is not None]
    return max(map(int, stated)) if stated and all(map(int, stated)) else UNBOUNDED


def answer_of(params: CostParams, model: str, tokens_in: int, tokens_out: int) -> bytes:
    """Return usage in the format of the upstream of this surface."""
    if params.surface is Surface.GENERATE:
        usage = {"promptTokenCount": tokens_in, "candidatesTokenCount": tokens_out}
        candidates = [{"finishReason": "STOP"}]
        return json.dumps({"modelVersion": model, "usageMetadata": usage, "candidates": candidates}).encode()
    names = ("prompt_tokens", "completion_tokens")
    if params.surface in {Surface.RESPONSES, Surface.MESSAGES}:
        names = ("input_tokens", "output_tokens")
    return json.dumps({"model": model, "usage": dict(zip(names, (tokens_in, tokens_out), strict=True))}).encode()


def read_answer(params: CostParams, head: Head, answer: bytes) -> UsageReading:
    reading = reader_of(params, status=head.status, content_type=head.content_type)
    reading.feed(answer)
    reading.flush()
    return reading.finish()


COUNTS = st.none() | st.sampled_from((0, 1, 255, 256, 3000, 20_000, 100_000, 400_000))


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw a call: a surface, its model, and limits in one or several of its fields."""
    kind = draw(st.sampled_from(sorted(PATHS)))
    params = params_of(kind, b"{}")
    bounds = {name: draw(COUNTS) for name in injection.OUTPUT_LIMIT_FIELDS[params.surface] if draw(st.booleans())}
    text: dict[str, Any] = {"messages": [{"content": "x" * draw(st.integers(0, 4000))}]}
    if kind == "gemini":
        config = {"candidateCount": draw(st.integers(1, 3)), **bounds}
        return kind, {**text, draw(st.sampled_from(injection.CONFIG_FIELDS[params.surface])): config}
    models = {"messages": ("claude-sonnet-4-5",), "openrouter": ("openai/gpt-5", "openai/o1")}
    body: dict[str, Any] = {
        **text,
        **bounds,
        "model": draw(st.sampled_from(models.get(kind, ("gpt-5", "gpt-5-mini", "o1-pro", "o9")))),
    }
    if kind == "openrouter" and draw(st.booleans()):
        body["models"] = ["openai/gpt-5-mini", "anthropic/claude-opus-4.1"]
    if kind == "messages" and draw(st.booleans()):
        body["thinking"] = {"type": "enabled", "budget_tokens": draw(st.sampled_from((1024, 30_000)))}
    if kind in {"chat", "completions", "openrouter"}:
        body |= {"n": draw(st.integers(1, 3)), "stream": draw(st.booleans())}
    return kind, body


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("credit"), st.sampled_from((1, 100_000, 3_000_000, 50_000_000, 4 * 10**9))),
        st.tuples(st.just("call"), bodies()),
        st.tuples(st.just("end"), st.tuples(st.integers(0, 5), st.sampled_from((0, 0.5, 1)), st.booleans())),
    ),
    max_size=12,
)


@settings(max_examples=80)
@given(steps=STEPS)
def test_delivered_output_never_exceeds_the_charge(steps: list[tuple[str, Any]]) -> None:
    with APP.app_context():
        g.request_id = "request"
        clear()
        account = Account(new_id())
        unit(credit_accounts.open_account, account.id)
        unit(identity.add_key, MintedKey(account.id, "", digest="", sealed=""), account_id=account.id)
        for number, (verb, detail) in enumerate(steps):
            if verb == "credit":
                unit(credit_accounts.grant, account.id, detail, reference=f"{account.id}:{number}")
            elif verb == "call":
                account.call(*detail)
            elif account.open:
                account.end(*detail[:2], streamed=detail[2])
        while account.open:
            account.end(0, 1, streamed=False)
        balance = account.balance()
        assert (balance.held_nanos, violations()) == (0, [])
        assert balance.available_nanos == balance.granted_nanos - balance.spent_nanos >= 0
