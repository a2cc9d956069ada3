"""Requests that all change one row.

One agent's calls, one wallet's transfers, one chain's settlements, the audit log, and the day's budget of free credits.
None may become slower with more connections. Rates of machines that do other work are low; `alone` estimates them.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.audit_log import actors
from app.config import Settings
from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.extensions import db
from app.factory import create_app
from app.idempotency.service import Claim
from app.payments import treasury
from app.platform import keys
from benchmarks import rounds, stack, thresholds, throughput
from benchmarks.load_generator import Request
from benchmarks.rounds import Load, Plans, Table
from benchmarks.stack import Infrastructure, Service
from benchmarks.thresholds import Threshold
from benchmarks.throughput import RECIPIENT
from benchmarks.upstream import CHAT, Upstream, running_upstream
from tests.support.payments import EvmPayer, signed_headers

_AGENT, _ACTS = "calls of one agent", "administrative acts"
_WALLET = "transfers of one wallet"
_REGISTRATIONS = "registrations within the day's budget"
_PROMISED = {_AGENT: 600, _ACTS: 200}
_ACTED_ON = 32
_KEYS = (1, 4)
_MOST_FALL = 0.85
"""Of the highest rate with fewer connections: what rounds differ by without a cause."""
_PAYMENTS_PER_SECOND = 400
"""More than are answered. A connection that ran out of them would repeat used ones, which are answered 402 at once."""
_SEARCH = "/v1/gateway/brave/web/search?q=agents"
_MOVEMENT = {"chain": "base", "to": RECIPIENT, "amount": "0.000001", "currency": "USDC"}
_WEI = 10**18
_LOCAL = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class _Scale:
    connections: Sequence[int]
    rounds: int
    seconds: float


def measure(infrastructure: Infrastructure, *, quick: bool) -> list[Threshold]:
    """Run each load with 8, 32 and 96 connections."""
    scale = _Scale((8,), 1, 1) if quick else _Scale((8, 32, 96), 3, 5)
    with running_upstream() as upstream:
        found = _requests(infrastructure, upstream, scale)
        for count in _KEYS:
            found |= _settlements(infrastructure, upstream, scale, keys_per_chain=count)
    highest = {name: max(each.alone_per_second for each in rates.values()) for name, rates in found.items()}
    return [
        *(
            thresholds.at_least(f"{name}, the highest rate", highest[name], least, "/s")
            for name, least in _PROMISED.items()
        ),
        *(
            thresholds.at_least(
                f"{name}, {count} connections, of the best", rate.alone_per_second / best, _MOST_FALL, "x"
            )
            for name, rates in found.items()
            for count, rate, best in _with_best(rates)
        ),
    ]


def _with_best(rates: Mapping[int, rounds.Figures]) -> Iterator[tuple[int, rounds.Figures, float]]:
    """Yield each number of connections but the lowest, its figures, and the highest rate until then."""
    best = 0.0
    for count, each in sorted(rates.items()):
        best = max(best, each.alone_per_second)
        if best and count != min(rates):
            yield count, each, best


def _requests(infrastructure: Infrastructure, upstream: Upstream, scale: _Scale) -> Table:
    with _service(infrastructure, upstream, "hot_rows") as (service, master_key):
        agent, *others = throughput.make_agents(infrastructure, service, 1 + _ACTED_ON)
        master = {"X-Master-Key": master_key}
        granted = [
            Request("POST", f"/v1/platform/agents/{each.agent_id}/credits", master, {"credits_usd": 0.01})
            for each in others
        ]
        requests = {
            _AGENT: [Request("POST", "/v1/gateway/openai/chat/completions", {"X-API-Key": agent.key}, CHAT)],
            _WALLET: [agent.request("POST", "/transfer", _MOVEMENT, Prefer="respond-async")],
            _ACTS: granted,
            _REGISTRATIONS: [Request("POST", "/v1/agents/register", {}, {})],
        }
        loads = [_load(infrastructure, service, name, _in_turn(each)) for name, each in requests.items()]
        return _rates(loads, scale, "Requests that change one row")


def _in_turn(requests: Sequence[Request]) -> Callable[[int], Plans]:
    return lambda count: [[requests[number % len(requests)]] for number in range(count)]


def _settlements(infrastructure: Infrastructure, upstream: Upstream, scale: _Scale, *, keys_per_chain: int) -> Table:
    name = f"hot_rows_{keys_per_chain}"
    with _service(infrastructure, upstream, name, X402_SETTLEMENT_KEYS=str(keys_per_chain)) as (service, _):
        node = infrastructure.nodes["base"]
        payer, terms = EvmPayer(node, dollars=100_000), service.payment_terms(_SEARCH, node.chain_id)

        def payments(count: int) -> Plans:
            each = round(scale.seconds * _PAYMENTS_PER_SECOND / count)
            # A second payment by the same payer for the same request would wait for the first.
            paid = (
                Request("GET", f"{_SEARCH}{new_id()}", signed_headers(terms, payer.authorize(terms)))
                for _ in iter(int, 1)
            )
            return [[next(paid) for _ in range(each)] for _ in range(count)]

        load = _load(infrastructure, service, f"payments settled by {keys_per_chain} on one chain", payments)
        return _rates([load], scale, "Calls paid by x402, a block a second")


def _load(infrastructure: Infrastructure, service: Service, name: str, plans: Callable[[int], Plans]) -> Load:
    node = stack.node_process(infrastructure.nodes["base"])
    return Load(name, service.port, plans, {"web": service.web, "database": infrastructure.database.pid, "node": node})


def _rates(loads: Sequence[Load], scale: _Scale, heading: str) -> Table:
    thresholds.print_heading(f"{heading}: medians of {scale.rounds} alternating rounds of {scale.seconds:g} s")
    return rounds.measure(loads, connections=scale.connections, rounds=scale.rounds, seconds=scale.seconds)


@contextlib.contextmanager
def _service(
    infrastructure: Infrastructure, upstream: Upstream, name: str, **settings: str
) -> Iterator[tuple[Service, str]]:
    """Run the service with gas in its settlement keys; yield it and a master key."""
    environment = infrastructure.migrated(
        name, OPENAI_API_KEY="sk-benchmark", OPENAI_BASE_URL=f"{upstream.url}/v1", BRAVE_API_KEY="benchmark",
        BRAVE_BASE_URL=f"{upstream.url}/res/v1", INITIAL_CREDITS_USD="10000", GRANT_BUDGET_USD_PER_DAY="9000000000",
        LOG_LEVEL="WARNING", ALLOW_PRIVATE_UPSTREAMS="1", **settings,
    )  # fmt: skip
    app = create_app(Settings(**stack.settings_of(environment)))
    with app.app_context():
        made = keys.create_master_key(actors.shell_actor(), name="bench", owner_email=None, claim=Claim.none())
        for each in treasury.submitters(ChainName.BASE):
            infrastructure.nodes["base"].fund_eth(each.address_on(ChainName.BASE), _WEI)
        db.engine.dispose()
    with stack.running_service(infrastructure, environment, webs=1, workers=1) as service:
        yield service, made.key
