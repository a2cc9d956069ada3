"""Settlement capacity: which signed payments are offered, and when the chain is read for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest
import time_machine
from structlog.testing import capture_logs

from app.core import clock
from app.core.chains import ETH, USDC, ChainName
from app.core.money import TokenAmount
from app.db.unit_of_work import read_only_unit
from app.payments import jobs, settlement_capacity, treasury
from app.payments.settlement_capacity import FEE_TOO_HIGH, NOT_OFFERED, SettlementCapacityCache
from app.ports.errors import Rejected, Unreachable
from app.ports.facilitator import SettlementCapacity
from app.state import Application
from tests.support.owner_world import StaticChain

BASE, ETHEREUM = ChainName.BASE, ChainName.ETHEREUM
GWEI = 10**9
# With ether at 3 000 USD, a gwei costs 3 000 nano-dollars.
NANOS_PER_GWEI = 3_000
GOOD = SettlementCapacity(native_units=5 * GWEI, fee_units=GWEI, max_fee_units=2 * GWEI, recipient_can_receive=True)


@dataclass
class SlowFacilitator:
    """A facilitator that counts its reads and may be paused in one."""

    capacity: SettlementCapacity = GOOD
    reads: int = 0
    unreachable: bool = False
    reading: threading.Event = field(default_factory=threading.Event)
    resume: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.resume.set()

    def settlement_capacity(self, _settler: str, _recipient: str) -> SettlementCapacity:
        self.reads += 1
        self.reading.set()
        assert self.resume.wait(10)
        if self.unreachable:
            raise Unreachable("refused")
        return self.capacity


@dataclass
class Faucet:
    """A faucet that records what it is asked for."""

    paid: list[tuple[str, ChainName, str, TokenAmount]] = field(default_factory=list)

    def pay(self, reference: str, *, chain: ChainName, address: str, amount: TokenAmount) -> None:
        self.paid.append((reference, chain, address, amount))


@dataclass(frozen=True)
class Scene:
    """An application of which the chains share one facilitator."""

    app: Application
    facilitator: SlowFacilitator

    @property
    def cache(self) -> SettlementCapacityCache:
        return self.app.state.part(SettlementCapacityCache)

    def capacity(self) -> SettlementCapacity | None:
        with self.app.app_context():
            return self.cache.get(BASE)

    def refusal(self, price_nanos: int, fee_units: int | None = None, chain: ChainName = BASE) -> str | None:
        self.cache.clear()
        with self.app.app_context():
            if fee_units is None:
                return settlement_capacity.refusal_reason(chain, price_nanos)
            try:
                settlement_capacity.submission_nanos(chain, price_nanos, fee_units)
            except Rejected as refusal:
                return refusal.reason
            return None


@pytest.fixture
def scene(build_app: Callable[..., Application], sqlite_url: str) -> Scene:
    facilitator = SlowFacilitator()
    settings = {"max_network_fee_usd": "1"}
    chains = {name: StaticChain(name) for name in (BASE, ETHEREUM)}
    facilitators = {BASE: facilitator, ETHEREUM: facilitator}
    app = build_app(sqlite_url, settings=settings, facilitators=facilitators, chains=chains)
    with app.app_context():
        assert settlement_capacity.read_capacity(BASE) == GOOD
    facilitator.reads = 0
    facilitator.reading.clear()
    return Scene(app, facilitator)


def test_the_first_requests_all_wait_for_one_read_of_the_chain(scene: Scene) -> None:
    scene.facilitator.resume.clear()
    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(scene.capacity) for _ in range(4)]
        assert scene.facilitator.reading.wait(10)
        scene.facilitator.resume.set()
        assert [answer.result(10) for answer in answers] == [GOOD] * 4
    assert scene.facilitator.reads == 1


def test_while_a_stale_capacity_is_read_again_no_other_request_waits(scene: Scene) -> None:
    assert scene.capacity() == GOOD
    scene.facilitator.capacity = better = replace(GOOD, native_units=9 * GWEI)
    with time_machine.travel(clock.now().timestamp() + 14, tick=False):
        assert (scene.capacity(), scene.facilitator.reads) == (GOOD, 1)
    scene.facilitator.reading.clear()
    scene.facilitator.resume.clear()
    with time_machine.travel(clock.now().timestamp() + 16, tick=False), ThreadPoolExecutor(1) as threads:
        first = threads.submit(scene.capacity)
        assert scene.facilitator.reading.wait(10)
        assert scene.capacity() == GOOD
        scene.facilitator.resume.set()
        assert first.result(10) == better
        assert (scene.capacity(), scene.facilitator.reads) == (better, 2)


def test_an_unreachable_chain_is_not_asked_by_every_request(scene: Scene) -> None:
    scene.facilitator.unreachable = True
    assert scene.capacity() is None
    assert scene.capacity() is None
    assert scene.facilitator.reads == 1


@pytest.mark.parametrize(
    ("capacity", "reason"),
    [
        (GOOD, None),
        (replace(GOOD, native_units=5 * GWEI - 1), NOT_OFFERED),
        (replace(GOOD, recipient_can_receive=False), NOT_OFFERED),
    ],
)
def test_a_chain_is_offered_with_gas_for_five_submissions(
    scene: Scene, capacity: SettlementCapacity, reason: str | None
) -> None:
    scene.facilitator.capacity = capacity
    assert scene.refusal(10**9) == reason


def test_an_unreadable_chain_is_not_offered(scene: Scene) -> None:
    scene.facilitator.unreachable = True
    assert scene.refusal(10**9) == NOT_OFFERED


@pytest.mark.parametrize(
    ("chain", "least_nanos"),
    # On Ethereum twenty times the present fee, elsewhere the highest possible one.
    [(BASE, 2 * NANOS_PER_GWEI), (ETHEREUM, 20 * NANOS_PER_GWEI)],
)
def test_a_price_covers_a_submission_at_a_risen_fee(scene: Scene, chain: ChainName, least_nanos: int) -> None:
    assert scene.refusal(least_nanos, chain=chain) is None
    assert scene.refusal(least_nanos - 1, chain=chain) == FEE_TOO_HIGH


def test_a_known_fee_is_within_the_price_and_within_the_operators_cap(scene: Scene) -> None:
    assert scene.refusal(6 * NANOS_PER_GWEI, 6 * GWEI) is None
    assert scene.refusal(6 * NANOS_PER_GWEI, 6 * GWEI + 1) == FEE_TOO_HIGH
    # The cap is 1 USD, whatever the price.
    cap_units = 10**9 * GWEI // NANOS_PER_GWEI
    assert scene.refusal(5 * 10**9, cap_units) is None
    assert scene.refusal(5 * 10**9, cap_units + GWEI) == FEE_TOO_HIGH


@pytest.mark.parametrize(
    ("capacity", "submissions"),
    [(GOOD, 5), (replace(GOOD, native_units=6 * GWEI - 1), 5), (replace(GOOD, fee_units=0), 5 * GWEI)],
)
def test_the_gas_reserve_is_counted_in_whole_submissions(
    scene: Scene, capacity: SettlementCapacity, submissions: int
) -> None:
    scene.facilitator.capacity = capacity
    moment = clock.now().timestamp()
    with scene.app.app_context():
        assert settlement_capacity.submissions_left() == {BASE: submissions, ETHEREUM: submissions}
        with time_machine.travel(moment, tick=False):
            settlement_capacity.store_gas_reserve(BASE, capacity)
        with read_only_unit() as session:
            [row] = settlement_capacity.reserves(session)
    assert (row.chain, row.submissions_left, int(row.read_at.timestamp())) == ("base", submissions, int(moment))


def test_an_unreadable_chain_has_no_gas_reserve(scene: Scene) -> None:
    scene.facilitator.unreachable = True
    with scene.app.app_context():
        assert settlement_capacity.submissions_left() == {}


def test_in_the_sandbox_the_faucet_pays_gas_first_and_opens_the_account_of_the_recipient_after_it(
    build_app: Callable[..., Application], sqlite_url: str
) -> None:
    faucet, facilitator = Faucet(), SlowFacilitator(replace(GOOD, native_units=5 * GWEI - 1))
    app = build_app(sqlite_url, facilitators={BASE: facilitator}, faucet=faucet, chains={BASE: StaticChain(BASE)})
    with app.app_context():
        settler, recipient = treasury.settler(BASE), treasury.recipient(BASE)
        moment = clock.now().timestamp()
        for minutes, capacity in enumerate([facilitator.capacity, replace(GOOD, recipient_can_receive=False), GOOD]):
            facilitator.capacity = capacity
            # The second check of a minute does nothing.
            for seconds in (0, 30):
                with time_machine.travel(moment + 61 * minutes + seconds, tick=False):
                    jobs.check_gas_reserves()
        with read_only_unit() as session:
            assert [row.submissions_left for row in settlement_capacity.reserves(session)] == [5]
    assert faucet.paid == [
        (f"x402:{settler}:base:{5 * GWEI - 1}", BASE, settler, TokenAmount(2 * 10**18, ETH)),
        (f"x402:open:{recipient}", BASE, recipient, TokenAmount(1, USDC)),
    ]


@pytest.mark.parametrize(("payouts_enabled", "checks"), [(False, 2), (True, 1)])
def test_the_gas_is_checked_while_the_usdc_of_the_treasury_cannot_be_read_unless_there_are_payouts(
    build_app: Callable[..., Application], sqlite_url: str, *, payouts_enabled: bool, checks: int
) -> None:
    facilitator, chain = SlowFacilitator(replace(GOOD, native_units=5 * GWEI - 1)), StaticChain(BASE)
    settings = {"payouts_enabled": payouts_enabled}
    app = build_app(sqlite_url, settings=settings, facilitators={BASE: facilitator}, chains={BASE: chain})
    moment = clock.now().timestamp()
    with app.app_context(), capture_logs() as logs:
        chain.held = {treasury.recipient(BASE): {"USDC": 12_345_678}}
        for seconds, chain.unreachable in ((0, False), (61, True)):
            with time_machine.travel(moment + seconds, tick=False):
                jobs.check_gas_reserves()
        with read_only_unit() as session:
            [row] = settlement_capacity.reserves(session)
    assert len([entry for entry in logs if entry["event"] == "settlement_gas_low"]) == checks
    # What was last read of the treasury stays.
    assert (row.treasury_units, round(row.read_at.timestamp() - moment)) == (12_345_678, 61 * (checks - 1))


def test_without_a_faucet_low_gas_is_reported_and_an_unreadable_chain_is_not(scene: Scene) -> None:
    scene.facilitator.capacity = replace(GOOD, native_units=5 * GWEI - 1)
    moment = clock.now().timestamp()
    with scene.app.app_context(), capture_logs() as logs:
        with time_machine.travel(moment, tick=False):
            jobs.check_gas_reserves()
        scene.facilitator.unreachable = True
        with time_machine.travel(moment + 61, tick=False):
            jobs.check_gas_reserves()
        settlers = {treasury.settler(BASE)}
    low = [entry for entry in logs if entry["event"] == "settlement_gas_low"]
    assert {entry["address"] for entry in low} == settlers
    assert [entry["chain"] for entry in low] == [BASE, ETHEREUM]
    with scene.app.app_context(), read_only_unit() as session:
        found = [(row.chain, row.submissions_left) for row in settlement_capacity.reserves(session)]
    assert found == [("base", 4), ("ethereum", 4)]
