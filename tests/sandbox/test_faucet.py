from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from eth_account import Account

from sandbox.evm import EvmNode
from sandbox.evm.abi import call_data
from sandbox.faucet import Faucet, FaucetServer, InvalidOrder, PaymentLedger
from sandbox.payers import EvmPayer, Order
from solana_node import SolanaNode


def order(**changes: str) -> dict[str, str]:
    document = {
        "reference": "fund-1",
        "chain": "base",
        "address": Account.create().address,
        "currency": "USDC",
        "amount": "12.5",
    }
    return document | changes


def usdc_balance(node: EvmNode, address: str) -> int:
    call = {"to": node.deployment.usdc, "data": call_data("balanceOf(address)", address)}
    return int(node.rpc("eth_call", call, "latest"), 16)


def eth_balance(node: EvmNode, address: str) -> int:
    return int(node.rpc("eth_getBalance", address, "latest"), 16)


def faucet_for(node: EvmNode, path: Path) -> Faucet:
    return Faucet(PaymentLedger(path), {node.name: EvmPayer(node.url, node.deployment)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "faucet.sqlite"


@pytest.fixture
def url(base_node: EvmNode, path: Path) -> Iterator[str]:
    server = FaucetServer(faucet_for(base_node, path))
    server.start()
    yield server.url
    server.stop()


def test_it_pays_real_tokens_over_http(base_node: EvmNode, url: str) -> None:
    wanted = order()
    answer = requests.post(f"{url}/pay", json=wanted, timeout=20)
    assert answer.status_code == 200, answer.text
    paid = answer.json()
    assert paid["reference"] == "fund-1"
    receipt = base_node.rpc("eth_getTransactionReceipt", paid["tx_hash"])
    assert receipt["status"] == "0x1"
    assert int(receipt["from"], 16) != 0
    assert usdc_balance(base_node, wanted["address"]) == 12_500_000


def test_native_coins_are_paid(base_node: EvmNode, url: str) -> None:
    wanted = order(currency="ETH", amount="0.000000000000000001")
    assert requests.post(f"{url}/pay", json=wanted, timeout=20).status_code == 200
    assert eth_balance(base_node, wanted["address"]) == 1


def test_twenty_concurrent_requests_for_one_reference_are_paid_once(base_node: EvmNode, url: str) -> None:
    wanted = order()
    together = threading.Barrier(20)

    def pay(_number: int) -> str:
        together.wait()
        answer = requests.post(f"{url}/pay", json=wanted, timeout=60)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["tx_hash"])

    with ThreadPoolExecutor(20) as pool:
        hashes = set(pool.map(pay, range(20)))
    assert len(hashes) == 1
    assert usdc_balance(base_node, wanted["address"]) == 12_500_000


def test_many_concurrent_references_are_all_paid(base_node: EvmNode, url: str) -> None:
    address = Account.create().address

    def pay(number: int) -> int:
        wanted = order(reference=f"fund-{number}", address=address, amount="1")
        return requests.post(f"{url}/pay", json=wanted, timeout=60).status_code

    with ThreadPoolExecutor(10) as pool:
        assert set(pool.map(pay, range(30))) == {200}
    assert usdc_balance(base_node, address) == 30_000_000


def test_a_restarted_faucet_pays_no_reference_again(base_node: EvmNode, path: Path) -> None:
    wanted = order()
    first = faucet_for(base_node, path).pay(wanted)
    assert faucet_for(base_node, path).pay(wanted) == first
    assert usdc_balance(base_node, wanted["address"]) == 12_500_000


def test_a_crash_between_the_record_and_the_sending_leads_to_one_payment(base_node: EvmNode, path: Path) -> None:
    wanted = order()
    book = PaymentLedger(path)
    promised = Order("fund-1", "base", wanted["address"], "USDC", 12_500_000)
    book.reserve(promised)
    book.record(promised, EvmPayer(base_node.url, base_node.deployment)._sign(promised))
    faucet_for(base_node, path).pay(wanted)
    faucet_for(base_node, path).pay(wanted)
    assert usdc_balance(base_node, wanted["address"]) == 12_500_000


def test_a_payment_with_a_nonce_used_elsewhere_is_signed_again(base_node: EvmNode, path: Path) -> None:
    wanted = order()
    book = PaymentLedger(path)
    promised = Order("fund-1", "base", wanted["address"], "USDC", 12_500_000)
    book.reserve(promised)
    book.record(promised, EvmPayer(base_node.url, base_node.deployment)._sign(promised))
    base_node.fund_eth(Account.create().address, 1)
    paid = faucet_for(base_node, path).pay(wanted)
    assert base_node.rpc("eth_getTransactionReceipt", paid)["status"] == "0x1"
    assert usdc_balance(base_node, wanted["address"]) == 12_500_000


def test_payments_that_the_chain_lost_are_repeated(own_base_node: EvmNode, path: Path) -> None:
    faucet = faucet_for(own_base_node, path)
    orders = [order(reference=f"fund-{number}") for number in range(3)]
    own_base_node.mine(5)
    for wanted in orders:
        faucet.pay(wanted)
    own_base_node.reorg(5)
    for wanted in reversed(orders):
        assert usdc_balance(own_base_node, wanted["address"]) == 0
        faucet.pay(wanted)
        assert usdc_balance(own_base_node, wanted["address"]) == 12_500_000
    for wanted in orders:
        faucet.pay(wanted)
        assert usdc_balance(own_base_node, wanted["address"]) == 12_500_000


def test_a_reference_cannot_be_used_for_another_payment(base_node: EvmNode, path: Path) -> None:
    faucet = faucet_for(base_node, path)
    wanted = order()
    faucet.pay(wanted)
    with pytest.raises(InvalidOrder, match="another payment"):
        faucet.pay(wanted | {"amount": "13"})
    assert usdc_balance(base_node, wanted["address"]) == 12_500_000


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"chain": "bitcoin"}, "chain: one of base"),
        ({"currency": "SOL"}, "currency: ETH or USDC on base"),
        ({"amount": "1000000.000001"}, "at most 1000000 USDC"),
        ({"amount": "1000.1", "currency": "ETH"}, "at most 1000 ETH"),
        ({"amount": "0"}, "greater than zero"),
        ({"amount": "-1"}, "plain decimal"),
        ({"amount": "1e3"}, "plain decimal"),
        ({"amount": "0.0000001"}, "at most 6 decimals"),
        ({"address": "0x1234"}, "address: must be an EVM address"),
        ({"address": "0x" + "0" * 40}, "zero address"),
        ({"reference": ""}, "reference: 1 to 200 characters"),
        ({"reference": "x" * 201}, "reference: 1 to 200 characters"),
    ],
)
def test_an_order_that_cannot_be_paid_is_refused_with_the_reason(
    url: str, changes: dict[str, str], complaint: str
) -> None:
    answer = requests.post(f"{url}/pay", json=order(**changes), timeout=20)
    assert answer.status_code == 400
    assert complaint in answer.json()["error"]


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '{"reference": 5}', json.dumps({"chain": "base"})])
def test_a_malformed_order_is_refused(url: str, body: str) -> None:
    answer = requests.post(f"{url}/pay", data=body, timeout=20)
    assert answer.status_code == 400
    assert "error" in answer.json()


