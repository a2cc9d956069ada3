"""Finds finalized deposits on many addresses in few requests (decision 0012).

The balances tell whose history has something new; the transactions in it tell what came from whom. How many are
read in a pass is bounded and shared out evenly, the longest histories last, so that nobody can bury others' deposits
under a heap of dust. How many entries are listed is bounded for each address only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog
from solders.account_decoder import UiAccountEncoding
from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey
from solders.rpc.config import RpcAccountInfoConfig, RpcContextConfig
from solders.rpc.requests import GetLatestBlockhash, GetMultipleAccounts

from app.adapters.solana import arrivals, histories, tokens
from app.adapters.solana.arrivals import Holder
from app.adapters.solana.endpoint import Call, Endpoint, EndpointFailedError
from app.adapters.solana.histories import PATIENCE_SLOTS, Portion, Reading
from app.adapters.solana.marks import Mark, Trail
from app.adapters.solana.rpc import SolanaRpc
from app.adapters.solana.wire import Accounts, Blockhash, Entry, Landed, accounts, blockhash
from app.core.chains import SOL, USDC
from app.core.money import TokenAmount
from app.ports.chain import BlockRef, Deposit, Scan, Terms, WatchedAddress

_ADDRESSES_PER_CALL = 50  # two accounts each, and `getMultipleAccounts` takes a hundred

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Account:
    """A watched address with its mark and what it holds now."""

    watched: WatchedAddress
    holder: Holder
    mark: Mark
    lamports: int
    usdc_units: int

    @property
    def is_explained(self) -> bool:
        return (self.lamports, self.usdc_units) == (self.mark.lamports, self.mark.usdc_units)


@dataclass(frozen=True, slots=True)
class _Due:
    """An address with the unread part of its history, oldest first, and its mark with the trails as they are now."""

    account: _Account
    mark: Mark
    entries: tuple[Entry, ...]


class DepositScanner:
    """Looks for deposits on the cluster."""

    def __init__(self, rpc: SolanaRpc, mint: Pubkey, *, portion: Portion) -> None:
        """Take the cluster's endpoints, the mint of USDC, and how much a pass may read."""
        self._rpc = rpc
        self._mint = mint
        self._portion = portion

    def mark(self, address: str) -> Terms:
        """Take note of what an address has at the newest confirmed slot. Raises: Unreachable."""
        holder = self._holder(address)
        held = self._holdings([holder], CommitmentLevel.Confirmed, at_least=None)
        wallet, token_account = histories.newest(address), histories.newest(holder.token_account)
        self._rpc.run(held, wallet, token_account)
        slot = held.answer.slot
        lamports, usdc_units = self._units(holder, held.answer, place=0)
        # What landed after the balances were read is to be found later.
        of_wallet, of_tokens = (
            Trail(tuple(entry for entry in call.answer if entry.slot <= slot))
            for call in (wallet, token_account)
        )
        return Mark(slot, lamports, usdc_units, of_wallet, of_tokens).as_terms()

    def scan(self, watched: Sequence[WatchedAddress], *, cursor: BlockRef | None) -> Scan:
        """Find deposits since the marks. Raises: Unreachable."""
        return self._rpc.first(lambda endpoint: self._scan(endpoint, watched, cursor))

    def _scan(self, endpoint: Endpoint, watched: Sequence[WatchedAddress], cursor: BlockRef | None) -> Scan:
        latest = Call(GetLatestBlockhash(RpcContextConfig(commitment=CommitmentLevel.Finalized)), blockhash)
        endpoint.run(latest)
        if cursor is not None and latest.answer.slot < cursor.number:
            raise EndpointFailedError("lagging")
        changed = [
            account
            for account in self._read_accounts(endpoint, watched, latest.answer)
            if not account.is_explained or account.mark.is_walking
        ]
        due = _unread(endpoint, changed, portion=self._portion, at_least=latest.answer.slot)
        shares = _shared_out(due, self._portion.transactions)
        shown = histories.transactions(
            endpoint, dict.fromkeys(entry.signature for entries in shares.values() for entry in entries)
        )
        marks: dict[str, Terms] = {}
        deposits: list[Deposit] = []
        for work in due:
            address = work.account.watched.address
            mark, found = _read(work, shares[address], shown, at=latest.answer.slot)
            deposits += found
            if mark != work.account.mark:
                marks[address] = mark.as_terms()
        return Scan(BlockRef(latest.answer.slot, latest.answer.blockhash), marks, tuple(deposits))

    def _read_accounts(
        self, endpoint: Endpoint, watched: Sequence[WatchedAddress], latest: Blockhash
    ) -> Iterator[_Account]:
        """Yield the addresses whose marks are final, with what they hold now."""
        # A mark is taken at a slot that is not final yet: before it is, nothing can be told apart.
        ready = [entry for entry in watched if Mark.of(entry.mark).since <= latest.slot]
        chunks = [
            ready[start : start + _ADDRESSES_PER_CALL] for start in range(0, len(ready), _ADDRESSES_PER_CALL)
        ]
        calls = [
            self._holdings(
                [self._holder(entry.address) for entry in chunk],
                CommitmentLevel.Finalized,
                at_least=latest.slot,
            )
            for chunk in chunks
        ]
        endpoint.run(*calls)
        for chunk, call in zip(chunks, calls, strict=True):
            for place, entry in enumerate(chunk):
                holder = self._holder(entry.address)
                held = self._units(holder, call.answer, place=place)
                yield _Account(entry, holder, Mark.of(entry.mark), *held)

    def _holder(self, address: str) -> Holder:
        token_account = tokens.account_of(Pubkey.from_string(address), self._mint)
        return Holder(address, str(token_account), str(self._mint))

    def _holdings(
        self, holders: Sequence[Holder], commitment: CommitmentLevel, *, at_least: int | None
    ) -> Call[Accounts]:
        keys = [
            Pubkey.from_string(key) for holder in holders for key in (holder.address, holder.token_account)
        ]
        config = RpcAccountInfoConfig(
            encoding=UiAccountEncoding.Base64, commitment=commitment, min_context_slot=at_least
        )
        return Call(GetMultipleAccounts(keys, config), accounts(len(keys)))

    def _units(self, holder: Holder, found: Accounts, *, place: int) -> tuple[int, int]:
        wallet, usdc = found.states[2 * place : 2 * place + 2]
        owner = Pubkey.from_string(holder.address)
        return wallet.lamports if wallet else 0, tokens.units_of(usdc, owner=owner, mint=self._mint)


