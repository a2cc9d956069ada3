"""The four dangers to a budget, and what is measured of each."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from benchmarks.crash.calls import Client, Outcome
from benchmarks.crash.upstream import CountingUpstream

_RACE = 64
_RETRIES = 4
_EXHAUSTING = 8
_PATIENCE_SECONDS = 20.0


class Deployment(Protocol):
    """A running gateway whose keys have a budget."""

    def client(self) -> Client:
        """Return the clients of a new key, with the whole budget."""

    def kill_and_restart(self) -> None:
        """End all its processes with SIGKILL, start them again, and wait until they answer."""

    def settle(self) -> None:
        """Wait until nothing is held for a call that has ended."""

    def recorded_usd(self, client: Client) -> float | None:
        """Return what the gateway recorded as spent by this key; None if it cannot be read."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is sent, and what it costs. The budget pays `affordable` calls exactly; so many times more are sent."""

    price_usd: float
    affordable: int = 48
    times: int = 6
    kills: int = 3

    @property
    def calls(self) -> int:
        """The number of calls that are sent."""
        return self.times * self.affordable

    @property
    def budget_usd(self) -> float:
        """The budget of each key."""
        return round(self.affordable * self.price_usd, 9)


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one scenario against one gateway, in calls: each costs the same."""

    gateway: str
    scenario: str
    budget: int
    answered: int
    refused: int
    unknown: int
    billed: int
    """What the upstream generated."""
    repeated: int
    """How many of those were generated again for a repeated request."""
    recorded: float | None
    """What the gateway recorded as spent."""
    kills: int = 0

    @property
    def overspent(self) -> int:
        """What the provider bills beyond the budget."""
        return max(0, self.billed - self.budget)

    @property
    def unrecorded(self) -> float | None:
        """What the provider bills and the gateway has not recorded; negative for what it recorded in excess."""
        return None if self.recorded is None else round(self.billed - self.recorded, 2)


@dataclass(frozen=True, slots=True)
class Gateway:
    """How a gateway is run with a number of replicas, and whether all its keys share one budget."""

    run: Callable[[CountingUpstream, int, Sizes], AbstractContextManager[Deployment]]
    is_shared_budget: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """A danger, the number of replicas that meet it, and how it is brought about."""

    name: str
    replicas: int
    run: Callable[[Deployment, Client, CountingUpstream, Sizes, Iterator[str]], list[Outcome]]


def measure(
    gateway: str, scenario: Scenario, deployment: Deployment, upstream: CountingUpstream, sizes: Sizes
) -> tuple[Row, Client]:
    """Run a scenario with a new key, spend what is left of its budget, and compare the books.

    Raises: RuntimeError when no call reached the upstream.
    """
    before = Counter(upstream.generated)
    client = deployment.client()
    ids = (f"call {client.key[-6:]} {number}" for number in itertools.count())
    outcomes = scenario.run(deployment, client, upstream, sizes, ids)
    outcomes += _exhaust(client, sizes, ids)
    deployment.settle()
    outcomes += _exhaust(client, sizes, ids)
    generated = Counter(upstream.generated) - before
    counts = Counter(outcomes)
    if not generated:
        raise RuntimeError(f"{gateway} reached its upstream with no call: {client.statuses}")
    recorded_usd = deployment.recorded_usd(client)
    row = Row(
        gateway,
        scenario.name,
        budget=sizes.affordable,
        answered=counts[Outcome.ANSWERED],
        refused=counts[Outcome.REFUSED],
        unknown=counts[Outcome.UNKNOWN],
        billed=generated.total(),
        repeated=sum(count - 1 for count in generated.values()),
        recorded=None if recorded_usd is None else recorded_usd / sizes.price_usd,
        kills=sizes.kills if scenario.run is _kills else 0,
    )
    return row, client


def _exhaust(client: Client, sizes: Sizes, ids: Iterator[str]) -> list[Outcome]:
    """Send calls until all of a batch are refused, or twice the budget was sent."""
    outcomes: list[Outcome] = []
    while len(outcomes) < 2 * sizes.affordable:
        batch = client.send_all(itertools.islice(ids, _EXHAUSTING), concurrent=_EXHAUSTING)
        outcomes += batch
        if Outcome.ANSWERED not in batch:
            break
    return outcomes


def _race(
    _deployment: Deployment, client: Client, _upstream: CountingUpstream, sizes: Sizes, ids: Iterator[str]
) -> list[Outcome]:
    return client.send_all(itertools.islice(ids, sizes.calls), concurrent=_RACE)


def _retry_storm(
    _deployment: Deployment, client: Client, upstream: CountingUpstream, sizes: Sizes, ids: Iterator[str]
) -> list[Outcome]:
    """Give up before the upstream answers, and repeat the call under the same idempotency key."""
    calls = itertools.islice(ids, sizes.calls // 4)
    return client.send_all(calls, concurrent=_RACE, timeout=upstream.delay / 2, attempts=_RETRIES)


def _kills(
    deployment: Deployment, client: Client, upstream: CountingUpstream, sizes: Sizes, ids: Iterator[str]
) -> list[Outcome]:
    """Kill all processes while calls are in flight; the clients repeat what had no response."""
    started = upstream.total
    found: list[Outcome] = []

    def load() -> None:
        calls = itertools.islice(ids, sizes.calls)
        found.extend(client.send_all(calls, concurrent=_RACE // 8, attempts=240, pause=0.25))

    thread = threading.Thread(target=load)
    thread.start()
    for number in range(1, sizes.kills + 1):
        share = sizes.affordable * number // (sizes.kills + 2)
        upstream.await_total(started + share, _PATIENCE_SECONDS)
        deployment.kill_and_restart()
    thread.join()
    return found


SCENARIOS = (
    Scenario("race at the limit", 1, _race),
    Scenario("retry storm", 1, _retry_storm),
    Scenario("kill -9", 1, _kills),
    Scenario("ten replicas", 10, _race),
)
