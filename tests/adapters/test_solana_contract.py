"""Solana fulfils the contract of every chain."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.adapters.solana.chain import SolanaChain
from solana_node import SolanaNode
from tests.support.loopback_http import unused_url
from tests.support.solana_people import FINALIZED_SLOTS, SolanaPerson, chain_at, funded

pytest.register_assert_rewrite("tests.adapters.chain_contract")
from tests.adapters.chain_contract import *  # noqa: E402, F403 - every test of it, those to come included

pytestmark = pytest.mark.chain


class SolanaWorld:
    """Accounts on a node with slots that advance by `settle` only."""

    def __init__(self, node: SolanaNode) -> None:
        self._node = node
        self.chain = chain_at(node.url)

    @property
    def unreachable(self) -> SolanaChain:
        return chain_at(unused_url(), unused_url())

    def person(self, *, native_units: int = 0, usdc_units: int = 0) -> tuple[SolanaPerson, str]:
        person = funded(self._node, lamports=native_units, usdc_units=usdc_units)
        return person, person.address

    def settle(self) -> None:
        self._node.advance(FINALIZED_SLOTS + 1)


@pytest.fixture(scope="module")
def world() -> Iterator[SolanaWorld]:
    with SolanaNode(slot_ms=0) as node:
        yield SolanaWorld(node)
