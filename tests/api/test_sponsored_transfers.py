"""Transfers of USDC from wallets without ether: the service submits them, each amount and each fee at most once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import select
from web3 import Web3

from app.adapters.evm.contracts import calls as contracts
from app.core.chains import ChainName
from app.core.money import nanos_from_usd
from app.db.tables import count
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.payments import treasury
from app.payments.settlement_capacity import SettlementCapacityCache
from app.ports.errors import Unreachable
from app.state import app_state
from app.wallets import gas
from app.wallets.core.models import SignedAttempt, Transaction
from app.wallets.gas import SUBMISSION_KIND
from sandbox.evm import EvmNode
from tests.support.agents import Agent
from tests.support.chains import ether, fund, usdc
from tests.support.drivers import EvmDriver, fresh_address, sponsored_on
from tests.support.evm import await_mined
from tests.support.faults import FaultyChain

pytestmark = pytest.mark.chain
BASE = ChainName.BASE
_own_node = pytest.mark.parametrize("driver", ["own_base_node"], indirect=True)


@dataclass(frozen=True, slots=True)
class Sponsored:
    """An agent with 100 USDC and no ether on Base, and the service that submits its transfers."""

    agent: Agent
    driver: EvmDriver

    @property
    def node(self) -> EvmNode:
        node: EvmNode = self.driver.node
        return node

    @property
    def chain(self) -> FaultyChain:
        return self.driver.chain

    def order(self, amount: str, **body: Any) -> dict[str, Any]:
        return {"amount": amount, "currency": "USDC", "chain": "base", "to": fresh_address(), **body}

    def send(self, amount: str, *, key: str | None = None, wait: int | None = None, **body: Any) -> Any:
        headers = {} if key is None else {"Idempotency_Key": key}
        headers |= {} if wait is None else {"Prefer": f"wait={wait}"}
        return self.agent.post(f"{self.agent.wallet_url}/transfer", self.order(amount, **body), **headers)

    def refusal(self, amount: str, **body: Any) -> dict[str, Any]:
        """Return the details of a refused transfer, of which nothing was signed."""
        answer = self.send(amount, **body)
        assert answer.get_json()["code"] == "TRANSFER_FAILED", answer.get_json()
        with read_only_unit() as session:
            assert count(session, SignedAttempt) == 0
        assert self.agent.spent_this_month() == 0
        found: dict[str, Any] = answer.get_json()["details"]
        return found

    def dollars(self, address: str) -> int:
        return self.driver.dollars(address)

    def fees_received(self) -> int:
        return self.dollars(treasury.recipient(BASE))

    def lose_broadcasts(self) -> None:
        """Let the node miss what is broadcast from now on, but not what workers broadcast again."""
        self.chain.raising("broadcast", "before", Unreachable("node_down"), times=100)

    def submission_calls(self) -> list[bytes]:
        """Return the calls of the only submission, as anyone can read them once it was broadcast."""
        with read_only_unit() as session:
            terms = session.scalars(
                select(SignedAttempt.terms)
                .join(Transaction, Transaction.id == SignedAttempt.transaction_id)
                .where(Transaction.kind == SUBMISSION_KIND)
            ).one()
        (inner,) = contracts.AGGREGATE.decode(bytes.fromhex(terms["call_data"]))
        return [data for _target, _may_fail, data in inner]

    def submit_alone(self, call: bytes) -> None:
        """Submit one authorization without the other, as a front-runner does."""
        rich = self.node.rpc("eth_accounts")[1]
        sent = {"from": rich, "to": self.node.deployment.usdc, "data": "0x" + call.hex(), "gas": hex(200_000)}
        await_mined(self.node, str(self.node.rpc("eth_sendTransaction", sent)))

    def front_run(self, which: int) -> tuple[str, dict[str, dict[str, Any]]]:
        """Send a transfer while another party submits one of its calls: the amount's or the fee's."""
        to = fresh_address()
        self.lose_broadcasts()
        self.send("3", to=to, wait=1)
        self.submit_alone(self.submission_calls()[which])
        self.run_workers()
        self.run_workers(minutes=3)
        return to, self.rows()

    def run_workers(self, *, minutes: int = 1) -> None:
        self.driver.run_workers(minutes=minutes)

    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["type"]: row for row in self.agent.history()}


@pytest.fixture
def sponsored(
    build_app: Callable[..., Flask], sqlite_url: str, driver: EvmDriver, settings: dict[str, Any]
) -> Iterator[Sponsored]:
    with sponsored_on(build_app, sqlite_url, driver, dollars=100, **settings) as agent:
        yield Sponsored(agent, driver)


def test_a_wallet_without_ether_transfers_usdc_and_pays_the_fee_in_usdc(sponsored: Sponsored) -> None:
    to = fresh_address()
    quoted = sponsored.send("12.5", to=to, dry_run=True).get_json()
    answer = sponsored.send("12.5", to=to)
    body = answer.get_json()
    assert (answer.status_code, body["status"]) == (200, "confirmed"), body
    sponsored.run_workers()
    fee = usdc(float(body["gas_fee"]))
    assert 0 < fee < usdc(0.1)
    assert fee == pytest.approx(usdc(float(quoted["gas_fee"])), rel=0.5)
    assert float(quoted["network_fee"]) == 0
    assert sponsored.dollars(to) == usdc(12.5)
    assert sponsored.fees_received() == fee
    assert sponsored.dollars(sponsored.agent.address) == usdc(87.5) - fee
    assert sponsored.agent.spent_this_month() == pytest.approx(12.5 + fee / 10**6)
    rows = sponsored.rows()
    assert rows["transfer"]["tx_hash"] == rows["payment"]["tx_hash"] == body["tx_hash"]
    assert (rows["payment"]["kind"], rows["payment"]["status"]) == ("gas", "confirmed")
    assert rows["payment"]["amount"] == rows["transfer"]["gas_fee"] == body["gas_fee"]


def test_a_top_up_and_a_withdrawal_need_no_ether(sponsored: Sponsored) -> None:
    withdrawn = sponsored.agent.post(f"{sponsored.agent.wallet_url}/withdraw", sponsored.order("5")).get_json()
    assert (withdrawn["status"], withdrawn["type"]) == ("confirmed", "withdrawal"), withdrawn
    body = {"wallet_id": sponsored.agent.wallet_id, "chain": "base", "amount": "7"}
    topped_up = sponsored.agent.post("/v1/credits/topup", body).get_json()
    assert topped_up["status"] == "confirmed", topped_up
    assert sponsored.fees_received() > usdc(7)


def test_an_observer_sees_that_the_service_submits_and_the_wallet_never_has_ether(sponsored: Sponsored) -> None:
    observer, to = Web3(Web3.HTTPProvider(sponsored.node.url)), fresh_address()
    agent, sent = sponsored.agent, sponsored.send("3", to=to).get_json()
    receipt = observer.eth.get_transaction_receipt(sent["tx_hash"])
    assert (receipt["status"], receipt["from"]) == (1, treasury.settler(BASE))
    moved = [
        (log["topics"][1][-20:], log["topics"][2][-20:], int.from_bytes(log["data"]))
        for log in receipt["logs"]
        if log["topics"][0] == Web3.keccak(text="Transfer(address,address,uint256)")
    ]
    wallet, fee = bytes.fromhex(agent.address[2:]), usdc(float(sent["gas_fee"]))
    paid_to = (bytes.fromhex(to[2:]), bytes.fromhex(treasury.recipient(BASE)[2:]))
    assert moved == [(wallet, paid_to[0], usdc(3)), (wallet, paid_to[1], fee)]
    address = Web3.to_checksum_address(agent.address)
    assert (observer.eth.get_balance(address), observer.eth.get_transaction_count(address)) == (0, 0)


@pytest.mark.parametrize("settings", [{"sponsored_free_per_day": 1}], indirect=True)
def test_the_first_transfers_of_a_day_are_free(sponsored: Sponsored) -> None:
    first, second = sponsored.send("1").get_json(), sponsored.send("1").get_json()
    assert first["gas_fee"] == "0"
    assert float(second["gas_fee"]) > 0
    assert sponsored.fees_received() == usdc(float(second["gas_fee"]))


@pytest.mark.parametrize(
    "settings", [{"sponsored_free_per_day": 1, "sponsored_free_usd_per_day": "0.000001"}], indirect=True
)
def test_many_agents_get_no_more_for_free_than_the_service_gives_away_in_a_day(sponsored: Sponsored) -> None:
    assert float(sponsored.send("1", dry_run=True).get_json()["gas_fee"]) > 0
    assert float(sponsored.send("1").get_json()["gas_fee"]) > 0


@pytest.mark.parametrize("settings", [{"sponsored_free_per_day": 9, "sponsored_free_usd_per_day": "1"}], indirect=True)
def test_what_is_given_away_in_a_day_is_counted_in_dollars(sponsored: Sponsored) -> None:
    plan = gas.plan_submission(BASE, sponsored.agent.address, "0x" + "77" * 20, usdc(1))
    # Three for 30 cents are not three of the cheapest.
    for cost_usd, is_free in (("0.3", True), ("0.3", True), ("0.3", True), ("0.2", False), ("0.1", True), ("0", True)):
        priced = replace(plan, cost_nanos=nanos_from_usd(Decimal(cost_usd)))
        for counts in (False, True):
            with unit_of_work() as session:
                assert gas.is_free(session, priced, sponsored.agent.id, counts=counts) is is_free


@pytest.mark.parametrize("settings", [{"sponsored_per_day": 2}], indirect=True)
def test_the_service_submits_no_more_than_its_transfers_of_a_day(sponsored: Sponsored) -> None:
    for _ in range(2):
        assert sponsored.send("1").status_code == 200
    refused = sponsored.send("1").get_json()
    assert refused["details"]["reason"] == "sponsored_limit"
    assert sponsored.send("1", dry_run=True).get_json()["details"]["reason"] == "sponsored_limit"
    # The other way is not closed.
    fund(sponsored.node, sponsored.agent.address, eth=1)
    own = sponsored.send("1").get_json()
    assert (own["status"], own["gas_fee"]) == ("confirmed", None)


def test_the_wallet_pays_the_network_itself_when_it_can_or_is_asked_to(sponsored: Sponsored) -> None:
    assert sponsored.refusal("1", gas="own")["reason"] == "insufficient_gas"
    fund(sponsored.node, sponsored.agent.address, eth=1)
    assert sponsored.send("1").get_json()["gas_fee"] is None
    assert float(sponsored.send("1", gas="sponsored").get_json()["gas_fee"]) > 0
    invalid = sponsored.send("0.1", gas="sponsored", currency="ETH")
    assert (invalid.status_code, list(invalid.get_json()["details"]["fields"])) == (400, ["gas"])
    assert sponsored.send("1", gas="free").status_code == 400


def test_a_sponsor_with_little_ether_refuses_before_anything_is_signed(sponsored: Sponsored) -> None:
    settler, rich = treasury.settler(BASE), ether(0.000001)
    sponsored.node.rpc("anvil_setBalance", settler, hex(rich))
    app_state().part(SettlementCapacityCache).clear()
    assert sponsored.refusal("1", gas="sponsored")["reason"] == "gas_unavailable"
    # Otherwise the wallet learns what it lacks to pay itself.
    details = sponsored.refusal("1")
    assert (details["reason"], details["currency"]) == ("insufficient_gas", "ETH")
    assert sponsored.send("1", dry_run=True).get_json()["details"]["reason"] == "insufficient_gas"


def test_a_fee_that_exceeds_the_amount_or_the_balance_is_refused(sponsored: Sponsored) -> None:
    sponsored.agent.unlimited()
    details = sponsored.refusal("0.000001")
    assert details["reason"] == "gas_fee_too_high"
    assert float(details["fee"]) > float(details["amount"])
    details = sponsored.refusal("100")
    assert (details["reason"], details["available"]) == ("insufficient_funds", "100")


def test_the_fee_counts_against_the_limits(sponsored: Sponsored) -> None:
    sponsored.agent.controls(daily_limit_usd=10)
    assert sponsored.send("10").get_json()["code"] == "DAILY_LIMIT_EXCEEDED"
    assert sponsored.send("9.5").status_code == 200


def test_a_retry_gets_the_same_transfer(sponsored: Sponsored) -> None:
    to = fresh_address()
    first, second = (sponsored.send("3", to=to, key="one").get_json() for _ in range(2))
    assert first["transaction_id"] == second["transaction_id"]
    assert sponsored.dollars(to) == usdc(3)
    assert len(sponsored.agent.history()) == 2


def test_a_submission_that_was_lost_is_broadcast_again_and_pays_once(sponsored: Sponsored) -> None:
    to = fresh_address()
    sponsored.agent.unlimited()
    sponsored.lose_broadcasts()
    answer = sponsored.send("3", to=to, wait=1)
    assert answer.get_json()["status"] == "pending"
    # What is held is not available for another one.
    assert sponsored.send("98").get_json()["details"]["reason"] == "insufficient_funds"
    sponsored.run_workers()
    sponsored.run_workers(minutes=3)
    assert {row["status"] for row in sponsored.rows().values() if row["amount"] != "98"} == {"confirmed"}
    assert sponsored.dollars(to) == usdc(3)


@_own_node
def test_a_front_runner_who_takes_the_fee_alone_does_not_prevent_the_transfer(sponsored: Sponsored) -> None:
    to, rows = sponsored.front_run(1)
    assert (rows["transfer"]["status"], rows["payment"]["status"]) == ("confirmed", "confirmed")
    assert rows["transfer"]["tx_hash"] != rows["payment"]["tx_hash"]
    assert sponsored.dollars(to) == usdc(3)
    assert sponsored.fees_received() == usdc(float(rows["payment"]["amount"]))


@_own_node
def test_a_front_runner_who_submits_the_transfer_alone_pays_it_once_and_frees_the_fee(sponsored: Sponsored) -> None:
    to, rows = sponsored.front_run(0)
    assert (rows["transfer"]["status"], rows["payment"]["status"]) == ("confirmed", "pending")
    sponsored.driver.expire()
    sponsored.run_workers(minutes=20)
    rows = sponsored.rows()
    assert (rows["transfer"]["status"], rows["payment"]["error"]) == ("confirmed", "expired")
    assert sponsored.dollars(to) == usdc(3)
    assert sponsored.fees_received() == 0
    assert sponsored.agent.spent_this_month() == 3


@_own_node
def test_what_is_never_submitted_is_held_until_it_certainly_never_will_be(sponsored: Sponsored) -> None:
    sponsored.lose_broadcasts()
    sponsored.chain.raising("rebroadcast", "before", Unreachable("node_down"), times=100)
    sponsored.send("3", wait=1)
    sponsored.node.rpc("evm_increaseTime", 700)
    sponsored.node.mine(1)
    sponsored.run_workers(minutes=20)
    # A reorg could still put it into a block from before its end.
    assert {row["status"] for row in sponsored.rows().values()} == {"pending"}
    assert sponsored.agent.spent_this_month() > 3
    sponsored.driver.expire()
    sponsored.run_workers(minutes=40)
    assert {row["error"] for row in sponsored.rows().values()} == {"expired"}
    assert sponsored.agent.spent_this_month() == 0


@_own_node
def test_a_reorg_of_the_submission_pays_amount_and_fee_once(sponsored: Sponsored) -> None:
    to = fresh_address()
    # What was funded stays.
    sponsored.node.mine(5)
    fee = usdc(float(sponsored.send("3", to=to).get_json()["gas_fee"]))
    sponsored.node.reorg(3)
    assert sponsored.dollars(to) == 0
    sponsored.run_workers()
    assert {row["status"] for row in sponsored.rows().values()} == {"pending"}
    sponsored.run_workers(minutes=3)
    sponsored.run_workers(minutes=6)
    assert {row["status"] for row in sponsored.rows().values()} == {"confirmed"}
    assert sponsored.dollars(to) == usdc(3)
    assert sponsored.fees_received() == fee
    assert sponsored.agent.spent_this_month() == pytest.approx(3 + fee / 10**6)


def test_all_dollars_leave_less_the_fee_of_the_service(sponsored: Sponsored) -> None:
    # The fee falls with the load of the chain.
    sponsored.agent.controls(per_tx_limit_usd=99.999999)
    body = sponsored.send("max", to=(to := fresh_address())).get_json()
    assert body["status"] == "confirmed", body
    assert usdc(Decimal(body["amount"]) + Decimal(body["gas_fee"])) == usdc(100)
    assert (sponsored.dollars(to), sponsored.dollars(sponsored.agent.address)) == (usdc(Decimal(body["amount"])), 0)
