"""Jupiter's instructions: exactly the requested swap, or nothing is signed."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from solders.account import Account
from solders.address_lookup_table_account import ID as LOOKUP_TABLE_PROGRAM
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.adapters.swaps.jupiter.balances import SwapBalances, is_exactly_swap
from app.adapters.swaps.jupiter.exchange import JupiterExchange
from app.core.chains import SOL, USDC, Token
from app.core.money import TokenAmount
from app.ports.chain import TransactionStatus
from app.ports.errors import Rejected, Unreachable
from app.ports.swaps import ConcurrentOutflows, SwapOffer, SwapRequest
from sandbox.jupiter import JupiterFaults, JupiterServer
from solana_node import SolanaNode
from solana_node.addresses import TOKEN, TOKEN_2022, USDC_MINT, WRAPPED_SOL_MINT, associated_token_address
from solana_node.exchange import JUPITER, SHARED_ACCOUNTS_ROUTE_V2, exchange_program
from tests.support.evm import Calls, proxy
from tests.support.loopback_http import Reply, serve
from tests.support.solana_people import CONFIRMED_SLOTS, FINALIZED_SLOTS, SolanaPerson, chain_at, funded, watch

pytestmark = pytest.mark.chain

Answer = dict[str, Any]
SOME_USDC = 50_000_000


@pytest.fixture(scope="module")
def node() -> Iterator[SolanaNode]:
    """A node with a stopped clock."""
    with SolanaNode(slot_ms=0) as started:
        yield started


@pytest.fixture(scope="module")
def _jupiter(node: SolanaNode) -> Iterator[JupiterServer]:
    server = JupiterServer(node.url)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def jupiter(_jupiter: JupiterServer) -> Iterator[JupiterServer]:
    """The stand-in, reset after each test."""
    yield _jupiter
    _jupiter.faults = JupiterFaults()


@pytest.fixture
def exchange(node: SolanaNode, jupiter: JupiterServer) -> JupiterExchange:
    return JupiterExchange(chain_at(node.url), jupiter.url)


@pytest.fixture
def person(node: SolanaNode) -> SolanaPerson:
    return funded(node, lamports=10**9, usdc_units=SOME_USDC)


def swap_request(person: SolanaPerson, given: Token = USDC, units: int = 10_000_000) -> SwapRequest:
    return SwapRequest(person.address, TokenAmount(units, given), SOL if given == USDC else USDC, 50)


def refused(exchange: JupiterExchange, asked: SwapRequest) -> str:
    def draft() -> None:
        offer = exchange.quote(asked)
        exchange.draft(offer, minimum_units=offer.output_units * 99 // 100, signer=None)

    with pytest.raises(Rejected) as refusal:
        draft()
    return refusal.value.reason


@pytest.mark.parametrize("given", [SOL, USDC])
def test_both_directions_move_exactly_the_requested_amount(
    given: Token, node: SolanaNode, exchange: JupiterExchange, person: SolanaPerson
) -> None:
    chain = chain_at(node.url)
    asked = swap_request(person, given, 10_000_000)
    before = chain.balances(person.address)
    offer = exchange.quote(asked)
    draft = exchange.draft(offer, minimum_units=offer.output_units, signer=person)
    signed = exchange.sign(draft, person, sequence=None, concurrent=ConcurrentOutflows())
    chain.broadcast(signed.raw)
    node.advance(CONFIRMED_SLOTS)
    found = chain.outcomes([replace(watch(person, signed), expected_token=asked.output_token)])["it"]
    after = chain.balances(person.address)
    assert found.received_units == offer.output_units
    assert found.fee_units is not None
    moved = {SOL: -found.fee_units, USDC: 0}
    moved[given] -= 10_000_000
    moved[asked.output_token] += offer.output_units
    for token, units in moved.items():
        assert after.of(token).units - before.of(token).units == units


def _data(answer: Answer) -> bytearray:
    return bytearray(base64.b64decode(answer["swapInstruction"]["data"]))


def _with_data(answer: Answer, data: bytes) -> Answer:
    answer["swapInstruction"]["data"] = base64.b64encode(data).decode()
    return answer


def figure(at: int, kind: str, value: int) -> Callable[[Answer], Answer]:
    """Return a manipulation of one figure of the route."""

    def change(answer: Answer) -> Answer:
        data = _data(answer)
        struct.pack_into(kind, data, at, value)
        return _with_data(answer, bytes(data))

    return change


def account(at: int, key: str, **flags: bool) -> Callable[[Answer], Answer]:
    """Return a manipulation of one account of the route."""

    def change(answer: Answer) -> Answer:
        answer["swapInstruction"]["accounts"][at] |= {"pubkey": key, **flags}
        return answer

    return change


OTHER = str(Keypair().pubkey())
TRANSFER = {
    "programId": TOKEN,
    "accounts": [{"pubkey": OTHER, "isSigner": False, "isWritable": True}],
    "data": base64.b64encode(b"\4" + bytes(8)).decode(),
}


def _approving(answer: Answer) -> Answer:
    answer["setupInstructions"].append(TRANSFER)
    return answer


def _other_setup_amount(answer: Answer) -> Answer:
    for each in answer["setupInstructions"]:
        data = bytearray(base64.b64decode(each["data"]))
        if len(data) == 12:
            struct.pack_into("<Q", data, 4, 900_000_000)
            each["data"] = base64.b64encode(bytes(data)).decode()
    return answer


def _closing_to_another(answer: Answer) -> Answer:
    answer["cleanupInstruction"]["accounts"][1]["pubkey"] = OTHER
    return answer


LIES: dict[str, Callable[[Answer], Answer]] = {
    "higher input": figure(8, "<Q", 20_000_000),
    "lower input": figure(8, "<Q", 1),
    "a platform fee": figure(26, "<H", 1),
    "a positive-slippage fee": figure(28, "<H", 1),
    "another instruction": figure(0, "<B", 0),
    "an earlier_balances route": lambda answer: _with_data(
        answer, bytes.fromhex("e517cb977ae3ad2a") + bytes(_data(answer)[8:])
    ),
    "no figures": lambda answer: _with_data(answer, bytes(_data(answer)[:20])),
    "another program": lambda answer: {
        **answer, "swapInstruction": {**answer["swapInstruction"], "programId": TOKEN},
    },
    "another payer": account(0, OTHER),
    "another signer": account(0, OTHER, isSigner=True),
    "a further signer": account(12, OTHER, isSigner=True),
    "another source": account(1, OTHER),
    "another recipient": account(2, OTHER),
    "a payee other than the recipient": account(7, OTHER),
    "another mint": account(4, OTHER),
    "another token program": account(6, TOKEN_2022),
    "another event authority": account(8, OTHER),
    "missing accounts": lambda answer: {
        **answer,
        "swapInstruction": {
            **answer["swapInstruction"], "accounts": answer["swapInstruction"]["accounts"][:4],
        },
    },
    "an approval before the swap": _approving,
    "another recipient of the rest": _closing_to_another,
    "a tip": lambda answer: {**answer, "tipInstruction": TRANSFER},
    "an additional instruction": lambda answer: {**answer, "otherInstructions": [TRANSFER]},
    "an invalid lookup table": lambda answer: {**answer, "addressesByLookupTableAddress": {OTHER: []}},
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_any_deviation_from_the_swap_is_refused(
    lie: str, exchange: JupiterExchange, jupiter: JupiterServer, person: SolanaPerson
) -> None:
    jupiter.faults = JupiterFaults(change=LIES[lie])
    assert refused(exchange, swap_request(person)) == "unsafe_instructions"


def test_wrapping_more_than_requested_is_refused(
    exchange: JupiterExchange, jupiter: JupiterServer, person: SolanaPerson
) -> None:
    jupiter.faults = JupiterFaults(change=_other_setup_amount)
    assert refused(exchange, swap_request(person, SOL)) == "unsafe_instructions"


def test_a_route_below_our_minimum_is_refused_even_if_jupiters_allows_it(
    exchange: JupiterExchange, jupiter: JupiterServer, person: SolanaPerson
) -> None:
    def below_minimum(answer: Answer) -> Answer:
        figure(16, "<Q", 1)(answer)
        figure(24, "<H", 10_000)(answer)
        return {**answer, "outAmount": str(int(answer["outAmount"]) * 102 // 100)}

    jupiter.faults = JupiterFaults(change=below_minimum)
    assert refused(exchange, swap_request(person)) == "price_moved"


def test_a_route_that_would_fail_is_detected_by_the_simulation(
    exchange: JupiterExchange, jupiter: JupiterServer, person: SolanaPerson
) -> None:
    jupiter.faults = JupiterFaults(change=account(12, OTHER))
    assert refused(exchange, swap_request(person)) == "simulation_failed"


BEFORE = SwapBalances(
    lamports=10**9, wrapped_lamports=0, usdc_lamports=2_039_280, usdc_units=SOME_USDC, is_owner_controlled=True
)


@pytest.mark.parametrize(
    ("after", "allowed"),
    [
        ({"lamports": 10**9 + 66_000_000, "usdc_units": SOME_USDC - 10_000_000}, True),
        ({"lamports": 10**9 + 66_000_000, "usdc_units": SOME_USDC - 10_000_001}, False),
        ({"lamports": 10**9 + 66_000_000, "usdc_units": SOME_USDC - 9_999_999}, False),
        ({"lamports": 10**9 + 65_994_999, "usdc_units": SOME_USDC - 10_000_000}, False),
        ({"lamports": 10**9 + 66_000_000, "usdc_units": SOME_USDC - 10_000_000, "is_owner_controlled": False}, False),
        ({"lamports": 10**9 + 66_000_000 + 5_000, "usdc_lamports": 0, "usdc_units": 0}, False),
    ],
)
def test_the_simulation_must_match_the_swap_to_the_unit(after: dict[str, Any], *, allowed: bool) -> None:
    asked = SwapRequest("owner", TokenAmount(10_000_000, USDC), SOL, 50)
    seen = replace(BEFORE, **after)
    assert is_exactly_swap(BEFORE, seen, asked, minimum_units=66_000_000, fee_units=5_000) == allowed


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        (JupiterFaults(status=429), "quote_rate_limited"),
        (JupiterFaults(status=503, body=b"{}"), "quote_unavailable"),
        (JupiterFaults(status=400, body=b'{"error": "No routes found"}'), "no_liquidity"),
        (JupiterFaults(body=b"<html>"), "quote_unavailable"),
        (JupiterFaults(body=b"[]"), "quote_unavailable"),
        (JupiterFaults(body=b"null"), "quote_unavailable"),
        (JupiterFaults(body=b"{}"), "quote_unavailable"),
        (JupiterFaults(body=b"[" * 10_000), "quote_unavailable"),
        (JupiterFaults(change=lambda answer: {**answer, "outAmount": "-1"}), "quote_unavailable"),
        (JupiterFaults(change=lambda answer: {**answer, "outAmount": str(2**64)}), "quote_unavailable"),
        (JupiterFaults(change=lambda answer: {**answer, "inputMint": WRAPPED_SOL_MINT}), "quote_unavailable"),
        (JupiterFaults(change=lambda answer: {**answer, "swapMode": "ExactOut"}), "quote_unavailable"),
        (JupiterFaults(change=lambda answer: {**answer, "swapInstruction": None}), "quote_unavailable"),
        (JupiterFaults(change=lambda answer: {**answer, "setupInstructions": [{}]}), "quote_unavailable"),
        (JupiterFaults(change=lambda answer: {**answer, "routePlan": answer["routePlan"] * 41}), "quote_unavailable"),
        (
            JupiterFaults(
                change=lambda answer: {
                    **answer,
                    "addressesByLookupTableAddress": {str(Keypair().pubkey()): [] for _ in range(101)},
                }
            ),
            "quote_unavailable",
        ),
    ],
)
def test_an_unreachable_or_malformed_service_is_a_certain_refusal(
    faults: JupiterFaults, reason: str, exchange: JupiterExchange, jupiter: JupiterServer, person: SolanaPerson
) -> None:
    jupiter.faults = faults
    assert refused(exchange, swap_request(person)) == reason


def test_a_service_that_is_down_is_a_certain_refusal(node: SolanaNode, person: SolanaPerson) -> None:
    with serve(lambda _asked: Reply(b"")) as gone:
        url = gone.url
    assert refused(JupiterExchange(chain_at(node.url), url), swap_request(person)) == "quote_unavailable"


def test_an_unreachable_cluster_is_not_a_refusal(
    exchange: JupiterExchange, jupiter: JupiterServer, person: SolanaPerson
) -> None:
    offer = exchange.quote(swap_request(person))
    elsewhere = JupiterExchange(chain_at("http://127.0.0.1:1"), jupiter.url)
    with pytest.raises(Unreachable):
        elsewhere.draft(offer, minimum_units=1, signer=None)


@pytest.fixture
def _shared(node: SolanaNode) -> Iterator[None]:
    """Make the exchange use routes through its own accounts for the duration of a test."""
    node.add_program(JUPITER, exchange_program(route=SHARED_ACCOUNTS_ROUTE_V2))
    yield
    node.add_program(JUPITER, exchange_program())


def _through_shared_accounts(answer: Answer) -> Answer:
    route = answer["swapInstruction"]
    user, given, wanted, *mints_and_programs, _payee, events, program = route["accounts"][:10]
    own = [{"pubkey": str(Keypair().pubkey()), "isSigner": False, "isWritable": True} for _ in range(3)]
    route["accounts"] = [
        own[0], user, given, *own[1:], wanted, *mints_and_programs, events, program, *route["accounts"][10:],
    ]  # fmt: skip
    return _with_data(answer, SHARED_ACCOUNTS_ROUTE_V2 + b"\0" + bytes(_data(answer)[8:]))


@pytest.mark.usefixtures("_shared")
@pytest.mark.parametrize("given", [SOL, USDC])
def test_a_route_through_shared_accounts_yields_our_minimum_or_is_not_signed(
    given: Token, node: SolanaNode, exchange: JupiterExchange, jupiter: JupiterServer, person: SolanaPerson
) -> None:
    jupiter.faults = JupiterFaults(change=_through_shared_accounts)
    chain = chain_at(node.url)
    offer = exchange.quote(swap_request(person, given))
    with pytest.raises(Rejected, match=r"price_moved"):
        exchange.draft(offer, minimum_units=offer.output_units + 1, signer=None)
    draft = exchange.draft(offer, minimum_units=offer.output_units, signer=None)
    signed = exchange.sign(draft, person, sequence=None, concurrent=ConcurrentOutflows())
    chain.broadcast(signed.raw)
    node.advance(CONFIRMED_SLOTS)
    found = chain.outcomes([replace(watch(person, signed), expected_token=offer.request.output_token)])["it"]
    assert found.received_units == offer.output_units


def test_unneeded_figures_of_jupiter_are_not_used(
    node: SolanaNode, exchange: JupiterExchange, jupiter: JupiterServer, person: SolanaPerson
) -> None:
    lies = {
        "inAmount": "1", "otherAmountThreshold": "1", "slippageBps": 10_000, "priceImpactPct": "-1",
        "computeBudgetInstructions": [TRANSFER], "blockhashWithMetadata": None,
    }  # fmt: skip
    jupiter.faults = JupiterFaults(change=lambda answer: {**answer, **lies})
    chain = chain_at(node.url)
    offer = exchange.quote(swap_request(person))
    draft = exchange.draft(offer, minimum_units=offer.output_units, signer=None)
    chain.broadcast(exchange.sign(draft, person, sequence=None, concurrent=ConcurrentOutflows()).raw)
    node.advance(CONFIRMED_SLOTS)
    assert chain.balances(person.address).of(USDC).units == SOME_USDC - 10_000_000


@pytest.fixture
def greedy(node: SolanaNode) -> Iterator[Callable[[], None]]:
    """A program that takes three times as much as the exchange; the honest one is restored after the test."""
    yield lambda: node.add_program(JUPITER, exchange_program(greed=3))
    node.add_program(JUPITER, exchange_program())


@pytest.mark.parametrize("given", [SOL, USDC])
def test_a_program_that_takes_more_than_simulated_gets_nothing(
    given: Token, node: SolanaNode, exchange: JupiterExchange, person: SolanaPerson, greedy: Callable[[], None]
) -> None:
    # The program can reach the wallet's own wrapped SOL, too.
    wrapped = associated_token_address(Pubkey.from_string(person.address), Pubkey.from_string(WRAPPED_SOL_MINT))
    node.airdrop(str(wrapped), 50_000_000)
    node.advance(FINALIZED_SLOTS + 1)
    chain = chain_at(node.url)
    before = chain.balances(person.address)
    offer = exchange.quote(swap_request(person, given))
    draft = exchange.draft(offer, minimum_units=offer.output_units, signer=person)
    signed = exchange.sign(draft, person, sequence=None, concurrent=ConcurrentOutflows())
    greedy()
    chain.broadcast(signed.raw)
    node.advance(CONFIRMED_SLOTS)
    found = chain.outcomes([watch(person, signed)])["it"]
    after = chain.balances(person.address)
    assert found.status is TransactionStatus.REVERTED
    assert before.of(USDC) == after.of(USDC)
    assert before.of(SOL).units - after.of(SOL).units == found.fee_units


def test_concurrent_outflows_do_not_fail_a_swap_that_included_them(
    node: SolanaNode, exchange: JupiterExchange, person: SolanaPerson
) -> None:
    chain = chain_at(node.url)
    offer = exchange.quote(swap_request(person))
    drafts = [exchange.draft(offer, minimum_units=1, signer=None) for _ in range(3)]
    first = exchange.sign(drafts[0], person, sequence=None, concurrent=ConcurrentOutflows())
    knowing = ConcurrentOutflows(outflows={USDC: 10_000_000, SOL: drafts[0].fee_units})
    second = exchange.sign(drafts[1], person, sequence=None, concurrent=knowing)
    # A swap that did not include the outflows is not executed after them: its final instructions prevent that.
    third = exchange.sign(drafts[2], person, sequence=None, concurrent=knowing)
    for each in (first, second, third):
        chain.broadcast(each.raw)
        node.advance(CONFIRMED_SLOTS)
    fates = [chain.outcomes([watch(person, each)])["it"].status for each in (first, second, third)]
    assert fates == [TransactionStatus.SUCCEEDED, TransactionStatus.SUCCEEDED, TransactionStatus.REVERTED]
    assert chain.balances(person.address).of(USDC).units == SOME_USDC - 20_000_000


def test_lamports_sent_to_missing_accounts_do_not_fail_a_swap(node: SolanaNode, exchange: JupiterExchange) -> None:
    person = funded(node, lamports=10**9)
    owner = Pubkey.from_string(person.address)
    for mint in (WRAPPED_SOL_MINT, USDC_MINT):
        node.airdrop(str(associated_token_address(owner, Pubkey.from_string(mint))), 1_000_000)
    node.advance(FINALIZED_SLOTS + 1)
    chain = chain_at(node.url)
    before = chain.balances(person.address)
    offer = exchange.quote(swap_request(person, SOL, 500_000_000))
    draft = exchange.draft(offer, minimum_units=offer.output_units, signer=None)
    signed = exchange.sign(draft, person, sequence=None, concurrent=ConcurrentOutflows())
    chain.broadcast(signed.raw)
    node.advance(CONFIRMED_SLOTS)
    found = chain.outcomes([replace(watch(person, signed), expected_token=USDC)])["it"]
    after = chain.balances(person.address)
    assert found.received_units == after.of(USDC).units == offer.output_units
    # What was at the wrapping address returns with the rest; at the other it stays as rent.
    assert found.fee_units == draft.fee_units == 5_001 + 2_039_280 - 1_000_000
    assert before.of(SOL).units - after.of(SOL).units == 500_000_000 + found.fee_units - 1_000_000


def test_a_deposit_between_two_reads_does_not_fail_a_swap(
    node: SolanaNode, jupiter: JupiterServer, person: SolanaPerson
) -> None:
    """A pool of nodes may report balances of one moment and simulate at another."""
    looks = 0

    def earlier_balances(calls: Calls, replies: Calls) -> Calls:
        nonlocal looks
        for call, reply in zip(calls, sorted(replies, key=lambda reply: reply["id"]), strict=True):
            if call["method"] == "getMultipleAccounts":
                looks += 1
                if looks <= wrong:
                    reply["result"]["value"][0]["lamports"] -= 1
        return replies

    with proxy(node.url) as pool:
        pool.after = earlier_balances
        exchange = JupiterExchange(chain_at(pool.url), jupiter.url)
        offer = exchange.quote(swap_request(person, SOL))
        wrong = 1
        assert exchange.draft(offer, minimum_units=1, signer=None).fee_units > 0
        looks, wrong = 0, 2
        with pytest.raises(Rejected, match=r"unsafe_instructions"):
            exchange.draft(offer, minimum_units=1, signer=None)


def test_equal_swaps_at_the_same_moment_are_two_transactions(exchange: JupiterExchange, person: SolanaPerson) -> None:
    offer = exchange.quote(swap_request(person))
    hashes = {
        exchange.sign(
            exchange.draft(offer, minimum_units=1, signer=None), person, sequence=None, concurrent=ConcurrentOutflows()
        ).tx_hash
        for _ in range(2)
    }
    assert len(hashes) == 2


def test_wrapped_sol_received_before_is_neither_lost_nor_counted_as_output(
    node: SolanaNode, exchange: JupiterExchange, person: SolanaPerson
) -> None:
    wrapped = associated_token_address(Pubkey.from_string(person.address), Pubkey.from_string(WRAPPED_SOL_MINT))
    node.airdrop(str(wrapped), 5_000_000)
    node.advance(40)
    offer: SwapOffer = exchange.quote(swap_request(person))
    signed = exchange.sign(
        exchange.draft(offer, minimum_units=offer.output_units, signer=None),
        person,
        sequence=None,
        concurrent=ConcurrentOutflows(),
    )
    chain = chain_at(node.url)
    before = chain.balances(person.address).of(SOL).units
    chain.broadcast(signed.raw)
    node.advance(CONFIRMED_SLOTS)
    found = chain.outcomes([replace(watch(person, signed), expected_token=SOL)])["it"]
    assert (found.received_units, found.fee_units) == (offer.output_units, 5_001)
    assert chain.balances(person.address).of(SOL).units == before + offer.output_units + 5_000_000 - 5_001


def test_lookup_tables_are_read_from_the_cluster(
    node: SolanaNode, exchange: JupiterExchange, jupiter: JupiterServer, person: SolanaPerson
) -> None:
    table, truth = Pubkey.new_unique(), []

    def through_a_table(answer: Answer) -> Answer:
        truth[:] = [meta["pubkey"] for meta in answer["swapInstruction"]["accounts"][10:]]
        keys = b"".join(bytes(Pubkey.from_string(key)) for key in truth)
        header = struct.pack("<IQQBB", 1, 2**64 - 1, 0, 0, 1) + bytes(34)
        state = Account(10_000_000, header + keys, LOOKUP_TABLE_PROGRAM)
        node.set_account(table, state)
        node.advance(CONFIRMED_SLOTS)
        # Jupiter's claim about the table's content is irrelevant.
        return {**answer, "addressesByLookupTableAddress": {str(table): [OTHER] * 3}}

    jupiter.faults = JupiterFaults(change=through_a_table)
    offer = exchange.quote(swap_request(person))
    draft = exchange.draft(offer, minimum_units=offer.output_units, signer=None)
    signed = exchange.sign(draft, person, sequence=None, concurrent=ConcurrentOutflows())
    chain = chain_at(node.url)
    chain.broadcast(signed.raw)
    node.advance(CONFIRMED_SLOTS)
    assert chain.balances(person.address).of(USDC).units == SOME_USDC - 10_000_000


def test_a_wallet_without_sol_gets_the_missing_amount(node: SolanaNode, exchange: JupiterExchange) -> None:
    poor = funded(node, lamports=0, usdc_units=SOME_USDC)
    assert refused(exchange, swap_request(poor)) == "insufficient_gas"
    assert refused(exchange, swap_request(poor, units=SOME_USDC + 1)) == "insufficient_funds"
    rich = funded(node, lamports=10**9)
    assert refused(exchange, swap_request(rich, SOL, 10**9)) == "insufficient_funds"
