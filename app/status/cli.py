"""`flask doctor`: the checks of this installation, or with `--live` of the systems that it uses.

`--live` sends every configured system one request per capability, and compares the answers by the code that uses them:
what an adapter cannot read, decode or simulate with differs.
"""

import json
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from contextvars import copy_context
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import partial

import click
from flask.cli import with_appcontext

from app.core.chains import ETH, SOL, USDC, ChainName, Token
from app.core.foreign import MalformedResponseError
from app.core.money import TokenAmount, nanos_from_usd, usd_string
from app.core.redaction import redaction
from app.gateway import probes as gateway
from app.gateway.providers.table import ProviderTable
from app.observability import telemetry
from app.ports.bridges import BridgeProvider, BridgeRequest, BridgeRoute
from app.ports.errors import PortError, Rejected
from app.ports.perpdex import Perpdex, PerpdexQuery, PerpdexTopic
from app.ports.probes import ADDRESSES, Probe, UnexpectedAnswer
from app.ports.swaps import SwapExchange, SwapRequest
from app.state import app_state
from app.status.doctor import Severity, run_checks

_AMOUNTS: Mapping[Token, TokenAmount] = {
    ETH: TokenAmount(10**16, ETH), SOL: TokenAmount(10**8, SOL), USDC: TokenAmount(20 * 10**6, USDC),
}  # fmt: skip
_SLIPPAGE_BPS = 100
_WHOLE_BPS = 10_000
_LACKS_FUNDS = frozenset({"insufficient_funds", "insufficient_gas", "leaves_dust"})
"""Reasons of a refusal that follows after everything was read: the simulated sender holds nothing."""
_ACCOUNT_TOPICS = frozenset({PerpdexTopic.ACCOUNT, PerpdexTopic.SPOT, PerpdexTopic.ORDERS, PerpdexTopic.FILLS})
_MISREAD_REASONS = frozenset({"unexpected_answer", "wrong_chain", "unsafe_instructions"})
_NO_ANSWER_REASONS = frozenset({"not_sent", "no_answer", "timeout", "broken"})
_MISREAD = (UnexpectedAnswer, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


_SPENDING = "With --live: ask what a provider bills, too, until the maximum costs add up to this."
_TIMEOUT = "With --live: seconds for each probe."


class Result(StrEnum):
    """The outcome of a probe; `DIFFERS` and `FAILS` make the command fail."""

    WORKS = "works"
    DIFFERS = "differs"
    FAILS = "fails"
    NOT_CONFIGURED = "not configured"
    NOT_RUN = "not run"


def _all_probes() -> list[Probe]:
    state, ports = app_state(), app_state().ports
    found = [*ports.probes()]
    for chain, exchange in ports.swap_exchanges.items():
        swap = partial(_simulate_swap, chain, exchange)
        found.append(Probe("jupiter" if chain is ChainName.SOLANA else "uniswap", f"swap on {chain}", swap))
    for route, providers in ports.bridges.items():
        for provider in providers:
            simulate = partial(_simulate_crossing, provider, route)
            found.append(Probe(provider.name, f"{route[2].symbol} from {route[0]} to {route[1]}", simulate))
    query = partial(_query_exchange, ports.perpdex)
    found += [Probe("hyperliquid", topic.value, partial(query, topic)) for topic in PerpdexTopic]
    return [*found, *gateway.probes(state.part(ProviderTable), ports.upstream)]


def _run(probe: Probe, budget_nanos: int, seconds: int) -> tuple[Result, str, int]:
    """Return result and remark, and the most that the probe cost."""
    if probe.missing is not None:
        return Result.NOT_CONFIGURED, f"set {probe.missing}", 0
    max_nanos = 0
    try:
        max_nanos = probe.max_nanos() if probe.max_nanos is not None else 0
        if max_nanos > budget_nanos:
            return Result.NOT_RUN, f"it costs up to {usd_string(max_nanos)} USD: raise --spend-up-to", 0
        return Result.WORKS, _answer_within(probe.run, seconds), max_nanos
    except Exception as error:
        # Whatever it raises describes this answer, and the other probes run all the same.
        return *_explain(error), max_nanos


def _answer_within(request: Callable[[], str], seconds: int) -> str:
    """Return an answer. Raises: TimeoutError if there is none in time; it is abandoned."""
    answer: Future[str] = Future()

    def run() -> None:
        try:
            answer.set_result(request())
        except Exception as error:
            answer.set_exception(error)  # raised where it is waited for

    threading.Thread(target=copy_context().run, args=(run,), daemon=True).start()
    if not wait([answer], timeout=seconds).done:
        raise TimeoutError(f"no answer in {seconds} seconds")
    return answer.result()


def _simulate_swap(chain: ChainName, exchange: SwapExchange) -> str:
    """Quote a swap, and build and simulate its transaction as far as an address without funds permits."""
    token = SOL if chain is ChainName.SOLANA else ETH
    request = SwapRequest(ADDRESSES[chain.family], _AMOUNTS[token], USDC, _SLIPPAGE_BPS)
    offer = exchange.quote(request)
    minimum = offer.output_units * (_WHOLE_BPS - _SLIPPAGE_BPS) // _WHOLE_BPS
    _simulate(lambda: exchange.draft(offer, minimum_units=minimum, signer=None))
    return f"{request.input_amount} {token.symbol} for {TokenAmount(offer.output_units, USDC)} USDC, {offer.route}"


def _simulate_crossing(provider: BridgeProvider, route: BridgeRoute) -> str:
    """Quote it, and build and simulate its transactions as far as an address without funds permits."""
    source, destination, token = route
    ends = ADDRESSES[source.family], ADDRESSES[destination.family]
    request = BridgeRequest(source, destination, *ends, _AMOUNTS[token])
    try:
        offer = provider.quote(request)
    except Rejected as refusal:
        if refusal.reason not in _LACKS_FUNDS:
            raise
        return "read; a quote needs gas on the other chain"
    _simulate(lambda: provider.prepare(offer))
    return f"{offer.route}, fee {TokenAmount(offer.fee_units, token)} {token.symbol}, {offer.seconds} s"


def _simulate(prepare: Callable[[], object]) -> None:
    try:
        prepare()
    except Rejected as refusal:
        if refusal.reason not in _LACKS_FUNDS:
            raise


def _query_exchange(exchange: Perpdex, topic: PerpdexTopic) -> str:
    address = ADDRESSES[ChainName.ETHEREUM.family] if topic in _ACCOUNT_TOPICS else None
    symbol = "ETH" if topic is PerpdexTopic.BOOK else None
    document = exchange.fetch(PerpdexQuery(topic, address, symbol)).document
    if document is None:
        raise UnexpectedAnswer(f"there is no market of {symbol}")
    return f"{len(document)} entries"


def _explain(error: Exception) -> tuple[Result, str]:
    """Return whether there was an answer of another form, and what went wrong, the first cause last."""
    causes: list[BaseException] = [error]
    # An adapter's translation keeps the original as its context, also when it hides it from tracebacks.
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    reasons = {str(getattr(cause, "reason", "")) for cause in causes}
    is_misread = bool(reasons & _MISREAD_REASONS) or any(isinstance(cause, _MISREAD) for cause in causes)
    differs = is_misread and not reasons & _NO_ANSWER_REASONS
    return Result.DIFFERS if differs else Result.FAILS, ": ".join(dict.fromkeys(map(_describe, causes)))


def _describe(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    if reason is not None:
        details = error.details if isinstance(error, PortError) else {}
        refusal = getattr(error, "error", None)  # of a JSON-RPC endpoint
        shown = [f"{name} {value}" for name, value in details.items()]
        shown += [] if refusal is None else [f"{refusal.code} {refusal.message}"]
        return f"{reason} ({', '.join(shown)})" if shown else str(reason)
    if isinstance(error, KeyError):
        return f"there is no {error.args[0]!r}"
    if isinstance(error, UnexpectedAnswer | TimeoutError | MalformedResponseError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _nanos(text: str) -> int:
    try:
        nanos = nanos_from_usd(Decimal(text))
    except InvalidOperation:
        nanos = -1
    if nanos < 0:
        raise ValueError(text)
    return nanos


@click.command("doctor")
@click.option("--live", "is_live", is_flag=True, help="Ask the live systems instead.")
@click.option("--only", multiple=True, metavar="NAME", help="With --live: only this system. May be repeated.")
@click.option("--spend-up-to", "budget_nanos", type=_nanos, default="0", metavar="USD", help=_SPENDING)
@click.option("--timeout", type=click.IntRange(min=1), default=20, show_default=True, help=_TIMEOUT)
@click.option("--json", "is_json", is_flag=True, help="With --live: print JSON.")
@with_appcontext
def doctor(*, is_live: bool, only: tuple[str, ...], budget_nanos: int, timeout: int, is_json: bool) -> None:
    """Check settings, database, Redis, workers, chains, contracts, prices and proxies, and print fixes.

    With --live, each configured system gets one cheap request per capability instead, and the code that uses its
    answers reads them: RPC endpoints one by one, prices, quotes and simulated transactions, the
    trading exchange, and the providers of the gateway. Nothing is signed or sent. Reads count against the quotas of
    plans; chats of one token and searches are billed, and are asked with --spend-up-to only. The results: works,
    differs (an answer that the service cannot use), fails (no answer, or a refusal), not configured, not run.

    Exits with 1 if a check fails, or an answer differs or fails. Changes nothing.
    """
    telemetry.redirect_to_stderr()
    if _print_live(only, budget_nanos, timeout, is_json=is_json) if is_live else _print_checks():
        raise SystemExit(1)


def _print_checks() -> bool:
    """Print the findings, and return whether a check failed."""
    has_failed = False
    for finding in run_checks():
        click.echo(f"{finding.severity.value:4}  {finding.component}: {finding.message}")
        if finding.fix:
            click.echo(f"      -> {finding.fix}")
        has_failed |= finding.severity is Severity.FAIL
    return has_failed


def _print_live(only: Collection[str], budget_nanos: int, timeout: int, *, is_json: bool) -> bool:
    """Run the probes in order, while the sum of the maximum costs is in the budget, and print a row for each.

    Return whether an answer differs or fails.
    """
    # The name `base` has all endpoints of Base.
    probes = [(each.system.partition(" ")[0], each) for each in _all_probes()]
    known = dict.fromkeys(name for name, _ in probes)
    if unknown := [name for name in only if name not in known]:
        raise click.UsageError(f"There is no system {unknown[0]!r}; there are {', '.join(known)}.")
    redact, rows = redaction(app_state().settings.secret_texts()), []
    for probe in [each for name, each in probes if not only or name in only]:
        result, remark, max_nanos = _run(probe, budget_nanos, timeout)
        budget_nanos -= max_nanos
        remark = " ".join(redact(remark).split())[:300]
        rows.append({"result": result, "system": probe.system, "capability": probe.capability, "remark": remark})
        if not is_json:
            click.echo(f"{result.value:14}  {probe.system:12}  {probe.capability:24}  {remark}")
    if is_json:
        click.echo(json.dumps(rows, indent=2))
    return any(row["result"] in {Result.DIFFERS, Result.FAILS} for row in rows)
