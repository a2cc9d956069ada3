"""Deposits on Solana: each once, none of our own, none lost in dust."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from solders.account import Account
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.token import ID as TOKEN_PROGRAM
from solders.transaction import VersionedTransaction
from spl.token.instructions import create_idempotent_associated_token_account
from structlog.testing import capture_logs

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.send import tokens
from app.adapters.solana.track.account_history import HistoryReadLimits
from app.core.chains import SOL, USDC
from app.core.money import TokenAmount
from app.ports.chain import BlockRef, Deposit, Terms, WatchedAddress
from app.ports.errors import Unreachable
from solana_node import USDC_MINT, SolanaNode
from tests.support.evm import After, Calls, proxy, refuse, spoil
from tests.support.solana_people import (
    FINALIZED_SLOTS,
    WHOLE_SOL,
    SolanaPerson,
    chain_at,
    funded,
    reading_little,
    signed,
)

pytestmark = pytest.mark.chain

_MINT = Pubkey.from_string(USDC_MINT)


@pytest.fixture
def node() -> Iterator[SolanaNode]:
    with SolanaNode(slot_ms=0) as started:
        yield started


@pytest.fixture
def chain(node: SolanaNode) -> SolanaChain:
    return chain_at(node.url)


@dataclass(slots=True)
class Watcher:
    """Keeps cursor and scan states between scans, as the database does."""

    chain: SolanaChain
    marks: dict[str, Terms] = field(default_factory=dict)
    cursor: BlockRef | None = None
    written: int = 0

    def watch(self, *addresses: str) -> Watcher:
        self.marks |= {address: self.chain.scan_state(address) for address in addresses}
        return self

    def scan(self) -> list[Deposit]:
        watched = [WatchedAddress(a, mark) for a, mark in self.marks.items()]
        scan = self.chain.deposits(watched, cursor=self.cursor)
        self.cursor = scan.cursor
        self.written += len(scan.scan_states)
        self.marks |= {address: json.loads(json.dumps(dict(mark))) for address, mark in scan.scan_states.items()}
        return list(scan.deposits)


def _finalize(node: SolanaNode) -> None:
    node.advance(FINALIZED_SLOTS + 1)


def _new_address() -> str:
    return str(Keypair().pubkey())


def _send(node: SolanaNode, payer: Keypair, *instructions: Instruction, signers: tuple[Keypair, ...] = ()) -> str:
    blockhash = Hash.from_string(node.call("getLatestBlockhash", {"commitment": "processed"})["value"]["blockhash"])
    message = MessageV0.try_compile(payer.pubkey(), list(instructions), [], blockhash)
    transaction = VersionedTransaction(message, [payer, *signers])
    with node.chain.locked():
        node.chain.execute(transaction)
    return str(transaction.signatures[0])


def _sol(payer: SolanaPerson, to: str, lamports: int) -> Instruction:
    return transfer(
        TransferParams(from_pubkey=payer.keys.pubkey(), to_pubkey=Pubkey.from_string(to), lamports=lamports)
    )


def _usdc(payer: SolanaPerson, to: str, units: int) -> list[Instruction]:
    owner, recipient = payer.keys.pubkey(), Pubkey.from_string(to)
    return [
        create_idempotent_associated_token_account(owner, recipient, _MINT),
        tokens.transfer_checked(owner, recipient, _MINT, units=units, decimals=6),
    ]


def _amounts(deposits: list[Deposit]) -> list[tuple[str, int]]:
    return [(deposit.amount.token.symbol, deposit.amount.units) for deposit in deposits]


def test_deposits_count_only_when_finalized(node: SolanaNode, chain: SolanaChain) -> None:
    watched = funded(node)
    watcher = Watcher(chain).watch(watched.address)
    tx_hash = node.airdrop(watched.address, 5)
    for _ in range(FINALIZED_SLOTS):
        assert watcher.scan() == []
        node.advance(1)
    (deposit,) = watcher.scan()

    assert deposit.tx_hash == tx_hash
    assert deposit.amount == TokenAmount(5, SOL)
    assert deposit.block.hash == tx_hash
    assert chain.orphaned_blocks([deposit.block])[0] == frozenset()
    assert watcher.scan() == []


def test_a_scan_state_without_token_account_finds_later_deposits(node: SolanaNode, chain: SolanaChain) -> None:
    payer, watched = funded(node, usdc_units=10_000_000), _new_address()
    watcher = Watcher(chain).watch(watched)

    first = _send(node, payer.keys, *_usdc(payer, watched, 3))
    second = _send(node, payer.keys, *_usdc(payer, watched, 4))
    _finalize(node)
    found = watcher.scan()

    assert [(d.tx_hash, d.amount.units, d.payer) for d in found] == [
        (first, 3, payer.address),
        (second, 4, payer.address),
    ]
    assert watcher.scan() == []


def test_sol_and_usdc_of_one_transaction_are_two_complete_deposits(node: SolanaNode, chain: SolanaChain) -> None:
    payer, watched, also = funded(node, usdc_units=10_000_000), _new_address(), funded(node).address
    watcher = Watcher(chain).watch(watched, also)

    tx_hash = _send(
        node, payer.keys, *_usdc(payer, watched, 7), _sol(payer, watched, 1_000_000),
        _sol(payer, watched, 1), *_usdc(payer, also, 9),
    )  # fmt: skip
    _finalize(node)
    found = watcher.scan()

    assert sorted((d.address == also, d.amount.token.symbol, d.amount.units) for d in found) == [
        (False, "SOL", 1_000_001),
        (False, "USDC", 7),
        (True, "USDC", 9),
    ]
    assert {d.tx_hash for d in found} == {tx_hash}
    assert len({(d.tx_hash, d.position) for d in found}) == 3
    assert watcher.scan() == []


def test_the_payer_is_the_source_and_not_the_fee_payer(node: SolanaNode, chain: SolanaChain) -> None:
    relay, giver, watched = funded(node), funded(node, usdc_units=50), funded(node).address
    watcher = Watcher(chain).watch(watched)

    _send(node, relay.keys, _sol(giver, watched, 10), signers=(giver.keys,))
    creating = create_idempotent_associated_token_account(relay.keys.pubkey(), Pubkey.from_string(watched), _MINT)
    _send(node, relay.keys, creating, _usdc(giver, watched, 20)[1], signers=(giver.keys,))
    _finalize(node)

    assert [(d.amount.units, d.payer) for d in watcher.scan()] == [(10, giver.address), (20, giver.address)]


def test_minted_tokens_have_the_transactions_sender_as_payer(node: SolanaNode, chain: SolanaChain) -> None:
    watched = _new_address()
    watcher = Watcher(chain).watch(watched)
    node.mint_usdc(watched, 5)
    _finalize(node)
    (deposit,) = watcher.scan()
    assert deposit.payer == node.call("sandbox_info")["faucet"]


def test_own_transactions_are_never_deposits(node: SolanaNode, chain: SolanaChain) -> None:
    ours, other = funded(node, usdc_units=100), funded(node, usdc_units=100)
    watcher = Watcher(chain).watch(ours.address)

    # Like a swap: it pays SOL and receives USDC, in a transaction of ours.
    swap = _send(
        node, ours.keys, _sol(ours, other.address, 1_000), _usdc(other, ours.address, 60)[1],
        signers=(other.keys,),
    )  # fmt: skip
    _, sent = signed(chain, ours, other.address, WHOLE_SOL // 10)
    chain.broadcast(sent.raw)
    real = node.airdrop(ours.address, 11)
    _finalize(node)

    # A scan may begin before a transaction is recorded as ours: its signature must be enough.
    assert [(d.tx_hash, d.amount.units) for d in watcher.scan()] == [(real, 11)]
    assert watcher.scan() == []
    assert swap != sent.tx_hash


def test_a_transfer_between_own_wallets_is_a_deposit_of_the_recipient(node: SolanaNode, chain: SolanaChain) -> None:
    first, second = funded(node), funded(node)
    watcher = Watcher(chain).watch(first.address, second.address)
    _, sent = signed(chain, first, second.address, 777)
    chain.broadcast(sent.raw)
    _finalize(node)
    (deposit,) = watcher.scan()
    assert (deposit.address, deposit.payer) == (second.address, first.address)


def test_a_failed_transaction_is_not_a_deposit(node: SolanaNode, chain: SolanaChain) -> None:
    payer, watched = funded(node), funded(node)
    watcher = Watcher(chain).watch(watched.address)
    failed = _send(node, payer.keys, _sol(payer, watched.address, 10), _sol(payer, watched.address, WHOLE_SOL))
    assert node.chain.history.get(failed).error is not None  # type: ignore[union-attr]
    _finalize(node)
    assert watcher.scan() == []
    real = node.airdrop(watched.address, 3)
    _finalize(node)
    assert [d.tx_hash for d in watcher.scan()] == [real]


def test_a_token_account_closed_and_recreated_loses_no_deposit(node: SolanaNode, chain: SolanaChain) -> None:
    payer, watched = funded(node, usdc_units=100), funded(node, usdc_units=5)
    watcher = Watcher(chain).watch(watched.address)
    place = tokens.account_of(watched.keys.pubkey(), _MINT)
    closing = Instruction(
        TOKEN_PROGRAM,
        b"\x09",
        [
            AccountMeta(place, is_signer=False, is_writable=True),
            AccountMeta(payer.keys.pubkey(), is_signer=False, is_writable=True),
            AccountMeta(watched.keys.pubkey(), is_signer=True, is_writable=False),
        ],
    )
    giving = _usdc(watched, payer.address, 5)[1]
    _send(node, watched.keys, giving, closing)
    _send(node, payer.keys, *_usdc(payer, watched.address, 5))
    _finalize(node)

    assert _amounts(watcher.scan()) == [("USDC", 5)]
    assert watcher.scan() == []


def test_prior_transfers_are_not_deposits_even_if_not_final_yet(node: SolanaNode, chain: SolanaChain) -> None:
    watched = _new_address()
    node.airdrop(watched, 10**9)
    node.mint_usdc(watched, 5)
    node.advance(1)
    watcher = Watcher(chain).watch(watched)
    for _ in range(FINALIZED_SLOTS + 3):
        assert watcher.scan() == []
        node.advance(1)
    assert watcher.written == 0, "without news there is nothing to store"


def test_a_scan_without_news_reads_only_the_balances(node: SolanaNode) -> None:
    people = [funded(node).address for _ in range(60)]
    with proxy(node.url) as between:
        watcher = Watcher(chain_at(between.url)).watch(*people)
        _finalize(node)
        assert watcher.scan() == []
        between.requests.clear()
        assert watcher.scan() == []
    assert between.methods() == ["getLatestBlockhash", "getMultipleAccounts", "getMultipleAccounts"]
    assert len(between.requests) == 2


def test_a_history_longer_than_a_page_is_read_completely_and_once(node: SolanaNode) -> None:
    chain = reading_little(node.url, HistoryReadLimits(transactions=50, pages=2, page=20))
    watched = funded(node).address
    watcher = Watcher(chain).watch(watched)
    hashes = [node.airdrop(watched, 100 + number) for number in range(140)]
    _finalize(node)

    found: list[Deposit] = []
    for _ in range(40):
        found += watcher.scan()

    assert sorted(d.tx_hash or "" for d in found) == sorted(hashes)
    assert sum(d.amount.units for d in found) == sum(100 + number for number in range(140))


def test_dust_on_one_address_delays_no_other(node: SolanaNode) -> None:
    chain = reading_little(node.url, HistoryReadLimits(transactions=10))
    spammed, quiet = funded(node).address, funded(node).address
    watcher = Watcher(chain).watch(spammed, quiet)
    for _ in range(40):
        node.airdrop(spammed, 1)
    wanted = node.airdrop(quiet, 5)
    _finalize(node)

    first = watcher.scan()
    assert wanted in {d.tx_hash for d in first}
    assert len(first) <= 10
    rest = [deposit for _ in range(8) for deposit in watcher.scan()]
    assert len(first) + len(rest) == 41


def test_a_temporarily_unavailable_transaction_is_awaited(node: SolanaNode) -> None:
    watched = funded(node).address
    with proxy(node.url) as between:
        watcher = Watcher(chain_at(between.url)).watch(watched)
        hidden = node.airdrop(watched, 5)
        _finalize(node)
        between.after = spoil("getTransaction", None)
        assert watcher.scan() == []
        between.after = refuse("getTransaction", "Transaction version (1) is not supported", code=-32015)
        assert watcher.scan() == []
        between.after = lambda _calls, replies: replies
        assert [d.tx_hash for d in watcher.scan()] == [hidden]


def test_a_permanently_unavailable_transaction_does_not_block_the_next(node: SolanaNode) -> None:
    watched = funded(node).address
    with proxy(node.url) as between, capture_logs() as logs:
        watcher = Watcher(chain_at(between.url)).watch(watched)
        lost = node.airdrop(watched, 5)
        node.advance(1_600)
        found = node.airdrop(watched, 6)
        _finalize(node)

        def hide(calls: Calls, replies: Calls) -> Calls:
            for call, reply in zip(calls, replies, strict=True):
                if call["method"] == "getTransaction" and call["params"][0] == lost:
                    reply["result"] = None
            return replies

        between.after = hide
        assert [d.tx_hash for d in watcher.scan()] == [found]
        assert "transaction_unavailable" in {entry["event"] for entry in logs}
        node.advance(1_600)
        watcher.scan()
        node.advance(1_600)
        watcher.scan()
        between.requests.clear()
        assert watcher.scan() == []
        assert "getSignaturesForAddress" not in between.methods(), "the search ends"


def _changing(of: list[str], change: Callable[[dict[str, Any]], dict[str, Any]]) -> After:
    """Alter some transactions in responses."""

    def after(calls: Calls, replies: Calls) -> Calls:
        for call, reply in zip(calls, replies, strict=True):
            if call["method"] == "getTransaction" and call["params"][0] in of:
                reply["result"] = change(reply["result"])
        return replies

    return after


def _padded(size: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda shown: {**shown, "meta": {**shown["meta"], "logMessages": ["x" * size]}}


def test_oversized_transactions_delay_no_deposit(node: SolanaNode) -> None:
    spammed, quiet = funded(node).address, funded(node).address
    with proxy(node.url) as between:
        watcher = Watcher(chain_at(between.url)).watch(spammed, quiet)
        fat = [node.airdrop(spammed, 1 + number) for number in range(12)]
        wanted = node.airdrop(quiet, 5)
        _finalize(node)
        between.after = _changing(fat, _padded(1_300_000))
        assert sorted(d.tx_hash or "" for d in watcher.scan()) == sorted([*fat, wanted])
        asked = [len(calls) for calls in between.requests if calls[0]["method"] == "getTransaction"]
        assert max(asked) <= 8, "few per request, because each may be large"


_UNREADABLE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "exceeds the size limit": _padded(2**23),
    "without meta": lambda shown: {**shown, "meta": None},
    "with absurd units": lambda shown: {
        **shown,
        "meta": {**shown["meta"], "postTokenBalances": [{"accountIndex": 0, "uiTokenAmount": {"amount": "9" * 5_000}}]},
    },
}


@pytest.mark.parametrize("how", _UNREADABLE)
def test_an_unreadable_transaction_does_not_block_later_deposits(how: str, node: SolanaNode) -> None:
    odd, quiet = funded(node).address, funded(node).address
    with proxy(node.url) as between, capture_logs() as logs:
        watcher = Watcher(chain_at(between.url)).watch(odd, quiet)
        lost, wanted = node.airdrop(odd, 5), node.airdrop(quiet, 6)
        _finalize(node)
        between.after = _changing([lost], _UNREADABLE[how])
        assert [d.tx_hash for d in watcher.scan()] == [wanted]
        assert "rpc_response_invalid" in {entry["event"] for entry in logs}
        node.advance(1_600)
        later = node.airdrop(odd, 7)
        _finalize(node)
        assert [d.tx_hash for d in watcher.scan()] == [later]


def test_transactions_finalized_during_a_scan_are_found_by_the_next(node: SolanaNode) -> None:
    watched = funded(node).address
    with proxy(node.url) as between:
        watcher = Watcher(chain_at(between.url)).watch(watched)
        _finalize(node)
        earlier = node.call("getLatestBlockhash", {"commitment": "finalized"})
        landed = node.airdrop(watched, 5)
        _finalize(node)
        between.after = spoil("getLatestBlockhash", earlier)
        assert watcher.scan() == []
        between.after = lambda _calls, replies: replies
        assert [d.tx_hash for d in watcher.scan()] == [landed]


def test_a_late_index_hides_no_deposit(node: SolanaNode) -> None:
    watched = funded(node).address
    with proxy(node.url) as between:
        watcher = Watcher(chain_at(between.url)).watch(watched)
        late = node.airdrop(watched, 5)
        early = node.airdrop(watched, 6)
        _finalize(node)

        def hide(calls: Calls, replies: Calls) -> Calls:
            for call, reply in zip(calls, replies, strict=True):
                if call["method"] == "getSignaturesForAddress":
                    reply["result"] = [entry for entry in reply["result"] if entry["signature"] != late]
            return replies

        between.after = hide
        assert [d.tx_hash for d in watcher.scan()] == [early]
        assert watcher.scan() == []
        between.after = lambda _calls, replies: replies
        assert [d.tx_hash for d in watcher.scan()] == [late]
        assert watcher.scan() == []


def test_an_unexplained_balance_change_is_not_a_deposit(node: SolanaNode) -> None:
    watched = funded(node).address
    with proxy(node.url) as between, capture_logs() as logs:
        watcher = Watcher(chain_at(between.url)).watch(watched)
        node.advance(1)
        node.set_account(watched, Account(9 * WHOLE_SOL, b"", Pubkey.default()))
        _finalize(node)
        assert watcher.scan() == []
        node.advance(2_000)
        assert watcher.scan() == []
        assert [entry["event"] for entry in logs] == ["unexplained_balance"]
        real = node.airdrop(watched, 4)
        _finalize(node)
        assert [d.tx_hash for d in watcher.scan()] == [real]


def test_pruned_history_blocks_neither_the_scan_nor_later_deposits(node: SolanaNode, chain: SolanaChain) -> None:
    watched = funded(node).address
    watcher = Watcher(chain).watch(watched)
    node.airdrop(watched, 5)
    node.advance(100)
    node.prune_before(node.call("getSlot"))
    assert watcher.scan() == []
    later = node.airdrop(watched, 6)
    _finalize(node)
    assert [d.tx_hash for d in watcher.scan()] == [later]


def test_a_node_behind_the_cursor_is_not_used(node: SolanaNode) -> None:
    watched = funded(node).address
    with proxy(node.url) as laggard:
        watcher = Watcher(chain_at(laggard.url)).watch(watched)
        _finalize(node)
        watcher.scan()
        cursor = watcher.cursor
        assert cursor is not None
        laggard.after = spoil(
            "getLatestBlockhash",
            {"context": {"slot": cursor.number - 1}, "value": {"blockhash": "1" * 32, "lastValidBlockHeight": 1}},
        )
        with pytest.raises(Unreachable):
            watcher.scan()
        watcher.chain = chain_at(laggard.url, node.url)
        node.airdrop(watched, 5)
        _finalize(node)
        assert _amounts(watcher.scan()) == [("SOL", 5)]


def test_tokens_of_other_mints_and_accounts_are_not_deposits(node: SolanaNode, chain: SolanaChain) -> None:
    watched = funded(node, usdc_units=1)
    watcher = Watcher(chain).watch(watched.address)
    other = Keypair()
    node.set_account(
        other.pubkey(),
        Account(
            WHOLE_SOL,
            bytes(node.chain.runtime.account(USDC_MINT).data),  # type: ignore[union-attr]
            TOKEN_PROGRAM,
        ),
    )
    node.call("sandbox_mint", watched.address, 50, str(other.pubkey()))
    _finalize(node)
    assert watcher.scan() == []
    assert chain.balances(watched.address).of(USDC).units == 1


def test_the_sum_of_the_deposits_is_the_balance(node: SolanaNode, chain: SolanaChain) -> None:
    payer, watched = funded(node, usdc_units=1_000_000), _new_address()
    watcher = Watcher(chain).watch(watched)
    found: list[Deposit] = []
    for number in range(1, 20):
        if number % 3:
            node.airdrop(watched, 10**6 + number)
        else:
            _send(node, payer.keys, *_usdc(payer, watched, number))
        node.advance(7 * (number % 4))
        found += watcher.scan()
    _finalize(node)
    found += watcher.scan()
    for token in (SOL, USDC):
        assert sum(d.amount.units for d in found if d.amount.token == token) == (
            chain.balances(watched).of(token).units
        )
    assert len({(d.tx_hash, d.position) for d in found}) == len(found)
