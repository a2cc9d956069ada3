"""Payloads and signatures equal those of the exchange's own SDK, byte for byte.

The key is the SDK's public test key; it is worth nothing. Nothing in the service signs an action: this proves that
its payloads could be signed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import msgpack
import pytest
from eth_keys import keys
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.perpdex.exchange import DEPLOYMENTS, HyperliquidExchange, PerpdexDeployment, format_decimal
from app.core.chains import USDC
from app.core.money import TokenAmount, parse_amount
from app.ports.perpdex import Action, PerpMarket, PerpOrder, TimeInForce
from tests.support import exchange_signing as signing
from tests.support.exchange_signing import ActionPayload

KEY = keys.PrivateKey(bytes.fromhex("0123456789" * 6 + "0123"))
MAINNET = DEPLOYMENTS["mainnet"]
TESTNET = DEPLOYMENTS["testnet"]
# The SDK signs with this chain id on both networks; the vectors come from it.
SDK_MAINNET = replace(MAINNET, signature_chain_id="0x66eee")
NONCE = 1677777606040
PAYMENT_TIME = 1687816341423
DESTINATION = "0x5e9ee1089755c3435139848e47e6635505d5a13a"
MARKET = PerpMarket(4, "FOUR", 4)

Build = Callable[[HyperliquidExchange, int], Action]
"""Builds an action for a nonce."""
ONE_USDC = TokenAmount(10**6, USDC)


def order(market: PerpMarket, **terms: Any) -> Build:
    return lambda exchange, _nonce: exchange.order(market, PerpOrder(is_buy=True, **terms))


def payment(*, is_withdrawal: bool, amount: TokenAmount = ONE_USDC, destination: str = DESTINATION) -> Build:
    return lambda exchange, nonce: exchange.pay(amount, destination, is_withdrawal=is_withdrawal, time_ms=nonce)


ORDER = order(MARKET, price=Decimal("1670.1"), size=Decimal("0.0147"), time_in_force=TimeInForce.IOC)
SDK_ORDER = order(PerpMarket(1, "ONE", 4), price=Decimal(100), size=Decimal(100), time_in_force=TimeInForce.GTC)
SEND, WITHDRAWAL = payment(is_withdrawal=False), payment(is_withdrawal=True)


def cancel(exchange: HyperliquidExchange, _nonce: int) -> Action:
    return exchange.cancel([(4, 12345)])


def cancel_by_name(exchange: HyperliquidExchange, _nonce: int) -> Action:
    return exchange.cancel_by_client_id(4, "0x00000000000000000000000000000001")


def leverage(exchange: HyperliquidExchange, _nonce: int) -> Action:
    return exchange.set_leverage(4, 10, is_cross=True)


def built(build: Build, *, nonce: int = NONCE, deployment: PerpdexDeployment = MAINNET) -> ActionPayload:
    return ActionPayload(build(HyperliquidExchange(deployment), nonce), nonce)


def signed(payload: ActionPayload, deployment: PerpdexDeployment) -> tuple[str, str, int]:
    signature = KEY.sign_msg_hash(signing.digest(payload, deployment=deployment))
    return f"0x{signature.r:064x}", f"0x{signature.s:064x}", signature.v + 27


def test_the_key_is_the_public_test_key() -> None:
    assert KEY.public_key.to_checksum_address() == "0x14791697260E4c9A71f18484C9f997B308e59325"


def test_an_order_is_packed_as_the_exchange_packs_it() -> None:
    assert msgpack.packb(built(ORDER).action).hex() == (
        "83a474797065a56f72646572a66f72646572739186a16104a162c3a170a6313637302e31a173a6302e30313437a172c2a17481a5"
        "6c696d697481a3746966a3496f63a867726f7570696e67a26e61"
    )


@pytest.mark.parametrize(
    ("action", "connection_id"),
    [
        (ORDER, "0fcbeda5ae3c4950a548021552a4fea2226858c4453571bf3f24ba017eac2908"),
        (cancel, "a803f6782696afb2a943d94b6a955bba9118394b2b5fd4676eba6932b89fb101"),
        (cancel_by_name, "d9eed2c288711d42e84813f0d541ee9ade217afb5ee081ebeb2d5d9c381d9a85"),
        (leverage, "3e729b7df0882fc5b7726f5bc2354c6494054461b1bd5e7fc22d81e6478dfa9a"),
    ],
)
def test_actions_hash_as_in_the_vectors(action: Build, connection_id: str) -> None:
    assert signing.action_hash(built(action)).hex() == connection_id


def test_an_expiry_is_part_of_the_hash() -> None:
    hashed = signing.action_hash(built(ORDER), expires_after=1677777666040)
    assert hashed.hex() == "d613281305a1aa22b0fb0337266b52800abc4c9ed3242e53b6f3f4cdfc1653da"


@pytest.mark.parametrize(
    ("action", "nonce", "r", "s", "v"),
    [
        (
            ORDER, NONCE,
            "0xe302c107c0048633293299b066317048f69f685aa4f536fe56c050efaf04996c",
            "0x70e01d4d26e3d724fb8f8ab54b3f2544a37ea1b092f83532349405274f3f3962", 28,
        ),
        (
            cancel, NONCE,
            "0xf154a02b1ef3abb6ef7c9636e5590c36d4458d4c0316c8f367d898e9d23cb630",
            "0x58dc373a68c7fff18c92c1681171e367bb233c0b3dc057a48b4d3f32a4726fe1", 27,
        ),
        (
            leverage, NONCE,
            "0xadf6e137d78495b5b13e741165f2d9725d4abbb2da98e361fcc3df2a8cd0514",
            "0x7cd8366804ccb3a5904ba4e4998e3a610e7d8342bc65160d9759422a08589d19", 27,
        ),
        (
            SDK_ORDER, 0,
            "0xd65369825a9df5d80099e513cce430311d7d26ddf477f5b3a33d2806b100d78e",
            "0x2b54116ff64054968aa237c20ca9ff68000f977c93289157748a3162b6ea940e", 28,
        ),
    ],
)  # fmt: skip
def test_orders_are_signed_as_in_the_vectors(action: Build, nonce: int, r: str, s: str, v: int) -> None:
    found = signed(built(action, nonce=nonce), MAINNET)
    assert (int(found[0], 16), int(found[1], 16), found[2]) == (int(r, 16), int(s, 16), v)


@pytest.mark.parametrize(
    ("action", "deployment", "r", "s", "v"),
    [
        (
            SEND, TESTNET,
            "0x637b37dd731507cdd24f46532ca8ba6eec616952c56218baeff04144e4a77073",
            "0x11a6a24900e6e314136d2592e2f8d502cd89b7c15b198e1bee043c9589f9fad7", 27,
        ),
        (
            WITHDRAWAL, TESTNET,
            "0x8363524c799e90ce9bc41022f7c39b4e9bdba786e5f9c72b20e43e1462c37cf9",
            "0x58b1411a775938b83e29182e8ef74975f9054c8e97ebf5ec2dc8d51bfc893881", 28,
        ),
        (
            SEND, SDK_MAINNET,
            "0x9adbd066e8ae671f06b5d18e51fd2ec11b5443d64b13718028c7ff06905c71fb",
            "0x1eba4172075f8a8037481400ae86ed56c5e5f672e3db084528a8e3b2daeff976", 28,
        ),
        (
            WITHDRAWAL, SDK_MAINNET,
            "0xa155eccb6deecc343d5ce1d69ca20a6b8959cc3f21ffff6b82790e2e9f7fe888",
            "0x6e78708de0806beceab552e1a97378fa80090d902bfffa8b6ee6b35d713f58c4", 28,
        ),
    ],
)  # fmt: skip
def test_payments_are_signed_as_in_the_vectors(
    action: Build, deployment: PerpdexDeployment, r: str, s: str, v: int
) -> None:
    found = signed(built(action, nonce=PAYMENT_TIME, deployment=deployment), deployment)
    assert (int(found[0], 16), int(found[1], 16), found[2]) == (int(r, 16), int(s, 16), v)


def test_sandbox_signatures_are_invalid_on_the_real_exchange() -> None:
    sandbox = DEPLOYMENTS["sandbox"]
    for action in (ORDER, cancel, leverage, SEND, WITHDRAWAL):
        ours = signing.digest(built(action, deployment=sandbox), deployment=sandbox)
        assert ours != signing.digest(built(action), deployment=MAINNET)


@given(st.decimals(min_value=Decimal("0.000001"), max_value=10**12, places=6))
def test_numbers_are_written_without_exponent_or_superfluous_zeros(number: Decimal) -> None:
    text = format_decimal(number)
    assert Decimal(text) == number
    assert "e" not in text.lower()
    assert not text.startswith("-")
    assert "." not in text or text[-1] not in "0."
    assert format_decimal(number.normalize()) == text


def test_the_keys_keep_their_order_on_the_way_through_json() -> None:
    for action in (ORDER, cancel, cancel_by_name, leverage, WITHDRAWAL):
        payload = built(action)
        again = ActionPayload(json.loads(json.dumps(payload.action)), payload.nonce)
        assert signing.action_hash(again) == signing.action_hash(payload)


def test_a_payment_carries_its_time_as_nonce_and_a_plain_amount_to_a_lower_case_address() -> None:
    amount = parse_amount("1000000.10", USDC)
    payload = built(
        payment(is_withdrawal=True, amount=amount, destination="0x5E9eE1089755c3435139848E47e6635505d5A13A")
    )
    assert payload.action == {
        "type": "withdraw3",
        "hyperliquidChain": "Mainnet",
        "signatureChainId": "0xa4b1",
        "amount": "1000000.1",
        "time": payload.nonce,
        "destination": DESTINATION,
    }
