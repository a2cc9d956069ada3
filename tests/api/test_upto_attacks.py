"""Attacks on payments of the scheme `upto`: by payers, by networks, and by processes that die or stall."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.evm import EvmNode
from tests.api.test_payments_metered import chat, open_shop
from tests.support.payments import Shop, UptoPayer, decoded, encoded

__all__ = ["open_shop"]
pytestmark = pytest.mark.chain

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


@pytest.mark.parametrize(
    ("member", "value"),
    [("extensions", each) for each in _EXTENSIONS]
    + [("payload", each) for each in _PAYLOADS]
    + [("accepted", each) for each in _ACCEPTED],
    ids=str,
)
def test_whatever_a_payment_contains_it_is_refused_as_the_clients_mistake(
    open_shop: Shop, base_node: EvmNode, member: str, value: Any
) -> None:
    document = decoded(UptoPayer(base_node).metered(chat(open_shop))["PAYMENT-SIGNATURE"])
    answer = chat(open_shop, {"PAYMENT-SIGNATURE": encoded({**document, member: value})})
    assert answer.status_code == 402, answer.get_data(as_text=True)
    assert (open_shop.served(), open_shop.claims(), open_shop.payments()) == (0, set(), [])
