"""The canonical form of bodies: one request has one spelling, and two requests never share it."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from app.approvals.schemas import APPROVAL_NOTE
from app.buying.schemas import FetchBody
from app.core.strict_json import parse_json
from app.shopping.schemas import BuyBody
from app.wallets.api.schemas import FundBody, NewWalletBody
from app.wallets.kinds.bridge import BridgeBody
from app.wallets.kinds.swap import SwapBody
from app.wallets.kinds.transfer import MovementBody
from app.web.schemas import Schema, canonical_body, canonical_json

_EVM = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
_MOVE = f'"chain":"base","to":"{_EVM}","currency":"USDC"'
_SWAP = '"chain":"base","amount":"1"'
_FETCH = '"url":"https://api.example.com/v1/report","max_amount_usd":1'
_SHIP = '"shippingAddress":{"name":"Ada Buyer","zip":"94107"}'


class Free(Schema):
    """A body with free text."""

    note = APPROVAL_NOTE


def canonical(schema: type[Schema], text: str) -> bytes:
    return canonical_body(schema(), parse_json(text.encode("utf-8", "surrogatepass")))


@pytest.mark.parametrize(
    ("schema", "spellings"),
    [
        (
            MovementBody,
            [
                f'{{{_MOVE},"amount":"1.5"}}',
                f'{{"amount":"1.50",\n {_MOVE}}}',
                f'{{{_MOVE},"amount":1.5}}',
                f'{{{_MOVE},"amount":"001.500","dry_run":false}}',
                f'{{{_MOVE},"amount":"1.5","dryRun":false,"session_id":null,"sessionId":null,"gas":"auto"}}',
                f'{{{_MOVE},"amount":"1.5","approval_note":null,"unknown":[1,{{"a":2}}]}}',
                f'{{"chain":"BASE","to":"{_EVM.lower()}","currency":"usdc","amount":"1.5"}}',
                f'{{"chain":"Base","to":"0x{_EVM[2:].upper()}","currency":"Usdc","amount":"1.5"}}',
            ],
        ),
        (
            MovementBody,
            [f'{{{_MOVE},"amount":{amount}}}' for amount in ("100", '"100"', '"100.0"', '"0100"', "100.00")],
        ),
        (
            SwapBody,
            [
                f'{{{_SWAP},"input_token":"USDC","output_token":"ETH"}}',
                f'{{{_SWAP},"inputToken":"usdc","outputToken":"eth"}}',
                f'{{{_SWAP},"inputToken":"USDC","input_token":"USDC","output_token":"ETH","slippageBps":50}}',
                f'{{{_SWAP},"input_token":"USDC","output_token":"ETH","slippage_bps":50,"gas":"auto"}}',
            ],
        ),
        (
            BridgeBody,
            [
                '{"source_chain":"base","destination_chain":"ethereum","token":"USDC","amount":"2"}',
                '{"sourceChain":"Base","destinationChain":"ETHEREUM","token":"usdc","amount":2}',
            ],
        ),
        (
            FetchBody,
            [
                f"{{{_FETCH}}}",
                f'{{{_FETCH},"method":"GET","headers":{{}},"body":null,"networks":[],"dry_run":false}}',
                '{"url":"HTTPS://API.example.com:443/v1/report","maxAmountUsd":1.0}',
            ],
        ),
        (
            BuyBody,
            [
                f'{{"url":"https://shop.example/p/1",{_SHIP},"max_total_usd":40}}',
                (
                    '{"url":"https://shop.example/p/1","shipping_address":{"zip":"94107","name":"Ada Buyer"},'
                    '"maxTotalUsd":40.00,"quantity":1,"dryRun":false,"options":{},"credentials":null}'
                ),
            ],
        ),
        (NewWalletBody, ["{}", '{"name":null}', '{"name":"  "}', '{"x":1}']),
        (NewWalletBody, ['{"name":"savings"}', '{"name":" savings "}', '{"name":"s\\u0061vings"}']),
        (
            FundBody,
            ['{"chain":"base","amount":5,"currency":"USDC"}', '{"currency":"usdc","amount":"5.0","chain":"base"}'],
        ),
    ],
)
def test_spellings_of_one_request_are_equal(schema: type[Schema], spellings: list[str]) -> None:
    assert len({canonical(schema, text) for text in spellings}) == 1, [canonical(schema, text) for text in spellings]


@pytest.mark.parametrize(
    ("schema", "requests"),
    [
        (
            MovementBody,
            [
                *(f'{{{_MOVE},"amount":"{amount}"}}' for amount in (
                    "0.1", "0.01", "1", "10", "100", "1.5", "15", "0.15", "9007199254740992", "9007199254740993",
                    "0.9007199254740992", "0.9007199254740993", "1e-7", "1E-7", "+1", "1.", ".5", " 1", "1,5", "١",
                )),
                f'{{{_MOVE},"amount":1e-7,"gas":"own"}}',
                f'{{{_MOVE},"amount":"1","approval_note":"x"}}',
                f'{{{_MOVE},"amount":"1","approval_note":"x "}}',
                f'{{{_MOVE},"amount":"1","gas":"own"}}',
                f'{{{_MOVE},"amount":"1","gas":"sponsored"}}',
                f'{{{_MOVE.replace("USDC", "ETH")},"amount":"1"}}',
                f'{{{_MOVE.replace("base", "ethereum")},"amount":"1"}}',
                f'{{{_MOVE.replace("79C8", "79C9")},"amount":"1"}}',
                '{"chain":"base","to":"' + _EVM.replace("dc", "DC", 1) + '","currency":"USDC","amount":"1"}',
                # Base58 distinguishes cases.
                '{"chain":"solana","to":"6bUnm7r6bHMsFNUarmpVH6tFDgH49mSY5toU1PoEqdHm","currency":"USDC","amount":"1"}',
                '{"chain":"solana","to":"6BUnm7r6bHMsFNUarmpVH6tFDgH49mSY5toU1PoEqdHm","currency":"USDC","amount":"1"}',
                # A Kelvin sign is a k in lower case, a long s an S in upper case.
                f'{{{_MOVE.replace("USDC", "UſDC")},"amount":"1"}}',
            ],
        ),
        (
            Free,
            [
                '{"note":"caf\u00e9"}', '{"note":"cafe\u0301"}', '{"note":"cafe"}', '{"note":"Cafe"}', '{"note":"1"}',
                '{"note":"1.0"}', '{"note":"true"}', '{"note":"null"}', '{"note":""}', "{}", '{"note":"\\"x\\":1"}',
            ],
        ),
        (
            FetchBody,
            [
                f"{{{_FETCH}}}", f'{{{_FETCH},"body":""}}',
                f'{{{_FETCH},"body":"{{}}"}}', f'{{{_FETCH},"body":"{{ }}"}}',
                f'{{{_FETCH},"method":"POST"}}', f'{{{_FETCH},"headers":{{"A":"1"}}}}',
                f'{{{_FETCH},"headers":{{"A":"1 "}}}}',
                f'{{{_FETCH},"headers":{{"A":"1","a":"2"}}}}', f'{{{_FETCH},"headers":{{"A":"2","a":"1"}}}}',
                f'{{{_FETCH},"networks":["base"]}}', f'{{{_FETCH.replace("report", "Report")}}}',
                f'{{{_FETCH.replace(":1", ":1.000000001")}}}', f'{{{_FETCH.replace(":1", ":123456789.123456789")}}}',
                f'{{{_FETCH.replace(":1", ":123456789.123456788")}}}',
            ],
        ),
        (
            BuyBody,
            [
                f'{{"url":"https://shop.example/p/1",{_SHIP},"options":{options}}}'
                for options in ("{}", '{"a":"b"}', '{"a":"b","c":"d"}', '{"a":"b,c:d"}', '{"A":"b"}')
            ],
        ),
    ],
)  # fmt: skip
def test_different_requests_are_never_equal(schema: type[Schema], requests: list[str]) -> None:
    for one, other in combinations(requests, 2):
        assert canonical(schema, one) != canonical(schema, other), (one, other)


def test_an_alias_with_another_value_is_refused_and_not_chosen_by_its_position() -> None:
    for pair in ('"max_total_usd":5,"maxTotalUsd":500', '"maxTotalUsd":500,"max_total_usd":5'):
        with pytest.raises(Exception, match="another value"):
            canonical(BuyBody, f'{{"url":"https://shop.example/p/1",{_SHIP},{pair}}}')


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        ("1", "1.0", True), ("1", "10e-1", True), ("100", "1e2", True), ("0", "-0.0", True), ("0.1", "0.10", True),
        ("1", "true", False), ("1", '"1"', False), ("null", '"null"', False),
        ("0", "false", False), ("0", "null", False),
        ("[]", "{}", False), ("[1,2]", "[2,1]", False), ("[[1],2]", "[1,[2]]", False), ("[12]", "[1,2]", False),
        ('{"a":1,"b":2}', '{"b":2,"a":1}', True), ('{"a":"1,\\"b\\":2"}', '{"a":"1","b":2}', False),
        ("9007199254740993", "9007199254740992", False), ("1e-7", "1e-8", False), ("1e99999", "1e99998", False),
        ("0.1234567890123456789012345678901234567890", "0.1234567890123456789012345678901234567891", False),
        ("12345678901234567890123456789012345678901234567890",
         "12345678901234567890123456789012345678901234567891", False),
        ("-1", "1", False), ('"\\u00e9"', '"e\\u0301"', False),
        ('"\\ud800"', '"\\ud801"', False), ("1e1000", "1e1001", False),
    ],
)  # fmt: skip
def test_free_json_is_compared_by_its_values(one: str, other: str, *, is_equal: bool) -> None:
    found: list[Any] = [parse_json(f'{{"x":{text}}}'.encode()) for text in (one, other)]
    assert (canonical_json(found[0]) == canonical_json(found[1])) is is_equal


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (MovementBody, f'{{{_MOVE},"amount":"1.50","gas":"own","sessionId":"5f0f6c1e-3b9c-4f0e-9a55-0d6a6a3c8a10"}}'),
        (FetchBody, '{"url":"https://a.example/?q=1","headers":{"X-A":"b"},"max_amount_usd":123456789.123456789}'),
        (BuyBody, f'{{"url":"https://shop.example/p/1",{_SHIP},"maxTotalUsd":1e-7,"options":{{"Color":"Blue"}}}}'),
        (SwapBody, f'{{{_SWAP},"inputToken":"USDC","outputToken":"ETH","slippage_bps":100}}'),
    ],
)  # fmt: skip
def test_the_canonical_form_is_loaded_to_the_same_request(schema: type[Schema], text: str) -> None:
    """An approval keeps it, and executes what is loaded from it."""
    first = canonical(schema, text)
    assert canonical(schema, first.decode()) == first
    values, again = (schema().load(parse_json(each)) for each in (text.encode(), first))
    for name in ("max_amount_usd", "max_total_usd", "slippage_bps", "session_id", "options", "gas", "body"):
        assert values.get(name) == again.get(name)
