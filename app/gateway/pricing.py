"""What a call may cost before it is made, and what it did cost after it. All arithmetic is here, and exact.

Rules are values: a provider's row holds one. Rates are Decimals of nano-dollars under a context that refuses to round;
a cost is rounded once, up, to a whole nano-dollar (`_up`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, localcontext
from typing import Any, TypeAlias

from app.core import money
from app.errors import InvalidInput
from app.gateway import price_table
from app.gateway.dialects.facts import CallFacts, Surface
from app.gateway.dialects.usage import Reading, Usage
from app.gateway.price_table import Rates
from app.gateway.token_cost import EXACT, Fallback, cost, estimated, is_silent_on_output, up
from app.usage.service import Metered
from app.web.parsing import parse_json
from app.web.targets import upper_path

# Of a call that may be cut short for want of credits, this much must still fit.
LEAST_TOKENS_OUT = 256
FIXED = "fixed"
REPORTED = "reported"
FALLBACK = "fallback"
ESTIMATED = "+estimate"

_ZERO = Decimal(0)
_MOST_BATCH = 1_000
_MOST_BATCH_DEPTH = 64
_GOOD = range(200, 300)


@dataclass(frozen=True, slots=True)
class Request:
    """What a rule may need to know: `path` is the upstream's below its base, `facts` a language model's alone."""

    at: datetime
    path: str = ""
    body: bytes = b""
    facts: CallFacts | None = None


@dataclass(frozen=True, slots=True)
class Quote:
    """What a call may cost: held before it, checked against what the caller has, and named in refusals."""

    model: str
    worst: Metered
    estimate: Metered
    minimum_nanos: int
    # The price is known: it is charged, not held.
    is_fixed: bool = False
    # Cost of the input at most, and of one token of output in each candidate.
    input_nanos: int = 0
    output_nanos_each: Decimal = _ZERO

    def affordable(self, available_nanos: int) -> dict[str, int]:
        """Return, for a refusal's details, the `max_tokens` that would fit: 0 where not even the input does.

        Nothing where asking for less output would change nothing.
        """
        if not self.output_nanos_each:
            return {}
        with localcontext(EXACT):
            left = max(0, available_nanos - self.input_nanos)
            return {"affordable_max_tokens": int(left // self.output_nanos_each)}

    def check(self, most_nanos: int) -> None:
        """Refuse a call that may cost more than one call may. Raises: InvalidInput."""
        if self.worst.cost_nanos <= most_nanos:
            return
        affordable = self.affordable(most_nanos)
        fitting = affordable.get("affordable_max_tokens")
        mend = f" Ask for at most {fitting} tokens of output." if fitting else ""
        blamed = (
            {"max_tokens": [f"must be at most {fitting}"]} if fitting else {"body": ["asks for too much"]}
        )
        raise InvalidInput(
            f"This call may cost up to {money.usd_from_nanos(self.worst.cost_nanos):f} USD, and one call may cost "
            f"{money.usd_from_nanos(most_nanos):f} USD.{mend}",
            details={
                "worst_case_usd": money.usd_from_nanos(self.worst.cost_nanos),
                "limit_usd": money.usd_from_nanos(most_nanos),
                **affordable,
                "fields": blamed,
            },
        )


@dataclass(frozen=True, slots=True)
class FixedPrice:
    """Every call costs the same."""

    nanos: int

    def quote(self, request: Request) -> Quote:
        """Return the price."""
        return _fixed(upper_path(request.path), self.nanos)


@dataclass(frozen=True, slots=True)
class PerPath:
    """A call costs by its path: the longest beginning that fits counts, in whole segments."""

    by_beginning: Mapping[str, int]
    default_nanos: int

    def quote(self, request: Request) -> Quote:
        """Return the price of a path."""
        path = request.path.strip("/")
        named = {beginning.strip("/"): nanos for beginning, nanos in self.by_beginning.items()}
        fitting = [beginning for beginning in named if f"{path}/".startswith(f"{beginning}/")]
        return _fixed(upper_path(path), named[max(fitting, key=len)] if fitting else self.default_nanos)


@dataclass(frozen=True, slots=True)
class PerRpcMethod:
    """A JSON-RPC call costs by its method, a batch the sum of its calls. `debug_*` prices a family."""

    default_nanos: int
    by_method: Mapping[str, int] = field(default_factory=dict)

    def quote(self, request: Request) -> Quote:
        """Return the price of a body; one that is no JSON-RPC costs a call, as its refusal does upstream.

        Raises: InvalidInput for malformed JSON and for a batch beyond reason.
        """
        methods = rpc_methods(request.body)
        named = methods[0] if len(set(methods)) == 1 else "batch"
        return _fixed(named, sum(self._price(method) for method in methods))

    def _price(self, method: str) -> int:
        if method in self.by_method:
            return self.by_method[method]
        families = [name for name in self.by_method if name.endswith("*") and method.startswith(name[:-1])]
        return self.by_method[max(families, key=len)] if families else self.default_nanos


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """A call costs by its tokens, at the prices of one provider of the table."""

    table: str
    fallback: Fallback = field(default_factory=Fallback)

    def quote(self, request: Request) -> Quote:
        """Return what a call may cost, from its request alone. Raises: LookupError without facts: a defect."""
        facts, at = request.facts, request.at
        if facts is None:
            raise LookupError("a call that costs by its tokens needs its facts")
        if facts.is_free:
            return _fixed(facts.model or upper_path(request.path), 0)
        with localcontext(EXACT):
            quotes = [
                self._quote(facts, model, at) for model in dict.fromkeys((facts.model, *facts.alternatives))
            ]
        return max(quotes, key=lambda quote: quote.worst.cost_nanos)

    def settle(
        self, facts: CallFacts, reading: Reading, at: datetime, *, most_nanos: int | None = None
    ) -> Metered:
        """Return what a call did cost: what the upstream reports, else the table on its usage, else an estimate.

        Nothing where the call is free, or was answered with a failure and no usage. `most_nanos` bounds one call.
        """
        metered = self._settle(facts, reading, at)
        if most_nanos is None or metered.cost_nanos <= most_nanos:
            return metered
        return Metered(most_nanos, metered.tokens_in, metered.tokens_out, metered.price_version)

    def _settle(self, facts: CallFacts, reading: Reading, at: datetime) -> Metered:
        usage = reading.usage
        has_nothing = usage is None and (
            reading.status not in _GOOD or (reading.has_failed and reading.streamed_bytes == 0)
        )
        if facts.is_free or has_nothing:
            return Metered(0)
        if usage is not None and usage.cost_nanos is not None:
            return Metered(usage.cost_nanos, usage.tokens_in, usage.tokens_out, REPORTED)
        is_estimated = usage is None or not reading.is_complete or is_silent_on_output(facts, reading)
        if usage is None or is_estimated:
            usage = estimated(facts, reading)
        with localcontext(EXACT):
            nanos, version = self._price(facts, reading, usage, at)
            if reading.usage is None and facts.surface is Surface.OPAQUE:
                nanos = max(nanos, self._least_of_opaque(facts, at))
        return Metered(
            nanos, usage.tokens_in, usage.tokens_out, version + ESTIMATED if is_estimated else version
        )

    def _quote(self, facts: CallFacts, name: str, at: datetime) -> Quote:
        rates, version = self._dearest(facts, name, at)
        input_each, output_each = _dearest_of(facts, rates)
        extra = facts.searches * (rates.search or _ZERO) + facts.characters * (rates.character or _ZERO)
        if not (input_each or output_each or extra or self._is_free(name)):
            # Sold by the second: if it should count tokens after all, they are not free.
            input_each, output_each = _dearest_of(facts, self.fallback.fill(Rates()))
        # What is sold by the letter is not sold by the token as well.
        tokens_in = 0 if facts.characters and rates.character and not rates.input else facts.tokens_in
        input_nanos = tokens_in * input_each + extra
        worst = up(input_nanos + facts.tokens_out * output_each)
        least = min(facts.tokens_out, LEAST_TOKENS_OUT * facts.candidates)
        minimum = up(input_nanos + least * output_each)
        if facts.surface is Surface.OPAQUE:
            floor = self._least_of_opaque(facts, at)
            worst, minimum = max(worst, floor), max(minimum, floor)
        estimate, estimate_version = self._price(
            facts, Reading(model=name), Usage(tokens_in=facts.tokens_in_likely), at
        )
        return Quote(
            model=facts.model,
            worst=Metered(worst, facts.tokens_in, facts.tokens_out, version),
            estimate=Metered(
                min(estimate, worst), facts.tokens_in_likely, 0, price_version=estimate_version + ESTIMATED
            ),
            minimum_nanos=minimum,
            input_nanos=up(input_nanos),
            output_nanos_each=output_each * facts.candidates if facts.tokens_out else _ZERO,
        )

    def _dearest(self, facts: CallFacts, name: str, at: datetime) -> tuple[Rates, str]:
        found = price_table.find(self.table, name)
        if found is None:
            return self.fallback.fill(Rates(), is_free=self._is_free(name)), FALLBACK
        is_free = self._is_free(name)
        asked = found.dearest_rates(at, facts.tokens_in, tier=facts.tier, speed=facts.speed)
        plain = found.dearest_rates(at, facts.tokens_in)
        both = {
            name: max(filter(None, (getattr(asked, name), getattr(plain, name))), default=None)
            for name in Rates.__slots__
        }
        return self.fallback.fill(Rates(**both), is_free=is_free), price_table.VERSION

    def _price(self, facts: CallFacts, reading: Reading, usage: Usage, at: datetime) -> tuple[int, str]:
        """Price a usage by what answered, or by what was asked for where the table does not know that."""
        blind = self.fallback.fill(Rates())
        for name in filter(None, (reading.model, facts.model)):
            found = price_table.find(self.table, name)
            if found is None:
                continue
            tier, speed = reading.tier or facts.tier, reading.speed or facts.speed
            rates = found.rates(at, usage.tokens_in, tier=tier, speed=speed)
            is_free = self._is_free(name)
            nanos = up(cost(usage, self.fallback.fill(rates, is_free=is_free), facts.characters))
            if nanos or is_free:
                return nanos, price_table.VERSION
            # Sold by the second or the letter, and counted in tokens: the table does not fit the answer.
            break
        return up(cost(usage, blind)), FALLBACK

    def _is_free(self, name: str) -> bool:
        # Nobody else sells under that suffix: a table finds a paid model behind it, or a fallback none.
        return self.table == price_table.OPENROUTER and name.endswith(price_table.FREE)

    def _least_of_opaque(self, facts: CallFacts, at: datetime) -> int:
        """Return the price of a call that tells nothing: by the letter where that is known, else the fallback."""
        found = price_table.find(self.table, facts.model) if facts.characters else None
        each = found.rates(at, 0).character if found is not None else None
        return up(facts.characters * each) if each else self.fallback.call_nanos * facts.candidates


Rule: TypeAlias = FixedPrice | PerPath | PerRpcMethod | TokenPrices


def rule_from(row: Mapping[str, Any]) -> Rule:
    """Read a rule of a providers file, e.g. `{type = "fixed", usd = "0.005"}`. Raises: ValueError with one line."""
    kind = row.get("type")
    known = _KNOWN.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise ValueError(f"price.type must be one of {', '.join(_KNOWN)}")
    surplus = set(row) - known - {"type"}
    if surplus:
        raise ValueError(f"price has unknown fields: {', '.join(sorted(map(str, surplus)))}")
    if kind == "fixed":
        return FixedPrice(_usd(row, "usd"))
    if kind == "path":
        return PerPath(_usd_by_name(row, "usd_by_path"), _usd(row, "usd"))
    if kind == "rpc":
        return PerRpcMethod(_usd(row, "usd"), _usd_by_name(row, "usd_by_method"))
    table = row.get("table")
    if table not in price_table.tables():
        raise ValueError("price.table must name a provider of the price table, such as openai")
    plain = Fallback()
    return TokenPrices(
        str(table),
        Fallback(
            input_nanos_each=_each(row, "fallback_input_usd_per_million", plain.input_nanos_each),
            output_nanos_each=_each(row, "fallback_output_usd_per_million", plain.output_nanos_each),
            call_nanos=_usd(row, "fallback_usd") if "fallback_usd" in row else plain.call_nanos,
        ),
    )


_KNOWN: Mapping[str, frozenset[str]] = {
    "fixed": frozenset({"usd"}),
    "path": frozenset({"usd", "usd_by_path"}),
    "rpc": frozenset({"usd", "usd_by_method"}),
    "tokens": frozenset(
        {"table", "fallback_input_usd_per_million", "fallback_output_usd_per_million", "fallback_usd"}
    ),
}


def _usd(row: Mapping[str, Any], name: str) -> int:
    """Read dollars; from a string, because TOML's own numbers are binary fractions."""
    value = row.get(name)
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,9})?", value, re.ASCII):
        raise ValueError(f'price.{name} must be dollars in quotes, such as "0.005"')
    return money.nanos_from_usd(Decimal(value))


