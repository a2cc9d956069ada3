"""Purchases: any sequence of orders, workers that fail, die or come back late, sweeps and cancellations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, multiple, rule
from sqlalchemy import select

from app.agents import service as agents
from app.core import clock
from app.core.unit_of_work import reading, unit_of_work
from app.credits import audit as credits_audit
from app.credits import service as credits_service
from app.errors import PurchaseInProgress
from app.identity import service as identity
from app.identity.caller import Caller
from app.ports.shopper import ShippingAddress, Trouble
from app.shopping import carrying, service, sweeping
from app.shopping.lifecycle import OPEN, Status
from app.shopping.models import Purchase
from app.shopping.orders import Order
from app.spending import audit as spending_audit
from app.spending import service as spending
from app.spending.models import SpendingHold
from app.spending.service import Changes
from app.usage import audit as usage_audit
from tests.support.fake_shopper import trouble
from tests.support.machines import HOURS, Ground, Machine, walk

USD = 10**9
PRICE_NANOS = USD // 4
GOODS, SHIPPING, DAILY, PER_TX = 12, 5, 60, 40
_LEASE_SECONDS, _FIRST_LEASE_SECONDS = 60, 900
_POINTS = ("start", "review", "allowed", "pressed")
_ENDINGS = (
    "buys", "buys", "buys", "nothing_read", "human_check", "no_stock", "unclear", "breaks", "asks_twice", "unasked",
)  # fmt: skip


class Died(BaseException):
    """The worker's process is gone: nothing of it runs any more."""


@dataclass
class Bought:
    """A purchase as the model knows it; `counts` is (dollars, day) as the wallet's limits have it."""

    user: str | None
    quantity: int
    dry_run: bool
    lease_until: float
    status: Status = Status.QUEUED
    charged: bool = True
    page_read: bool = False
    counts: tuple[int, date] | None = None
    spent: bool = False

    @property
    def goods(self) -> int:
        return GOODS * self.quantity

    @property
    def total(self) -> int:
        return self.goods + SHIPPING


