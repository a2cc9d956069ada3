"""Relay orders for ether: only what a chain certainly shows ends them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from app.adapters.bridges.deployments import DEPOSITORY
from app.adapters.bridges.relay import orders
from app.adapters.bridges.relay.bridge import OrderBridge
from app.adapters.bridges.relay.orders import OrderQuote, OrderState, RequestedTransaction
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.send import simulation
from app.adapters.evm.send.transactions import CallTarget
from app.core.chains import ETH, ChainName
from app.core.money import TokenAmount
from app.ports.bridges import BridgePhase, BridgeProgress, BridgeRequest, BridgeTransfer
from app.ports.chain import Terms
from app.ports.errors import Rejected
from sandbox.evm import EvmNode
from sandbox.evm.abi import call_data
from tests.support.evm import ETHER, Person, await_mined, chain_at, funded, intent, pay_from_a_contract, proxy, refuse

pytestmark = pytest.mark.chain
ELSEWHERE = "0x00000000000000000000000000000000c0fFee77"


@dataclass
class Names:
    """A service that reports every order as paid by one transaction."""

    tx_hash: str
    name: str = "names"
    route: str = "names"

    def quote(self, request: BridgeRequest) -> OrderQuote:
        raise Rejected("quote_unavailable", details={"request": str(request)})

    def order_state(self, terms: Terms, source_hash: str) -> OrderState:
        assert terms["minimum"], source_hash
        return OrderState(BridgePhase.ARRIVED, tx_hash=self.tx_hash)


def follow(chain: EvmChain, tx_hash: str, person: Person) -> BridgeProgress:
    ask = BridgeRequest(ChainName.BASE, ChainName.ETHEREUM, person.address, person.address, TokenAmount(ETHER, ETH))
    crossing = BridgeTransfer(ask, {"minimum": str(ETHER // 10), "since": 0}, "0x" + "11" * 32)
    return OrderBridge(chain, chain, Names(tx_hash)).progress(crossing)


def test_a_payment_by_a_contract_is_not_lost_when_old_states_are_pruned(base_node: EvmNode) -> None:
    person = Person()
    paid = pay_from_a_contract(base_node, {person.address: ETHER // 4})
    await_mined(base_node, paid)
    base_node.mine(70)
    with proxy(base_node.url) as pruned:
        pruned.after = refuse("eth_getBalance", "missing trie node")
        late = follow(chain_at(base_node, pruned.url), paid, person)
        assert (late.phase, late.note, late.is_payout_missing) == (BridgePhase.WAITING, "payment_unreadable", False)
        # Another node may have what this one lacks.
        with_second_node = follow(chain_at(base_node, pruned.url, base_node.url), paid, person)
        assert with_second_node.phase is BridgePhase.ARRIVED
        pruned.after = refuse("eth_getTransactionReceipt", "internal error")
        silent = follow(chain_at(base_node, pruned.url), paid, person)
        assert (silent.phase, silent.note, silent.is_payout_missing) == (
            BridgePhase.WAITING,
            "payment_unreadable",
            False,
        )
    for units in (ETHER // 100, 0):
        less = pay_from_a_contract(base_node, {person.address: units, ELSEWHERE: ETHER})
        await_mined(base_node, less)
        base_node.mine(70)
        seen = follow(chain_at(base_node), less, person)
        # Less than was promised is not nothing.
        assert (seen.phase, seen.note, seen.is_payout_missing) == (BridgePhase.WAITING, "payment_not_seen", units == 0)


def test_a_payment_in_a_block_with_own_spending_is_not_lost(own_base_node: EvmNode) -> None:
    person, chain = funded(own_base_node), chain_at(own_base_node)
    own_base_node.set_automine(on=False)
    paid = pay_from_a_contract(own_base_node, {person.address: ETHER // 4})
    draft = chain.draft(intent(person, ELSEWHERE, ETHER // 2))
    chain.broadcast(chain.sign(draft, person, sequence=0).raw)
    own_base_node.mine(70)
    seen = follow(chain, paid, person)
    assert (seen.phase, seen.note, seen.is_payout_missing) == (BridgePhase.WAITING, "payment_not_seen", False)
    rich = own_base_node.rpc("eth_accounts")[1]
    reverted = own_base_node.rpc(
        "eth_sendTransaction",
        {"from": rich, "to": own_base_node.deployment.usdc, "data": "0xdeadbeef", "gas": hex(100_000)},
    )
    own_base_node.mine(70)
    # That needs no old states.
    with proxy(own_base_node.url) as pruned:
        pruned.after = refuse("eth_getBalance", "missing trie node")
        assert follow(chain_at(own_base_node, pruned.url), reverted, person).is_payout_missing


def deposit_of(person: Person, units: int) -> CallTarget:
    data = bytes.fromhex(call_data("depositNative(address,bytes32)", person.address, b"\3" * 32)[2:])
    order = BridgeRequest(ChainName.BASE, ChainName.ETHEREUM, person.address, person.address, TokenAmount(units, ETH))
    requested = RequestedTransaction.model_construct(to=DEPOSITORY, value=units, data=data, chain_id=8453)
    return orders.deposit_call(requested, order, source_id=8453)


def test_a_deposit_is_not_refused_where_the_simulation_charges_its_own_reads(own_base_node: EvmNode) -> None:
    # With hardly any base fee, the L1 fee of one read is more than what is left of the allowed fee.
    person, chain, units = funded(own_base_node), chain_at(own_base_node), ETHER // 4
    own_base_node.rpc("anvil_setNextBlockBaseFeePerGas", hex(7))
    own_base_node.mine(6)
    target = deposit_of(person, units)
    allowed = chain.draft_call(intent(person, DEPOSITORY, units), target, gas=0, simulates=True).fee_units
    effects = simulation.simulate(chain, person.address, [target])
    assert effects is not None
    charged = -effects.native_units - units
    assert 0 < charged < allowed < 2 * charged
    rules = (chain, person.address, target)
    simulation.assert_takes_ether(*rules, max_fee_units=charged)
    with capture_logs() as logs, pytest.raises(Rejected, match="unsafe_instructions"):
        simulation.assert_takes_ether(*rules, max_fee_units=charged - 1)
    (entry,) = logs
    assert (entry["event"], entry["native_units"]) == ("unsafe_effects", str(effects.native_units))
