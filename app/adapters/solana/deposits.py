"""Finds finalized deposits on many addresses in few requests (decision 0012); the stored state of each address.

The balances show which addresses have new transactions; the transactions show what arrived from whom. How many are
read in a pass is bounded and shared evenly, the longest histories last, so that dust sent to one address cannot delay
the deposits of others. How many entries are listed is bounded for each address only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import structlog
from solders.commitment_config import CommitmentLevel
from solders.pubkey import Pubkey

from app.adapters.jsonrpc.calls import EndpointError
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.adapters.solana.client import calls
from app.adapters.solana.client.calls import SolanaConnection, SolanaRpcCall
from app.adapters.solana.client.wire import Accounts, Blockhash, HistoryEntry, LandedTransaction
from app.adapters.solana.send import tokens
from app.adapters.solana.track import account_history, balance_changes
from app.adapters.solana.track.account_history import (
    MAX_UNAVAILABLE_SLOTS,
    HistoryCursor,
    HistoryProgress,
    HistoryReadLimits,
)
from app.adapters.solana.track.balance_changes import TokenHolder
from app.core.chains import SOL, USDC
from app.core.money import TokenAmount
from app.ports.chain import BlockRef, Deposit, DepositScan, Terms, WatchedAddress


@dataclass(frozen=True, slots=True)
class SolanaScanState:
    """An address: the balances that its read history explains, counted from the slot `since` on.

    While the balances are as explained nothing needs to be read. `mismatch_slot` is the slot at which they were first
    found to differ without a transaction that explains it.
    """

    since: int
    lamports: int
    usdc_units: int
    wallet: HistoryProgress = field(default_factory=HistoryProgress)
    tokens: HistoryProgress = field(default_factory=HistoryProgress)
    mismatch_slot: int | None = None

    @property
    def recent_signatures(self) -> frozenset[str]:
        """Return the signatures that need not be read again."""
        return frozenset(entry.signature for entry in (*self.wallet.recent, *self.tokens.recent))

    @property
    def is_reading_history(self) -> bool:
        return self.wallet.before is not None or self.tokens.before is not None

    def as_terms(self) -> Terms:
        return {
            "since": self.since, "lamports": str(self.lamports), "usdc_units": str(self.usdc_units),
            "wallet": _format_entries(self.wallet.recent), "wallet_before": self.wallet.before,
            "tokens": _format_entries(self.tokens.recent), "tokens_before": self.tokens.before,
            "doubt": self.mismatch_slot,
        }  # fmt: skip

    @classmethod
    def from_terms(cls, terms: Terms) -> Self:
        doubt = terms["doubt"]
        return cls(
            since=int(terms["since"] or 0), lamports=int(terms["lamports"] or 0),
            usdc_units=int(terms["usdc_units"] or 0), wallet=_parse_progress(terms, "wallet"),
            tokens=_parse_progress(terms, "tokens"), mismatch_slot=None if doubt is None else int(doubt),
        )  # fmt: skip


def _format_entries(recent: Sequence[HistoryEntry]) -> str:
    return " ".join(f"{entry.slot}:{entry.signature}" for entry in recent)


def _parse_progress(terms: Terms, name: str) -> HistoryProgress:
    parts = [part.partition(":") for part in str(terms[name] or "").split()]
    before = terms[f"{name}_before"]
    return HistoryProgress(
        tuple(HistoryEntry.model_construct(signature=signature, slot=int(slot)) for slot, _, signature in parts),
        None if before is None else str(before),
    )


_ADDRESSES_PER_CALL = 50  # two accounts each, and `getMultipleAccounts` takes a hundred

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _ScannedAccount:
    holder: TokenHolder
    scan_state: SolanaScanState
    lamports: int
    usdc_units: int

    @property
    def is_explained(self) -> bool:
        return (self.lamports, self.usdc_units) == (self.scan_state.lamports, self.scan_state.usdc_units)


@dataclass(frozen=True, slots=True)
class _UnreadHistory:
    """An address with its unread history, oldest first, and its scan state after listing it."""

    account: _ScannedAccount
    scan_state: SolanaScanState
    entries: tuple[HistoryEntry, ...]


class SolanaDepositScanner(SolanaConnection):
    _read_limits: HistoryReadLimits

    def unused_scan_state(self, since: int) -> Terms:
        return SolanaScanState(since, lamports=0, usdc_units=0).as_terms()

    def scan_state(self, address: str, *, before: Terms | None = None) -> Terms:
        """Return the state of an address at the newest confirmed slot. Raises: Unreachable.

        An earlier state is returned as it is: each deposit has the slot of its transaction.
        """
        if before is not None:
            return before
        holder = self._holder(address)
        units_held = self._holdings([holder], CommitmentLevel.Confirmed, at_least=None)
        wallet, token_account = (account_history.page(each, limit=1) for each in (address, holder.token_account))
        self.rpc.run(units_held, wallet, token_account)
        slot = units_held.result.slot
        lamports, usdc_units = self._units(holder, units_held.result, place=0)
        # What landed after the balances were read is found later.
        of_wallet, of_tokens = (
            HistoryProgress(tuple(entry for entry in call.result if entry.slot <= slot))
            for call in (wallet, token_account)
        )
        return SolanaScanState(slot, lamports, usdc_units, of_wallet, of_tokens).as_terms()

    def deposits(self, watched: Sequence[WatchedAddress], *, cursor: BlockRef | None) -> DepositScan:
        return self.rpc.run_on_first(lambda endpoint: self._scan(endpoint, watched, cursor))

    def _scan(self, endpoint: RpcEndpoint, watched: Sequence[WatchedAddress], cursor: BlockRef | None) -> DepositScan:
        latest = endpoint.ask(calls.blockhash(CommitmentLevel.Finalized))
        if cursor is not None and latest.slot < cursor.number:
            raise EndpointError("lagging")
        changed = [
            account
            for account in self._read_accounts(endpoint, watched, latest)
            if not account.is_explained or account.scan_state.is_reading_history
        ]
        unread = _unread_histories(endpoint, changed, read_limits=self._read_limits, at_least=latest.slot)
        shares = _allocate(unread, self._read_limits.transactions)
        signatures = dict.fromkeys(entry.signature for entries in shares.values() for entry in entries)
        landed_by_signature = dict(
            account_history.transactions(endpoint, [*signatures], CommitmentLevel.Finalized, LandedTransaction)
        )
        scan_states: dict[str, Terms] = {}
        deposits: list[Deposit] = []
        for history in unread:
            address = history.account.holder.address
            scan_state, found = _read_deposits(history, shares[address], landed_by_signature, at=latest.slot)
            deposits += found
            if scan_state != history.account.scan_state:
                scan_states[address] = scan_state.as_terms()
        slots = dict.fromkeys(scan_states, latest.slot)
        return DepositScan(BlockRef(latest.slot, latest.blockhash), scan_states, slots, tuple(deposits))

    def _read_accounts(
        self, endpoint: RpcEndpoint, watched: Sequence[WatchedAddress], latest: Blockhash
    ) -> Iterator[_ScannedAccount]:
        """Yield the addresses with final scan states and their current balances."""
        states = [(self._holder(entry.address), SolanaScanState.from_terms(entry.scan_state)) for entry in watched]
        # A scan state is taken at a slot that is not final yet: until it is, changes cannot be distinguished.
        ready = [(holder, state) for holder, state in states if state.since <= latest.slot]
        chunks = [ready[start : start + _ADDRESSES_PER_CALL] for start in range(0, len(ready), _ADDRESSES_PER_CALL)]
        holdings = [
            self._holdings([holder for holder, _ in chunk], CommitmentLevel.Finalized, at_least=latest.slot)
            for chunk in chunks
        ]
        endpoint.run(holdings)
        for chunk, call in zip(chunks, holdings, strict=True):
            for place, (holder, state) in enumerate(chunk):
                yield _ScannedAccount(holder, state, *self._units(holder, call.result, place=place))

    def _holder(self, address: str) -> TokenHolder:
        token_account = tokens.account_of(Pubkey.from_string(address), self.mint)
        return TokenHolder(address, str(token_account), str(self.mint))

    def _holdings(
        self, holders: Sequence[TokenHolder], commitment: CommitmentLevel, *, at_least: int | None
    ) -> SolanaRpcCall[Accounts]:
        keys = [Pubkey.from_string(key) for holder in holders for key in (holder.address, holder.token_account)]
        return calls.accounts(keys, commitment, at_least=at_least)

    def _units(self, holder: TokenHolder, found: Accounts, *, place: int) -> tuple[int, int]:
        wallet, usdc = found.found[2 * place : 2 * place + 2]
        owner = Pubkey.from_string(holder.address)
        return wallet.lamports if wallet else 0, tokens.units_of(usdc, owner=owner, mint=self.mint)


def _unread_histories(
    endpoint: RpcEndpoint, changed: Sequence[_ScannedAccount], *, read_limits: HistoryReadLimits, at_least: int
) -> list[_UnreadHistory]:
    """List the unread transactions. Raises: EndpointError."""
    readings = []
    for account in changed:
        scan_state, holder = account.scan_state, account.holder
        readings += [
            HistoryCursor(holder.address, scan_state.wallet, scan_state.since),
            HistoryCursor(holder.token_account, scan_state.tokens, scan_state.since),
        ]
    found = account_history.continue_reading(endpoint, readings, read_limits=read_limits, at_least=at_least)
    histories = []
    for account in changed:
        wallet, of_wallet = found[account.holder.address]
        progress, of_tokens = found[account.holder.token_account]
        scan_state = replace(account.scan_state, wallet=wallet, tokens=progress)
        # A transaction may be in both histories. While one of them is being read, its order is not known.
        listed = () if scan_state.is_reading_history else (*of_wallet, *of_tokens)
        # What landed after this scan began belongs to the next.
        unread = {
            entry.signature: entry
            for entry in listed
            if entry.signature not in scan_state.recent_signatures and entry.slot <= at_least
        }
        entries = tuple(sorted(unread.values(), key=lambda entry: entry.slot))
        histories.append(_UnreadHistory(account, scan_state, entries))
    return histories


def _allocate(histories: Sequence[_UnreadHistory], budget: int) -> Mapping[str, Sequence[HistoryEntry]]:
    """Return the entries that each address may read in this pass; the shortest histories come first."""
    shares: dict[str, Sequence[HistoryEntry]] = {}
    by_length = sorted(histories, key=lambda history: len(history.entries))
    for place, history in enumerate(by_length):
        share = max(budget // (len(by_length) - place), 1)
        shares[history.account.holder.address] = history.entries[:share]
        budget = max(budget - share, 0) if len(history.entries) > share else budget - len(history.entries)
    return shares


def _read_deposits(
    history: _UnreadHistory,
    share: Sequence[HistoryEntry],
    landed_by_signature: Mapping[str, LandedTransaction | None],
    *,
    at: int,
) -> tuple[SolanaScanState, list[Deposit]]:
    account, scan_state = history.account, history.scan_state
    holder = account.holder
    deposits: list[Deposit] = []
    for entry in share:
        if entry.signature not in landed_by_signature:
            break
        landed = landed_by_signature[entry.signature]
        if landed is None and at - entry.slot <= MAX_UNAVAILABLE_SLOTS:
            break
        if landed is None:
            _log.warning("transaction_unavailable", address=holder.address, tx_hash=entry.signature)
            scan_state = replace(
                scan_state, wallet=scan_state.wallet.with_read(entry), tokens=scan_state.tokens.with_read(entry)
            )
            continue
        change = balance_changes.balance_change(holder, landed)
        scan_state = replace(
            scan_state,
            lamports=scan_state.lamports + change.lamports,
            usdc_units=scan_state.usdc_units + change.usdc_units,
            wallet=scan_state.wallet.with_read(entry) if holder.address in landed.keys else scan_state.wallet,
            tokens=scan_state.tokens.with_read(entry) if holder.token_account in landed.keys else scan_state.tokens,
        )
        if not balance_changes.is_signed_by(holder, landed) and not landed.failed:
            deposits += _deposits(holder, entry, landed)
    return _reconciled(
        replace(scan_state, mismatch_slot=None), account, at=at, has_unread=bool(history.entries)
    ), deposits


def _reconciled(scan_state: SolanaScanState, account: _ScannedAccount, *, at: int, has_unread: bool) -> SolanaScanState:
    """Return the scan state, with a mismatch if the balances changed and no transaction explains it.

    A node's index may be late. What it does not explain in time is accepted without being a deposit, so that the
    search ends.
    """
    if has_unread or account.is_explained or scan_state.is_reading_history:
        return scan_state
    mismatch_slot = at if account.scan_state.mismatch_slot is None else account.scan_state.mismatch_slot
    if at - mismatch_slot <= MAX_UNAVAILABLE_SLOTS:
        return replace(scan_state, mismatch_slot=mismatch_slot)
    _log.warning("unexplained_balance", address=account.holder.address, slot=at)
    return replace(scan_state, lamports=account.lamports, usdc_units=account.usdc_units)


def _deposits(holder: TokenHolder, entry: HistoryEntry, landed: LandedTransaction) -> Iterator[Deposit]:
    change = balance_changes.balance_change(holder, landed)
    # A finalized transaction does not move; its signature identifies it within that slot.
    block = BlockRef(landed.slot, entry.signature)
    for amount, payer in (
        (TokenAmount(change.lamports, SOL), balance_changes.payer_of_lamports(landed)),
        (TokenAmount(change.usdc_units, USDC), balance_changes.payer_of_tokens(landed, holder.mint)),
    ):
        if amount.units > 0:
            yield Deposit(
                address=holder.address, amount=amount, tx_hash=entry.signature, payer=payer,
                position=f"{amount.token.symbol.lower()}:{holder.address}", block=block,
            )  # fmt: skip
