"""Payers with code in their accounts: what makes a submission fail in its block costs a bounded amount of gas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import time_machine
from eth_abi.abi import encode
from flask import Flask
from sqlalchemy import select
from werkzeug.test import TestResponse

from app.core import clock
from app.core.chains import ETH, ChainName
from app.core.money import usd_from_nanos
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.events.models import Event
from app.payments import claimed_payments
from app.payments.models import SettlementRisk
from app.payments.x402 import settlement
from app.wallets.views import history
from sandbox.evm import EvmNode
from tests.support.applications import change_settings
from tests.support.chains import evm_chain
from tests.support.payment_scenes import Scene, held_shop
from tests.support.payments import EvmPayer, offered, signed_headers
from tests.support.smart_wallets import SafePayer

pytestmark = pytest.mark.chain
BASE = ChainName.BASE
OTHER = "/v1/gateway/brave/web/search?q=another"

ACCEPTS_ALL = "0x631626ba7e60e01b60005260206000f3"
BURNS_ALL = "0x5b600056"
ACCEPTS_AT_NO_PRICE = "0x3a601457631626ba7e60e01b60005260206000f35b601456"
"""Accepts every signature while `tx.gasprice` is zero, as it is in a simulation without fees, and loops otherwise."""


@pytest.fixture
def scene(build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode) -> Iterator[Scene]:
    with held_shop(build_app, sqlite_url, own_base_node, evm_chain(own_base_node)) as made:
        yield made


def set_code(node: EvmNode, payer: EvmPayer, code: str) -> None:
    node.rpc("anvil_setCode", payer.address, code)


def reason(answer: TestResponse) -> str:
    assert answer.status_code == 402, answer.get_data(as_text=True)
    found: str = answer.get_json().get("details", {}).get("reason", answer.get_json()["code"])
    return found


def burn(scene: Scene, node: EvmNode, payer: EvmPayer, *, path: str | None = None) -> dict[str, str]:
    """Have a payer's code accept a payment in the simulation, and burn all gas in the block."""
    set_code(node, payer, ACCEPTS_ALL)
    headers = payer.pays(scene.shop.ask())
    scene.chain.fail("broadcast", "before", lambda: set_code(node, payer, BURNS_ALL))
    answer = scene.shop.ask(headers) if path is None else scene.shop.ask(headers, path=path)
    assert (answer.status_code, answer.get_json()["code"]) == (503, "PAYMENT_PENDING")
    return headers


def end(scene: Scene, node: EvmNode) -> None:
    """Make what has happened final."""
    scene.land()
    node.mine(80)
    scene.land()


def risks() -> list[SettlementRisk]:
    with read_only_unit() as session:
        return list(session.scalars(select(SettlementRisk)))


def test_a_contract_with_unknown_code_makes_the_service_submit_nothing(scene: Scene, own_base_node: EvmNode) -> None:
    unpaid = scene.shop.ask()
    payer, headers = EvmPayer(own_base_node), []
    for code in (ACCEPTS_AT_NO_PRICE, ACCEPTS_ALL):
        set_code(own_base_node, payer, code)
        payload = payer.authorize(offered(unpaid))
        payload["signature"] = "0x" + "5a" * 80
        headers.append(signed_headers(offered(unpaid), payload))
        for _ in range(3):
            answer = scene.shop.ask(headers[-1])
            assert reason(answer) == "wallet_not_supported"
            assert "transaction hash" in answer.get_json()["error"]
    assert (scene.submissions(), scene.shop.claims()) == (0, set())


def test_code_that_looks_at_the_gas_price_sees_the_one_that_will_be_signed(
    scene: Scene, own_base_node: EvmNode
) -> None:
    # The payer signs with its key, and its account has delegated to this code (EIP-7702).
    payer = EvmPayer(own_base_node)
    set_code(own_base_node, payer, ACCEPTS_AT_NO_PRICE)
    assert scene.shop.ask(payer.pays(scene.shop.ask())).status_code == 402
    assert scene.submissions() == 0


def test_a_key_with_code_in_its_account_pays_if_that_accepts_it(scene: Scene, own_base_node: EvmNode) -> None:
    payer = EvmPayer(own_base_node)
    set_code(own_base_node, payer, ACCEPTS_ALL)
    headers = payer.pays(scene.shop.ask())
    assert scene.shop.ask(headers).status_code == 503
    assert [(each.risky, each.failed) for each in risks()] == [(True, False)]
    scene.land()
    assert scene.shop.ask(headers).status_code == 200
    assert risks() == []


