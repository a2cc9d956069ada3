"""Concurrent payments to web services from two processes: the limit holds on the chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask

from app.core.chains import USDC, ChainName
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.chains import fund, usdc
from tests.support.mpp import mpp_seller
from tests.support.processes import Asked, NodeAddress, ServiceThatBuys, Tripwire, crowds
from tests.support.sellers import CENT, scripted_seller, uses_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.chain
PER_PROCESS = 100


@pytest.mark.parametrize("sold_by", [scripted_seller, mpp_seller])
def test_two_hundred_concurrent_fetches_pay_at_most_the_limit(
    each_database_url: str, base_node: EvmNode, build_app: Callable[..., Flask], sold_by: Any
) -> None:
    settings = {"log_level": "CRITICAL", "allow_private_upstreams": True}
    service = ServiceThatBuys(each_database_url, (NodeAddress.of(base_node),), settings)
    app = build_app(each_database_url, settings=dict(settings), **service.parts(Tripwire()))
    with app.app_context():
        agent = register(app.test_client())
        agent.controls(daily_limit_usd=1)
    fund(base_node, agent.address, eth=0, dollars=50)
    with sold_by(base_node, price=2 * CENT) as seller:
        if sold_by is scripted_seller:
            # A busy machine may need more than a minute until the last authorization is settled.
            seller.offer()["maxTimeoutSeconds"] = 600

        def asked(number: int) -> Asked:
            body = {"url": f"{seller.url}/report?page={number}", "max_amount_usd": 0.05}
            headers = agent.headers(Idempotency_Key=f"page-{number}", Prefer="respond-async")
            return Asked("POST", f"{agent.wallet_url}/x402/fetch", body, headers)

        pages = [asked(number) for number in range(2 * PER_PROCESS)]
        answers = crowds(service, pages[:PER_PROCESS], pages[PER_PROCESS:])
        codes = Counter(body.get("code") or body["payment"]["state"] for _, body in answers)
        # Some are refused because the process is busy; none of them was signed.
        assert codes.keys() <= {"paid", "pending", "DAILY_LIMIT_EXCEEDED", "OVERLOADED"}
        paid = codes["paid"] + codes["pending"]
        assert 0 < paid <= 50
        assert len(set(seller.headers)) == len(seller.headers) == paid
        # The seller may still be settling payments that were answered as pending.
        wait_until(lambda: uses_of(base_node, agent.address) == paid, what="each payment is used")
        left = app.state.ports.chains[ChainName.BASE].real.balances(agent.address).of(USDC).units
        assert usdc(50) - left == paid * 2 * CENT <= usdc(1)
