"""Ethereum and Base fulfil the contract of every chain."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.adapters.evm.chain import EvmChain
from app.core.chains import ETH, USDC, ZERO_EVM_ADDRESS
from sandbox.evm import EvmNode
from tests.support.evm import Person, chain_at, funded
from tests.support.loopback_http import unused_url

pytest.register_assert_rewrite("tests.adapters.chain_contract")
from tests.adapters.chain_contract import *  # noqa: E402, F403 - every test of it, those to come included

pytestmark = pytest.mark.chain

_CONFIRMATIONS = 3


class EvmWorld:
    """Accounts on an anvil node that mines immediately."""

    def __init__(self, node: EvmNode) -> None:
        self._node = node
        self.chain = chain_at(node, deposit_confirmations=_CONFIRMATIONS)

    @property
    def unreachable(self) -> EvmChain:
        return chain_at(self._node, unused_url(), unused_url())

    def person(self, *, native_units: int = 0, usdc_units: int = 0) -> tuple[Person, str]:
        person = funded(self._node, wei=native_units, usdc_units=usdc_units)
        return person, person.address

    def settle(self) -> None:
        self._node.mine(_CONFIRMATIONS)


@pytest.fixture(scope="module", params=["ethereum", "base"])
def world(request: pytest.FixtureRequest) -> Iterator[EvmWorld]:
    with EvmNode(request.param) as node:
        yield EvmWorld(node)


def test_recipients_that_would_lose_the_tokens_are_refused(world: EvmWorld) -> None:
    chain = world.chain
    _, recipient = world.person()

    for token in (ETH, USDC):
        assert chain.recipient_rejection(ZERO_EVM_ADDRESS, token)
        assert chain.recipient_rejection(chain.deployment.usdc, token)
        assert chain.recipient_rejection(chain.deployment.usdc.lower(), token)
        assert chain.recipient_rejection(recipient, token) is None


@pytest.mark.parametrize(
    "address",
    [
        "0xC02aaA39b223FE8D0A0e5C4F27eAD9083C756Cc2", "0x4200000000000000000000000000000000000006",
        "0xcA11bde05977b3631167028862bE2a173976CA11", "0x68b3465833fb72A70ecDF485E0e4C7bD8665Fc45",
        "0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB48", "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913",
        "0x036CbD53842c5426634e7929541eC2318f3dCF7e", "0x5f4eC3Df9cbd43714FE2740f5E3616155c5b8419",
        "0x000000000022D473030F116dDEE9F6B43aC78BA3", "0x28b5a0e9C621a5BadaA536219b3a228C8168cf5d",
        "0x4cD00E387622C35bDDB9b4c962C136462338BC31", "0x49048044D57e1C92A77f79988d21Fa8fAF74E97e",
        "0x000000000000000000000000000000000000dEaD", "0x0000000000000000000000000000000000000001",
        "0x0000000000000000000000000000000000000011", "0x4200000000000000000000000000000000000010",
        "0x0000000071727De22E5E9d8BAf0edAc6f37da032",
    ],
)  # fmt: skip
def test_an_address_that_keeps_what_it_is_sent_is_no_recipient_on_any_chain(world: EvmWorld, address: str) -> None:
    for token in (ETH, USDC):
        for spelling in (address, address.lower()):
            assert "cannot be recovered" in (world.chain.recipient_rejection(spelling, token) or "")
