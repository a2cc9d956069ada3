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
from app.credits import accounts as credit_accounts
from app.credits import audit as credits_audit
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import PurchaseInProgress
from app.idempotency.service import Claim
from app.identity import service as identity
from app.identity.principal import Principal
from app.ports.shopper import FailureCode, ShippingAddress
from app.shopping import maintenance, purchase_runner, service
from app.shopping.models import OPEN_STATUSES, Purchase, PurchaseStatus
from app.shopping.orders import PurchaseOrder
from app.spending import audit as spending_audit
from app.spending import controls as spending_controls
from app.spending.controls import ControlsChange
from app.spending.models import SpendingHold
from app.usage import audit as usage_audit
from tests.support.fake_shopper import purchase_failure
from tests.support.machines import HOURS, Ground, Machine, Walk

USD = 10**9
PRICE_NANOS = USD // 4
GOODS, SHIPPING, DAILY, PER_TX = 12, 5, 60, 40
_LEASE_SECONDS, _FIRST_LEASE_SECONDS = 60, 900
_POINTS = ("start", "review", "allowed", "clicked")
_ENDINGS = (
    "buys", "buys", "buys",
    "nothing_read", "human_check", "no_stock", "unknown", "crashes", "authorizes_twice", "unauthorized",
)  # fmt: skip


class Died(BaseException):
    """The worker's process has died: nothing of it runs any more."""


