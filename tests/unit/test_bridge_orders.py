"""Transactions of relayers for ether from Base: only a deposit to the order is rebuilt and signed."""

from __future__ import annotations

import pytest
from eth_abi.abi import decode, encode

from app.adapters.bridges.deployments import DEPOSITORY, LIFI_DIAMOND
from app.adapters.bridges.relay import orders
from app.adapters.bridges.relay.orders import RequestedTransaction
from app.core.chains import ETH, ChainName
from app.core.foreign import MalformedResponseError
from app.core.money import TokenAmount
from app.ports.bridges import BridgeRequest
from app.ports.errors import Rejected

OWNER = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
THIEF = "0x00000000000000000000000000000000C0FFEE66"
ZERO_ADDRESS = "0x" + "00" * 20
ASK = BridgeRequest(ChainName.BASE, ChainName.ETHEREUM, OWNER, OWNER, TokenAmount(10**17, ETH))
BRIDGE = (b"\1" * 32, "relay", "purser", ZERO_ADDRESS, ZERO_ADDRESS, OWNER, 10**17, 1, False, False)
TYPES = ("(bytes32,string,string,address,address,address,uint256,uint256,bool,bool)", "(bytes32,address)")


def requested(to: str, value: int, data: bytes) -> RequestedTransaction:
    return RequestedTransaction.read({"to": to, "value": hex(value), "data": "0x" + data.hex(), "chainId": 8453})


def by_lifi(*, bridge: tuple[object, ...] = BRIDGE, depositor: str = OWNER, more: bytes = b"") -> RequestedTransaction:
    said = bytes.fromhex("092e8fa4") + encode(TYPES, [bridge, (b"\2" * 32, depositor)]) + more
    return requested(LIFI_DIAMOND, 10**17, said)


def taken(wanted: RequestedTransaction) -> bytes:
    return orders.lifi_deposit_call(wanted, ASK, source_id=8453, destination_id=1).data


def test_li_fi_s_deposit_for_the_wallet_is_accepted_without_its_appended_data() -> None:
    assert taken(by_lifi(more=b"whatever")) == by_lifi().data


@pytest.mark.parametrize(("place", "value"), [(4, THIEF), (5, THIEF), (6, 10**16), (7, 10), (8, True), (9, True)])
def test_li_fi_s_deposit_for_anything_else_is_refused(place: int, value: object) -> None:
    other = tuple(value if number == place else entry for number, entry in enumerate(BRIDGE))
    with pytest.raises(Rejected, match="unsafe_instructions"):
        taken(by_lifi(bridge=other))


@pytest.mark.parametrize(
    "wanted",
    [
        by_lifi(depositor=THIEF),
        by_lifi().model_copy(update={"to": THIEF}),
        by_lifi().model_copy(update={"value": 10**18}),
        by_lifi().model_copy(update={"chain_id": 1}),
        by_lifi().model_copy(update={"data": b"\0\0\0\0" + by_lifi().data[4:]}),
        by_lifi().model_copy(update={"data": by_lifi().data[:100]}),
        by_lifi().model_copy(update={"to": "0x1"}),
    ],
)
def test_other_transactions_of_li_fi_are_refused(wanted: RequestedTransaction) -> None:
    with pytest.raises(Rejected, match="unsafe_instructions"):
        taken(wanted)


def test_relay_s_deposit_names_the_wallet_even_if_the_quote_does_not() -> None:
    said = bytes.fromhex("49290c1c") + encode(("address", "bytes32"), [ZERO_ADDRESS, b"\3" * 32])
    target = orders.deposit_call(requested(DEPOSITORY.lower(), 10**17, said), ASK, source_id=8453)
    depositor, order = decode(("address", "bytes32"), target.data[4:])
    assert (target.to, target.value_units, depositor, order) == (DEPOSITORY, 10**17, OWNER.lower(), b"\3" * 32)


@pytest.mark.parametrize(
    "changed",
    [
        {"value": True},
        {"value": "-1"},
        {"value": "0x"},
        {"value": "1e9"},
        {"value": hex(2**256)},
        {"value": "0x" + "f" * 5000},
        {"chainId": True},
        {"chainId": None},
        {"data": "0xzz"},
        {"data": 7},
        {"to": None},
    ],
)
def test_a_requested_transaction_of_another_shape_is_malformed(changed: dict[str, object]) -> None:
    asked = {"to": DEPOSITORY, "value": "1", "data": "0x", "chainId": 8453}
    assert RequestedTransaction.read(asked).data == b""
    with pytest.raises(MalformedResponseError):
        RequestedTransaction.read(asked | changed)
