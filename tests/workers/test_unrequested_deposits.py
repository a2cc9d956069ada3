"""Deposits without a funding request: listed once, announced, and never counted for a later request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import select, update

from app.adapters.evm.deposits import native
from app.core import clock
from app.core.chains import ETH, ChainName
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.db.unit_of_work import read_only_unit, snapshot, unit_of_work
from app.events.models import Event
from app.payments import treasury
from app.ports.chain import TransferIntent
from app.wallets.core import custody
from app.wallets.core.models import DepositScanState, Wallet
from app.wallets.deposits import scanner
from app.wallets.deposits.scan_states import Tier
from app.wallets.maintenance import audit
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import RECIPIENT
from tests.support.deposit_stages import DEPTH, Stage, deposit_stage
from tests.support.evm import chain_at, proxy

pytestmark = pytest.mark.chain
WEI = 10**15


@pytest.fixture
def stage(build_app: Callable[..., Flask], each_database_url: str) -> Iterator[Stage]:
    with (
        EvmNode(ChainName.BASE.value, slots_in_an_epoch=32) as node,
        deposit_stage(build_app, each_database_url, node) as made,
    ):
        yield made


def deposits(agent: Agent) -> list[tuple[str, str, str]]:
    """Return the deposits of a wallet: amount, currency and status, oldest first."""
    listed = agent.history(kind="deposit")
    return [(entry["amount"], entry["currency"], entry["status"]) for entry in reversed(listed)]


def announced() -> list[tuple[str, dict[str, Any]]]:
    with read_only_unit() as session:
        rows = session.execute(
            select(Event.type, Event.data).where(Event.type.like("funding.%")).order_by(Event.number)
        )
        return [(row.type, row.data) for row in rows]


def violations() -> list[str]:
    with snapshot() as session:
        return audit.check(session)


def find(stage: Stage, tier: Tier) -> int:
    stage.node.mine(DEPTH - 1)
    return scanner.scan(ChainName.BASE, tier)


def test_what_arrives_at_a_new_wallet_is_listed_and_announced_once(stage: Stage) -> None:
    tx_hash = stage.pay(7)
    direct = stage.pay_wei(WEI)
    stage.pay_wei_from_a_contract(2 * WEI)
    assert stage.settle() == 3
    assert deposits(stage.agent) == [
        ("7", "USDC", "confirmed"), ("0.001", "ETH", "confirmed"), ("0.002", "ETH", "confirmed"),
    ]  # fmt: skip
    by_amount = {entry["amount"]: entry for entry in stage.agent.history()}
    assert by_amount["7"]["tx_hash"] == tx_hash
    assert by_amount["7"]["from_address"]
    assert by_amount["7"]["to_address"] == stage.agent.address
    assert by_amount["0.001"]["tx_hash"] == direct
    assert by_amount["0.002"]["tx_hash"] is None
    assert [event for event, _ in announced()] == ["funding.received"] * 3
    assert announced()[0][1]["amount"] == "7"
    stage.pay(1, agent=register(stage.agent.client))
    assert [scanner.scan(ChainName.BASE, tier) for tier in Tier] == [0, 0, 0]
    assert find(stage, Tier.ACTIVE) == 1
    assert len(deposits(stage.agent)) == 3
    assert violations() == []


def test_what_is_paid_beyond_a_request_is_a_deposit(stage: Stage) -> None:
    request = stage.ask("5")
    stage.pay(9)
    stage.settle()
    assert stage.status(request) == ["confirmed"]
    assert deposits(stage.agent) == [("4", "USDC", "confirmed")]
    assert [event for event, _ in announced()] == ["funding.pending", "funding.confirmed", "funding.received"]
    assert violations() == []


@pytest.mark.parametrize("tier", list(Tier))
def test_ether_of_a_contract_before_a_request_does_not_fulfil_it_and_after_it_does(stage: Stage, tier: Tier) -> None:
    stage.settle()
    stage.pay_wei_from_a_contract(WEI)
    early = stage.ask("0.001", "ETH")
    assert find(stage, tier) == 1
    assert stage.status(early) == ["pending"]
    assert deposits(stage.agent) == [("0.001", "ETH", "confirmed")]
    stage.node.mine(1)
    late = stage.ask("0.001", "ETH")
    stage.pay_wei_from_a_contract(2 * WEI)
    assert find(stage, tier) == 1
    assert stage.status(early, late) == ["confirmed", "confirmed"]
    assert len(deposits(stage.agent)) == 1
    # Before and after two requests, found by one scan.
    stage.pay_wei_from_a_contract(3 * WEI)
    first = stage.ask("0.004", "ETH")
    stage.pay_wei_from_a_contract(4 * WEI)
    second = stage.ask("0.005", "ETH")
    stage.pay_wei_from_a_contract(6 * WEI)
    assert find(stage, tier) == 3
    assert stage.status(first, second) == ["confirmed", "confirmed"]
    assert deposits(stage.agent)[1:] == [("0.003", "ETH", "confirmed"), ("0.001", "ETH", "confirmed")]


def test_own_payments_swaps_of_nonces_and_fees_are_no_deposits(stage: Stage) -> None:
    stage.agent.unlimited()
    stage.pay_wei(1000 * WEI)
    stage.pay(10)
    assert stage.settle() == 2
    for amount, currency, to in (("0.1", "ETH", RECIPIENT), ("2", "USDC", stage.agent.address)):
        assert stage.agent.move(amount, currency, to=to).get_json()["status"] == "confirmed"
    stage.pay_wei_from_a_contract(WEI)
    assert stage.settle() == 1
    assert deposits(stage.agent)[2:] == [("0.001", "ETH", "confirmed")]
    stage.node.mine(400)
    assert [scanner.scan(ChainName.BASE, tier) for tier in Tier] == [0, 0, 0]


def test_a_transfer_between_two_wallets_of_the_service_is_a_deposit_of_the_second(stage: Stage) -> None:
    second = register(stage.agent.client)
    stage.agent.unlimited()
    stage.pay_wei(1000 * WEI)
    stage.pay(10)
    stage.settle()
    moved = stage.agent.move("2.5", "USDC", to=second.address).get_json()
    stage.settle()
    assert deposits(second) == [("2.5", "USDC", "confirmed")]
    assert second.history()[0]["tx_hash"] == moved["tx_hash"]
    assert second.history()[0]["from_address"] == stage.agent.address


def test_a_deposit_in_an_orphaned_block_fails_and_is_listed_again_when_it_lands_again(stage: Stage) -> None:
    tx_hash = stage.pay(3)
    stage.pay_wei_from_a_contract(WEI)
    stage.settle()
    for tier in Tier:
        scanner.scan(ChainName.BASE, tier)
    stage.reorganise(DEPTH + 2)
    stage.find()
    assert deposits(stage.agent) == [("3", "USDC", "failed"), ("0.001", "ETH", "failed")]
    assert stage.agent.history()[0]["error"] == "reorganised"
    again = stage.pay(3)
    assert again != tx_hash
    stage.settle()
    assert [each for each in deposits(stage.agent) if each[2] == "confirmed"] == [("3", "USDC", "confirmed")]
    names = [event for event, _ in announced()]
    assert sorted(names) == ["funding.failed"] * 2 + ["funding.received"] * 3
    assert violations() == []


def test_a_wallet_that_is_not_used_for_a_month_is_scanned_with_all_and_after_a_read_soon_again(stage: Stage) -> None:
    stage.settle()
    find(stage, Tier.ACTIVE)
    with time_machine.travel(clock.now() + timedelta(days=31), tick=True):
        register(stage.agent.client)
        stage.pay(1)
        assert find(stage, Tier.ACTIVE) == 0
        assert find(stage, Tier.ALL) == 1
        stage.pay(2)
        assert find(stage, Tier.ACTIVE) == 0
        assert deposits(stage.agent) == [("1", "USDC", "confirmed")]  # this read makes it active
        # The position of the tier is beyond the second deposit, so that only the scan of all wallets finds it.
        stage.pay(3)
        assert find(stage, Tier.ACTIVE) == 1
        assert find(stage, Tier.ALL) == 1
        assert sorted(amount for amount, _, _ in deposits(stage.agent)) == ["1", "2", "3"]


def test_nonces_that_a_restored_database_does_not_know_hide_later_deposits_for_a_while_only(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_GIVE_UP_AFTER_BLOCKS", 20)
    stage.pay_wei(1000 * WEI)
    stage.settle()
    intent = TransferIntent(stage.agent.address, stage.agent.address, TokenAmount(WEI, ETH))
    chain = stage.chain.real
    draft = chain.draft(intent)
    chain.broadcast(chain.sign(draft, custody.signer_of(stage.agent.wallet_id), sequence=0).raw)
    stage.pay_wei_from_a_contract(WEI)
    assert stage.settle() == 0
    stage.node.mine(30)
    assert stage.find() == 0
    stage.pay_wei_from_a_contract(2 * WEI)
    assert stage.settle() == 1
    assert deposits(stage.agent)[1:] == [("0.002", "ETH", "confirmed")]


def test_what_a_wallet_from_before_these_scans_holds_is_no_deposit(stage: Stage) -> None:
    stage.pay(50)
    stage.pay_wei(WEI)
    with unit_of_work() as session:
        session.execute(update(Wallet).values(new_to_scans=False))
    assert find(stage, Tier.ACTIVE) == 0
    stage.pay(2)
    stage.pay_wei_from_a_contract(WEI)
    assert find(stage, Tier.ACTIVE) == 2
    assert deposits(stage.agent) == [("2", "USDC", "confirmed"), ("0.001", "ETH", "confirmed")]


def test_what_the_service_earns_is_not_listed_as_deposits(stage: Stage) -> None:
    address = treasury.recipient(ChainName.BASE)
    stage.node.fund_usdc(address, 5_000_000)
    assert stage.settle() == 0
    with read_only_unit() as session:
        scanned = session.scalars(select(DepositScanState.wallet_id)).all()
        assert list(scanned) == [stage.agent.wallet_id]


def test_dust_and_zero_transfers_change_no_total(stage: Stage) -> None:
    stage.pay(0)
    stage.pay(0.000001)
    assert stage.settle() == 1
    assert deposits(stage.agent) == [("0.000001", "USDC", "confirmed")]


def test_two_scans_of_different_tiers_record_a_deposit_once(stage: Stage) -> None:
    stage.ask("1")
    stage.pay(5)
    stage.node.mine(DEPTH - 1)
    found: list[int] = []
    stage.chain.fail("deposits", "after", lambda: found.append(scanner.scan(ChainName.BASE, Tier.OPEN)))
    found.append(scanner.scan(ChainName.BASE, Tier.ALL))
    found.append(scanner.scan(ChainName.BASE, Tier.ALL))
    assert sum(found) == 1
    assert deposits(stage.agent) == [("4", "USDC", "confirmed")]
    assert violations() == []


def test_a_scan_of_a_thousand_wallets_takes_few_requests(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with EvmNode(ChainName.BASE.value) as node, proxy(node.url) as relay:
        app = build_app(sqlite_url, chains={ChainName.BASE: chain_at(node, relay.url)})
        with app.app_context():
            agent = register(app.test_client())
            with unit_of_work() as session:
                now = clock.now()
                for number in range(1000):
                    values = {
                        "id": new_id(), "agent_id": agent.id, "name": "w", "evm_address": f"0x{number + 1:040x}",
                        "solana_address": f"address {number}", "transaction_count": 0, "created_at": now,
                        "active_at": now, "new_to_scans": True,
                    }  # fmt: skip
                    session.add(Wallet(**values))
            node.mine(DEPTH)
            for tier in (Tier.ACTIVE, Tier.ALL):
                scanner.scan(ChainName.BASE, tier)
                node.mine(50)
                relay.requests.clear()
                assert scanner.scan(ChainName.BASE, tier) == 0
                # Three blocks, and three requests for each 500 wallets: USDC, native tokens, and all other tokens.
                assert len(relay.methods()) <= 13, relay.methods()