@dataclass
class Bought:
    """A purchase in the model; `counts` is (dollars, day) as counted by the wallet's limits."""

    user: str | None
    quantity: int
    dry_run: bool
    lease_until: float
    status: PurchaseStatus = PurchaseStatus.QUEUED
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
    """One agent and one shop. `clicks` counts the shop's orders per purchase."""

    audits = (credits_audit.check, spending_audit.check, usage_audit.check)

    reaches = frozenset(
        {"completed", "failed", "unknown", "action_required", "preview", "cancelled", "died", "overtaken"}
    )

    purchases = Bundle("purchases")

    def begin(self) -> None:
        made = agents.register(name=None, email=None)
        self.wallet_id = made.wallet.id
        caller = identity.find_principal(made.api_key)
        assert caller is not None
        self.caller: Principal = caller
        with unit_of_work() as session:
            limits = ControlsChange(
                daily_limit_nanos=DAILY * USD,
                weekly_limit_nanos=0,
                monthly_limit_nanos=0,
                per_tx_limit_nanos=PER_TX * USD,
            )
            spending_controls.put_controls(session, self.wallet_id, limits)
        self.bought: dict[str, Bought] = {}
        self.clicks: Counter[str] = Counter()

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
        order = PurchaseOrder(
            url="https://shop.example/p/1", host="shop.example",
            address=ShippingAddress("Ann", "12345"), username=user, password="secret" if user else None,
            quantity=quantity, options={}, max_total_nanos=None, dry_run=dry_run,
        )  # fmt: skip
        same = any(
            (b.user, b.quantity, b.dry_run) == (user, quantity, dry_run)
            and (b.status in OPEN_STATUSES or b.status is PurchaseStatus.UNKNOWN)
            for b in self.bought.values()
        )
        if same and not twice:
            with pytest.raises(PurchaseInProgress):
                service.buy(self.caller, order, allow_duplicate=False, claim=Claim.none())
            return multiple()
        view = service.buy(self.caller, order, allow_duplicate=twice, claim=Claim.none())
        lease = clock.now().timestamp() + _FIRST_LEASE_SECONDS
        self.bought[view.id] = Bought(user, quantity, dry_run, lease)
        return view.id

    @rule(
        ending=st.sampled_from(_ENDINGS), dies_at=st.sampled_from((None, None, *_POINTS)),
        late_at=st.sampled_from((None, None, *_POINTS)),
    )  # fmt: skip
    def one_goes_its_usual_way(self, ending: str, dies_at: str | None, late_at: str | None) -> None:
        """Run a common course of events; most steps of a random walk have no effect."""
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
    def a_worker_takes_it(self, purchase_id: str, ending: str, dies_at: str | None, late_at: str | None) -> None:
        """Let a worker execute it; it may die at a point, or be overtaken there by the sweep and continue."""
        bought, reached = self.bought[purchase_id], []

        def checkpoint(point: str) -> None:
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
        clicked_before = shopper.clicked
        shopper.checkpoint = checkpoint
        shopper.fails_before_page = purchase_failure(FailureCode.SHOP_UNREACHABLE) if ending == "nothing_read" else None
        early = {"human_check": FailureCode.HUMAN_CHECK, "no_stock": FailureCode.OUT_OF_STOCK}.get(ending)
        shopper.fails_before_order = purchase_failure(early) if early else None
        shopper.outcome_unknown = "no confirmation" if ending == "unknown" else None
        shopper.crashes_after_order = ending == "crashes"
        shopper.authorizes_twice = ending == "authorizes_twice"
        shopper.orders_without_authorization = ending == "unauthorized"
        free = bought.status is PurchaseStatus.QUEUED and not self.account_in_use(bought)
        if free:
            bought.status, bought.lease_until = (PurchaseStatus.RUNNING, clock.now().timestamp() + _LEASE_SECONDS)
        died = False
        try:
            with suppress(RuntimeError):
                purchase_runner.run_purchase(purchase_id)
        except Died:
            died = True
        self.clicks[purchase_id] += shopper.clicked - clicked_before
        if not free:
            assert not reached
            return
        self.model_ends(bought, ending, reached, died=died)

    def account_in_use(self, bought: Bought) -> bool:
        at_work = (PurchaseStatus.RUNNING, PurchaseStatus.SUBMITTING)
        return bought.user is not None and any(
            other.user == bought.user and other.status in at_work for other in self.bought.values()
        )

    def model_reaches(self, bought: Bought, point: str) -> None:
        """Update the model with what the worker has written when it reaches a point."""
        mine = bought.status in (PurchaseStatus.RUNNING, PurchaseStatus.SUBMITTING)
        if mine:
            bought.lease_until = clock.now().timestamp() + _LEASE_SECONDS
        if point == "review" and mine:
            bought.page_read = True
        if point == "allowed":
            assert bought.status is PurchaseStatus.RUNNING
            assert not bought.dry_run
            assert self.fits(bought.total)
            bought.status, bought.counts = PurchaseStatus.SUBMITTING, (bought.total, clock.now().date())

    def model_ends(self, bought: Bought, ending: str, reached: list[str], *, died: bool) -> None:
        """Update the model for a purchase that ended after the worker reached these points."""
        if died:
            return
        before_order = bought.status is PurchaseStatus.RUNNING
        if ending == "nothing_read":
            if before_order:
                bought.status, bought.charged = PurchaseStatus.FAILED, False
        elif ending in ("human_check", "no_stock") or "review" not in reached:
            if before_order:
                # The goods alone may exceed a limit; both ends are charged, as a page was read.
                over = "review" not in reached and not self.fits(bought.goods)
                human = ending == "human_check" and not over
                bought.status = PurchaseStatus.ACTION_REQUIRED if human else PurchaseStatus.FAILED
                bought.page_read = True
        elif ending == "unauthorized":
            if before_order:
                bought.status, bought.counts = PurchaseStatus.UNKNOWN, (bought.goods, clock.now().date())
        elif bought.dry_run:
            if before_order:
                bought.status = PurchaseStatus.PREVIEW if self.fits(bought.total) else PurchaseStatus.FAILED
        elif "allowed" not in reached:
            if before_order:
                assert not self.fits(bought.total)
                bought.status = PurchaseStatus.FAILED
        elif ending in ("unknown", "crashes", "authorizes_twice"):
            bought.status = PurchaseStatus.UNKNOWN
        else:
            bought.status, bought.spent = PurchaseStatus.COMPLETED, True

    @rule()
    def the_sweep_comes(self) -> None:
        now = clock.now()
        self.ground.queue.put_jobs.clear()
        maintenance.sweep(now)
        queued = set()
        for purchase_id, bought in self.bought.items():
            late = bought.lease_until <= now.timestamp()
            if bought.status is PurchaseStatus.QUEUED and not late:
                queued.add(purchase_id)
            elif bought.status is PurchaseStatus.QUEUED:
                bought.status, bought.charged = PurchaseStatus.FAILED, False
            elif late and bought.status is PurchaseStatus.RUNNING:
                bought.status, bought.charged = PurchaseStatus.FAILED, bought.page_read
            elif late and bought.status is PurchaseStatus.SUBMITTING:
                bought.status = PurchaseStatus.UNKNOWN
        assert {arguments[0] for _, arguments in self.ground.queue.put_jobs} == queued

    @rule(purchase_id=purchases)
    def its_owner_cancels(self, purchase_id: str) -> None:
        bought = self.bought[purchase_id]
        view = service.view(purchase_id)
        if bought.status in (PurchaseStatus.QUEUED, PurchaseStatus.CANCELLED):
            assert service.cancel(view).status == PurchaseStatus.CANCELLED
            bought.status, bought.charged = PurchaseStatus.CANCELLED, False
            return
        with pytest.raises(PurchaseInProgress):
            service.cancel(view)

    @rule(hours=st.sampled_from(HOURS))
    def time_passes(self, hours: int) -> None:
        self.let_pass(hours=hours)

    @invariant()
    def the_button_is_pressed_at_most_once(self) -> None:
        assert all(times <= 1 for times in self.clicks.values())
        for purchase_id, times in self.clicks.items():
            if times:
                assert self.bought[purchase_id].status in (
                    PurchaseStatus.SUBMITTING,
                    PurchaseStatus.UNKNOWN,
                    PurchaseStatus.COMPLETED,
                )
                assert self.bought[purchase_id].counts is not None

    @invariant()
    def each_purchase_stands_where_the_model_says(self) -> None:
        with read_only_unit() as session:
            rows = {row.id: row for row in session.scalars(select(Purchase))}
            holds = {row.reference: row for row in session.scalars(select(SpendingHold))}
            balance = credit_accounts.balance(session, self.caller.account_id)
            standing = spending_controls.status_of(session, self.wallet_id)
        assert rows.keys() == self.bought.keys()
        for purchase_id, bought in self.bought.items():
            row = rows[purchase_id]
            assert row.status == bought.status
            assert row.cost_nanos == (PRICE_NANOS if bought.charged else 0)
            assert (row.sealed is not None) == (bought.status in OPEN_STATUSES)
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


def test_a_purchase_is_ordered_at_most_once_whatever_happens_to_workers(ground: Ground, walk: Walk) -> None:
    walk(Purchases, ground, walks=10, steps=25)
