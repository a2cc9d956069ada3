"""Services, subscriptions and paid calls in any order, with crashes and late settlements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from flask import g
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, rule

from app.agents import service as agents
from app.audit_log import actors
from app.catalog import statistics, subscriptions
from app.catalog.models import Subscription
from app.catalog.proxy.metering import ServiceCall
from app.catalog.services import service as services
from app.core import clock
from app.credits import accounts as credit_accounts
from app.credits import audit as credits_audit
from app.db.unit_of_work import read_only_unit
from app.errors import AlreadySubscribed, InsufficientCredits, NotFound
from app.idempotency.service import Claim
from app.identity import service as identity
from app.identity.principal import Principal
from app.platform.agents import service as platform
from app.ports.upstream import RelayOutcome, UpstreamRequest
from app.usage import audit as usage_audit
from app.usage import service as usage
from app.wallets.core import wallets
from tests.support.machines import Ground, Machine, Walk

_CALL = UpstreamRequest("GET", "http://service.test", "/", [], b"")

USD = 10**9
INITIAL = 10
_LONGER_THAN_A_LEASE = 12 * 60


@dataclass
class Offered:
    """A service in the model, with the state of each wallet's subscription."""

    id: str
    price: int
    status: str = "active"
    subscribed: dict[str, str] | None = None
    revenue: int = 0


class _Answer:
    """The head of a response, of which a meter only reads the status."""

    def __init__(self, status: int) -> None:
        self.status = status


@dataclass
class Called:
    """A call in the model: held, settled, released, or expired without a charge at the end of its lease."""

    meter: ServiceCall
    offered: Offered
    price: int
    lease_until: float
    state: str = "held"
    charged: int = 0


class Services(Machine):
    """A seller with services, a buyer with wallets and credits."""

    audits = (statistics.find_wrong_sums, credits_audit.check, usage_audit.check)

    reaches = frozenset({"settled", "released", "lapsed", "charged after all", "subscribed again", "held"})

    offers = Bundle("offers")
    calls = Bundle("calls")
    wallets_ = Bundle("wallets_")

    def begin(self) -> None:
        self.seller = agents.register(name=None, email=None).agent_id
        made = agents.register(name=None, email=None)
        self.buyer = made.agent_id
        caller = identity.find_principal(made.api_key)
        assert caller is not None
        self.caller: Principal = caller
        self.granted = INITIAL
        self.offered: list[Offered] = []
        self.called: list[Called] = []
        self.gone: set[str] = set()

    def available(self) -> int:
        held = sum(call.price for call in self.called if call.state == "held")
        return self.granted - held - sum(call.charged for call in self.called)

    @rule(target=wallets_)
    def add_wallet(self) -> str:
        return wallets.create_for_agent(self.buyer, name=None, claim=Claim.none()).id

    @rule(wallet_id=wallets_)
    def remove_wallet(self, wallet_id: str) -> None:
        if wallet_id in self.gone:
            with pytest.raises(NotFound):
                wallets.delete_wallet(wallet_id, agent_id=self.buyer)
            return
        wallets.delete_wallet(wallet_id, agent_id=self.buyer)
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
        made = services.register(self.seller, values, document=None, claim=Claim.none())
        offered = Offered(made.id, price, subscribed={})
        self.offered.append(offered)
        return offered

    @rule(offered=offers, status=st.sampled_from(("active", "paused")), price=st.sampled_from((0, 2, 3)))
    def change(self, offered: Offered, status: str, price: int) -> None:
        values = {"status": status, "price_nanos": price * USD}
        if offered.status == "retired":
            with pytest.raises(NotFound):
                services.change(offered.id, values, agent_id=self.seller)
            return
        services.change(offered.id, values, agent_id=self.seller)
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

        def ask() -> Subscription:
            return subscriptions.subscribe(offered.id, wallet_id=wallet_id, agent_id=self.buyer, claim=Claim.none())

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
    def grant_credits(self, dollars: int) -> None:
        platform.grant(actors.system_actor("a test"), self.buyer, dollars * USD, claim=Claim.none())
        self.granted += dollars

    @rule(target=calls, offered=offers, wallet_id=st.none() | wallets_)
    def call(self, offered: Offered, wallet_id: str | None) -> Called | None:
        if offered.status != "active":
            with pytest.raises(NotFound):
                services.callable_service(offered.id)
            return None
        service = services.callable_service(offered.id)
        with self.ground.app.test_request_context():
            g.request_id = "a request"
            meter = ServiceCall(service, self.caller, wallet_id=wallet_id, model="GET /")
            if self.available() < max(offered.price, 0) or self.available() <= 0:
                with pytest.raises(InsufficientCredits):
                    meter.begin(_CALL)
                return None
            meter.begin(_CALL)
        lease = clock.now().timestamp() + meter._lease.total_seconds()
        made = Called(meter, offered, offered.price, lease)
        self.called.append(made)
        return made

    @rule(called=calls, status=st.sampled_from((200, 404, 500)), broken=st.booleans())
    def response_arrives(self, called: Called | None, status: int, broken: bool) -> None:
        if called is None:
            return
        called.meter.on_response_head(_Answer(status))
        called.meter.end(RelayOutcome.TRUNCATED if broken else RelayOutcome.COMPLETE)
        if called.state in ("settled", "released"):
            return
        if broken or status >= 500:
            called.state, called.charged = "released", 0
            return
        # An expired call is charged nevertheless, as far as the credits suffice.
        reach = called.price if called.state == "held" else min(called.price, self.available())
        self.note("charged after all" if called.state == "lapsed" else "charged")
        called.state, called.charged = "settled", reach
        called.offered.revenue += reach

    @rule()
    def sweep_expired_leases(self) -> None:
        self.let_pass(seconds=_LONGER_THAN_A_LEASE)
        late = [c for c in self.called if c.state == "held" and c.lease_until <= clock.now().timestamp()]
        assert usage.charge_lapsed() == len(late)
        for called in late:
            called.state = "lapsed"

    @invariant()
    def subscriptions_match_the_model(self) -> None:
        with read_only_unit() as session:
            for offered in self.offered:
                active = sum(state == "active" for state in (offered.subscribed or {}).values())
                assert subscriptions.count_active(session, offered.id) == active

    @invariant()
    def charges_equal_earnings(self) -> None:
        with read_only_unit() as session:
            balance = credit_accounts.balance(session, self.buyer)
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
            self.response_arrives(self.call(offered, wallet), status, broken)
            yield
        first, second = self.call(offered, wallet), self.call(offered, None)
        self.sweep_expired_leases()
        yield
        self.response_arrives(first, 200, broken=False)
        assert second is not None
        self.call(offered, wallet)
        self.remove_wallet(wallet)
        yield
        self.change(offered, "paused", 2)
        self.retire(offered)
        yield


def test_charges_equal_earnings_in_every_order_of_events(ground: Ground, walk: Walk) -> None:
    walk(Services, ground, walks=8, steps=35)
