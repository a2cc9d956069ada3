"""Attacks on payments of the scheme `upto`: by payers, by networks, and by processes that die or stall."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from eth_abi.abi import encode
from eth_utils.abi import function_signature_to_4byte_selector
from flask import Flask
from sqlalchemy import update

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts.deployments import PERMIT2
from app.core import clock
from app.core.chains import ChainName
from app.db.unit_of_work import unit_of_work
from app.payments import claimed_payments
from app.payments.models import Payment
from app.payments.x402 import metered
from app.usage import service as usage
from app.usage.service import MeteredUsage, UsageCall
from sandbox.evm import EvmNode
from tests.api.test_payments_metered import (
    BASE,
    COST,
    PRICE,
    accepted,
    answers,
    chat,
    later,
    open_shop,
    states,
    work,
    work_until,
)  # fmt: skip
from tests.api.test_payments_signed import fund_settlement, reason, received
from tests.support.chains import evm_chain, fund
from tests.support.payments import EvmPayer, Shop, UptoPayer, decoded, encoded, shop
from tests.support.upstreams import Exchange
from tests.support.waiting import wait_until
from workers import sweeps

__all__ = ["open_shop"]
pytestmark = pytest.mark.chain
THIEF = "0x" + "77" * 20
PERMIT = "permit(address,address,uint256,uint256,uint8,bytes32,bytes32)"
DAY = 86_400


def assert_all_agree() -> None:
    assert sweeps.audit() == []


def stealing(payer: UptoPayer) -> Callable[[Exchange], None]:
    """Return an upstream during whose call the payer moves its funds away."""

    def behave(exchange: Exchange) -> None:
        payer.call_usdc("transfer", THIEF, 10**6)
        answers(exchange)

    return behave


def settled_after(made: Shop, seconds: float) -> list[tuple[str, int]]:
    """Let the workers settle what there is to settle, some seconds from now; return the states."""
    work(after=seconds)
    return states(made)


def begin(payment_id: str, *, estimate: int) -> None:
    """Hold what a payment states for a call, as a process does that dies or stalls then."""
    with unit_of_work() as session:
        usage.begin(
            session, payment_id, UsageCall(payment_id, "openai", "gpt-5"), hold_id=payment_id, nanos=PRICE * 1_000,
            estimate=MeteredUsage(estimate, 1, 1, "estimated"), lease=timedelta(seconds=30),
        )  # fmt: skip


_EXTENSIONS: list[Any] = [
    None, 0, "x", ["eip2612GasSponsoring"], {"eip2612GasSponsoring": 1}, {"eip2612GasSponsoring": "info"},
    {"eip2612GasSponsoring": {"info": []}}, {"eip2612GasSponsoring": {"info": {"amount": "1"}}},
    {"eip2612GasSponsoring": [{"info": {}}]},
]  # fmt: skip
_PAYLOADS: list[Any] = [
    {}, {"signature": 1}, {"permit2Authorization": None}, {"permit2Authorization": []},
    {"permit2Authorization": {"permitted": "x", "witness": 1}}, {"permit2Authorization": "from"},
]  # fmt: skip
_ACCEPTED: list[Any] = [{"scheme": ["upto"], "network": {}}, {"scheme": "upto", "network": ["eip155"]}]


def test_whatever_a_payment_contains_it_is_refused_as_the_clients_mistake(open_shop: Shop, base_node: EvmNode) -> None:
    document = decoded(UptoPayer(base_node).metered(chat(open_shop))["PAYMENT-SIGNATURE"])
    for member, values in (("extensions", _EXTENSIONS), ("payload", _PAYLOADS), ("accepted", _ACCEPTED)):
        for value in values:
            answer = chat(open_shop, {"PAYMENT-SIGNATURE": encoded({**document, member: value})})
            assert answer.status_code == 402, (member, value, answer.get_data(as_text=True))
            assert (open_shop.served(), open_shop.claims(), open_shop.payments()) == (0, set(), []), (member, value)


def test_signatures_of_other_forms_are_read_or_refused_and_pay_once(open_shop: Shop, base_node: EvmNode) -> None:
    payer, unpaid = UptoPayer(base_node), chat(open_shop)
    payer.call_usdc("approve", PERMIT2, 10**9)
    document = decoded(payer.metered(unpaid, with_allowance=False)["PAYMENT-SIGNATURE"])
    signature = bytes.fromhex(document["payload"]["signature"][2:])
    r, s, v = signature[:32], int.from_bytes(signature[32:64], "big"), signature[64]
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    compact = r + (s | (v - 27) << 255).to_bytes(32, "big")
    counted_from_0 = r + s.to_bytes(32, "big") + bytes([v - 27])
    other_s = r + (order - s).to_bytes(32, "big") + bytes([55 - v])

    def ask(form: bytes) -> Any:
        payload = {**document["payload"], "signature": "0x" + form.hex()}
        return chat(open_shop, {"PAYMENT-SIGNATURE": encoded({**document, "payload": payload})})

    for refused in (compact, signature[:64] + b"\x1d", b"", bytes(65), b"\xff" * 65, signature + b"\x00"):
        assert reason(ask(refused))[0] == "PAYMENT_INVALID"
    assert open_shop.claims() == set()
    assert ask(counted_from_0).status_code == 200
    for again in (signature, other_s):
        assert reason(ask(again))[0] == "PAYMENT_ALREADY_USED"
    assert (received(open_shop, BASE), open_shop.served()) == (COST, 1)


@pytest.mark.parametrize("change", ["amount", "owner", "spender", "deadline", "expired", "none"])
def test_an_allowance_that_does_not_suffice_for_the_whole_time_is_refused(
    open_shop: Shop, base_node: EvmNode, change: str
) -> None:
    payer, other, unpaid = UptoPayer(base_node), UptoPayer(base_node), chat(open_shop)
    document = decoded(payer.metered(unpaid)["PAYMENT-SIGNATURE"])
    soon = int(clock.now().timestamp()) + 60
    changed = {
        "amount": {"amount": str(10**9)},
        "owner": other._allowance(PRICE, 4_000_000_000),
        "spender": {**document["extensions"]["eip2612GasSponsoring"]["info"], "signature": "0x" + "11" * 64 + "1b"},
        "deadline": payer._allowance(PRICE, soon),
        "expired": payer._allowance(PRICE, soon - 120),
        "none": payer._allowance(0, 4_000_000_000),
    }[change]
    document["extensions"]["eip2612GasSponsoring"]["info"] |= changed
    answer = chat(open_shop, {"PAYMENT-SIGNATURE": encoded(document)})
    assert answer.status_code == 402, answer.get_data(as_text=True)
    assert (open_shop.served(), open_shop.claims()) == (0, set())


def test_an_allowance_that_another_party_submits_first_does_no_harm(open_shop: Shop, base_node: EvmNode) -> None:
    payer = UptoPayer(base_node)
    headers = payer.metered(chat(open_shop))
    info = decoded(headers["PAYMENT-SIGNATURE"])["extensions"]["eip2612GasSponsoring"]["info"]
    signature = bytes.fromhex(info["signature"][2:])

    arguments = payer.address, PERMIT2, PRICE, int(info["deadline"]), signature[64], signature[:32], signature[32:64]
    data = function_signature_to_4byte_selector(PERMIT) + encode(PERMIT.partition("(")[2][:-1].split(","), arguments)

    def behave(exchange: Exchange) -> None:
        base_node.fund_eth(THIEF, 10**18)
        base_node.rpc("anvil_impersonateAccount", THIEF)
        call = {"from": THIEF, "to": base_node.deployment.usdc, "data": "0x" + data.hex()}
        base_node.rpc("eth_sendTransaction", call)
        base_node.mine(1)
        answers(exchange)

    open_shop.upstream.behave = behave
    answer = chat(open_shop, headers)
    assert decoded(answer.headers["PAYMENT-RESPONSE"])["success"] is True
    assert received(open_shop, BASE) == COST


def test_a_maximum_that_never_expires_does_not_count_for_ever(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    with shop(build_app, sqlite_url, chains, x402_upto_usd="0.015") as made:
        fund_settlement(made, base_node)
        unpaid, payer = chat(made), UptoPayer(base_node)
        made.upstream.behave = stealing(payer)
        assert chat(made, payer.metered(unpaid, deadline=2**256 - 1)).status_code == 200
        work(after=3_600)
        assert states(made) == [("authorized", PRICE)]
        made.upstream.behave = answers
        assert reason(chat(made, UptoPayer(base_node).metered(unpaid)))[1] == "upto_paused"
        work(after=DAY + 60)
        assert states(made) == [("reversed", PRICE)]
        with later(DAY + 60):
            assert chat(made, UptoPayer(base_node).metered(unpaid)).status_code == 200
        assert_all_agree()


def test_what_was_lost_counts_also_if_the_payer_seems_able_to_pay_once_it_has_expired(
    build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode
) -> None:
    with shop(build_app, sqlite_url, {BASE: evm_chain(own_base_node)}, x402_upto_usd="0.015") as made:
        fund_settlement(made, own_base_node)
        unpaid, payer = chat(made), UptoPayer(own_base_node)
        headers = payer.metered(unpaid, deadline=int(clock.now().timestamp()) + 2_000)
        made.upstream.behave = stealing(payer)
        assert chat(made, headers).status_code == 200
        own_base_node.rpc("evm_increaseTime", 2_100)
        fund_again(payer)
        work(after=2_100)
        assert states(made) == [("closed", PRICE)]
        made.upstream.behave = answers
        with later(2_100):
            assert reason(chat(made, headers))[0] == "PAYMENT_ALREADY_USED"
            assert reason(chat(made, UptoPayer(own_base_node).metered(unpaid)))[1] == "upto_paused"
        assert (received(made, BASE), made.served()) == (0, 1)
        assert_all_agree()


def test_payments_that_cannot_be_collected_do_not_keep_others_from_being_settled(
    open_shop: Shop, base_node: EvmNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metered, "_BATCH", 2)
    unpaid = chat(open_shop)
    for _ in range(4):
        thief = UptoPayer(base_node)
        open_shop.upstream.behave = stealing(thief)
        assert chat(open_shop, thief.metered(unpaid)).status_code == 200
    begin(accepted(open_shop, UptoPayer(base_node).metered(unpaid)), estimate=5_000)
    for minute in range(10, 70):
        work(after=60 * minute)
        if received(open_shop, BASE):
            break
    assert received(open_shop, BASE) == 5


@pytest.mark.parametrize("cost", [62_500, 9_000_000, None])
def test_a_call_that_stalled_and_ends_after_its_payment_changes_nothing(
    open_shop: Shop, base_node: EvmNode, cost: int | None
) -> None:
    payment_id = accepted(open_shop, UptoPayer(base_node).metered(chat(open_shop)))
    begin(payment_id, estimate=2_000_500)
    work(after=600)
    wait_until(lambda: settled_after(open_shop, 670) == [("served", 2_001)], what="the payment of the estimate")
    with unit_of_work() as session:
        if cost is None:
            usage.cancel(session, payment_id)
        else:
            usage.settle(session, payment_id, MeteredUsage(cost, 1, 1, "1"))
    work(after=1_200)
    assert (received(open_shop, BASE), states(open_shop)) == (2_001, [("served", 2_001)])
    assert_all_agree()


def test_a_payer_is_not_refused_because_a_backup_was_restored(open_shop: Shop, base_node: EvmNode) -> None:
    payer, unpaid = UptoPayer(base_node), chat(open_shop)
    payer.call_usdc("approve", PERMIT2, 10**9)
    assert chat(open_shop, payer.metered(unpaid, with_allowance=False)).status_code == 200
    forgotten = {"status": "authorized", "transaction_id": None, "tx_hash": None, "paid_at": None, "served_at": None}
    with unit_of_work() as session:
        session.execute(update(Payment).values(forgotten))
        claimed_payments.set_restore_cutoff(session, clock.now())
    work(after=120)
    assert states(open_shop) == [("closed", COST)]
    assert chat(open_shop, payer.metered(unpaid, with_allowance=False)).status_code == 200
    assert (received(open_shop, BASE), open_shop.served()) == (2 * COST, 2)
    assert_all_agree()


def test_funds_that_one_payment_counts_on_pay_for_no_other(open_shop: Shop, base_node: EvmNode) -> None:
    payer = UptoPayer(base_node, dollars=0.015)
    payer.call_usdc("approve", PERMIT2, 10**9)
    unpaid, free = chat(open_shop), open_shop.ask()
    accepted(open_shop, payer.metered(unpaid, with_allowance=False))
    assert reason(open_shop.ask(EvmPayer.pays(payer, free)))[1] == "funds_in_use"
    assert reason(chat(open_shop, payer.metered(unpaid, with_allowance=False)))[1] == "funds_in_use"
    work(after=600)
    open_shop.upstream.behave = lambda exchange: exchange.json({"results": []})
    assert open_shop.ask(EvmPayer.pays(payer, free)).status_code == 200


@pytest.fixture
def own_shop(build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode) -> Iterator[Shop]:
    """The shop on a node for faults of mining."""
    waits: dict[str, Any] = {"confirmation_wait_seconds": "0.5"}
    with shop(build_app, sqlite_url, {BASE: evm_chain(own_base_node)}, **waits) as made:
        fund_settlement(made, own_base_node)
        made.upstream.behave = answers
        yield made


def test_a_submission_never_costs_more_than_the_cap_on_network_fees(own_shop: Shop, own_base_node: EvmNode) -> None:
    headers = UptoPayer(own_base_node).metered(chat(own_shop))

    def behave(exchange: Exchange) -> None:
        own_base_node.rpc("anvil_setNextBlockBaseFeePerGas", hex(2_000 * 10**9))
        own_base_node.mine(1)
        answers(exchange)

    own_shop.upstream.behave = behave
    own_base_node.fund_eth(own_shop.settler(BASE), 10**20)
    assert chat(own_shop, headers).status_code == 200
    work()
    assert states(own_shop) == [("authorized", PRICE)]
    own_base_node.rpc("anvil_setNextBlockBaseFeePerGas", hex(10**7))
    own_base_node.mine(1)
    work(after=60)
    work_until(own_shop, "served", COST)


def fund_again(payer: UptoPayer) -> None:
    """Give a payer the funds that it has moved away."""
    fund(payer.node, payer.address, eth=0, dollars=1)


def test_a_payer_whose_submission_fails_in_a_block_is_refused(own_shop: Shop, own_base_node: EvmNode) -> None:
    payer, unpaid = UptoPayer(own_base_node), chat(own_shop)
    headers = payer.metered(unpaid)

    def behave(exchange: Exchange) -> None:
        own_base_node.set_automine(on=False)
        answers(exchange)

    own_shop.upstream.behave = behave
    answer = chat(own_shop, headers)
    settled = decoded(answer.headers["PAYMENT-RESPONSE"])
    assert (answer.status_code, settled["success"], settled["errorReason"]) == (200, False, "settlement_pending")
    pay_first(payer)
    own_base_node.set_automine(on=True)
    own_base_node.mine(12)
    work(after=60)
    work(after=400)
    assert states(own_shop) == [("reversed", COST)]
    own_shop.upstream.behave = answers
    again = UptoPayer(own_base_node)
    again.account, again.address = payer.account, payer.address
    fund_again(payer)
    assert reason(chat(own_shop, again.metered(unpaid)))[1] == "upto_unpaid"
    assert (received(own_shop, BASE), own_shop.served()) == (0, 1)
    assert_all_agree()


def test_a_submission_whose_place_another_transaction_took_is_made_again(
    own_shop: Shop, own_base_node: EvmNode
) -> None:
    headers = UptoPayer(own_base_node).metered(chat(own_shop))

    def behave(exchange: Exchange) -> None:
        own_base_node.set_automine(on=False)
        answers(exchange)

    own_shop.upstream.behave = behave
    assert chat(own_shop, headers).status_code == 200
    [payment], settler = own_shop.payments(), own_shop.settler(BASE)
    own_base_node.rpc("anvil_dropTransaction", payment.tx_hash)
    own_base_node.rpc("anvil_impersonateAccount", settler)
    own_base_node.rpc("eth_sendTransaction", {"from": settler, "to": THIEF, "value": "0x1"})
    own_base_node.set_automine(on=True)
    own_base_node.mine(12)
    work(after=60)
    work(after=400)
    wait_until(lambda: settled_after(own_shop, 800) == [("served", COST)], interval=0.3, what="the second submission")
    assert received(own_shop, BASE) == COST
    assert_all_agree()


def pay_first(payer: UptoPayer) -> None:
    """Let the payer's funds leave in the next block, before all else in it."""
    node, data = payer.node, "0xa9059cbb" + encode(["address", "uint256"], [THIEF, 10**6]).hex()
    node.rpc("anvil_setBalance", payer.address, hex(10**18))
    node.rpc("anvil_impersonateAccount", payer.address)
    fees = {"gas": hex(100_000), "maxFeePerGas": hex(10**12), "maxPriorityFeePerGas": hex(10**12)}
    node.rpc("eth_sendTransaction", {"from": payer.address, "to": node.deployment.usdc, "data": data, **fees})
    node.mine(1)