def test_an_overlong_body_is_refused_unread(url: str) -> None:
    assert requests.post(f"{url}/pay", data="x" * 20_000, timeout=20).status_code == 413


def test_a_recipient_that_the_token_refuses_gets_a_clear_error(base_node: EvmNode, url: str) -> None:
    answer = requests.post(f"{url}/pay", json=order(address=base_node.deployment.usdc), timeout=20)
    assert answer.status_code == 400
    assert "the transfer would fail" in answer.json()["error"]


def test_an_unreachable_chain_is_not_a_refusal(own_base_node: EvmNode, path: Path) -> None:
    server = FaucetServer(faucet_for(own_base_node, path))
    server.start()
    own_base_node.kill()
    try:
        answer = requests.post(f"{server.url}/pay", json=order(), timeout=20)
    finally:
        server.stop()
    assert answer.status_code == 503


def test_it_serves_health_and_no_other_page(url: str) -> None:
    assert requests.get(f"{url}/health", timeout=5).json() == {"status": "ok"}
    assert requests.get(f"{url}/", timeout=5).status_code == 404
    assert requests.post(f"{url}/mint", json=order(), timeout=5).status_code == 404


@pytest.mark.parametrize(("currency", "amount"), [("SOL", "1.5"), ("USDC", "2.5")])
def test_solana_is_paid_once_per_reference(path: Path, currency: str, amount: str) -> None:
    from sandbox.payers import SolanaPayer  # noqa: PLC0415

    owner = "4fYNw3dojWmQ4dXtSGE9epjRGy9pFSx62YypT7avPYvA"
    with SolanaNode(slot_ms=0) as node:
        faucet = Faucet(PaymentLedger(path), {"solana": SolanaPayer(node.url)})
        wanted: dict[str, Any] = order(chain="solana", address=owner, currency=currency, amount=amount)
        first = faucet.pay(wanted)
        assert faucet.pay(wanted) == first
        node.call("sandbox_advance", 40)
        if currency == "SOL":
            assert node.call("getBalance", owner)["value"] == 1_500_000_000
        else:
            accounts = node.call(
                "getTokenAccountsByOwner",
                owner,
                {"mint": "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"},
                {"encoding": "jsonParsed"},
            )
            (account,) = accounts["value"]
            assert account["account"]["data"]["parsed"]["info"]["tokenAmount"]["amount"] == "2500000"