def test_a_payment_that_failed_in_its_block_is_never_submitted_again_and_its_payer_is_refused_for_a_day(
    scene: Scene, own_base_node: EvmNode
) -> None:
    payer = EvmPayer(own_base_node)
    settler = scene.shop.settler(BASE)
    headers = burn(scene, own_base_node, payer)
    end(scene, own_base_node)
    left = scene.chain.real.balances(settler).of(ETH).units
    set_code(own_base_node, payer, ACCEPTS_ALL)
    for _ in range(3):
        assert reason(scene.shop.ask(headers)) == "settlement_failed"
    answer = scene.shop.ask(payer.pays(scene.shop.ask()))
    assert reason(answer) == "payer_refused"
    assert "refused_until" in answer.get_json()["details"]
    assert reason(scene.shop.ask(payer.pays(scene.shop.ask()), path=OTHER)) == "payer_refused"
    assert scene.submissions() == 1
    assert scene.chain.real.balances(settler).of(ETH).units == left
    [risk] = risks()
    assert (risk.failed, risk.payer) == (True, payer.address)
    assert risk.cost_nanos > 0
    assert 'purser_settlement_failed_usd{chain="base"} 0.' in scene.shop.ask(path="/metrics").text
    with time_machine.travel(clock.now().timestamp() + 25 * 3600, tick=True):
        assert scene.shop.ask(payer.pays(scene.shop.ask())).status_code == 503


def test_an_outcome_that_another_process_recorded_first_settles_no_risk(scene: Scene, own_base_node: EvmNode) -> None:
    payer = EvmPayer(own_base_node)
    burn(scene, own_base_node, payer)
    [payment] = scene.shop.payments()
    with unit_of_work() as session:
        claimed_payments.mark_landed(session, payment, tx_hash="0x" + "11" * 32)
    end(scene, own_base_node)
    with scene.shop.app.app_context():
        view = history.current_view(str(payment.transaction_id))
        settlement._apply_outcome(payment, str(payment.transaction_id), view)
    assert view.status == "failed"
    assert [each.failed for each in risks()] == [False]


def test_many_payers_together_burn_no_more_than_the_days_budget_and_keys_still_pay(
    scene: Scene, own_base_node: EvmNode
) -> None:
    burn(scene, own_base_node, EvmPayer(own_base_node))
    [first] = risks()
    budget = first.cost_nanos * 5 // 2
    change_settings(scene.shop.app, x402_failed_gas_usd_per_day=usd_from_nanos(budget))
    burn(scene, own_base_node, EvmPayer(own_base_node))
    # Open submissions count with what they can cost at most.
    for _ in range(3):
        payer = EvmPayer(own_base_node)
        set_code(own_base_node, payer, ACCEPTS_ALL)
        answer = scene.shop.ask(payer.pays(scene.shop.ask()))
        assert reason(answer) == "risky_payments_paused"
    safe = SafePayer(own_base_node, is_deployed=True)
    assert reason(scene.shop.ask(safe.pays(scene.shop.ask()))) == "risky_payments_paused"
    assert scene.submissions() == 2
    assert sum(each.cost_nanos for each in risks()) <= budget
    with read_only_unit() as session:
        events = list(session.scalars(select(Event).where(Event.type == "payment.paused")))
    assert len(events) == 1
    key = EvmPayer(own_base_node).pays(scene.shop.ask())
    assert scene.shop.ask(key).status_code == 503
    scene.land()
    assert scene.shop.ask(key).status_code == 200


def test_several_payments_on_one_balance_are_not_submitted_together(scene: Scene, own_base_node: EvmNode) -> None:
    payer = EvmPayer(own_base_node, dollars=0.015)
    assert scene.shop.ask(payer.pays(scene.shop.ask())).status_code == 503
    scene.hold()
    second = EvmPayer(own_base_node, dollars=0.015)
    assert scene.shop.ask(second.pays(scene.shop.ask())).status_code == 503
    answer = scene.shop.ask(second.pays(scene.shop.ask()), path=OTHER)
    assert reason(answer) == "funds_in_use"
    assert "Retry-After" in answer.headers
    assert scene.submissions() == 2


