"""Submission of signed payments: front-run, reverted, stuck, expired."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import time_machine
from eth_abi.abi import encode
from flask import Flask
from sqlalchemy import select
from structlog.testing import capture_logs
from werkzeug.test import TestResponse

from app.core import clock
from app.core.chains import USDC, ChainName
from app.db.unit_of_work import read_only_unit
from app.payments import jobs as payment_jobs
from app.payments.x402 import settlement
from app.ports.errors import Unreachable
from app.ports.facilitator import ExpectedPayment, Facilitator, PaymentAuthorization
from app.wallets.core.lifecycle import AttemptPurpose
from app.wallets.core.models import SignedAttempt
from app.wallets.transactions import confirmation, relayed
from sandbox.evm import EvmNode
from tests.support.applications import change_ports
from tests.support.chains import ether, evm_chain
from tests.support.faults import FaultyChain
from tests.support.payments import PRICE, EvmPayer, Shop, by_hash, decoded, offered, shop, signed_headers
from tests.support.waiting import wait_until
from workers import confirmations

pytestmark = pytest.mark.chain
BASE = ChainName.BASE


@dataclass(frozen=True, slots=True)
class Scene:
    """A shop on a node of this test's own, with a worker that runs on demand."""

    shop: Shop
    node: EvmNode
    chain: FaultyChain
    looks: list[int] = field(default_factory=list)

    def look(self) -> None:
        """Run the worker, each time a minute later, when everything is due again."""
        self.await_blocks()
        self.looks.append(60)
        with time_machine.travel(clock.now().timestamp() + sum(self.looks), tick=True):
            confirmations.confirm("base")

    def finalize(self) -> None:
        """Let all blocks become final, and the workers see it."""
        self.node.mine(80)
        self.look()
        self.look()

    def spend_first(self, payer: EvmPayer, terms: Mapping[str, Any]) -> None:
        """Let what the payer has go elsewhere just before the next submission."""
        elsewhere = self.shop.settler(BASE)
        spent = payer.authorize(terms, to=elsewhere)
        self.chain.fail("broadcast", "before", lambda: self.submit(spent, elsewhere))

    def await_blocks(self) -> None:
        """Wait for a node that mines immediately: it answers before the block is there."""
        if self.node.rpc("anvil_getAutomine"):
            wait_until(lambda: self.node.rpc("txpool_status")["pending"] == "0x0", what="a block")

    def confirm(self, times: int = 1) -> None:
        """Run the worker, but leave the payments as they are."""
        self.await_blocks()
        for _ in range(times):
            self.looks.append(60)
            with time_machine.travel(clock.now().timestamp() + sum(self.looks), tick=True):
                confirmation.confirm(BASE)

    def received(self) -> int:
        return self.chain.real.balances(self.shop.recipient(BASE)).of(USDC).units

    def submit(self, payload: Mapping[str, Any], recipient: str) -> str:
        """Submit an authorization from an unrelated account, which needs only the payer's signature."""
        demand = ExpectedPayment(PRICE, recipient, self.shop.settler(BASE))
        facilitator = self.shop.app.state.ports.facilitators[BASE]
        call = facilitator.verify(payload, demand, now=1_800_000_000).terms["call"]
        rich = self.node.rpc("eth_accounts")[1]
        sent: str = self.node.rpc(
            "eth_sendTransaction", {"from": rich, "to": self.node.deployment.usdc, "data": f"0x{call}"}
        )
        return sent

    def call(self, sender: str, to: str, data: bytes) -> str:
        """Send a call from another account."""
        self.node.rpc("anvil_impersonateAccount", sender)
        call = {"from": sender, "to": to, "data": "0x" + data.hex(), "gas": hex(400_000)}
        return str(self.node.rpc("eth_sendTransaction", call))

    def attempts(self) -> list[SignedAttempt]:
        with read_only_unit() as session:
            return list(session.scalars(select(SignedAttempt).order_by(SignedAttempt.id)))


