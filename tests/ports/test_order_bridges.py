"""Orders of a service for ether: only what a chain shows for certain ends them, for good or ill."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from app.adapters.evm.chain import EvmChain
from app.adapters.relay.bridge import OrderBridge
from app.adapters.relay.orders import Chains, Fate, Promise, Standing
from app.core.chains import ETH, ChainName
from app.core.money import TokenAmount
from app.ports.bridges import Ask, Crossing, Phase, Progress
from app.ports.chain import Terms
from app.ports.errors import Rejected
from sandbox.evm import EvmNode
from tests.support.evm import (
    ETHER,
    Person,
    await_mined,
    chain_at,
    funded,
    intent,
    pay_from_a_contract,
    proxy,
    refuse,
)

pytestmark = pytest.mark.chain
ELSEWHERE = "0x00000000000000000000000000000000C0FFEE77"


@dataclass
class Names:
    """A service that says of each order that one transaction has paid it."""

    tx_hash: str
    name: str = "names"
    route: str = "names"

    def promise(self, ask: Ask, chains: Chains) -> Promise:
        raise Rejected("quote_unavailable", details={"ask": str(ask), "chains": str(chains)})

    def standing(self, terms: Terms, source_hash: str, chains: Chains) -> Standing:
        assert terms["minimum"], (source_hash, chains)
        return Standing(Fate.PAID, tx_hash=self.tx_hash)


def follow(chain: EvmChain, tx_hash: str, person: Person) -> Progress:
    ask = Ask(ChainName.BASE, ChainName.ETHEREUM, person.address, person.address, TokenAmount(ETHER, ETH))
    crossing = Crossing(ask, {"minimum": str(ETHER // 10), "since": 0}, "0x" + "11" * 32)
    return OrderBridge(chain, chain, Names(tx_hash)).follow(crossing)


def test_a_payment_by_a_contract_that_is_looked_at_after_its_states_are_gone_is_not_called_lost(
    base_node: EvmNode,
) -> None:
    person = Person()
    paid = pay_from_a_contract(base_node, {person.address: ETHER // 4})
    await_mined(base_node, paid)
    base_node.mine(70)
    with proxy(base_node.url) as pruned:
        pruned.after = refuse("eth_getBalance", "missing trie node")
        late = follow(chain_at(base_node, pruned.url), paid, person)
        assert (late.phase, late.note, late.is_lost) == (Phase.WAITING, "payment_unreadable", False)
        # Another node may have what this one has not.
        beside = follow(chain_at(base_node, pruned.url, base_node.url), paid, person)
        assert beside.phase is Phase.ARRIVED
        pruned.after = refuse("eth_getTransactionReceipt", "internal error")
        silent = follow(chain_at(base_node, pruned.url), paid, person)
        assert (silent.phase, silent.note, silent.is_lost) == (Phase.WAITING, "payment_unreadable", False)
    for units in (ETHER // 100, 0):
        less = pay_from_a_contract(base_node, {person.address: units, ELSEWHERE: ETHER})
        await_mined(base_node, less)
        base_node.mine(70)
        seen = follow(chain_at(base_node), less, person)
        # Less than was promised is not nothing.
        assert (seen.phase, seen.note, seen.is_lost) == (Phase.WAITING, "payment_not_seen", units == 0)


def test_a_payment_in_the_block_in_which_its_wallet_spent_is_not_called_lost(own_base_node: EvmNode) -> None:
    person, chain = funded(own_base_node), chain_at(own_base_node)
    own_base_node.set_automine(on=False)
    paid = pay_from_a_contract(own_base_node, {person.address: ETHER // 4})
    draft = chain.draft(intent(person, ELSEWHERE, ETHER // 2))
    chain.broadcast(chain.sign(draft, person, sequence=0).raw)
    own_base_node.mine(70)
    seen = follow(chain, paid, person)
    assert (seen.phase, seen.note, seen.is_lost) == (Phase.WAITING, "payment_not_seen", False)
    rich = own_base_node.rpc("eth_accounts")[1]
    reverted = own_base_node.rpc(
        "eth_sendTransaction",
        {"from": rich, "to": own_base_node.deployment.usdc, "data": "0xdeadbeef", "gas": hex(100_000)},
    )
    own_base_node.mine(70)
    # That needs no old states.
    with proxy(own_base_node.url) as pruned:
        pruned.after = refuse("eth_getBalance", "missing trie node")
        assert follow(chain_at(own_base_node, pruned.url), reverted, person).is_lost
