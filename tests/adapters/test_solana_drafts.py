"""Solana drafts: exact fees and early refusals, on a real local node."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.account import Account
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN_PROGRAM
from solders.token.state import TokenAccount, TokenAccountState
from solders.transaction import VersionedTransaction
from spl.token.constants import ASSOCIATED_TOKEN_PROGRAM_ID, WRAPPED_SOL_MINT

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS
from app.adapters.solana.send import tokens, transactions
from app.core.chains import SOL, USDC, Token, token_named
from app.ports.chain import TransactionDraft, TransactionStatus
from app.ports.errors import Rejected, Unreachable
from solana_node import USDC_MINT, SolanaNode
from tests.support.evm import Calls, json_reply, proxy, spoil
from tests.support.solana_people import WHOLE_SOL, SolanaPerson, chain_at, funded, intent, outcome, signed

pytestmark = pytest.mark.chain

_MINT = Pubkey.from_string(USDC_MINT)
_SYSTEM = Pubkey.default()
EMPTY_RENT = 890_880
TOKEN_RENT = 2_039_280


@pytest.fixture(scope="module")
def node() -> Iterator[SolanaNode]:
    with SolanaNode(slot_ms=0) as started:
        yield started


@pytest.fixture(scope="module")
def chain(node: SolanaNode) -> SolanaChain:
    return chain_at(node.url)


def _new_address() -> str:
    return str(Keypair().pubkey())


def _refusal(chain: SolanaChain, sender: SolanaPerson, to: str, units: int, token: Token = SOL) -> Rejected:
    with pytest.raises(Rejected) as refused:
        chain.draft(intent(sender, to, units, token))
    return refused.value


def _fee(chain: SolanaChain, sender: SolanaPerson, to: str, token: Token = SOL) -> int:
    return chain.draft(intent(sender, to, WHOLE_SOL // 10 if token == SOL else 1, token)).fee_units


def _message(draft: TransactionDraft) -> MessageV0:
    message = transactions.decode(str(draft.terms["transaction"])).message
    assert isinstance(message, MessageV0)
    return message


def _price(draft: TransactionDraft) -> int:
    """Return the price of the second instruction, in micro-lamports per unit."""
    data = bytes(_message(draft).instructions[1].data)
    assert data[0] == 3
    return int.from_bytes(data[1:], "little")


def _creates_account(draft: TransactionDraft) -> bool:
    return ASSOCIATED_TOKEN_PROGRAM_ID in _message(draft).account_keys


def _token_account(*, owner: Pubkey, frozen: bool = False, units: int = 0) -> Account:
    state = TokenAccount(
        mint=_MINT, owner=owner, amount=units, delegate=None,
        state=TokenAccountState.Frozen if frozen else TokenAccountState.Initialized,
        is_native=None, delegated_amount=0, close_authority=None,
    )  # fmt: skip
    return Account(TOKEN_RENT, bytes(state), TOKEN_PROGRAM)


def test_two_equal_payments_at_one_moment_are_two_payments(node: SolanaNode, chain: SolanaChain) -> None:
    sender, to = funded(node), _new_address()

    first, second = (signed(chain, sender, to, WHOLE_SOL // 10) for _ in range(2))
    assert first[0].terms["blockhash"] == second[0].terms["blockhash"]
    for _, transaction in (first, second):
        chain.broadcast(transaction.raw)
    node.advance(2)

    assert first[1].tx_hash != second[1].tx_hash
    assert chain.balances(to).of(SOL).units == 2 * (WHOLE_SOL // 10)


def test_the_charged_fee_equals_the_draft_to_the_lamport(node: SolanaNode, chain: SolanaChain) -> None:
    sender, new, known = funded(node, usdc_units=10_000_000), _new_address(), funded(node, usdc_units=1)
    for to, token, units in (
        (new, SOL, WHOLE_SOL // 10),
        (_new_address(), USDC, 1_000_000),
        (known.address, USDC, 1_000_000),
    ):
        draft, transaction = signed(chain, sender, to, units, token=token)
        before = chain.balances(sender.address).of(SOL).units
        chain.broadcast(transaction.raw)
        node.advance(2)
        end = outcome(chain, sender, transaction)

        spent = before - chain.balances(sender.address).of(SOL).units
        assert end.status is TransactionStatus.SUCCEEDED
        assert end.fee_units == draft.fee_units == spent - (units if token == SOL else 0)


def test_creating_the_recipients_token_account_is_part_of_the_fee(node: SolanaNode, chain: SolanaChain) -> None:
    sender, holder = funded(node, usdc_units=5_000_000), funded(node, usdc_units=1)

    to_new = chain.draft(intent(sender, _new_address(), 1, USDC))
    to_known = chain.draft(intent(sender, holder.address, 1, USDC))

    assert to_new.fee_units - to_known.fee_units == TOKEN_RENT
    assert (_creates_account(to_new), _creates_account(to_known)) == (True, False)


def test_sol_at_the_token_accounts_address_counts_towards_its_rent(node: SolanaNode, chain: SolanaChain) -> None:
    sender, to = funded(node, usdc_units=5_000_000), _new_address()
    node.set_account(tokens.account_of(Pubkey.from_string(to), _MINT), Account(2_000_000, b"", _SYSTEM))
    node.advance(2)

    draft, transaction = signed(chain, sender, to, 7, token=USDC)
    chain.broadcast(transaction.raw)
    node.advance(2)

    assert outcome(chain, sender, transaction).fee_units == draft.fee_units < TOKEN_RENT
    assert chain.balances(to).of(USDC).units == 7


def test_wrapped_sol_is_not_counted_as_the_rent_of_the_account_that_it_arrives_at(
    node: SolanaNode, chain: SolanaChain
) -> None:
    sender, to, units = funded(node), _new_address(), 2 * WHOLE_SOL
    for owner, held in ((sender.address, 5 * WHOLE_SOL), (to, 1)):
        key = Pubkey.from_string(owner)
        state = TokenAccount(
            mint=WRAPPED_SOL_MINT, owner=key, amount=held, delegate=None, state=TokenAccountState.Initialized,
            is_native=TOKEN_RENT, delegated_amount=0, close_authority=None,
        )  # fmt: skip
        account = Account(TOKEN_RENT + held, bytes(state), TOKEN_PROGRAM)
        node.set_account(tokens.account_of(key, WRAPPED_SOL_MINT), account)
    node.advance(40)

    token = token_named(f"{WRAPPED_SOL_MINT}:{SOL.decimals}")
    to_known, to_new = (chain.draft(intent(sender, each, units, token)) for each in (to, _new_address()))

    assert (to_known.rent_units, to_new.rent_units) == (0, TOKEN_RENT)


def test_the_full_balance_can_be_sent_but_no_dust_left(node: SolanaNode, chain: SolanaChain) -> None:
    sender, to = funded(node), _new_address()
    fee = _fee(chain, sender, to)

    for left in (1, EMPTY_RENT - 1):
        refused = _refusal(chain, sender, to, WHOLE_SOL - fee - left)
        assert refused.reason == "leaves_dust"
        assert refused.details["minimum"] == "0.00089088"
    assert chain.draft(intent(sender, to, WHOLE_SOL - fee - EMPTY_RENT)).fee_units == fee
    assert _refusal(chain, sender, to, WHOLE_SOL - fee + 1).details["missing"] == "0.000000001"

    _, everything = signed(chain, sender, to, WHOLE_SOL - fee)
    chain.broadcast(everything.raw)
    node.advance(2)
    assert chain.balances(sender.address).of(SOL).units == 0
    assert outcome(chain, sender, everything).status is TransactionStatus.SUCCEEDED


def test_the_last_lamports_may_pay_the_fee_of_a_usdc_payment(node: SolanaNode, chain: SolanaChain) -> None:
    holder = funded(node, usdc_units=1)
    fee = _fee(chain, funded(node, usdc_units=5), holder.address, USDC)
    sender = funded(node, usdc_units=5)
    node.set_account(sender.address, Account(fee, b"", _SYSTEM))
    node.advance(2)

    _, last = signed(chain, sender, holder.address, 5, token=USDC)
    chain.broadcast(last.raw)
    node.advance(2)

    assert [amount.units for amount in chain.balances(sender.address).amounts] == [0, 0]


def test_a_payer_below_the_rent_minimum_after_the_fee_is_refused_before_signing(
    node: SolanaNode, chain: SolanaChain
) -> None:
    """The runtime checks the payer after the fee and before the transfer: one lamport decides."""
    holder = funded(node, usdc_units=1)
    fee = _fee(chain, funded(node), holder.address)
    for lamports, lands in ((EMPTY_RENT + fee, True), (EMPTY_RENT + fee - 1, False), (891_000, False)):
        sender = funded(node)
        node.set_account(sender.address, Account(lamports, b"", _SYSTEM))
        node.advance(2)
        everything = lamports - fee
        if not lands:
            refused = _refusal(chain, sender, holder.address, everything)
            assert (refused.reason, refused.details["currency"]) == ("insufficient_gas", "SOL"), lamports
            assert int(refused.details["required"].removeprefix("0.").ljust(9, "0")) == EMPTY_RENT + fee
            continue
        _, last = signed(chain, sender, holder.address, everything)
        chain.broadcast(last.raw)
        node.advance(2)
        assert chain.balances(sender.address).of(SOL).units == 0
        assert outcome(chain, sender, last).status is TransactionStatus.SUCCEEDED


def test_a_payer_of_usdc_below_the_rent_minimum_after_the_fee_is_refused(node: SolanaNode, chain: SolanaChain) -> None:
    sender, to = funded(node, usdc_units=5), funded(node).address
    place = tokens.account_of(Pubkey.from_string(to), _MINT)
    fee = _fee(chain, sender, to, USDC) - TOKEN_RENT
    # All but one lamport of the rent was sent in advance, so that the wallet could pay what is missing exactly.
    node.set_account(place, Account(TOKEN_RENT - 1, b"", _SYSTEM))
    node.set_account(sender.address, Account(fee + 1, b"", _SYSTEM))
    node.advance(2)

    assert _refusal(chain, sender, to, 5, USDC).reason == "insufficient_gas"


def test_a_vault_is_paid_where_its_token_account_exists(node: SolanaNode, chain: SolanaChain) -> None:
    sender = funded(node, usdc_units=5_000_000)
    vault = Pubkey.find_program_address([b"vault"], Keypair().pubkey())[0]
    assert _refusal(chain, sender, str(vault), 1, USDC).details == {"recipient_is": "no_wallet"}

    node.set_account(tokens.account_of(vault, _MINT), _token_account(owner=vault, units=2))
    node.advance(2)

    draft, paid = signed(chain, sender, str(vault), 1_000_000, token=USDC)
    assert draft.recipient_is == "contract", "a quote says that a program decides what becomes of it"
    chain.broadcast(paid.raw)
    node.advance(2)
    assert chain.balances(str(vault)).of(USDC).units == 1_000_002
    assert chain.draft(intent(sender, funded(node).address, 1, USDC)).recipient_is is None


def test_addresses_that_burn_or_keep_what_they_are_sent_are_no_recipients(chain: SolanaChain) -> None:
    for address in ("1nc1nerator11111111111111111111111111111111", str(ASSOCIATED_TOKEN_PROGRAM_ID), str(TOKEN_PROGRAM),
                    "SysvarC1ock11111111111111111111111111111111", "Vote111111111111111111111111111111111111111",
                    "So11111111111111111111111111111111111111112", str(_SYSTEM), USDC_MINT):  # fmt: skip
        for token in (SOL, USDC):
            assert "cannot be recovered" in (chain.recipient_rejection(address, token) or ""), address
    assert chain.recipient_rejection(_new_address(), USDC) is None


def test_a_frozen_token_account_can_receive_nothing(node: SolanaNode, chain: SolanaChain) -> None:
    owner = Pubkey.from_string(funded(node).address)
    assert chain.receiving_refusal(str(owner), USDC) is None
    node.set_account(tokens.account_of(owner, _MINT), _token_account(owner=owner, frozen=True))
    node.advance(2)

    assert chain.receiving_refusal(str(owner), USDC) == "frozen"
    assert chain.receiving_refusal(str(owner), SOL) is None


def test_less_than_the_rent_minimum_of_a_new_account_is_refused_with_the_minimum(
    node: SolanaNode, chain: SolanaChain
) -> None:
    sender, to = funded(node), _new_address()

    refused = _refusal(chain, sender, to, EMPTY_RENT - 1)
    assert (refused.reason, refused.details["minimum"]) == ("amount_below_rent", "0.00089088")
    chain.draft(intent(sender, to, EMPTY_RENT))
    chain.draft(intent(sender, funded(node).address, 1))  # an existing account can receive one lamport
    chain.draft(intent(sender, sender.address, 1))


def test_usdc_without_enough_sol_is_refused_with_the_missing_sol(node: SolanaNode, chain: SolanaChain) -> None:
    holder = funded(node, usdc_units=1)
    poor = funded(node, lamports=EMPTY_RENT + 100, usdc_units=5_000_000)

    refused = _refusal(chain, poor, holder.address, 1, USDC)
    assert (refused.reason, refused.details["currency"]) == ("insufficient_gas", "SOL")

    missing = int(refused.details["missing"].removeprefix("0.").ljust(9, "0"))
    node.airdrop(poor.address, missing)
    node.advance(2)
    assert chain.draft(intent(poor, holder.address, 1, USDC)).token_units == 5_000_000


def test_recipients_that_cannot_use_the_money_are_refused(node: SolanaNode, chain: SolanaChain) -> None:
    sender = funded(node, usdc_units=5_000_000)
    holder = funded(node, usdc_units=5_000_000)
    unused = funded(node)
    their_tokens = str(tokens.account_of(Pubkey.from_string(holder.address), _MINT))
    own_tokens = str(tokens.account_of(Pubkey.from_string(sender.address), _MINT))
    not_there_yet = str(tokens.account_of(Pubkey.from_string(unused.address), _MINT))
    for to, token, kind in (
        (their_tokens, SOL, "token_account_or_mint"),
        (their_tokens, USDC, "token_account_or_mint"),
        (own_tokens, SOL, "token_account_or_mint"),
        (own_tokens, USDC, "token_account_or_mint"),
        (USDC_MINT, SOL, "token_account_or_mint"),
        (str(TOKEN_PROGRAM), SOL, "program"),
        (str(ASSOCIATED_TOKEN_PROGRAM_ID), USDC, "program"),
        ("SysvarRent111111111111111111111111111111111", SOL, "program"),
        (not_there_yet, USDC, "no_wallet"),
    ):
        refused = _refusal(chain, sender, to, WHOLE_SOL // 100 if token == SOL else 1_000_000, token)
        assert (refused.reason, refused.details) == ("invalid_recipient", {"recipient_is": kind}), (to, token)
    assert chain.recipient_rejection(USDC_MINT, SOL)


def test_a_multisignature_vault_can_be_paid(node: SolanaNode, chain: SolanaChain) -> None:
    sender = funded(node, usdc_units=5_000_000)
    vault = str(Pubkey.find_program_address([b"vault"], Keypair().pubkey())[0])

    _, of_sol = signed(chain, sender, vault, WHOLE_SOL // 10)
    chain.broadcast(of_sol.raw)
    node.advance(2)
    _, of_usdc = signed(chain, sender, vault, 1_000_000, token=USDC)
    chain.broadcast(of_usdc.raw)
    node.advance(2)

    assert [amount.units for amount in chain.balances(vault).amounts] == [WHOLE_SOL // 10, 1_000_000]


def test_tokens_are_not_sent_to_an_account_with_a_changed_owner(node: SolanaNode, chain: SolanaChain) -> None:
    sender, to = funded(node, usdc_units=5_000_000), funded(node)
    place = tokens.account_of(Pubkey.from_string(to.address), _MINT)
    node.set_account(place, _token_account(owner=Keypair().pubkey()))
    node.advance(2)

    refused = _refusal(chain, sender, to.address, 1_000_000, USDC)

    assert refused.details == {"recipient_is": "given_away"}


def test_a_frozen_account_is_detected_by_the_simulation(node: SolanaNode, chain: SolanaChain) -> None:
    sender, to = funded(node, usdc_units=5_000_000), funded(node)
    owner = Pubkey.from_string(to.address)
    node.set_account(tokens.account_of(owner, _MINT), _token_account(owner=owner, frozen=True))
    node.advance(2)

    refused = _refusal(chain, sender, to.address, 1_000_000, USDC)

    assert refused.reason == "simulation_failed"
    assert refused.details == {"revert": "the token account is frozen"}


@pytest.mark.parametrize(
    "lie", ["<b>AccountLoadedTwice</b>", {"InstructionError": [2, {"Custom": "x"}]}, {"a": 1, "b": 2}, [1]]
)
def test_simulation_errors_never_contain_a_nodes_own_text(node: SolanaNode, lie: object) -> None:
    sender, to = funded(node), _new_address()
    with proxy(node.url) as between:
        slot = node.call("getSlot", {"commitment": "confirmed"})
        between.after = spoil(
            "simulateTransaction",
            {"context": {"slot": slot}, "value": {"err": lie, "unitsConsumed": 300, "logs": None}},
        )
        refused = _refusal(chain_at(between.url), sender, to, WHOLE_SOL // 10)
    assert refused.details == {"revert": "the transaction would fail"}


def test_priority_fees_follow_the_market_up_to_a_ceiling(node: SolanaNode) -> None:
    sender, to = funded(node), _new_address()
    with proxy(node.url) as between:
        chain = chain_at(between.url)
        prices = []
        for market in (0, 40_000, 10**15):
            between.after = spoil("getRecentPrioritizationFees", [{"slot": 1, "prioritizationFee": market}] * 150)
            draft = chain.draft(intent(sender, to, WHOLE_SOL // 10))
            prices.append(_price(draft))
            assert draft.fee_units < 20_000
    assert prices == [1, 40_000, 5_000_000]


def test_priority_fees_follow_busy_accounts_or_the_estimate_of_the_endpoints(node: SolanaNode) -> None:
    sender, to, busy = funded(node), _new_address(), _new_address()
    deployment = dataclasses.replace(DEPLOYMENTS["sandbox"], busy_accounts=(busy,))
    with proxy(node.url) as between:

        def price(*, estimates_fees: bool) -> object:
            chain = SolanaChain(deployment, rpc_urls=[between.url], estimates_fees=estimates_fees)
            return _price(chain.draft(intent(sender, to, WHOLE_SOL // 10)))

        market = spoil("getRecentPrioritizationFees", [{"slot": 1, "prioritizationFee": 700}] * 150)
        between.after = market
        assert price(estimates_fees=False) == 700
        (recent,) = (call for call in between.requests[-1] if call["method"] == "getRecentPrioritizationFees")
        assert {busy, sender.address} <= set(recent["params"][0])
        assert "getPriorityFeeEstimate" not in between.methods()

        assert price(estimates_fees=True) == 700, "this node does not have the method"
        for estimate, expected in (("5000.5", 5_001), ("71428.5", 71_429), (10**12, 200_000), ("NaN", 700), ({}, 700)):
            result = {"priorityFeeEstimate": estimate}
            between.after = lambda calls, replies, result=result: spoil("getPriorityFeeEstimate", result)(  # type: ignore[misc]
                calls,
                list(market(calls, replies)),  # type: ignore[arg-type]
            )
            assert price(estimates_fees=True) == expected


def test_a_retry_pays_at_least_four_times_as_much() -> None:
    assert [transactions.retry_price(price) for price in (1, 20_000, 10**9)] == [50_000, 80_000, 5_000_000]


def test_the_priority_price_is_the_median_and_an_estimate_is_bounded_by_it() -> None:
    assert transactions.priority_price([]) == 1
    assert transactions.priority_price([100] * 75 + [7] * 75) == 7
    assert transactions.priority_price([100] * 76 + [7] * 74) == 100
    assert transactions.priority_price([0] * 150, 4_000_000) == 200_000
    assert transactions.priority_price([50_000] * 150, 4_000_000) == 500_000
    assert transactions.priority_price([50_000] * 150, 60_000) == 60_000
    assert transactions.fee_lamports(1_000, 1) == 5_001
    assert transactions.compute_unit_limit(10_000_000) == transactions.MAX_COMPUTE_UNITS


@given(honest=st.lists(st.integers(0, 2**63), min_size=1, max_size=150), chosen=st.lists(st.integers(0, 2**63)))
def test_who_chooses_the_prices_of_a_minority_of_slots_chooses_nothing(honest: list[int], chosen: list[int]) -> None:
    price = transactions.priority_price([*chosen[: len(honest) - 1], *honest])
    assert min(honest) <= price <= max(*honest, 1) or price == 5_000_000 <= max(honest)


def test_a_draft_is_one_request(node: SolanaNode) -> None:
    sender, to = funded(node), _new_address()
    with proxy(node.url) as between:
        chain = chain_at(between.url)
        chain.head()
        chain.draft(intent(sender, to, WHOLE_SOL // 10))
        assert len(between.requests) == 2
        between.before = lambda calls: None if len(calls) == 1 else json_reply({}, 400)
        chain.draft(intent(sender, to, WHOLE_SOL // 10))
        assert len(between.requests[-1]) == 1, "an endpoint without batches gets single requests"


def test_responses_of_distant_slots_are_refused(node: SolanaNode) -> None:
    sender, to = funded(node), _new_address()

    def lag(calls: Calls, replies: Calls) -> Calls:
        for call, reply in zip(calls, replies, strict=True):
            if call["method"] == "getMultipleAccounts":
                reply["result"]["context"]["slot"] -= 40
        return replies

    with proxy(node.url) as between:
        between.after = lag
        with pytest.raises(Unreachable):
            chain_at(between.url).draft(intent(sender, to, WHOLE_SOL // 10))
        assert chain_at(between.url, node.url).draft(intent(sender, to, WHOLE_SOL // 10)).fee_units


def test_the_signed_transaction_matches_the_intent_and_only_the_sender_signs(
    node: SolanaNode, chain: SolanaChain
) -> None:
    sender, to = funded(node), _new_address()
    draft, transaction = signed(chain, sender, to, 12_345_678)

    decoded = VersionedTransaction.from_bytes(transaction.raw)
    keys = decoded.message.account_keys
    assert str(keys[0]) == sender.address
    assert decoded.verify_with_results() == [True]
    assert transaction.expires_at_height == draft.terms["last_valid_block_height"]
    paying = decoded.message.instructions[-1]
    assert [str(keys[place]) for place in bytes(paying.accounts)[:2]] == [sender.address, to]
    assert int.from_bytes(bytes(paying.data)[4:], "little") == 12_345_678
    with pytest.raises(ValueError, match="another key"):
        chain.sign(draft, SolanaPerson(), sequence=None)
    with pytest.raises(ValueError, match="no nonce"):
        chain.sign(draft, sender, sequence=3)


def test_a_draft_contains_the_slot_of_its_balances(node: SolanaNode, chain: SolanaChain) -> None:
    sender, to = funded(node), _new_address()
    _, transaction = signed(chain, sender, to, WHOLE_SOL // 10)
    chain.broadcast(transaction.raw)

    before = chain.draft(intent(sender, to, WHOLE_SOL // 10))
    node.advance(1)
    after = chain.draft(intent(sender, to, WHOLE_SOL // 10))
    landed = outcome(chain, sender, transaction).block

    assert landed is not None
    assert before.as_of is not None
    assert after.as_of is not None
    assert before.as_of < landed.number <= after.as_of
    assert after.native_units == before.native_units - WHOLE_SOL // 10 - before.fee_units
    assert json.loads(json.dumps(dict(after.terms))) == after.terms