def _unread(
    endpoint: Endpoint, changed: Sequence[_Account], *, portion: Portion, at_least: int
) -> list[_Due]:
    """List what was not read yet. Raises: EndpointFailedError."""
    readings = []
    for account in changed:
        mark, holder = account.mark, account.holder
        readings += [
            Reading(holder.address, mark.wallet, mark.since),
            Reading(holder.token_account, mark.tokens, mark.since),
        ]
    found = histories.read_on(endpoint, readings, portion=portion, at_least=at_least)
    due = []
    for account in changed:
        wallet, of_wallet = found[account.holder.address]
        trail, of_tokens = found[account.holder.token_account]
        mark = replace(account.mark, wallet=wallet, tokens=trail)
        # A transaction may be in both histories. While one of them is walked through, its order is not known.
        entries = {} if mark.is_walking else {entry.signature: entry for entry in (*of_wallet, *of_tokens)}
        # What landed after this look began has its turn in the next.
        unread = [e for e in entries.values() if e.signature not in mark.seen and e.slot <= at_least]
        due.append(_Due(account, mark, tuple(sorted(unread, key=lambda entry: entry.slot))))
    return due


def _shared_out(due: Sequence[_Due], left: int) -> Mapping[str, Sequence[Entry]]:
    """Return the entries that each address may read in this pass, the fewest first: they are not kept waiting."""
    shares: dict[str, Sequence[Entry]] = {}
    by_length = sorted(due, key=lambda work: len(work.entries))
    for place, work in enumerate(by_length):
        share = max(left // (len(by_length) - place), 1)
        shares[work.account.watched.address] = work.entries[:share]
        left = max(left - share, 0) if len(work.entries) > share else left - len(work.entries)
    return shares


def _read(
    work: _Due, share: Sequence[Entry], shown: Mapping[str, Landed | None], *, at: int
) -> tuple[Mark, list[Deposit]]:
    """Return the mark after a share of the history, and the deposits in it."""
    account, mark = work.account, work.mark
    holder = account.holder
    deposits: list[Deposit] = []
    for entry in share:
        if entry.signature not in shown:
            break
        landed = shown[entry.signature]
        if landed is None and at - entry.slot <= PATIENCE_SLOTS:
            break
        if landed is None:
            _log.warning("transaction_not_shown", address=holder.address, tx_hash=entry.signature)
            mark = replace(mark, wallet=mark.wallet.with_read(entry), tokens=mark.tokens.with_read(entry))
            continue
        change = arrivals.change_of(holder, landed)
        mark = replace(
            mark,
            lamports=mark.lamports + change.lamports,
            usdc_units=mark.usdc_units + change.usdc_units,
            wallet=mark.wallet.with_read(entry) if holder.address in landed.keys else mark.wallet,
            tokens=mark.tokens.with_read(entry) if holder.token_account in landed.keys else mark.tokens,
        )
        if not arrivals.is_signed_by(holder, landed) and not landed.failed:
            deposits += _deposits(holder, entry, landed)
    return _weighed(replace(mark, doubt=None), account, at=at, has_unread=bool(work.entries)), deposits


def _weighed(mark: Mark, account: _Account, *, at: int, has_unread: bool) -> Mark:
    """Return the mark, with a doubt where the balances changed and no transaction tells why.

    A node's index may be late. What it does not explain in time is believed without being a deposit of anybody's,
    so that it is not looked for for ever.
    """
    if has_unread or account.is_explained or mark.is_walking:
        return mark
    doubt = at if account.mark.doubt is None else account.mark.doubt
    if at - doubt <= PATIENCE_SLOTS:
        return replace(mark, doubt=doubt)
    _log.warning("unexplained_balance", address=account.holder.address, slot=at)
    return replace(mark, lamports=account.lamports, usdc_units=account.usdc_units)


def _deposits(holder: Holder, entry: Entry, landed: Landed) -> Iterator[Deposit]:
    change = arrivals.change_of(holder, landed)
    # A finalized transaction stays where it is; its signature says which one it is in that slot.
    block = BlockRef(landed.slot, entry.signature)
    if change.lamports > 0:
        yield Deposit(
            address=holder.address,
            amount=TokenAmount(change.lamports, SOL),
            tx_hash=entry.signature,
            payer=arrivals.payer_of_lamports(landed),
            position=f"sol:{holder.address}",
            block=block,
        )
    if change.usdc_units > 0:
        yield Deposit(
            address=holder.address,
            amount=TokenAmount(change.usdc_units, USDC),
            tx_hash=entry.signature,
            payer=arrivals.payer_of_tokens(landed, holder.mint),
            position=f"usdc:{holder.address}",
            block=block,
        )