class Purchases(Machine):
    """One agent and one shop. `presses` counts what the shop has seen of each purchase."""

    audits = (credits_audit.check, spending_audit.check, usage_audit.check)

    reaches = frozenset(
        {"completed", "failed", "unknown", "action_required", "preview", "cancelled", "died", "overtaken"}
    )

    purchases = Bundle("purchases")

    def begin(self) -> None:
        made = agents.register(name=None, email=None)
        self.wallet_id = made.wallet.id
        caller = identity.find_caller(made.api_key)
        assert caller is not None
        self.caller: Caller = caller
        with unit_of_work():
            limits = Changes(
                daily_limit_nanos=DAILY * USD,
                weekly_limit_nanos=0,
                monthly_limit_nanos=0,
                per_tx_limit_nanos=PER_TX * USD,
            )
            spending.put_controls(self.wallet_id, limits, by_agent=True)
        self.bought: dict[str, Bought] = {}
        self.presses: Counter[str] = Counter()

    def counted(self) -> int:
        today = clock.now().date()
        return sum(b.counts[0] for b in self.bought.values() if b.counts and b.counts[1] == today)

    def fits(self, dollars: int) -> bool:
        return dollars <= PER_TX and self.counted() + dollars <= DAILY

    @rule(
        target=purchases,
        user=st.sampled_from((None, "ann", "bob")),
        quantity=st.integers(1, 3),
        dry_run=st.sampled_from((False, False, False, True)),
        twice=st.booleans(),
    )
    def order(self, user: str | None, quantity: int, dry_run: bool, twice: bool) -> object:
        order = Order(
            url="https://shop.example/p/1", host="shop.example",
            address=ShippingAddress("Ann", "12345"), username=user, password="secret" if user else None,
            quantity=quantity, options={}, max_total_nanos=None, dry_run=dry_run,
        )  # fmt: skip
        same = any(
            (b.user, b.quantity, b.dry_run) == (user, quantity, dry_run)
            and (b.status in OPEN or b.status is Status.UNKNOWN)
            for b in self.bought.values()
        )
        if same and not twice:
            with pytest.raises(PurchaseInProgress):
                service.buy(self.caller, order, twice=False)
            return multiple()
        view = service.buy(self.caller, order, twice=twice)
        lease = clock.now().timestamp() + _FIRST_LEASE_SECONDS
        self.bought[view.id] = Bought(user, quantity, dry_run, lease)
        return view.id

    @rule(
        ending=st.sampled_from(_ENDINGS), dies_at=st.sampled_from((None, None, *_POINTS)),
        late_at=st.sampled_from((None, None, *_POINTS)),
    )  # fmt: skip
    def one_goes_its_usual_way(self, ending: str, dies_at: str | None, late_at: str | None) -> None:
        """Most steps of a random walk come to nothing; this one is what most callers do."""
        self.let_pass(hours=24)
        made = self.order(None, 1, dry_run=False, twice=True)
        assert isinstance(made, str)
        self.a_worker_takes_it(made, ending, dies_at, late_at)

    @rule(
        purchase_id=purchases,
        ending=st.sampled_from(_ENDINGS),
        dies_at=st.sampled_from((None, None, None, None, *_POINTS)),
        late_at=st.sampled_from((None, None, None, *_POINTS)),
    )
    def a_worker_takes_it(
        self, purchase_id: str, ending: str, dies_at: str | None, late_at: str | None
    ) -> None:
        """Let a worker do its errand; it may die at a point, or be overtaken there by the sweep and go on."""
        bought, reached = self.bought[purchase_id], []

        def interrupted(point: str) -> None:
            reached.append(point)
            self.model_reaches(bought, point)
            if point == late_at:
                self.let_pass(seconds=_LEASE_SECONDS + 1)
                self.the_sweep_comes()
                self.note("overtaken")
            if point == dies_at:
                self.note("died")
                raise Died

        shopper = self.ground.shopper
        pressed_before = shopper.pressed
        shopper.interrupted = interrupted
        shopper.fails_before_page = trouble(Trouble.SHOP_UNREACHABLE) if ending == "nothing_read" else None
        early = {"human_check": Trouble.HUMAN_CHECK, "no_stock": Trouble.OUT_OF_STOCK}.get(ending)
        shopper.fails_before_order = trouble(early) if early else None
        shopper.unclear = "no confirmation" if ending == "unclear" else None
        shopper.breaks_after_order = ending == "breaks"
        shopper.asks_twice = ending == "asks_twice"
        shopper.orders_unasked = ending == "unasked"
        free = bought.status is Status.QUEUED and not self.account_in_use(bought)
        if free:
            bought.status, bought.lease_until = Status.RUNNING, clock.now().timestamp() + _LEASE_SECONDS
        died = False
        try:
            with suppress(RuntimeError):
                carrying.carry_out(purchase_id)
        except Died:
            died = True
        self.presses[purchase_id] += shopper.pressed - pressed_before
        if not free:
            assert not reached
            return
        self.model_ends(bought, ending, reached, died=died)

    def account_in_use(self, bought: Bought) -> bool:
        at_work = (Status.RUNNING, Status.SUBMITTING)
        return bought.user is not None and any(
            other.user == bought.user and other.status in at_work for other in self.bought.values()
        )

    def model_reaches(self, bought: Bought, point: str) -> None:
        """Let the model do what the worker has written by the time that it is at a point."""
        mine = bought.status in (Status.RUNNING, Status.SUBMITTING)
        if mine:
            bought.lease_until = clock.now().timestamp() + _LEASE_SECONDS
        if point == "review" and mine:
            bought.page_read = True
        if point == "allowed":
            assert bought.status is Status.RUNNING
            assert not bought.dry_run
            assert self.fits(bought.total)
            bought.status, bought.counts = Status.SUBMITTING, (bought.total, clock.now().date())

    def model_ends(self, bought: Bought, ending: str, reached: list[str], *, died: bool) -> None:
        """Let the model end an errand whose worker came as far as `reached` says."""
        if died:
            return
        before_order = bought.status is Status.RUNNING
        if ending == "nothing_read":
            if before_order:
                bought.status, bought.charged = Status.FAILED, False
        elif ending in ("human_check", "no_stock") or "review" not in reached:
            if before_order:
                # What the goods alone cost may be too much already; both ends are charged, as a page was read.
                over = "review" not in reached and not self.fits(bought.goods)
                human = ending == "human_check" and not over
                bought.status = Status.ACTION_REQUIRED if human else Status.FAILED
                bought.page_read = True
        elif ending == "unasked":
            if before_order:
                bought.status, bought.counts = Status.UNKNOWN, (bought.goods, clock.now().date())
        elif bought.dry_run:
            if before_order:
                bought.status = Status.PREVIEW if self.fits(bought.total) else Status.FAILED
        elif "allowed" not in reached:
            if before_order:
                assert not self.fits(bought.total)
                bought.status = Status.FAILED
        elif ending in ("unclear", "breaks", "asks_twice"):
            bought.status = Status.UNKNOWN
        else:
            bought.status, bought.spent = Status.COMPLETED, True

    @rule()
    def the_sweep_comes(self) -> None:
        now = clock.now()
        self.ground.queue.put_jobs.clear()
        sweeping.sweep(now)
        queued = set()
        for purchase_id, bought in self.bought.items():
            late = bought.lease_until <= now.timestamp()
            if bought.status is Status.QUEUED and not late:
                queued.add(purchase_id)
            elif bought.status is Status.QUEUED:
                bought.status, bought.charged = Status.FAILED, False
            elif late and bought.status is Status.RUNNING:
                bought.status, bought.charged = Status.FAILED, bought.page_read
            elif late and bought.status is Status.SUBMITTING:
                bought.status = Status.UNKNOWN
        assert {arguments[0] for _, arguments in self.ground.queue.put_jobs} == queued

    @rule(purchase_id=purchases)
    def its_owner_cancels(self, purchase_id: str) -> None:
        bought = self.bought[purchase_id]
        view = service.view(purchase_id)
        if bought.status in (Status.QUEUED, Status.CANCELLED):
            assert service.cancel(view).status is Status.CANCELLED
            bought.status, bought.charged = Status.CANCELLED, False
            return
        with pytest.raises(PurchaseInProgress):
            service.cancel(view)

    @rule(hours=st.sampled_from(HOURS))
    def time_passes(self, hours: int) -> None:
        self.let_pass(hours=hours)

    @invariant()
    def the_button_is_pressed_at_most_once(self) -> None:
        assert all(times <= 1 for times in self.presses.values())
        for purchase_id, times in self.presses.items():
            if times:
                assert self.bought[purchase_id].status in (
                    Status.SUBMITTING,
                    Status.UNKNOWN,
                    Status.COMPLETED,
                )
                assert self.bought[purchase_id].counts is not None

    @invariant()
    def each_purchase_stands_where_the_model_says(self) -> None:
        with reading() as session:
            rows = {row.id: row for row in session.scalars(select(Purchase))}
            holds = {row.reference: row for row in session.scalars(select(SpendingHold))}
            balance = credits_service.balance(self.caller.account_id)
            standing = spending.standing(self.wallet_id)
        assert rows.keys() == self.bought.keys()
        for purchase_id, bought in self.bought.items():
            row = rows[purchase_id]
            assert row.status == bought.status
            assert row.cost_nanos == (PRICE_NANOS if bought.charged else 0)
            assert (row.sealed is not None) == (bought.status in OPEN)
            assert (purchase_id in holds) == (bought.counts is not None)
            if bought.counts is not None:
                assert holds[purchase_id].state == ("spent" if bought.spent else "held")
        charged = sum(bought.charged for bought in self.bought.values())
        assert balance.spent_nanos == charged * PRICE_NANOS
        assert balance.held_nanos == 0
        assert standing.today.spent_nanos == self.counted() * USD

    def reached(self) -> Counter[str]:
        return Counter(bought.status.value for bought in self.bought.values())

    def script(self) -> Iterator[None]:
        for ending in sorted(set(_ENDINGS)):
            self.one_goes_its_usual_way(ending, None, None)
            yield
        for point in _POINTS:
            self.one_goes_its_usual_way("buys", point, None)
            yield
            self.one_goes_its_usual_way("buys", None, point)
            yield
        self.let_pass(hours=24)
        self.the_sweep_comes()
        yield
        for dry_run in (True, False):
            made = self.order("ann", 1, dry_run, twice=True)
            assert isinstance(made, str)
            if dry_run:
                self.a_worker_takes_it(made, "buys", None, None)
            else:
                self.its_owner_cancels(made)
            yield


def test_whatever_becomes_of_workers_a_purchase_is_ordered_at_most_once(ground: Ground) -> None:
    walk(Purchases, ground, walks=10, steps=25)
