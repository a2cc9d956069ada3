"""Pricing rules of routes: the quote before a call, the cost after it.

Rates are Decimals of nano-dollars under a context that forbids rounding; a cost is rounded once, up, to a whole
nano-dollar (`charges.round_up`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, localcontext
from typing import Any, NamedTuple, TypeAlias

from app.core import money
from app.core.request_target import path_prefix
from app.errors import InvalidInput
from app.gateway.dialects.request import injection
from app.gateway.dialects.request.cost_params import MAX_CALLS, MAX_TOKENS_IN, MAX_TOKENS_OUT_UNSET, CostParams, Surface
from app.gateway.dialects.response.usage_readers import Usage, UsageReading
from app.gateway.pricing import charges, price_table
from app.gateway.pricing.charges import EXACT_CONTEXT, estimate_usage, lacks_output_count, round_up, usage_cost
from app.gateway.pricing.price_table import Rates
from app.gateway.pricing.rates import RateBook, find_by_prefix
from app.gateway.validation.rules import Pattern, not_allowed_error
from app.usage.service import MeteredUsage

FIXED = "fixed"
REPORTED = "reported"
LIST_PRICE = "list-price"
ESTIMATED = "+estimate"

_ZERO = Decimal(0)
_MAX_BATCH = 1_000
_WITHOUT_TOKENS = frozenset({Surface.IMAGES, Surface.SPEECH, Surface.OPAQUE})


class PricedRequest(NamedTuple):
    """The input of a pricing rule: `path` below the upstream's base, `methods` of a JSON-RPC body."""

    at: datetime
    path: str = ""
    methods: tuple[str, ...] = ()
    params: CostParams | None = None

    @property
    def cost_params(self) -> CostParams:
        """The parameters, for a rule that needs them. Raises: LookupError without any, which is a bug."""
        if self.params is None:
            raise LookupError("this call is not priced without its parameters")
        return self.params


