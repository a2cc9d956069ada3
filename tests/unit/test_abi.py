"""Contract calls and events by the contracts' ABIs: published selectors and topics, and content that is not theirs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from eth_abi.abi import encode
from eth_utils.address import to_checksum_address
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.evm.calls import EventLog
from app.adapters.evm.contracts import calls
from app.adapters.evm.contracts.calls import ContractEvent, Function
from app.core.foreign import MalformedResponseError

TOKEN = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
PAYER = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
RECIPIENT = "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"
TRANSFER_TOPIC = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"


def word(address: str) -> str:
    return "0x" + encode(["address"], [address]).hex()


def transfer_log(*, topics: tuple[str, ...] = (TRANSFER_TOPIC, word(PAYER), word(RECIPIENT)), data: bytes) -> EventLog:
    return EventLog(
        address=TOKEN, topics=[bytes.fromhex(topic[2:]) for topic in topics], data=data, logIndex=0,
        transactionHash=b"\1" * 32, blockNumber=1, blockHash=b"\2" * 32,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("contract", "name", "selector"),
    [
        ("fiat_token", "transfer", "a9059cbb"),  # ERC-20
        ("fiat_token", "approve", "095ea7b3"),
        ("fiat_token", "balanceOf", "70a08231"),
        ("fiat_token", "allowance", "dd62ed3e"),
        ("fiat_token", "nonces", "7ecebe00"),  # EIP-2612
        ("multicall3", "aggregate3", "82ad56cb"),
        ("uniswap_router", "refundETH", "12210e8a"),  # SwapRouter02
        ("solidity", "Error", "08c379a0"),
        ("solidity", "Panic", "4e487b71"),
        ("contract_wallet", "isValidSignature", "1626ba7e"),  # EIP-1271
        ("chainlink_aggregator", "latestRoundData", "feaf968c"),
        ("lifi_diamond", "startBridgeTokensViaRelayDepository", "092e8fa4"),
    ],
)
def test_a_selector_is_derived_from_the_abi(contract: str, name: str, selector: str) -> None:
    assert Function(contract, name).selector.hex() == selector


def test_a_transfer_is_encoded_as_by_every_wallet() -> None:
    data = calls.TRANSFER.encode(RECIPIENT, 10**6)
    assert data.hex() == f"a9059cbb{word(RECIPIENT)[2:]}{10**6:064x}"
    assert calls.read_transfer(data) == (RECIPIENT, 10**6)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"\0\0\0\0" + data[4:],
        lambda data: data[:4] + b"\1" + data[5:],
        lambda _data: b"",
    ],
    ids=["short", "long", "another function", "padding that is not zero", "empty"],
)
def test_anything_but_exactly_a_transfer_is_not_read_as_one(change: Callable[[bytes], bytes]) -> None:
    assert calls.read_transfer(change(calls.TRANSFER.encode(RECIPIENT, 10**6))) is None


def test_an_event_is_decoded_in_the_order_of_its_abi() -> None:
    event = ContractEvent("cctp_transmitter", "MessageReceived")
    topics = event.topics(PAYER, b"\7" * 32, 1000)
    data = encode(["uint32", "bytes32", "bytes"], [6, b"\5" * 32, b"body"])
    log = transfer_log(topics=tuple(map(str, topics)), data=data)
    assert event.decode(log) == (PAYER, 6, b"\7" * 32, b"\5" * 32, 1000, b"body")


def test_a_filter_permits_one_several_or_any() -> None:
    assert calls.TRANSFER_EVENT.topics(None, [PAYER, RECIPIENT]) == [
        TRANSFER_TOPIC, None, (word(PAYER), word(RECIPIENT)),
    ]  # fmt: skip
    assert calls.TRANSFER_EVENT.topics(PAYER) == [TRANSFER_TOPIC, word(PAYER)]


@pytest.mark.parametrize(
    "log",
    [
        transfer_log(data=b""),
        transfer_log(data=bytes(31)),
        transfer_log(data=bytes(32), topics=(TRANSFER_TOPIC, word(PAYER))),
        transfer_log(data=bytes(32), topics=("0x" + "00" * 32, word(PAYER), word(RECIPIENT))),
        transfer_log(data=bytes(32), topics=(TRANSFER_TOPIC, "0x" + "ff" * 32, word(RECIPIENT))),
        transfer_log(data=bytes(32), topics=()),
    ],
)
def test_a_log_of_another_form_is_not_the_event(log: EventLog) -> None:
    assert calls.TRANSFER_EVENT.decode(transfer_log(data=(5).to_bytes(32, "big"))) == (PAYER, RECIPIENT, 5)
    assert calls.TRANSFER_EVENT.decode(log) is None


def test_the_result_of_a_failed_call_is_never_a_number() -> None:
    items = [calls.BALANCE_OF.at(TOKEN, PAYER), calls.BALANCE_OF.at(TOKEN, RECIPIENT, may_fail=True)]

    def answer(*results: tuple[bool, bytes]) -> bytes:
        return encode(["(bool,bytes)[]"], [results])

    number = (7).to_bytes(32, "big")
    assert calls.read_aggregate(answer((True, number), (True, number)), items) == (7, 7)
    assert calls.read_aggregate(answer((True, number), (False, number)), items) == (7, None)
    assert calls.read_aggregate(answer((True, number), (True, b"")), items) == (7, None)
    for wrong in (
        answer((False, number), (True, number)),
        answer((True, b""), (True, number)),
        answer((True, number), (True, number[1:])),
        answer((True, number)),
        b"",
    ):
        with pytest.raises(MalformedResponseError):
            calls.read_aggregate(wrong, items)


def test_a_multicall_lets_each_call_fail() -> None:
    item = calls.BALANCE_OF.at(TOKEN, PAYER)
    expected = encode(["(address,bool,bytes)[]"], [[(TOKEN, True, item.data)]])
    assert calls.aggregate_data([item]) == calls.AGGREGATE.selector + expected


@pytest.mark.parametrize(
    ("encoded", "arguments"),
    [
        (Function("wallet_factory", "createAccount"), ([b"\1" * 32], 5)),
        (Function("contract_wallet", "wrapped((uint256,bytes))"), ((3, b"signature"),)),
        (Function("contract_wallet", "wrapped(address,bytes,bytes)"), (PAYER, b"call", b"signature")),
        (Function("uniswap_router", "exactInputSingle"), ((TOKEN, PAYER, 500, RECIPIENT, 1, 2, 0),)),
    ],
)
def test_arguments_are_decoded_as_they_were_encoded(encoded: Function, arguments: tuple[object, ...]) -> None:
    decoded = encoded.decode(encoded.encode(*arguments))
    assert encoded.encode(*decoded) == encoded.encode(*arguments)
    assert repr(decoded).replace("[", "(").replace("]", ")") == repr(arguments).replace("[", "(").replace("]", ")")


@given(st.binary(min_size=20, max_size=20).map(to_checksum_address))
def test_an_address_is_encoded_in_each_of_its_forms(address: str) -> None:
    forms = (address, address.lower(), address[2:], bytes.fromhex(address[2:]))
    assert {calls.BALANCE_OF.encode(form)[4:] for form in forms} == {encode(["address"], [address])}
