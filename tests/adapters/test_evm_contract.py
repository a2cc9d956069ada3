"""Ethereum and Base fulfil the contract of every chain."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.adapters.evm.chain import EvmChain
from app.core.addresses import ZERO_EVM_ADDRESS
from app.core.chains import ETH, USDC
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
