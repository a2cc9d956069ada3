"""Wallets whose keys somebody else has, too: what is signed elsewhere breaks neither payments nor deposits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
import time_machine
from eth_account import Account
from eth_utils.address import to_checksum_address
from flask import Flask

from app.adapters.evm.deposits import native
from app.core import clock
from app.core.chains import SOL, USDC, ChainName
from app.core.money import TokenAmount
from app.db.tables import update_rows
from app.db.unit_of_work import snapshot, unit_of_work
from app.ports.chain import TransferIntent
from app.wallets.core import custody
from app.wallets.core.models import Wallet
from app.wallets.deposits import scanner
from app.wallets.maintenance import audit
from app.wallets.transactions import confirmation
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.applications import change_settings
from tests.support.chains import RECIPIENT, fund, usdc
from tests.support.deposit_stages import Stage, deposit_stage
from tests.support.evm import await_mined
from tests.support.phrases import phrase_of
from tests.support.solana import fund_solana, running_solana, solana_address, solana_chain

pytestmark = pytest.mark.chain
Account.enable_unaudited_hdwallet_features()
GWEI = 10**9


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Stage]:
    with EvmNode(ChainName.BASE.value, slots_in_an_epoch=4) as node, deposit_stage(build_app, sqlite_url, node) as made:
        fund(node, made.agent.address, eth=1, dollars=100)
        made.agent.unlimited()
        made.settle()
        yield made


def sign_elsewhere(stage: Stage, *, nonce: int, wei: int = 1, tip: int = 5 * GWEI) -> str:
    """Send ether from the wallet as MetaMask would, which has its phrase."""
    signer = Account.from_mnemonic(phrase_of(stage.agent.wallet_id))
    assert signer.address == stage.agent.address
    fields = {
        "type": 2, "chainId": int(stage.node.rpc("eth_chainId"), 16), "nonce": nonce, "gas": 21_000, "data": b"",
        "to": to_checksum_address(RECIPIENT), "value": wei, "maxFeePerGas": 100 * GWEI, "maxPriorityFeePerGas": tip,
    }  # fmt: skip
    raw = signer.sign_transaction(fields).raw_transaction
    sent: str = stage.node.rpc("eth_sendRawTransaction", "0x" + raw.hex())
    return sent


def leave_pending(stage: Stage) -> dict[str, Any]:
    """Pay 2 USDC while no block is mined, without waiting for one."""
    stage.node.set_automine(False)
    usual = stage.app.state.settings.confirmation_wait_seconds
    change_settings(stage.app, confirmation_wait_seconds=Decimal(0))
    waiting: dict[str, Any] = stage.agent.move("2", "USDC").get_json()
    change_settings(stage.app, confirmation_wait_seconds=usual)
    assert waiting["status"] == "pending"
    return waiting


def look(minutes: int) -> None:
    with time_machine.travel(clock.now().timestamp() + 60 * minutes, tick=True):
        confirmation.confirm(ChainName.BASE)


def test_payments_use_the_nonces_after_those_that_were_used_elsewhere(stage: Stage) -> None:
    for nonce in (0, 1):
        await_mined(stage.node, sign_elsewhere(stage, nonce=nonce))
    assert stage.agent.move("2", "USDC").get_json()["status"] == "confirmed"
    await_mined(stage.node, sign_elsewhere(stage, nonce=3))
    assert stage.agent.move("3", "USDC").get_json()["status"] == "confirmed"
    assert stage.agent.spent_this_month() == 5


def test_a_payment_whose_nonce_is_used_elsewhere_fails_and_the_next_one_is_paid(stage: Stage) -> None:
    waiting = leave_pending(stage)
    elsewhere = sign_elsewhere(stage, nonce=0, tip=50 * GWEI)
    stage.node.set_automine(True)
    stage.node.mine(1)
    await_mined(stage.node, elsewhere)
    look(1)
    assert stage.agent.transaction(waiting["transaction_id"])["status"] == "pending"
    stage.node.mine(20)
    look(2)
    row = stage.agent.transaction(waiting["transaction_id"])
    assert (row["status"], row["error"]) == ("failed", "slot_taken")
    assert stage.agent.spent_this_month() == 0
    assert stage.agent.move("2", "USDC").get_json()["status"] == "confirmed"
    assert stage.node.rpc("eth_getTransactionCount", stage.agent.address, "latest") == "0x2"


def test_what_was_spent_elsewhere_is_neither_paid_again_nor_counted_and_no_deposit_is_invented(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Somebody has the phrase, but not by this service.
    monkeypatch.setattr(native, "_GIVE_UP_AFTER_BLOCKS", 20)
    listed = len(stage.agent.history(kind="deposit"))
    await_mined(stage.node, sign_elsewhere(stage, nonce=0, wei=9 * 10**17))
    refused = stage.agent.move("0.5", "ETH")
    assert refused.status_code >= 400, refused.get_json()
    assert refused.get_json()["code"] != "INTERNAL_ERROR"
    assert stage.agent.spent_this_month() == 0
    # A deposit of USDC is found at once; one of ether only after the unknown nonce was given up.
    stage.pay(7)
    assert stage.settle() == 1
    stage.pay_wei(10**15)
    assert stage.settle() == 0
    stage.node.mine(30)
    assert stage.find() == 0
    stage.pay_wei(2 * 10**15)
    assert stage.settle() == 1
    found = [(each["currency"], each["amount"]) for each in stage.agent.history(kind="deposit")]
    assert found[: len(found) - listed] == [("ETH", "0.002"), ("USDC", "7")]
    with snapshot() as session:
        assert audit.check(session) == []


def test_once_a_wallet_is_marked_ether_is_listed_at_once_after_what_was_signed_elsewhere(stage: Stage) -> None:
    with unit_of_work() as session:
        update_rows(session, Wallet, Wallet.id == stage.agent.wallet_id, exported_at=clock.now())
    listed = len(stage.agent.history(kind="deposit"))
    await_mined(stage.node, sign_elsewhere(stage, nonce=0, wei=9 * 10**17))
    assert stage.settle() == 0
    # Less arrives than was spent before.
    stage.pay_wei(10**15)
    assert stage.settle() == 1
    waiting = leave_pending(stage)
    stage.node.set_automine(True)
    stage.node.mine(1)
    stage.pay_wei(2 * 10**15)
    # A payment of this service is waited for, as ever.
    assert stage.settle() == 0
    look(1)
    assert stage.settle() == 1
    assert stage.agent.transaction(waiting["transaction_id"])["status"] == "confirmed"
    found = [(each["currency"], each["amount"]) for each in stage.agent.history(kind="deposit")]
    assert found[: len(found) - listed] == [("ETH", "0.002"), ("ETH", "0.001")]
    with snapshot() as session:
        assert audit.check(session) == []


def test_on_solana_what_was_spent_elsewhere_is_no_deposit_and_hides_none(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    with running_solana(slot_ms=0) as node:
        node.advance(40)
        chain = solana_chain(node)
        app = build_app(
            sqlite_url, chains={ChainName.SOLANA: chain}, settings={"confirmation_wait_seconds": "0"}
        )  # fmt: skip
        with app.app_context():
            agent = register(app.test_client())
            agent.unlimited()
            fund_solana(node, agent.solana_address, sol=1, dollars=20)
            node.advance(40)
            assert scanner.scan(ChainName.SOLANA) == 2
            signer = custody.signer_of(agent.wallet_id)
            for spent in (TokenAmount(10**8, SOL), TokenAmount(usdc(5), USDC)):
                draft = chain.draft(TransferIntent(agent.solana_address, solana_address(), spent))
                chain.broadcast(chain.sign(draft, signer, sequence=None).raw)
                node.advance(2)
            node.mint_usdc(agent.solana_address, 3_000_000)
            node.advance(40)
            assert scanner.scan(ChainName.SOLANA) == 1
            assert agent.history()[0]["amount"] == "3"
            body = agent.move("16", "USDC", chain="solana", to=solana_address()).get_json()
            assert body.get("status") in ("pending", "confirmed"), body
            refused = agent.move("16", "USDC", chain="solana", to=solana_address())
            assert refused.get_json()["details"]["available"] == "18"