def test_a_payment_that_is_valid_from_now_on_is_to_be_presented_again(scene: Scene, own_base_node: EvmNode) -> None:
    payer = EvmPayer(own_base_node)
    latest = int(own_base_node.rpc("eth_getBlockByNumber", "latest", False)["timestamp"], 16)  # noqa: FBT003 - JSON-RPC
    with time_machine.travel(latest, tick=True):
        answer = scene.shop.ask(payer.pays(scene.shop.ask(), validAfter=str(latest)))
        assert reason(answer) == "invalid_exact_evm_payload_authorization_valid_after"
        assert 1 <= int(answer.headers["Retry-After"]) <= 10
        later = scene.shop.ask(payer.pays(scene.shop.ask(), validAfter=str(latest + 100)))
        assert 100 <= int(later.headers["Retry-After"]) <= 110


HANDLER_SLOT = "0x6c9a6c4a39284e37ed1cf53d337577d14212a4870fb976a4366c693b939918d5"


@pytest.mark.parametrize("changed", ["singleton", "handler", "proxy", "owner signs as a contract"])
def test_a_safe_that_runs_foreign_code_is_not_submitted(scene: Scene, own_base_node: EvmNode, changed: str) -> None:
    payer = SafePayer(own_base_node, is_deployed=True)
    evil = EvmPayer(own_base_node).address
    own_base_node.rpc("anvil_setCode", evil, ACCEPTS_ALL)
    word = "0x" + evil[2:].lower().rjust(64, "0")
    payload = payer.authorize(offered(scene.shop.ask()))
    if changed == "singleton":
        own_base_node.rpc("anvil_setStorageAt", payer.address, "0x" + "0" * 64, word)
    elif changed == "handler":
        own_base_node.rpc("anvil_setStorageAt", payer.address, HANDLER_SLOT, word)
    elif changed == "proxy":
        code = own_base_node.rpc("eth_getCode", payer.address, "latest")
        own_base_node.rpc("anvil_setCode", payer.address, code + "00")
    else:
        static = evil[2:].lower().rjust(64, "0") + f"{65:064x}" + "00"
        payload["signature"] = "0x" + static + f"{1:064x}" + "5a"
    answer = scene.shop.ask(signed_headers(offered(scene.shop.ask()), payload))
    assert reason(answer) == "wallet_not_supported"
    assert scene.submissions() == 0


def safe_setup(owner: str, **changed: Any) -> bytes:
    zero = "0x" + "0" * 40
    fields = {
        "owners": [owner], "threshold": 1, "to": zero, "data": b"",
        "handler": "0xfd0732Dc9E303f09fCEf3a7388Ad10A83459Ec99", "token": zero, "payment": 0, "receiver": zero,
    }  # fmt: skip
    kinds = ["address[]", "uint256", "address", "bytes", "address", "address", "uint256", "address"]
    return bytes.fromhex("b63e800d") + encode(kinds, list((fields | changed).values()))


@pytest.mark.parametrize(
    "changed",
    [
        {"to": "0x" + "5afe" * 10},
        {"handler": "0x" + "5afe" * 10},
        {"payment": 1, "token": "0x" + "5afe" * 10},
        {"to": "0xBD89A1CE4DDe368FFAB0eC35506eEcE0b1fFdc54", "data": bytes(36)},
        "singleton",
        "trailing",
    ],
    ids=str,
)
def test_a_wallet_is_not_submitted_if_its_deployment_runs_foreign_code(
    scene: Scene, own_base_node: EvmNode, changed: Any
) -> None:
    payer = SafePayer(own_base_node, is_deployed=False)
    singleton = "0x41675C099F32341bf84BFc5382aF534df5C7461a"
    setup = safe_setup(payer.account.address, **(changed if isinstance(changed, dict) else {}))
    if changed == "singleton":
        singleton = "0x" + "5afe" * 10
    call = bytes.fromhex("1688f0b9") + encode(["address", "bytes", "uint256"], [singleton, setup, 7])
    payer.deployment = call + (b"\x01" if changed == "trailing" else b"")
    answer = scene.shop.ask(payer.pays(scene.shop.ask()))
    assert reason(answer) == "eip6492_factory_not_allowed"
    assert scene.submissions() == 0