class CallQuote(NamedTuple):
    """The possible cost of a call: held before it, and named in error messages."""

    model: str
    worst_case: MeteredUsage
    estimate: MeteredUsage
    minimum_nanos: int
    # The rule that prices the response; None if the price is known: it is charged, not held.
    rule: TokenPrices | ReportedPrice | None = None
    # The cost of the request as it was sent: more than `worst_case` if it sets no limit on its output.
    unbounded_nanos: int = 0
    # For each model that may respond: the maximum cost of the input, and of one token of output in each candidate.
    lines: tuple[tuple[int, Decimal], ...] = ()
    # The price of each call in a JSON-RPC batch.
    call_nanos: tuple[int, ...] = ()
    # The priced parameters, for hints in error messages.
    params: CostParams | None = None

    def affordable(self, available_nanos: int) -> dict[str, int]:
        """Return the `max_tokens` that would be affordable, for error details: 0 if not even the input is.

        Empty if less output would not lower the cost.
        """
        with localcontext(EXACT_CONTEXT):
            affordable_tokens = [int(max(0, available_nanos - nanos) // each) for nanos, each in self.lines if each]
        return {"affordable_max_tokens": min(affordable_tokens)} if affordable_tokens else {}

    def output_bound(self, held_nanos: int) -> int | None:
        """Return the limit on the output of each candidate that a hold covers; None if the request needs none."""
        if held_nanos >= self.unbounded_nanos:
            return None
        return self.affordable(held_nanos)["affordable_max_tokens"]

    def within(self, max_nanos: int, at: datetime) -> CallQuote:
        """Return the quote with the limits that were added to hosted tools as high as this amount pays for.

        If it pays for the input and one use of each only with less output, or not at all, each is one.
        """
        rule, params = self.rule, self.params
        if not isinstance(rule, TokenPrices) or params is None or params.tools.bounded is None:
            return self
        if self.worst_case.cost_nanos <= max_nanos:
            return self

        def quote(most: int) -> CallQuote:
            return rule.quote(PricedRequest(at, params=injection.limit_calls(params, most)))

        most = bisect_right(range(1, MAX_CALLS + 1), max_nanos, key=lambda most: quote(most).worst_case.cost_nanos)
        if not most and params.is_output_unbounded:
            most = bisect_right(range(1, MAX_CALLS + 1), max_nanos, key=lambda most: quote(most).minimum_nanos)
        found = quote(max(1, most))
        if found.params is None:
            return found
        body = injection.limit_tools(params.body, found.params.tools.limits)
        return found._replace(params=found.params._replace(body=body))

    def check(self, max_nanos: int) -> None:
        """Refuse a call that may cost more than the maximum of one call. Raises: InvalidInput.

        A request without a limit on its output is refused only if no output would be affordable.
        """
        needed = self.worst_case.cost_nanos
        if self.params is not None and self.params.is_output_unbounded:
            needed = self.minimum_nanos
        if needed <= max_nanos:
            return
        affordable = self.affordable(max_nanos)
        affordable_tokens = affordable.get("affordable_max_tokens")
        changes = {"max_tokens": f"must be at most {affordable_tokens}"} if affordable_tokens else {}
        if self.params is not None and not (affordable_tokens and self.params.candidates == 1):
            changes |= self.params.cost_hints(self.worst_case.cost_nanos, max_nanos)
        if not changes:
            changes = {"body": "must contain fewer calls in one batch"}
        advice = ", or ".join(f"{name} {change}" for name, change in changes.items())
        worst_usd, limit_usd = money.usd_from_nanos(self.worst_case.cost_nanos), money.usd_from_nanos(max_nanos)
        fields = {name: [change] for name, change in changes.items()}
        raise InvalidInput(
            f"This call may cost up to {worst_usd:f} USD, and the limit for one call is {limit_usd:f} USD. To lower "
            f"its cost: {advice}.",
            details={"worst_case_usd": worst_usd, "limit_usd": limit_usd, **affordable, "fields": fields},
        )


@dataclass(frozen=True, slots=True)
class FixedPrice:
    """The same price for every call."""

    nanos: int

    def quote(self, request: PricedRequest) -> CallQuote:
        return _fixed_quote(path_prefix(request.path), self.nanos)


@dataclass(frozen=True, slots=True)
class PerRpcMethod:
    """A price per JSON-RPC method; a batch costs the sum of its calls. Unlisted methods are refused."""

    prices: tuple[tuple[Pattern, int], ...]

    def quote(self, request: PricedRequest) -> CallQuote:
        """Return the price of the calls. Raises: RouteNotAllowed."""
        methods = request.methods
        named = methods[0] if len(set(methods)) == 1 else "batch"
        prices = tuple(self._price(method) for method in methods)
        return _fixed_quote(named, sum(prices))._replace(call_nanos=prices)

    def _price(self, method: str) -> int:
        for pattern, nanos in self.prices:
            if pattern.regex.fullmatch(method):
                return nanos
        raise not_allowed_error(method, (pattern.text for pattern, _ in self.prices))


@dataclass(frozen=True, slots=True, eq=False)
class TokenPrices(RateBook):
    """Prices of tokens and hosted tools, from one provider of the price table."""

    # The operator's prices of calls without tokens, by model name or prefix (`o5*`).
    call_nanos: Mapping[str, int] = field(default_factory=dict)

    def quote(self, request: PricedRequest) -> CallQuote:
        """Return the quote of a request. Raises: LookupError without parameters, which is a bug."""
        params, at = request.cost_params, request.at
        if params.surface is Surface.FREE:
            return _fixed_quote(params.model or path_prefix(request.path), 0)
        with localcontext(EXACT_CONTEXT):
            quotes = [self._quote(params, model, at) for model in dict.fromkeys((params.model, *params.alternatives))]
        if len(quotes) == 1:
            return quotes[0]
        # The most expensive model with the full output may differ from that with a lower limit.
        return max(quotes, key=lambda quote: quote.worst_case.cost_nanos)._replace(
            minimum_nanos=max(quote.minimum_nanos for quote in quotes),
            unbounded_nanos=max(quote.unbounded_nanos for quote in quotes),
            lines=tuple(line for quote in quotes for line in quote.lines),
        )

    def settle(self, params: CostParams, reading: UsageReading, at: datetime) -> MeteredUsage:
        """Return the cost of a call: as reported, its usage at the table's rates or an estimate, in this order.

        Zero for what is not billed.
        """
        if charges.costs_nothing(params, reading):
            return MeteredUsage(0)
        usage = reading.usage
        if usage is not None and usage.cost_nanos is not None:
            return _metered(usage.cost_nanos, usage, REPORTED)
        is_estimated = usage is None or not reading.is_complete or lacks_output_count(params, reading)
        if usage is None or is_estimated:
            usage = estimate_usage(params, reading, self._max_tokens_out(params, params.model))
        with localcontext(EXACT_CONTEXT):
            tokens, version = charges.price_tokens(self, params, reading, usage, at)
            nanos = round_up(tokens + charges.price_fees(self, params, reading, usage, at))
            if reading.usage is None:
                nanos = self._without_tokens(params, at, nanos)
        return _metered(nanos, usage, version + ESTIMATED if is_estimated else version)

    def _quote(self, params: CostParams, name: str, at: datetime) -> CallQuote:
        if params.is_input_unbounded:
            context_window = self.context_window(name) or MAX_TOKENS_IN
            params = params._replace(tokens_in=max(params.tokens_in, context_window))
        rates, version = charges.max_rates(self, params, name, at)
        input_each, output_each = charges.max_nanos_per_token(params, rates)
        extra = charges.max_fees(self, params, rates, at)
        if params.audio_seconds or params.characters:
            extra += usage_cost(Usage(audio_seconds=params.audio_seconds), rates, params.characters)
        if not (input_each or output_each or extra or self.is_free(name, at)):
            # Sold by the second: should it report tokens anyway, they are not free.
            input_each, output_each = charges.max_nanos_per_token(params, self.fallback.fill_missing(Rates()))
        # What is sold by the character or second is not also sold by the token.
        is_sold_otherwise = (params.characters and rates.character) or (params.audio_seconds and rates.audio_hour)
        tokens_in = 0 if is_sold_otherwise and not rates.input else params.tokens_in
        input_nanos = tokens_in * input_each + extra
        worst = round_up(input_nanos + params.tokens_out * output_each)
        if params.can_be_bounded:
            min_tokens_out = min(params.tokens_out, params.min_tokens_out * params.candidates)
            minimum = round_up(input_nanos + min_tokens_out * output_each)
            unbounded = round_up(input_nanos + self._max_tokens_out(params, name) * output_each)
            each = output_each * params.candidates
        else:
            minimum = unbounded = worst = self._without_tokens(params, at, worst)
            each = _ZERO
        likely = Usage(tokens_in=params.tokens_in_likely)
        estimate, estimate_version = charges.price_tokens(self, params, UsageReading(model=name), likely, at)
        likely_nanos = min(round_up(estimate + params.tools.container_nanos), worst)
        return CallQuote(
            model=params.model, worst_case=MeteredUsage(worst, params.tokens_in, params.tokens_out, version),
            estimate=MeteredUsage(likely_nanos, params.tokens_in_likely, 0, price_version=estimate_version + ESTIMATED),
            minimum_nanos=minimum, rule=self, unbounded_nanos=unbounded, lines=((round_up(input_nanos), each),),
            params=params,
        )  # fmt: skip

    def _max_tokens_out(self, params: CostParams, name: str) -> int:
        """Return the maximum output of a request: without a limit, what models write or their context window allows."""
        if params.is_tokens_out_set:
            return params.tokens_out
        each = min(MAX_TOKENS_OUT_UNSET, self.context_window(name) or MAX_TOKENS_OUT_UNSET)
        return max(params.tokens_out, each * params.candidates)

    def _without_tokens(self, params: CostParams, at: datetime, nanos: int) -> int:
        """Return the price of a call without reported usage: the operator's per image, or at least `nanos`.

        On an unknown surface at least the price of its characters if there is a rate, otherwise a fixed one.
        """
        if params.surface not in _WITHOUT_TOKENS:
            return nanos
        flat = find_by_prefix(self.call_nanos, params.model)
        if flat is not None:
            return flat * params.candidates
        if params.surface is not Surface.OPAQUE:
            return nanos
        found = price_table.find_model(self.table, params.model) if params.characters else None
        if found is not None and (each := found.rates(at, 0).character):
            return max(nanos, round_up(params.characters * each))
        return max(nanos, self.fallback.call_nanos * params.candidates)


@dataclass(frozen=True, slots=True)
class ReportedPrice:
    """The cost reported by the response, or the list price if it reports none; nothing for a failed call."""

    def quote(self, request: PricedRequest) -> CallQuote:
        """Return the list price as the maximum. Raises: LookupError without parameters, which is a bug."""
        params = request.cost_params
        quote = _fixed_quote(path_prefix(request.path), params.max_nanos, LIST_PRICE)
        return quote._replace(rule=self, params=params)

    def settle(self, params: CostParams, reading: UsageReading, at: datetime) -> MeteredUsage:
        del at
        usage = reading.usage
        if usage is not None and usage.cost_nanos is not None:
            return MeteredUsage(usage.cost_nanos, price_version=REPORTED)
        if charges.costs_nothing(params, reading):
            return MeteredUsage(0)
        return MeteredUsage(params.max_nanos, price_version=LIST_PRICE)


PricingRule: TypeAlias = FixedPrice | PerRpcMethod | TokenPrices | ReportedPrice


def _metered(nanos: int, usage: Usage, price_version: str) -> MeteredUsage:
    cached, reasoning = min(usage.cache_read, usage.tokens_in), min(usage.reasoning, usage.tokens_out)
    return MeteredUsage(nanos, usage.tokens_in, usage.tokens_out, price_version, cached, reasoning)


def _fixed_quote(model: str, nanos: int, price_version: str = FIXED) -> CallQuote:
    metered = MeteredUsage(nanos, price_version=price_version)
    return CallQuote(model, metered, metered, nanos, unbounded_nanos=nanos)


def rpc_methods(parsed: Any) -> list[str]:
    """Return the method of each call in a JSON-RPC body. Raises: InvalidInput without calls or methods."""
    calls = parsed if isinstance(parsed, list) else [parsed]
    if not 1 <= len(calls) <= _MAX_BATCH:
        raise InvalidInput(f"A JSON-RPC batch must contain 1 to {_MAX_BATCH} calls; this one has {len(calls)}.")
    methods = [call.get("method") if isinstance(call, dict) else None for call in calls]
    if not all(isinstance(method, str) for method in methods):
        raise InvalidInput(
            "The body must be a JSON-RPC call such as "
            '{"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}, or a list of such calls.',
            details={"fields": {"method": ["must be a string"]}},
        )
    return [str(method) for method in methods]
