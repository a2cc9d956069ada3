"""x402 payers that are contracts: what their contract accepts is settled once, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask

from app.adapters.evm.chain import EvmChain
from app.core.chains import ETH, USDC, ChainName
from sandbox.evm import EvmNode
from tests.support.chains import ether, usdc
from tests.support.faults import FaultyChain
from tests.support.payments import PRICE, EvmPayer, Shop, decoded, offered, shop, signed_headers
from tests.support.smart_wallets import SafePayer

pytestmark = pytest.mark.chain
BASE = ChainName.BASE
USD = 10**9
INVALID = "invalid_exact_evm_payload_signature"


@pytest.fixture
def open_shop(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> Iterator[Shop]:
    # Ether is cheap here, so that a call for a cent pays for the deployment of a wallet.
    with shop(build_app, sqlite_url, chains, prices={ETH: 500 * USD}) as made:
        base_node.fund_eth(made.settler(BASE), ether(1))
        made.expire_capacity()
        made.upstream.behave = lambda exchange: exchange.json({"results": []})
        yield made


def received(made: Shop) -> int:
    return int(made.app.state.ports.chains[BASE].balances(made.recipient(BASE)).of(USDC).units)


def reason(made: Shop, headers: dict[str, str]) -> str:
    answer = made.ask(headers)
    assert answer.status_code == 402, answer.get_data(as_text=True)
    return str(answer.get_json()["details"]["reason"])


@pytest.mark.parametrize("state", ["deployed", "not deployed"])
def test_a_wallet_that_is_a_contract_pays_once_for_one_call(open_shop: Shop, base_node: EvmNode, state: str) -> None:
    payer = SafePayer(base_node, is_deployed=state == "deployed")
    headers = payer.pays(open_shop.ask())
    answer = open_shop.ask(headers)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    assert decoded(answer.headers["PAYMENT-RESPONSE"])["payer"] == payer.address
    assert received(open_shop) == PRICE
    assert len(base_node.rpc("eth_getCode", payer.address, "latest")) > 2
    again = open_shop.ask(headers)
    assert (again.status_code, again.get_json()["code"]) == (402, "PAYMENT_ALREADY_USED")
    assert received(open_shop) == PRICE


def test_another_signature_of_the_same_nonce_is_no_second_payment(open_shop: Shop, base_node: EvmNode) -> None:
    payer = SafePayer(base_node, is_deployed=True)
    unpaid = open_shop.ask()
    terms = offered(unpaid)
    payload = payer.authorize(terms)
    assert open_shop.ask(signed_headers(terms, payload)).status_code == 200
    # ERC-6492 also wraps signatures of wallets that are deployed.
    payer.is_wrapped = True
    wrapped = {**payload, "signature": payer.sign(payload["authorization"])}
    again = open_shop.ask(signed_headers(terms, wrapped))
    assert (again.status_code, again.get_json()["code"]) == (402, "PAYMENT_ALREADY_USED")
    assert received(open_shop) == PRICE


def test_a_wallet_that_was_deployed_after_it_signed_still_pays(open_shop: Shop, base_node: EvmNode) -> None:
    payer = SafePayer(base_node, is_deployed=False)
    headers = payer.pays(open_shop.ask())
    payer.deploy()
    assert open_shop.ask(headers).status_code == 200
    assert received(open_shop) == PRICE


def test_what_the_contract_does_not_accept_is_refused_before_anything_is_claimed(
    open_shop: Shop, base_node: EvmNode
) -> None:
    unpaid = open_shop.ask()
    terms = offered(unpaid)
    payer, other, poor = (
        SafePayer(base_node, is_deployed=True),
        EvmPayer(base_node),
        SafePayer(base_node, is_deployed=True, dollars=0),
    )
    forged = payer.authorize(terms)
    forged["signature"] = other.sign(forged["authorization"])
    revoked = payer.authorize(terms)
    payer.change_owner()
    unknown_factory = SafePayer(base_node, is_deployed=False, factory="0x" + "5afe" * 10)
    garbled = {**forged, "signature": "0x" + "00" * 40 + "6492" * 16}
    undeployed = SafePayer(base_node, is_deployed=False)
    undeployed.is_wrapped = False
    found = {
        "signed by another": reason(open_shop, signed_headers(terms, forged)),
        "revoked": reason(open_shop, signed_headers(terms, revoked)),
        "not deployed": reason(open_shop, undeployed.pays(unpaid)),
        "no funds": reason(open_shop, poor.pays(unpaid)),
        "unknown factory": reason(open_shop, unknown_factory.pays(unpaid)),
        "garbled": reason(open_shop, signed_headers(terms, garbled)),
        "too long": reason(open_shop, signed_headers(terms, {**forged, "signature": "0x" + "00" * 4_000})),
    }
    assert found == {
        "signed by another": INVALID,
        "revoked": INVALID,
        "not deployed": INVALID,
        "no funds": "insufficient_funds",
        "unknown factory": "eip6492_factory_not_allowed",
        "garbled": "invalid_payload",
        "too long": "invalid_payload",
    }
    assert (open_shop.claims(), received(open_shop)) == (set(), 0)


# An endless loop.
BURNS_ALL_GAS = "0x5b600056"


def test_a_contract_that_burns_gas_is_not_submitted(open_shop: Shop, base_node: EvmNode) -> None:
    payer: Any = SafePayer(base_node, is_deployed=True)
    headers = payer.pays(open_shop.ask())
    base_node.rpc("anvil_setCode", payer.address, BURNS_ALL_GAS)
    assert reason(open_shop, headers) == "wallet_not_supported"
    assert (open_shop.claims(), received(open_shop)) == (set(), 0)


def test_a_wallet_that_revokes_between_verification_and_settlement_is_not_served(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    chain = FaultyChain(chains[BASE])
    with shop(build_app, sqlite_url, {BASE: chain}, prices={ETH: 500 * USD}) as made:
        base_node.fund_eth(made.settler(BASE), ether(1))
        made.expire_capacity()
        payer = SafePayer(base_node, is_deployed=True)
        headers = payer.pays(made.ask())
        chain.fail("broadcast", "before", payer.change_owner)
        before = chain.real.balances(made.settler(BASE)).of(ETH).units
        answer = made.ask(headers)
        assert (answer.status_code, answer.get_json()["code"]) == (503, "PAYMENT_PENDING")
        assert made.served() == 0
        assert chain.real.balances(payer.address).of(USDC).units == usdc(1)
        # It costs the service the gas of one submission that reverts.
        spent = before - chain.real.balances(made.settler(BASE)).of(ETH).units
        price = int(base_node.rpc("eth_gasPrice"), 16)
        assert 0 < spent < 400_000 * 2 * price