@pytest.fixture
def scene(build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode) -> Iterator[Scene]:
    chain = FaultyChain(evm_chain(own_base_node))
    settings = {"base_stuck_blocks": 3, "confirmation_wait_seconds": "0"}
    with shop(build_app, sqlite_url, {BASE: chain}, **settings) as made:
        own_base_node.fund_eth(made.settler(BASE), ether(1))
        made.expire_capacity()
        made.upstream.behave = lambda exchange: exchange.json({"results": []})
        yield Scene(made, own_base_node, chain)


def reason(answer: TestResponse) -> str:
    body = answer.get_json()
    assert (answer.status_code, body["code"] == "PAYMENT_PENDING") in ((402, False), (503, True)), body
    found: str = answer.get_json().get("details", {}).get("reason", answer.get_json()["code"])
    return found


def test_a_front_run_submission_fails_and_the_payment_counts_once(scene: Scene) -> None:
    challenge = scene.shop.ask()
    payload = EvmPayer(scene.node).authorize(offered(challenge))
    first: list[str] = []
    scene.chain.fail("broadcast", "before", lambda: first.append(scene.submit(payload, scene.shop.recipient(BASE))))
    headers = signed_headers(offered(challenge), payload)
    assert reason(scene.shop.ask(headers)) == "settlement_pending"
    scene.look()
    answer = scene.shop.ask(headers)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    # The response names the transaction that paid, not ours, which failed.
    assert decoded(answer.headers["PAYMENT-RESPONSE"])["transaction"] == first[0]
    scene.node.mine(6)
    assert reason(scene.shop.ask(by_hash(first[0], BASE))) == "PAYMENT_ALREADY_USED"
    assert (scene.shop.served(), scene.received()) == (1, PRICE)


def test_the_worker_of_one_chain_reads_no_other(scene: Scene) -> None:
    headers = EvmPayer(scene.node).pays(scene.shop.ask())
    assert reason(scene.shop.ask(headers)) == "settlement_pending"
    with time_machine.travel(clock.now().timestamp() + 60, tick=True):
        confirmation.confirm(BASE)
    payment_jobs.resume_settlements(ChainName.ETHEREUM)
    assert [payment.status for payment in scene.shop.payments()] == ["settling"]
    payment_jobs.resume_settlements(BASE)
    assert [payment.status for payment in scene.shop.payments()] == ["paid"]


def test_one_transfer_among_authorizations_for_others_pays_once(scene: Scene) -> None:
    payer, challenge = EvmPayer(scene.node, eth=1), scene.shop.ask()
    usdc, multicall = scene.node.deployment.usdc, scene.node.deployment.multicall3
    approve = bytes.fromhex("095ea7b3") + encode(["address", "uint256"], [multicall, PRICE])
    scene.call(payer.address, usdc, approve)
    shown = [payer.authorize(offered(challenge)) for _ in range(2)]
    elsewhere = scene.shop.settler(BASE)
    facilitator = scene.shop.app.state.ports.facilitators[BASE]
    calls = [
        facilitator.verify(
            payer.authorize(offered(challenge), nonce=each["authorization"]["nonce"], to=elsewhere, value="1"),
            ExpectedPayment(1, elsewhere, elsewhere),
            now=1_800_000_000,
        ).terms["call"]
        for each in shown
    ]
    pulled = [payer.address, scene.shop.recipient(BASE), PRICE]
    calls.append("23b872dd" + encode(["address", "address", "uint256"], pulled).hex())
    batch = [(usdc, False, bytes.fromhex(call)) for call in calls]
    data = bytes.fromhex("82ad56cb") + encode(["(address,bool,bytes)[]"], [batch])
    sent: list[str] = []
    headers = [signed_headers(offered(challenge), each) for each in shown]
    # One payer has one open payment for a request.
    another = "/v1/gateway/brave/web/search?q=another"
    scene.chain.raising("broadcast", "before", Unreachable("refused"))
    assert reason(scene.shop.ask(headers[0])) == "settlement_pending"
    scene.chain.fail("broadcast", "before", lambda: sent.append(scene.call(payer.address, multicall, data)))
    assert reason(scene.shop.ask(headers[1], path=another)) == "settlement_pending"
    scene.look()
    scene.look()
    assert reason(scene.shop.ask(headers[0])) == "settlement_pending"
    assert reason(scene.shop.ask(headers[1], path=another)) == "settlement_pending"
    scene.finalize()
    # Neither was a payment; the transfer in the same transaction is one, by its hash.
    assert [payment.status for payment in scene.shop.payments()] == ["void"] * 2
    assert scene.shop.ask(by_hash(sent[0], BASE)).status_code == 200
    assert (scene.shop.served(), scene.received()) == (1, PRICE)


