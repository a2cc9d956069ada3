"""Attempts to abuse payments: none is used twice, and none that was reversed is used at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import pytest
from eth_abi.abi import encode
from eth_account import Account
from eth_account.messages import encode_defunct
from flask import Flask

from app.adapters.evm.chain import EvmChain
from app.core.chains import USDC, ChainName
from app.errors import PaymentPending, RateLimited
from app.identity import limits
from sandbox.evm import EvmNode
from tests.support.applications import change_settings
from tests.support.chains import evm_chain, fund
from tests.support.evm import sent as pay
from tests.support.gateway import SEARCH
from tests.support.payments import PRICE, EvmPayer, Shop, by_hash, offered, person_with, shop, signed_headers

pytestmark = pytest.mark.chain
BASE = ChainName.BASE


@pytest.fixture
def open_shop(build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]) -> Iterator[Shop]:
    with shop(build_app, sqlite_url, chains) as made:
        made.upstream.behave = lambda exchange: exchange.json({"results": []})
        yield made


def reason(made: Shop, headers: dict[str, str], path: str = SEARCH) -> str:
    answer = made.ask(headers, path=path)
    assert answer.status_code == 402, answer.get_data(as_text=True)
    body = answer.get_json()
    return str(body.get("details", {}).get("reason") or body["code"])


def transact(node: EvmNode, sender: str, to: str, data: bytes) -> str:
    """Send a transaction from an impersonated account."""
    node.rpc("anvil_impersonateAccount", sender)
    call = {"from": sender, "to": to, "data": "0x" + data.hex(), "gas": hex(400_000)}
    return str(node.rpc("eth_sendTransaction", call))


def transfer(to: str, units: int) -> bytes:
    return bytes.fromhex("a9059cbb") + encode(["address", "uint256"], [to, units])


def test_a_failed_transaction_pays_for_nothing(open_shop: Shop, base_node: EvmNode) -> None:
    poor = person_with(base_node, dollars=0)
    usdc = base_node.deployment.usdc
    failed = transact(base_node, poor.address, usdc, transfer(open_shop.recipient(BASE), PRICE))
    base_node.mine(6)
    assert reason(open_shop, by_hash(failed, BASE)) == "transaction_failed"


def test_a_payment_returned_in_the_same_transaction_pays_for_nothing(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    owner, payer = person_with(base_node, dollars=0), person_with(base_node)
    usdc, multicall = base_node.deployment.usdc, base_node.deployment.multicall3
    approve = bytes.fromhex("095ea7b3") + encode(["address", "uint256"], [multicall, 10**12])
    transact(base_node, owner.address, usdc, approve)
    transact(base_node, payer.address, usdc, approve)

    def pulled(source: str, to: str) -> tuple[str, bool, bytes]:
        data = bytes.fromhex("23b872dd") + encode(["address", "address", "uint256"], [source, to, PRICE])
        return usdc, False, data

    calls = [pulled(payer.address, owner.address), pulled(owner.address, payer.address)]
    data = bytes.fromhex("82ad56cb") + encode(["(address,bool,bytes)[]"], [calls])
    tx_hash = transact(base_node, payer.address, multicall, data)
    base_node.mine(6)
    with shop(build_app, sqlite_url, chains, x402_recipient_evm=owner.address) as made:
        assert made.recipient(BASE) == owner.address
        assert reason(made, by_hash(tx_hash, BASE)) == "nothing_received"


def test_a_reorg_after_the_call_does_not_allow_a_second_call(
    build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode
) -> None:
    chain = evm_chain(own_base_node)
    with shop(build_app, sqlite_url, {BASE: chain}) as made:
        made.upstream.behave = lambda exchange: exchange.json({"results": []})
        own_base_node.fund_eth(made.settler(BASE), 10**18)
        made.expire_capacity()
        payer = EvmPayer(own_base_node)
        terms = offered(made.ask())
        headers = signed_headers(terms, payer.authorize(terms))
        assert made.ask(headers).status_code == 200
        settled = made.payments()[0].tx_hash or ""
        raw = chain.balances(made.recipient(BASE)).of(USDC).units
        assert raw == PRICE
        own_base_node.reorg(1)
        own_base_node.mine(6)
        assert reason(made, headers) == "PAYMENT_ALREADY_USED"
        assert reason(made, by_hash(settled, BASE)) == "PAYMENT_ALREADY_USED"
        assert made.served() == 1


def test_a_payment_below_a_raised_price_is_refused_and_not_consumed(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    with shop(build_app, sqlite_url, chains) as cheap:
        base_node.fund_eth(cheap.settler(BASE), 10**18)
        cheap.expire_capacity()
        signed = EvmPayer(base_node).pays(cheap.ask())
        done = pay(chains[BASE], person_with(base_node), cheap.recipient(BASE), PRICE, token=USDC)
        base_node.mine(6)
    with shop(build_app, sqlite_url, chains, x402_price_usd="0.02") as dear:
        assert reason(dear, signed) == "invalid_exact_evm_payload_authorization_value_mismatch"
        assert reason(dear, by_hash(done.tx_hash, BASE)) == "amount_too_low"
        assert dear.claims() == set()


def test_a_proof_binds_a_hash_to_its_payer_and_request(open_shop: Shop, base_node: EvmNode) -> None:
    payer, thief = Account.create(), Account.create()
    fund(base_node, payer.address, eth=1, dollars=1)
    usdc = base_node.deployment.usdc
    tx_hash = transact(base_node, payer.address, usdc, transfer(open_shop.recipient(BASE), PRICE))
    base_node.mine(6)
    fingerprint = hashlib.sha256(f"GET\n{SEARCH}\n".encode()).hexdigest()

    def proof(account: object, request: str = fingerprint) -> dict[str, str]:
        signed = account.sign_message(encode_defunct(text=f"{tx_hash}|{request}"))  # type: ignore[attr-defined]
        return by_hash(tx_hash, BASE, **{"X-Payment-Signature": "0x" + bytes(signed.signature).hex()})

    assert reason(open_shop, proof(thief)) == "proof_not_by_payer"
    assert reason(open_shop, proof(payer, "ab" * 32)) == "proof_not_by_payer"
    assert reason(open_shop, by_hash(tx_hash, BASE, **{"X-Payment-Signature": "yes"})) == "proof_not_by_payer"
    open_shop.upstream.behave = lambda exchange: exchange.json({"error": "down"}, status=500)
    assert open_shop.ask(proof(payer)).status_code == 500
    # Once proven, the payment cannot be retried with the hash alone.
    assert reason(open_shop, by_hash(tx_hash, BASE)) == "PAYMENT_ALREADY_USED"
    open_shop.upstream.behave = lambda exchange: exchange.json({"results": []})
    assert open_shop.ask(proof(payer)).status_code == 200


def test_repeated_invalid_payments_are_rate_limited(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]
) -> None:
    with shop(build_app, sqlite_url, chains, x402_miss_limit="3 per minute") as made:
        headers = by_hash("0x" + "12" * 32, BASE)
        codes = [made.ask(headers).status_code for _ in range(5)]
        assert codes == [402, 402, 402, 429, 429]
        # Asking for the terms reads no chain.
        assert made.ask().status_code == 402


def test_an_unreachable_chain_consumes_nothing_and_asks_for_a_retry(
    build_app: Callable[..., Flask], sqlite_url: str, base_node: EvmNode
) -> None:
    dead = EvmChain(BASE, base_node.deployment, rpc_urls=["http://127.0.0.1:1"], deposit_confirmations=5)
    with shop(build_app, sqlite_url, {BASE: dead}) as made:
        answer = made.ask(by_hash("0x" + "12" * 32, BASE))
        assert answer.get_json()["details"]["reason"] == "chain_unreachable"
        assert "Retry-After" in answer.headers
        assert made.claims() == set()


def test_repetitions_of_a_payment_that_is_not_settled_are_bounded(app: Flask) -> None:
    change_settings(app, x402_miss_limit="30 per minute")
    with app.app_context():
        for _ in range(60):
            with pytest.raises(PaymentPending), limits.count_failed_payment("192.0.2.1"):
                raise PaymentPending
        with pytest.raises(RateLimited), limits.count_failed_payment("192.0.2.1"):
            raise PaymentPending
