"""The exchange of the EVM chains: which call is signed, what it must say, and what nodes may lie about."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from eth_abi.abi import decode, encode

from app.adapters.evm import contracts, fastlz, l1_fees
from app.adapters.evm.transactions import Target
from app.adapters.uniswap import calls
from app.adapters.uniswap.calls import PermitSignature, Swap
from app.adapters.uniswap.exchange import UniswapExchange
from app.core.chains import ETH, USDC, Token
from app.core.money import TokenAmount
from app.ports.chain import Fate, Signed, Watch
from app.ports.errors import Rejected, Unreachable
from app.ports.swaps import ALONE, Ask
from sandbox.evm import EvmNode
from tests.support.evm import Person, await_mined, chain_at, funded, landed, proxy, refuse, spoil
from tests.support.swaps import router_may_take

pytestmark = pytest.mark.chain

SIGNATURE = PermitSignature(27, bytes(32), bytes(32))
STRANGER = "0x00000000000000000000000000000000C0FFEE00"


@pytest.fixture
def person(base_node: EvmNode) -> Person:
    return funded(base_node, usdc_units=100_000_000)


def ask(person: Person, given: Token = USDC, units: int = 10_000_000) -> Ask:
    return Ask(person.address, TokenAmount(units, given), ETH if given == USDC else USDC, 50)


@pytest.mark.parametrize(("given", "units"), [(ETH, 10**16), (USDC, 30_000_000)])
def test_what_a_swap_took_and_brought_is_known_to_the_wei_with_the_l1_fee_that_anvil_does_not_tell(
    given: Token, units: int, base_node: EvmNode, person: Person
) -> None:
    chain = chain_at(base_node)
    exchange = UniswapExchange(chain)
    before = chain.balances(person.address)
    offer = exchange.quote(ask(person, given, units))
    draft = exchange.draft(offer, minimum_units=offer.output_units, signer=person)
    signed = exchange.sign(draft, person, sequence=draft.sequence, beside=ALONE)
    chain.broadcast(signed.raw)
    await_mined(base_node, signed.tx_hash)
    watch = Watch("it", person.address, signed.sequence, (signed.tx_hash,), receives=offer.ask.wanted)
    found = chain.outcomes([watch])["it"]
    after = chain.balances(person.address)
    assert found.received_units == offer.output_units
    assert found.fee_units is not None
    assert found.fee_units <= draft.fee_units
    gained = {ETH: -found.fee_units, USDC: 0}
    gained[given] -= units
    gained[offer.ask.wanted] += offer.output_units
    for token, difference in gained.items():
        assert after.of(token).units - before.of(token).units == difference


def test_a_long_call_costs_more_on_l1_than_the_smallest_and_a_transfer_does_not() -> None:
    figures = (8 * 10**9, 1, 2269, 1055762)
    smallest = l1_fees.fjord_units(bytes(100), figures)
    assert l1_fees.fjord_units(bytes(range(256)) * 4, figures) > smallest
    assert l1_fees.fjord_units(bytes(1000), figures) == smallest


@pytest.mark.parametrize("seed", range(6))
def test_the_compressed_length_is_that_of_the_chain_s_own_fastlz(seed: int, base_node: EvmNode) -> None:
    chance = random.Random(seed)
    oracle, multicall = base_node.deployment.gas_price_oracle or "", base_node.deployment.multicall3
    data = b"".join(
        chance.choice(
            [bytes(chance.randrange(40)), chance.randbytes(chance.randrange(60)), b"words and words " * 20]
        )
        for _ in range(chance.randrange(3, 30))
    )
    inner = [*contracts.l1_fee_figures(oracle), contracts.l1_fee(oracle, data)]
    call = contracts.numbers_call(multicall, inner, "latest")
    chain_at(base_node).rpc.run(call)
    l1_base_fee, blob_base_fee, base_scalar, blob_scalar, told = call.answer
    # The oracle adds 68 bytes for a signature that it has not seen.
    size = max(100_000_000, 836_500 * (fastlz.compressed_length(data) + 68) - 42_585_600)
    assert told == size * (16 * base_scalar * l1_base_fee + blob_scalar * blob_base_fee) // 10**12


def swap_of(person: Person, given: Token = USDC) -> Swap:
    permit = SIGNATURE if given == USDC else None
    return Swap(ask(person, given), fee_tier=500, minimum_units=7, deadline=1_900_000_000, permit=permit)


def _with_deadline(swap: Swap) -> Swap:
    return replace(swap, deadline=swap.deadline + 1)


def _for_a_stranger(swap: Swap) -> Swap:
    return replace(swap, ask=replace(swap.ask, owner=STRANGER))


def _of_more(swap: Swap) -> Swap:
    return replace(swap, ask=replace(swap.ask, given=TokenAmount(99, swap.ask.given.token)))


CHANGES: list[Callable[[Swap], Swap]] = [
    _with_deadline,
    _for_a_stranger,
    _of_more,
    lambda swap: replace(swap, minimum_units=6),
    lambda swap: replace(swap, fee_tier=3000),
]


@pytest.mark.parametrize("given", [ETH, USDC])
@pytest.mark.parametrize("change", CHANGES)
def test_a_call_that_says_anything_else_than_the_swap_is_not_signed(
    given: Token, change: Callable[[Swap], Swap], base_node: EvmNode
) -> None:
    swap, deployment = swap_of(Person(), given), base_node.deployment
    calls.assert_says(deployment, calls.write(deployment, swap), swap)
    with pytest.raises(Rejected, match=r"unsafe_instructions"):
        calls.assert_says(deployment, calls.write(deployment, change(swap)), swap)


def test_a_call_with_an_approval_elsewhere_or_of_nonsense_is_not_signed(base_node: EvmNode) -> None:
    swap, deployment = swap_of(Person()), base_node.deployment
    good = calls.write(deployment, swap)
    approve = bytes.fromhex("095ea7b3") + encode(["address", "uint256"], [STRANGER, 2**256 - 1])
    bad = [
        Target(deployment.usdc, 0, approve),
        Target(STRANGER, 0, good.data),
        Target(good.to, 1, good.data),
        Target(good.to, 0, good.data[:4]),
        Target(good.to, 0, good.data[:300]),
        Target(good.to, 0, b"\0\0\0\0" + good.data[4:]),
        calls.write(deployment, swap_of(Person(), ETH)),
    ]
    for target in bad:
        with pytest.raises(Rejected, match=r"unsafe_instructions"):
            calls.assert_says(deployment, target, swap)


def test_a_node_that_lies_about_the_token_gets_no_signature_for_another_chain(
    base_node: EvmNode, person: Person
) -> None:
    # Whatever it says, the domain is of our chain and our contract; the lie only makes the swap impossible.
    chain = chain_at(base_node)
    offer = UniswapExchange(chain).quote(ask(person))
    draft = UniswapExchange(chain).draft(offer, minimum_units=1, signer=person)
    terms = {**draft.terms, "permit_name": "Other"}
    signed = UniswapExchange(chain).sign(
        replace(draft, terms=terms), person, sequence=draft.sequence, beside=ALONE
    )
    assert signed.raw != UniswapExchange(chain).sign(draft, person, sequence=draft.sequence, beside=ALONE).raw
    chain.broadcast(signed.raw)
    await_mined(base_node, signed.tx_hash)
    assert chain.balances(person.address).of(USDC).units == 100_000_000


def _submit_permit(node: EvmNode, owner: str, swap: Signed) -> None:
    """Have a stranger, who saw a swap on its way, give its permit to the token."""
    call = bytes.fromhex(str(swap.terms["call_data"]).removeprefix("0x"))
    _deadline, steps = decode(["uint256", "bytes[]"], call[4:])
    fields = ["address", "uint256", "uint256", "uint8", "bytes32", "bytes32"]
    token, *permitted = decode(fields, steps[0][4:])
    data = bytes.fromhex("d505accf") + encode(
        ["address", "address", *fields[1:]], [owner, node.deployment.uniswap_router, *permitted]
    )
    stranger = node.rpc("eth_accounts")[1]
    sent = {"from": stranger, "to": token, "data": "0x" + data.hex()}
    await_mined(node, node.rpc("eth_sendTransaction", sent))


def test_a_stranger_who_submits_a_permit_first_stops_no_swap_and_leaves_the_router_nothing_to_take(
    base_node: EvmNode, person: Person
) -> None:
    chain = chain_at(base_node)
    exchange = UniswapExchange(chain)

    def signed(units: int) -> Signed:
        offer = exchange.quote(ask(person, USDC, units))
        draft = exchange.draft(offer, minimum_units=offer.output_units * 99 // 100, signer=person)
        return exchange.sign(draft, person, sequence=draft.sequence, beside=ALONE)

    swap = signed(10_000_000)
    _submit_permit(base_node, person.address, swap)
    assert router_may_take(chain, person.address) == 10_000_000
    chain.broadcast(swap.raw)
    assert landed(chain, person, swap).fate is Fate.SUCCEEDED
    assert router_may_take(chain, person.address) == 0
    # Of a swap that never comes something stays permitted, which is used up by the next.
    _submit_permit(base_node, person.address, signed(20_000_000))
    swap = signed(30_000_000)
    chain.broadcast(swap.raw)
    assert landed(chain, person, swap).fate is Fate.SUCCEEDED
    assert router_may_take(chain, person.address) == 0
    assert chain.balances(person.address).of(USDC).units == 60_000_000


def test_a_node_that_cannot_simulate_balances_is_used_all_the_same(
    base_node: EvmNode, person: Person
) -> None:
    with proxy(base_node.url) as node:
        node.after = refuse("eth_simulateV1", "the method does not exist", code=-32601)
        exchange = UniswapExchange(chain_at(base_node, node.url))
        offer = exchange.quote(ask(person))
        assert exchange.draft(offer, minimum_units=1, signer=person).token_units == 100_000_000
        assert "eth_simulateV1" in node.methods()


def _look(native: int, usdc: int, *, allowance: int = 0, router: int = 0) -> dict[str, str]:
    words = [(True, number.to_bytes(32, "big")) for number in (native, usdc, allowance, router)]
    return {"status": "0x1", "returnData": "0x" + encode(["(bool,bytes)[]"], [words]).hex()}


def _draft_as_simulated(
    node: EvmNode, asked: Ask, before: dict[str, str], after: dict[str, str], signer: Person
) -> None:
    ran = {"status": "0x1", "returnData": "0x"}
    with proxy(node.url) as liar:
        liar.after = spoil("eth_simulateV1", [{"calls": [before, ran, after]}])
        exchange = UniswapExchange(chain_at(node, liar.url))
        exchange.draft(exchange.quote(asked), minimum_units=1, signer=signer)


@pytest.mark.parametrize(
    "after",
    [
        _look(10**18, 89_999_999),
        _look(10**18, 90_000_000, allowance=1),
        _look(10**17, 90_000_000),
    ],
)
def test_a_simulation_that_takes_more_than_the_amount_stops_the_swap(
    after: dict[str, str], base_node: EvmNode, person: Person
) -> None:
    with pytest.raises(Rejected, match=r"unsafe_instructions"):
        _draft_as_simulated(base_node, ask(person), _look(10**18, 100_000_000), after, person)


def test_a_wei_that_a_stranger_left_with_the_router_stops_no_swap(base_node: EvmNode, person: Person) -> None:
    # Anybody can leave one there, and the router hands all it has to whoever asks for a refund next. Such nodes as
    # let a simulated call pay for its gas would hide it.
    asked, after = ask(person, ETH, 10**16), _look(10**18 - 10**16 + 1, 130_000_000)
    _draft_as_simulated(base_node, asked, _look(10**18, 100_000_000, router=1), after, person)
    with pytest.raises(Rejected, match=r"unsafe_instructions"):
        _draft_as_simulated(base_node, asked, _look(10**18, 100_000_000), after, person)


@pytest.mark.parametrize("answer", ["0x", "0x12", None, 7])
def test_a_node_that_answers_nonsense_is_unreachable(
    answer: object, base_node: EvmNode, person: Person
) -> None:
    with proxy(base_node.url) as node:
        node.after = spoil("eth_call", answer)
        with pytest.raises(Unreachable):
            UniswapExchange(chain_at(base_node, node.url)).quote(ask(person))


def test_a_dry_run_signs_nothing_at_all(base_node: EvmNode, person: Person) -> None:
    with proxy(base_node.url) as node:
        exchange = UniswapExchange(chain_at(base_node, node.url))
        offer = exchange.quote(ask(person))
        draft = exchange.draft(offer, minimum_units=1, signer=None)
        assert draft.fee_units > 0
        assert "eth_estimateGas" not in node.methods()


def test_a_chain_whose_time_is_far_ahead_gets_no_deadline_that_is_none(own_base_node: EvmNode) -> None:
    person = funded(own_base_node, usdc_units=100_000_000)
    exchange = UniswapExchange(chain_at(own_base_node))
    offer = exchange.quote(ask(person))
    own_base_node.rpc("evm_increaseTime", 3600)
    own_base_node.mine(1)
    with pytest.raises(Unreachable):
        exchange.draft(offer, minimum_units=1, signer=person)
