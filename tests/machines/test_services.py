"""Services, subscriptions and paid calls: paused, retired, subscribed, called, died in the middle, settled late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from flask import g
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, rule

from app.agents import service as agents
from app.catalog import audit as catalog_audit
from app.catalog import services, subscriptions
from app.catalog.metering import CallMeter
from app.core import clock
from app.core.unit_of_work import reading
from app.credits import audit as credits_audit
from app.credits import service as credits_service
from app.errors import AlreadySubscribed, InsufficientCredits, NotFound
from app.identity import service as identity
from app.identity.caller import Caller
from app.platform import actors
from app.platform import service as platform
from app.usage import audit as usage_audit
from app.usage import service as usage
from app.wallets import service as wallets
from app.web.forwarding import Ending
from tests.support.machines import Ground, Machine, walk

USD = 10**9
INITIAL = 10
_LONGER_THAN_A_LEASE = 12 * 60


@dataclass
class Offered:
    """A service as the model knows it, with the state of each wallet's subscription."""

    id: str
    price: int
    status: str = "active"
    subscribed: dict[str, str] | None = None
    revenue: int = 0


class _Answer:
    """The head of an answer, of which a meter asks the status only."""

    def __init__(self, status: int) -> None:
        self.status = status


@dataclass
class Called:
    """A call as the model knows it: held, settled, released, or lapsed at no cost when its lease ran out."""

    meter: CallMeter
    offered: Offered
    price: int
    lease_until: float
    state: str = "held"
    charged: int = 0