def test_a_payment_that_failed_on_the_chain_is_burned_only_once_the_failure_is_final(scene: Scene) -> None:
    payer = EvmPayer(scene.node, dollars=0.01)
    challenge = scene.shop.ask()
    headers = payer.pays(challenge)
    scene.spend_first(payer, offered(challenge))
    assert reason(scene.shop.ask(headers)) == "settlement_pending"
    scene.look()
    assert reason(scene.shop.ask(headers)) == "settlement_pending"
    scene.finalize()
    assert [payment.status for payment in scene.shop.payments()] == ["void"]
    # Its submission has cost a fee: it is not submitted again, though the payer has funds again.
    scene.node.fund_usdc(payer.address, PRICE)
    assert reason(scene.shop.ask(headers)) == "settlement_failed"
    assert (scene.shop.claims(), len(scene.attempts())) == (set(), 1)
    # A key's funds can be gone by mistake: another authorization is accepted.
    again = payer.pays(challenge)
    assert reason(scene.shop.ask(again)) == "settlement_pending"
    scene.look()
    assert scene.shop.ask(again).status_code == 200
    assert (scene.shop.served(), scene.received()) == (1, PRICE)


def test_a_failed_authorization_that_another_party_submits_later_pays_by_its_hash(scene: Scene) -> None:
    payer = EvmPayer(scene.node, dollars=0.01)
    challenge = scene.shop.ask()
    payload = payer.authorize(offered(challenge))
    scene.spend_first(payer, offered(challenge))
    assert reason(scene.shop.ask(signed_headers(offered(challenge), payload))) == "settlement_pending"
    scene.look()
    scene.finalize()
    scene.node.fund_usdc(payer.address, PRICE)
    sent = scene.submit(payload, scene.shop.recipient(BASE))
    scene.node.mine(6)
    assert scene.shop.ask(by_hash(sent, BASE)).status_code == 200
    assert (scene.shop.served(), scene.received()) == (1, PRICE)


def test_a_key_with_payments_that_fail_three_times_is_refused_for_a_day(scene: Scene) -> None:
    payer = EvmPayer(scene.node, dollars=0.01)
    challenge = scene.shop.ask()
    for _ in range(3):
        scene.spend_first(payer, offered(challenge))
        assert reason(scene.shop.ask(payer.pays(challenge))) == "settlement_pending"
        scene.look()
        scene.finalize()
        scene.node.fund_usdc(payer.address, PRICE)
    assert reason(scene.shop.ask(payer.pays(challenge))) == "payer_refused"
    assert len(scene.attempts()) == 3


@dataclass(frozen=True, slots=True)
class SlowFacilitator:
    """A facilitator with an answer to `find_settlement` that arrives late."""

    real: Facilitator
    meanwhile: Callable[[], object]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def find_settlement(self, authorization: PaymentAuthorization) -> str | None:
        found = self.real.find_settlement(authorization)
        self.meanwhile()
        return found


def test_a_failure_that_a_reorg_reverses_while_the_chain_is_read_releases_no_claim(scene: Scene) -> None:
    payer = EvmPayer(scene.node, dollars=0.01)
    challenge = scene.shop.ask()
    headers = payer.pays(challenge)
    scene.spend_first(payer, offered(challenge))
    assert reason(scene.shop.ask(headers)) == "settlement_pending"
    scene.confirm()
    (payment,) = scene.shop.payments()

    def land() -> None:
        scene.node.reorg(2)
        scene.confirm(2)
        scene.node.mine(80)
        scene.confirm(2)
        with read_only_unit() as session:
            decision = relayed.final_decision(session, payment.transaction_id or "")
            assert decision is not None
            assert decision.status == "confirmed"

    facilitator = scene.shop.app.state.ports.facilitators[BASE]
    change_ports(scene.shop.app, facilitators={BASE: SlowFacilitator(facilitator, land)})
    assert settlement.resolve(payment.id).status == "settling"
    assert len(scene.shop.claims()) == 2
    assert scene.shop.ask(headers).status_code == 200
    assert (scene.shop.served(), scene.received()) == (1, PRICE)


