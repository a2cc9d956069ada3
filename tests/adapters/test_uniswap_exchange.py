"""The exchange of the EVM chains: which call is signed, its exact content, and lying nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from eth_abi.abi import decode, encode

from app.adapters.evm.send.transactions import CallTarget
from app.adapters.swaps import uniswap
from app.adapters.swaps.uniswap import UniswapExchange, UniswapSwap
from app.core.chains import ETH, USDC, ChainName, Token
from app.core.money import TokenAmount
from app.ports.chain import SignedTransaction, TransactionQuery, TransactionStatus
from app.ports.errors import Rejected, Unreachable
from app.ports.swaps import ConcurrentOutflows, SwapRequest
from sandbox.evm import EvmNode
from signer import evm_checks
from signer.intended import Intended, Refused
from tests.support.evm import Person, await_mined, chain_at, funded, landed, proxy, refuse, spoil
from tests.support.swaps import router_may_take

pytestmark = pytest.mark.chain

SIGNATURE = (27, bytes(32), bytes(32))
OTHER = "0x00000000000000000000000000000000C0FFEE00"


@pytest.fixture
def person(base_node: EvmNode) -> Person:
    return funded(base_node, usdc_units=100_000_000)


def swap_request(person: Person, given: Token = USDC, units: int = 10_000_000) -> SwapRequest:
    return SwapRequest(person.address, TokenAmount(units, given), ETH if given == USDC else USDC, 50)


@pytest.mark.parametrize(("given", "units"), [(ETH, 10**16), (USDC, 30_000_000)])
def test_a_swaps_cost_and_output_are_exact_including_the_l1_fee(
    given: Token, units: int, base_node: EvmNode, person: Person
) -> None:
    chain = chain_at(base_node)
    uniswap = UniswapExchange(chain)
    before = chain.balances(person.address)
    offer = uniswap.quote(swap_request(person, given, units))
    draft = uniswap.draft(offer, minimum_units=offer.output_units, signer=person)
    signed = uniswap.sign(draft, person, sequence=draft.sequence, concurrent=ConcurrentOutflows())
    chain.broadcast(signed.raw)
    await_mined(base_node, signed.tx_hash)
    watch = TransactionQuery(
        "it", person.address, signed.sequence, (signed.tx_hash,), expected_token=offer.request.output_token
    )
    found = chain.outcomes([watch])["it"]
    after = chain.balances(person.address)
    assert found.received_units == offer.output_units
    assert found.fee_units is not None
    assert found.fee_units <= draft.fee_units
    gained = {ETH: -found.fee_units, USDC: 0}
    gained[given] -= units
    gained[offer.request.output_token] += offer.output_units
    for token, difference in gained.items():
        assert after.of(token).units - before.of(token).units == difference


def swap_of(person: Person, given: Token = USDC) -> UniswapSwap:
    permit = SIGNATURE if given == USDC else None
    return UniswapSwap(
        swap_request(person, given), fee_tier=500, minimum_units=7, deadline=1_900_000_000, permit=permit
    )


def _with_deadline(swap: UniswapSwap) -> UniswapSwap:
    return replace(swap, deadline=swap.deadline + 1)


def _for_another(swap: UniswapSwap) -> UniswapSwap:
    return replace(swap, request=replace(swap.request, owner=OTHER))


def _of_more(swap: UniswapSwap) -> UniswapSwap:
    return replace(swap, request=replace(swap.request, input_amount=TokenAmount(99, swap.request.input_amount.token)))


CHANGES: list[Callable[[UniswapSwap], UniswapSwap]] = [
    _with_deadline,
    _for_another,
    _of_more,
    lambda swap: replace(swap, minimum_units=6),
    lambda swap: replace(swap, fee_tier=3000),
]


@pytest.mark.parametrize("given", [ETH, USDC])
@pytest.mark.parametrize("change", CHANGES)
def test_a_call_that_differs_from_the_swap_is_not_signed(
    given: Token, change: Callable[[UniswapSwap], UniswapSwap], base_node: EvmNode
) -> None:
    swap, deployment = swap_of(Person(), given), base_node.deployment
    uniswap.assert_encodes(deployment, uniswap.encode_swap(deployment, swap), swap)
    with pytest.raises(Rejected, match=r"unsafe_instructions"):
        uniswap.assert_encodes(deployment, uniswap.encode_swap(deployment, change(swap)), swap)


@pytest.mark.parametrize("given", [ETH, USDC])
def test_the_signer_process_signs_the_recorded_swap_alone(given: Token, base_node: EvmNode) -> None:
    swap, deployment = swap_of(Person(), given), base_node.deployment
    amount, owner = swap.request.input_amount, swap.request.owner
    intended = Intended("", "", "swap", ChainName.BASE, owner, amount, 7, owner, "", False, True)  # noqa: FBT003

    def check(target: CallTarget) -> None:
        evm_checks._check_call(intended, target, deployment, "sandbox")

    good = uniswap.encode_swap(deployment, swap)
    check(good)
    changed = [uniswap.encode_swap(deployment, change(swap)) for change in (_for_another, _of_more, *CHANGES[3:4])]
    changed += [replace(good, to=OTHER), replace(good, value_units=1), replace(good, data=good.data + b"0")]
    for target in changed:
        with pytest.raises((Rejected, Refused)):
            check(target)


@pytest.mark.parametrize("given", [ETH, USDC])
def test_the_router_reads_exactly_the_swap_and_nothing_stays_with_it(given: Token, base_node: EvmNode) -> None:
    swap, chain = swap_of(Person(), given), base_node.deployment
    owner, units, until = swap.request.owner, swap.request.input_amount.units, swap.deadline
    sells_ether, router = given == ETH, "0x0000000000000000000000000000000000000002"
    pair = (chain.weth, chain.usdc) if sells_ether else (chain.usdc, chain.weth)

    def step(selector: str, kinds: list[str], *values: object) -> bytes:
        return bytes.fromhex(selector) + encode(kinds, values)

    kinds = ["address", "address", "uint24", "address", "uint256", "uint256", "uint160"]
    exchange = step("04e45aaf", kinds, *pair, 500, owner if sells_ether else router, units, 7, 0)
    kinds = ["address", "uint256", "uint256", "uint8", "bytes32", "bytes32"]
    permit = step("c2e3140a", kinds, chain.usdc, units, until, *SIGNATURE)
    unwrap = step("49404b7c", ["uint256", "address"], 7, owner)
    steps = [exchange, step("12210e8a", [])] if sells_ether else [permit, exchange, unwrap]
    target = uniswap.encode_swap(chain, swap)
    assert (target.to, target.value_units, target.valid_until) == (chain.uniswap_router, units * sells_ether, until)
    assert target.data == step("5ae401dc", ["uint256", "bytes[]"], until, steps)


def test_a_call_with_another_approval_or_malformed_data_is_not_signed(base_node: EvmNode) -> None:
    swap, deployment = swap_of(Person()), base_node.deployment
    good = uniswap.encode_swap(deployment, swap)
    approve = bytes.fromhex("095ea7b3") + encode(["address", "uint256"], [OTHER, 2**256 - 1])
    bad = [
        CallTarget(deployment.usdc, 0, approve),
        CallTarget(OTHER, 0, good.data),
        CallTarget(good.to, 1, good.data),
        CallTarget(good.to, 0, good.data[:4]),
        CallTarget(good.to, 0, good.data[:300]),
        CallTarget(good.to, 0, b"\0\0\0\0" + good.data[4:]),
        uniswap.encode_swap(deployment, swap_of(Person(), ETH)),
    ]
    for target in bad:
        with pytest.raises(Rejected, match=r"unsafe_instructions"):
            uniswap.assert_encodes(deployment, target, swap)


def _submit_permit(node: EvmNode, owner: str, swap: SignedTransaction) -> None:
    """Submit the permit of a pending swap to the token from another account."""
    call = bytes.fromhex(str(swap.terms["call_data"]).removeprefix("0x"))
    _deadline, steps = decode(["uint256", "bytes[]"], call[4:])
    fields = ["address", "uint256", "uint256", "uint8", "bytes32", "bytes32"]
    token, *permitted = decode(fields, steps[0][4:])
    data = bytes.fromhex("d505accf") + encode(
        ["address", "address", *fields[1:]], [owner, node.deployment.uniswap_router, *permitted]
    )
    other = node.rpc("eth_accounts")[1]
    sent = {"from": other, "to": token, "data": "0x" + data.hex()}
    await_mined(node, node.rpc("eth_sendTransaction", sent))


def test_a_front_run_permit_neither_fails_a_swap_nor_leaves_an_allowance(base_node: EvmNode, person: Person) -> None:
    chain = chain_at(base_node)
    uniswap = UniswapExchange(chain)

    def signed(units: int) -> SignedTransaction:
        offer = uniswap.quote(swap_request(person, USDC, units))
        draft = uniswap.draft(offer, minimum_units=offer.output_units * 99 // 100, signer=person)
        return uniswap.sign(draft, person, sequence=draft.sequence, concurrent=ConcurrentOutflows())

    swap = signed(10_000_000)
    _submit_permit(base_node, person.address, swap)
    assert router_may_take(chain, person.address) == 10_000_000
    chain.broadcast(swap.raw)
    assert landed(chain, person, swap).status is TransactionStatus.SUCCEEDED
    assert router_may_take(chain, person.address) == 0
    # An unexecuted swap leaves an allowance, which the next one uses up.
    _submit_permit(base_node, person.address, signed(20_000_000))
    swap = signed(30_000_000)
    chain.broadcast(swap.raw)
    assert landed(chain, person, swap).status is TransactionStatus.SUCCEEDED
    assert router_may_take(chain, person.address) == 0
    assert chain.balances(person.address).of(USDC).units == 60_000_000


def test_a_node_without_balance_simulation_is_still_used(base_node: EvmNode, person: Person) -> None:
    with proxy(base_node.url) as node:
        node.after = refuse("eth_simulateV1", "the method does not exist", code=-32601)
        uniswap = UniswapExchange(chain_at(base_node, node.url))
        offer = uniswap.quote(swap_request(person))
        assert uniswap.draft(offer, minimum_units=1, signer=person).token_units == 100_000_000
        assert "eth_simulateV1" in node.methods()


def _simulated_reads(native: int, usdc: int, *, allowance: int = 0, router: int = 0) -> dict[str, str]:
    words = [(True, number.to_bytes(32, "big")) for number in (native, usdc, allowance, router)]
    return {"status": "0x1", "returnData": "0x" + encode(["(bool,bytes)[]"], [words]).hex()}


def _draft_as_simulated(
    node: EvmNode, asked: SwapRequest, before: dict[str, str], after: dict[str, str], signer: Person
) -> None:
    ran = {"status": "0x1", "returnData": "0x"}
    with proxy(node.url) as liar:
        liar.after = spoil("eth_simulateV1", [{"calls": [before, before, ran, after]}])
        uniswap = UniswapExchange(chain_at(node, liar.url))
        uniswap.draft(uniswap.quote(asked), minimum_units=1, signer=signer)


@pytest.mark.parametrize(
    "after",
    [
        _simulated_reads(10**18, 89_999_999),
        _simulated_reads(10**18, 90_000_000, allowance=1),
        _simulated_reads(10**17, 90_000_000),
    ],
)
def test_a_simulation_that_exceeds_the_amount_stops_the_swap(
    after: dict[str, str], base_node: EvmNode, person: Person
) -> None:
    with pytest.raises(Rejected, match=r"unsafe_instructions"):
        _draft_as_simulated(base_node, swap_request(person), _simulated_reads(10**18, 100_000_000), after, person)


def test_ether_left_with_the_router_does_not_stop_a_swap(base_node: EvmNode, person: Person) -> None:
    # Anyone can leave ether there, and the router pays all of it with the next refund. Nodes that let a simulated
    # call pay for its gas would hide it.
    asked, after = swap_request(person, ETH, 10**16), _simulated_reads(10**18 - 10**16 + 1, 130_000_000)
    _draft_as_simulated(base_node, asked, _simulated_reads(10**18, 100_000_000, router=1), after, person)
    with pytest.raises(Rejected, match=r"unsafe_instructions"):
        _draft_as_simulated(base_node, asked, _simulated_reads(10**18, 100_000_000), after, person)


@pytest.mark.parametrize("answer", ["0x", "0x12", None, 7])
def test_a_malformed_simulation_is_unreachable(answer: object, base_node: EvmNode, person: Person) -> None:
    with proxy(base_node.url) as node:
        node.after = spoil("eth_call", answer)
        with pytest.raises(Unreachable):
            UniswapExchange(chain_at(base_node, node.url)).quote(swap_request(person))


def test_a_dry_run_signs_nothing(base_node: EvmNode, person: Person) -> None:
    with proxy(base_node.url) as node:
        uniswap = UniswapExchange(chain_at(base_node, node.url))
        offer = uniswap.quote(swap_request(person))
        draft = uniswap.draft(offer, minimum_units=1, signer=None)
        assert draft.fee_units > 0
        assert "eth_estimateGas" not in node.methods()


def test_a_chain_with_a_fast_clock_still_gets_an_effective_deadline(own_base_node: EvmNode) -> None:
    person = funded(own_base_node, usdc_units=100_000_000)
    uniswap = UniswapExchange(chain_at(own_base_node))
    offer = uniswap.quote(swap_request(person))
    own_base_node.rpc("evm_increaseTime", 3600)
    own_base_node.mine(1)
    with pytest.raises(Unreachable):
        uniswap.draft(offer, minimum_units=1, signer=person)