def _usd_by_name(row: Mapping[str, Any], name: str) -> Mapping[str, int]:
    named = row.get(name, {})
    if not isinstance(named, dict):
        raise ValueError(f"price.{name} must be a table")  # noqa: TRY004 - a wrong file, not a wrong call
    return {key: _usd(named, key) for key in named}


def _each(row: Mapping[str, Any], name: str, otherwise: int) -> int:
    if name not in row:
        return otherwise
    each, rest = divmod(_usd(row, name), 10**6)
    if rest or not each:
        raise ValueError(f"price.{name} must be a multiple of 0.001, above zero")
    return each


def _dearest_of(facts: CallFacts, rates: Rates) -> tuple[Decimal, Decimal]:
    """Return the most that a token of this call's input and of its output can cost."""
    inputs = [rates.input, rates.cache_read, rates.cache_write, rates.cache_write_5m]
    inputs += [rates.cache_write_1h] if facts.writes_cache else []
    inputs += (
        [rates.audio_in, rates.image_in, rates.audio_cached] if facts.has_media or facts.searches else []
    )
    outputs = [rates.output, rates.audio_out, rates.image_out, rates.reasoning]
    return max(filter(None, inputs), default=_ZERO), max(filter(None, outputs), default=_ZERO)


def _fixed(model: str, nanos: int) -> Quote:
    metered = Metered(nanos, price_version=FIXED)
    return Quote(model, metered, metered, nanos, is_fixed=True, input_nanos=nanos)


def rpc_methods(body: bytes) -> list[str]:
    """Return the method of each call in a JSON-RPC body, nothing for what is none. Raises: InvalidInput."""
    parsed = parse_json(body, max_depth=_MOST_BATCH_DEPTH) if body.strip() else None
    calls = parsed if isinstance(parsed, list) and parsed else [parsed]
    if len(calls) > _MOST_BATCH:
        raise InvalidInput(f"A batch has at most {_MOST_BATCH} calls.")
    return [_method(call) for call in calls]


def _method(call: Any) -> str:
    method = call.get("method") if isinstance(call, dict) else None
    return method if isinstance(method, str) else ""
