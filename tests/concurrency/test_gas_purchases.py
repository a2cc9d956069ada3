"""Concurrent purchases of ether: a wallet buys it once, and units that meet on two chains do not deadlock."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from flask import Flask

from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.money import TokenAmount
from app.core.movement_kinds import MovementKind
from app.idempotency.service import Claim
from app.payments import treasury
from app.ports.errors import Rejected
from app.wallets import gas
from app.wallets.core import wallets
from app.wallets.core.lifecycle import TransactionType
from app.wallets.transactions.pipeline import Movement
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.chains import evm_chain, fund, usdc
from tests.support.faults import FaultyChain
from tests.support.payments import facilitator_of
from tests.support.processes import Asked, NodeAddress, Service, Tripwire, crowds
from tests.support.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.chain, pytest.mark.postgres]
BASE, ETHEREUM = ChainName.BASE, ChainName.ETHEREUM
PER_PROCESS = 6


def test_concurrent_swaps_of_a_wallet_without_ether_buy_it_once(
    postgres_url: str, base_node: EvmNode, build_app: Callable[..., Flask]
) -> None:
    settings = {"log_level": "CRITICAL", "confirmation_wait_seconds": "5"}
    service = Service(postgres_url, (NodeAddress.of(base_node),), settings)
    app = build_app(postgres_url, settings=dict(settings), **service.parts(Tripwire()))
    with app.app_context():
        agent = register(app.test_client())
        agent.unlimited()
        fund(base_node, treasury.settler(BASE), eth=1)
        recipient = treasury.recipient(BASE)
    fund(base_node, agent.address, eth=0, dollars=100)
    body = {"chain": "base", "input_token": "USDC", "output_token": "ETH", "amount": "5"}
    asked = [Asked("POST", f"{agent.wallet_url}/swap", body, agent.headers()) for _ in range(2 * PER_PROCESS)]
    answers = crowds(service, asked[:PER_PROCESS], asked[PER_PROCESS:])
    outcomes = Counter(answer.get("status") or answer["code"] for _, answer in answers)
    # A swap that was drafted before its earlier ones may find too little ether left: it fails before it is signed.
    assert outcomes.keys() <= {"confirmed", "pending", "GAS_PENDING", "SWAP_FAILED"}, answers
    assert outcomes["confirmed"] + outcomes["pending"] >= 1
    with app.app_context():
        gas = [row for row in agent.history() if row["kind"] == "gas"]
    assert len(gas) == 1
    chain = app.state.ports.chains[BASE].real
    assert chain.balances(recipient).of(USDC).units == usdc(float(gas[0]["amount"]))


def test_a_purchase_across_chains_and_a_submission_on_one_of_them_do_not_deadlock(
    postgres_url: str, ethereum_node: EvmNode, base_node: EvmNode, build_app: Callable[..., Flask]
) -> None:
    nodes = {ETHEREUM: ethereum_node, BASE: base_node}
    chains = {name: FaultyChain(evm_chain(node)) for name, node in nodes.items()}
    app = build_app(
        postgres_url,
        settings={"confirmation_wait_seconds": "5"},
        chains=chains,
        facilitators={name: facilitator_of(chain) for name, chain in chains.items()},
    )
    has_nonce, may_sign = threading.Event(), threading.Event()

    def wait_in_unit() -> None:
        has_nonce.set()
        assert may_sign.wait(PATIENCE_SECONDS)

    with app.app_context():
        buyer, sender = register(app.test_client()), register(app.test_client())
        for name, node in nodes.items():
            fund(node, treasury.settler(name), eth=1)
        fund(base_node, buyer.address, eth=0, dollars=100)
        fund(ethereum_node, sender.address, eth=0, dollars=100)
        wallet = wallets.get_with_controls(buyer.wallet_id)
    bridged = Movement(
        wallet=wallet, type=TransactionType.TRANSFER, kind=MovementKind.BRIDGE, chain=BASE, recipient=buyer.address,
        payee=None, amount=TokenAmount(usdc(50), USDC), value_nanos=0,
    )  # fmt: skip
    shortage = Rejected("insufficient_gas", details={"missing": "0.0001", "required": "0.0001", "chain": "ethereum"})

    def transfer() -> str:
        answer = sender.move("5", "USDC", chain="ethereum", to=wallet.address_on(ETHEREUM))
        return str(answer.get_json().get("status") or answer.get_json())

    def buy() -> None:
        with app.app_context():
            gas.buy(bridged, [shortage], since=clock.now(), wait_seconds=None, claim=Claim.none())

    chains[ETHEREUM].fail("sign", "before", wait_in_unit)
    url = postgres_url.replace("+psycopg", "")
    with ThreadPoolExecutor(2) as threads, psycopg.connect(url, autocommit=True) as outsider:
        transferred = threads.submit(transfer)
        assert has_nonce.wait(PATIENCE_SECONDS)
        bought = threads.submit(buy)
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        wait_until(lambda: outsider.execute(waiting).fetchall(), what="the purchase waits")
        may_sign.set()
        assert transferred.result(PATIENCE_SECONDS) in ("confirmed", "pending")
        bought.result(PATIENCE_SECONDS)