class Services(Machine):
    """A seller with services, a buyer with wallets and credits."""

    audits = (catalog_audit.check, credits_audit.check, usage_audit.check)

    reaches = frozenset({"settled", "released", "lapsed", "charged after all", "subscribed again", "held"})

    offers = Bundle("offers")
    calls = Bundle("calls")
    wallets_ = Bundle("wallets_")

    def begin(self) -> None:
        self.seller = agents.register(name=None, email=None).agent_id
        made = agents.register(name=None, email=None)
        self.buyer = made.agent_id
        caller = identity.find_caller(made.api_key)
        assert caller is not None
        self.caller: Caller = caller
        self.granted = INITIAL
        self.offered: list[Offered] = []
        self.called: list[Called] = []
        self.gone: set[str] = set()

    def available(self) -> int:
        held = sum(call.price for call in self.called if call.state == "held")
        return self.granted - held - sum(call.charged for call in self.called)

    @rule(target=wallets_)
    def add_wallet(self) -> str:
        return wallets.add(self.buyer, name=None).id

    @rule(wallet_id=wallets_)
    def remove_wallet(self, wallet_id: str) -> None:
        if wallet_id in self.gone:
            with pytest.raises(NotFound):
                wallets.remove(wallet_id, agent_id=self.buyer)
            return
        wallets.remove(wallet_id, agent_id=self.buyer)
        self.gone.add(wallet_id)
        for offered in self.offered:
            self.end(offered, wallet_id)

    def end(self, offered: Offered, wallet_id: str) -> None:
        assert offered.subscribed is not None
        if wallet_id in offered.subscribed:
            offered.subscribed[wallet_id] = "cancelled"

    @rule(target=offers, price=st.sampled_from((0, 1, 3)))
    def offer(self, price: int) -> Offered:
        values = {
            "name": "Weather", "description": "Of any city.", "base_url": "http://127.0.0.1:9/api",
            "pricing_model": "per_call", "price_nanos": price * USD, "category": "weather",
        }  # fmt: skip
        made = services.register(self.seller, values, document=None)
        offered = Offered(made.service.id, price, subscribed={})
        self.offered.append(offered)
        return offered

    @rule(offered=offers, status=st.sampled_from(("active", "paused")), price=st.sampled_from((0, 2, 3)))
    def change(self, offered: Offered, status: str, price: int) -> None:
        values = {"status": status, "price_nanos": price * USD}
        if offered.status == "retired":
            with pytest.raises(NotFound):
                services.change(
                    offered.id, agent_id=self.seller, values=values, document=None, replaces_document=False
                )
            return
        services.change(
            offered.id, agent_id=self.seller, values=values, document=None, replaces_document=False
        )
        offered.status, offered.price = status, price

    @rule(offered=offers)
    def retire(self, offered: Offered) -> None:
        if offered.status == "retired":
            with pytest.raises(NotFound):
                services.retire(offered.id, agent_id=self.seller)
            return
        services.retire(offered.id, agent_id=self.seller)
        offered.status = "retired"
        for wallet_id in offered.subscribed or {}:
            self.end(offered, wallet_id)

    @rule(offered=offers, wallet_id=wallets_)
    def subscribe(self, offered: Offered, wallet_id: str) -> None:
        assert offered.subscribed is not None
        was = offered.subscribed.get(wallet_id)

        def ask() -> subscriptions.SubscriptionView:
            return subscriptions.subscribe(offered.id, "Weather", wallet_id=wallet_id, agent_id=self.buyer)

        if wallet_id in self.gone or offered.status != "active":
            with pytest.raises(NotFound):
                ask()
        elif was == "active":
            with pytest.raises(AlreadySubscribed):
                ask()
        else:
            made = ask()
            assert (made.status, made.reactivated) == ("active", was == "cancelled")
            offered.subscribed[wallet_id] = "active"
            self.note("subscribed again" if was == "cancelled" else "subscribed")

    @rule(offered=offers, wallet_id=wallets_)
    def cancel(self, offered: Offered, wallet_id: str) -> None:
        assert offered.subscribed is not None
        if wallet_id not in offered.subscribed:
            with pytest.raises(NotFound):
                subscriptions.cancel(offered.id, wallet_id=wallet_id, agent_id=self.buyer)
            return
        ended = subscriptions.cancel(offered.id, wallet_id=wallet_id, agent_id=self.buyer)
        assert ended.status == "cancelled"
        self.end(offered, wallet_id)

    @rule(dollars=st.integers(1, 4))
    def an_operator_gives_credits(self, dollars: int) -> None:
        platform.grant(actors.the_service("a test"), self.buyer, dollars * USD)
        self.granted += dollars

    @rule(target=calls, offered=offers, wallet_id=st.none() | wallets_)
    def call(self, offered: Offered, wallet_id: str | None) -> Called | None:
        if offered.status != "active":
            with pytest.raises(NotFound):
                services.for_calling(offered.id)
            return None
        service = services.for_calling(offered.id)
        with self.ground.app.test_request_context():
            g.request_id = "a request"
            meter = CallMeter(service, self.caller, wallet_id=wallet_id, model="GET /")
            if self.available() < max(offered.price, 0) or self.available() <= 0:
                with pytest.raises(InsufficientCredits):
                    meter.begin()
                return None
            meter.begin()
        lease = clock.now().timestamp() + meter._lease.total_seconds()
        made = Called(meter, offered, offered.price, lease)
        self.called.append(made)
        return made

    @rule(called=calls, status=st.sampled_from((200, 404, 500)), broken=st.booleans())
    def its_answer_comes(self, called: Called | None, status: int, broken: bool) -> None:
        if called is None:
            return
        called.meter.answered(_Answer(status))
        called.meter.end(Ending.BROKEN if broken else Ending.COMPLETE)
        if called.state in ("settled", "released"):
            return
        if broken or status >= 500:
            called.state, called.charged = "released", 0
            return
        # What lapsed at no cost is charged after all, as far as the credits reach.
        reach = called.price if called.state == "held" else min(called.price, self.available())
        self.note("charged after all" if called.state == "lapsed" else "charged")
        called.state, called.charged = "settled", reach
        called.offered.revenue += reach

    @rule()
    def leases_run_out_and_the_sweep_comes(self) -> None:
        self.let_pass(seconds=_LONGER_THAN_A_LEASE)
        late = [c for c in self.called if c.state == "held" and c.lease_until <= clock.now().timestamp()]
        assert usage.charge_lapsed() == len(late)
        for called in late:
            called.state = "lapsed"

    @invariant()
    def subscriptions_stand_as_the_model_says(self) -> None:
        with reading():
            for offered in self.offered:
                active = sum(state == "active" for state in (offered.subscribed or {}).values())
                assert subscriptions.count_active(offered.id) == active

    @invariant()
    def the_buyer_has_paid_what_sellers_have_earned(self) -> None:
        with reading():
            balance = credits_service.balance(self.buyer)
        charged = sum(call.charged for call in self.called)
        assert balance.granted_nanos == self.granted * USD
        assert balance.spent_nanos == charged * USD == sum(o.revenue for o in self.offered) * USD
        assert balance.available_nanos == self.available() * USD

    def reached(self) -> Counter[str]:
        return Counter(call.state for call in self.called)

    def script(self) -> Iterator[None]:
        wallet, offered = self.add_wallet(), self.offer(1)
        for _ in range(2):
            self.subscribe(offered, wallet)
            self.cancel(offered, wallet)
            yield
        for status, broken in ((200, False), (500, False), (200, True)):
            self.its_answer_comes(self.call(offered, wallet), status, broken)
            yield
        first, second = self.call(offered, wallet), self.call(offered, None)
        self.leases_run_out_and_the_sweep_comes()
        yield
        self.its_answer_comes(first, 200, broken=False)
        assert second is not None
        self.call(offered, wallet)
        self.remove_wallet(wallet)
        yield
        self.change(offered, "paused", 2)
        self.retire(offered)
        yield


def test_whatever_becomes_of_services_and_calls_what_is_charged_is_what_is_earned(ground: Ground) -> None:
    walk(Services, ground, walks=8, steps=35)
