"""Contract calls and events by their signatures: published selectors and topics, and content that is not theirs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError
from eth_utils.address import to_checksum_address
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.evm.client.wire import EventLog
from app.adapters.evm.contracts import calls
from app.adapters.evm.contracts.abi import ContractEvent, Function, MulticallItem
from app.adapters.jsonrpc.replies import MalformedResponseError
from app.ports.chain import BlockRef

TOKEN = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
PAYER = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
RECIPIENT = "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"
AGGREGATE_TYPES = ["(address,bool,bytes)[]"]
TRANSFER_TOPIC = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
LIFI = (
    "startBridgeTokensViaRelayDepository"
    "((bytes32,string,string,address,address,address,uint256,uint256,bool,bool),(bytes32,address))"
)


def word(address: str) -> str:
    return "0x" + encode(["address"], [address]).hex()


def transfer_log(*, topics: tuple[str, ...] = (TRANSFER_TOPIC, word(PAYER), word(RECIPIENT)), data: bytes) -> EventLog:
    return EventLog(TOKEN, topics, data, 0, "0x" + "1" * 64, BlockRef(1, "0x" + "2" * 64))


@pytest.mark.parametrize(
    ("signature", "selector"),
    [
        ("transfer(address,uint256)", "a9059cbb"),  # ERC-20
        ("approve(address,uint256)", "095ea7b3"),
        ("aggregate3((address,bool,bytes)[])", "82ad56cb"),  # Multicall3
        ("refundETH()", "12210e8a"),  # SwapRouter02
        ("Error(string)", "08c379a0"),  # Solidity
        (LIFI, "092e8fa4"),
    ],
)
def test_a_selector_is_derived_from_the_signature(signature: str, selector: str) -> None:
    assert Function(signature).selector.hex() == selector


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
def test_anything_but_exactly_a_transfer_is_not_read_as_one(
    change: Callable[[bytes], bytes],
) -> None:
    assert calls.read_transfer(change(calls.TRANSFER.encode(RECIPIENT, 10**6))) is None


def test_an_event_is_decoded_in_the_order_of_its_signature() -> None:
    event = ContractEvent("Received(uint32,address indexed,bytes,bytes32 indexed)")
    topics = event.topics(PAYER, b"\7" * 32)
    log = transfer_log(topics=tuple(map(str, topics)), data=encode(["uint32", "bytes"], [6, b"body"]))
    assert event.decode(log) == (6, PAYER, b"body", b"\7" * 32)


def test_a_filter_permits_one_several_or_any() -> None:
    assert calls.TRANSFER_EVENT.topics(None, [PAYER, RECIPIENT]) == [
        TRANSFER_TOPIC, None, [word(PAYER), word(RECIPIENT)],
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

    def answer(*results: tuple[bool, bytes]) -> str:
        return "0x" + encode(["(bool,bytes)[]"], [results]).hex()

    number = (7).to_bytes(32, "big")
    assert calls.read_aggregate(answer((True, number), (True, number)), items) == (7, 7)
    assert calls.read_aggregate(answer((True, number), (False, number)), items) == (7, None)
    assert calls.read_aggregate(answer((True, number), (True, b"")), items) == (7, None)
    for wrong in (
        answer((False, number), (True, number)),
        answer((True, b""), (True, number)),
        answer((True, number), (True, number[1:])),
        answer((True, number)),
        "0x",
    ):
        with pytest.raises(MalformedResponseError):
            calls.read_aggregate(wrong, items)


ITEMS = st.lists(
    st.builds(
        MulticallItem,
        target=st.binary(min_size=20, max_size=20).map(to_checksum_address),
        function=st.just(calls.BALANCE_OF),
        data=st.binary(max_size=100),
    ),
    max_size=5,
)


@given(ITEMS)
def test_a_multicall_is_encoded_as_the_library_does(items: list[MulticallItem]) -> None:
    expected = AGGREGATE_TYPES, [[(item.target, True, item.data) for item in items]]
    assert calls.aggregate_data(items) == calls.AGGREGATE.selector + encode(*expected)


@given(
    st.lists(st.tuples(st.booleans(), st.binary(min_size=32, max_size=32) | st.binary(max_size=70))),
    st.integers(0, 40),
    st.binary(min_size=1, max_size=32),
)
def test_results_of_a_multicall_are_decoded_as_the_library_does(
    results: list[tuple[bool, bytes]], position: int, change: bytes
) -> None:
    """Also those in which some bytes were changed."""
    returned = encode(["(bool,bytes)[]"], [results])
    item = MulticallItem(TOKEN, Function("raw()", returns="(uint256)"), b"", may_fail=True)
    changed = returned[: position * 8] + change + returned[position * 8 + len(change) :]
    items = [item] * len(results)
    for data in (returned, changed):
        found = outcome(calls.read_aggregate, "0x" + data.hex(), items)
        assert found == outcome(expected_results, data, len(results))


def expected_results(data: bytes, count: int) -> tuple[object, ...]:
    decoded = calls.AGGREGATE.decode_result(data)
    if len(decoded) != count:
        raise MalformedResponseError
    texts = [returned if succeeded else b"" for succeeded, returned in decoded]
    return tuple(None if not text else decode_word(text) for text in texts)


def decode_word(text: bytes) -> int:
    try:
        [word] = decode(["uint256"], text)
    except DecodingError:
        raise MalformedResponseError from None
    return int(word)


def outcome(read: Callable[..., object], *arguments: object) -> object:
    try:
        return read(*arguments)
    except MalformedResponseError:
        return MalformedResponseError


@given(st.binary(min_size=20, max_size=20).map(to_checksum_address))
def test_an_address_is_encoded_in_each_of_its_forms(address: str) -> None:
    forms = (address, address.lower(), address[2:], bytes.fromhex(address[2:]))
    assert {calls.BALANCE_OF.encode(form)[4:] for form in forms} == {encode(["address"], [address])}