def _stuck(scene: Scene, **changed: str) -> dict[str, str]:
    """Present a payment with a submission that is stuck, unknown to the node."""
    headers = EvmPayer(scene.node).pays(scene.shop.ask(), **changed)
    scene.node.set_automine(on=False)
    scene.chain.raising("broadcast", "before", Unreachable("refused"))
    scene.chain.raising("rebroadcast", "before", Unreachable("refused"), times=3)
    assert reason(scene.shop.ask(headers)) == "settlement_pending"
    scene.look()
    scene.node.mine(4)
    return headers


def test_a_submission_replaced_at_a_higher_fee_pays_once(scene: Scene) -> None:
    headers = _stuck(scene)
    scene.look()
    first, second = scene.attempts()
    assert first.terms["call_data"] == second.terms["call_data"]
    scene.node.set_automine(on=True)
    scene.node.mine(1)
    scene.look()
    assert scene.shop.ask(headers).status_code == 200
    scene.node.mine(6)
    # The hash that landed was never presented, and is consumed all the same.
    assert reason(scene.shop.ask(by_hash(second.tx_hash, BASE))) == "PAYMENT_ALREADY_USED"
    assert (scene.shop.served(), scene.received()) == (1, PRICE)


def test_an_expired_submission_is_not_replaced_at_a_higher_fee(scene: Scene) -> None:
    _stuck(scene, validBefore=str(int(clock.now().timestamp()) + 300))
    scene.node.rpc("evm_increaseTime", 7_000)
    scene.node.mine(1)
    scene.look()
    assert [attempt.purpose for attempt in scene.attempts()] == [AttemptPurpose.PAYMENT, AttemptPurpose.CANCELLATION]
    scene.node.set_automine(on=True)
    scene.finalize()
    assert [payment.status for payment in scene.shop.payments()] == ["void"]
    assert (scene.shop.claims(), scene.received()) == (set(), 0)


def test_a_served_payment_reversed_by_a_reorg_is_sent_again_and_lost_only_if_the_payer_spent_first(
    scene: Scene,
) -> None:
    payers = [EvmPayer(scene.node, dollars=0.01, eth=1) for _ in range(3)]
    challenge = [offered(scene.shop.ask()) for _ in payers]
    payloads = [payer.authorize(terms) for payer, terms in zip(payers, challenge, strict=True)]
    headers = [signed_headers(terms, payload) for terms, payload in zip(challenge, payloads, strict=True)]
    assert [reason(scene.shop.ask(each)) for each in headers] == ["settlement_pending"] * 3
    scene.look()
    assert [scene.shop.ask(each).status_code for each in headers] == [200] * 3
    scene.node.reorg(3)
    moved = bytes.fromhex("a9059cbb") + encode(["address", "uint256"], [scene.shop.settler(BASE), PRICE])
    scene.call(payers[1].address, scene.node.deployment.usdc, moved)
    by_another = scene.submit(payloads[2], scene.shop.recipient(BASE))
    scene.look()
    scene.look()
    # The failure can still become a success in another block.
    assert settlement.detect_reversed_payments(BASE) == 0
    assert [payment.status for payment in scene.shop.payments()] == ["served"] * 3
    scene.finalize()
    with capture_logs() as logs:
        payment_jobs.check_gas_reserves()
        assert settlement.detect_reversed_payments(BASE) == 0
    payments = scene.shop.payments()
    assert [payment.status for payment in payments] == ["served", "reversed", "served"]
    assert payments[2].tx_hash == by_another
    assert scene.received() == 2 * PRICE
    # Claims stay, so that nothing is served twice.
    assert [reason(scene.shop.ask(each)) for each in headers] == ["PAYMENT_ALREADY_USED"] * 3
    lost = [entry for entry in logs if entry["event"] == "payment_reversed"]
    assert [(entry["payer"], entry["units"]) for entry in lost] == [(payers[1].address, PRICE)]
    assert 'purser_payments_reversed{chain="base"} 1.0' in scene.shop.ask(path="/metrics").text
