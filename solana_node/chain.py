"""The chain: accounts, time, mempool and history behind one lock.

Time advances on access: `with chain.locked():` takes the lock and advances the chain to the clock.
"""

import base64
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from solders.account import Account
from solders.hash import Hash, ParseHashError
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from solana_node import base58, cctp, exchange, tokens
from solana_node.accounts import GENESIS_SLOT, AccountVersions
from solana_node.addresses import SYSTEM, USDC_MINT
from solana_node.clock import MAX_RECENT_BLOCKHASHES, BlockhashQueue, Commitment, SlotClock
from solana_node.errors import JsonObject
from solana_node.faults import Faults
from solana_node.genesis import FAUCET, genesis_accounts
from solana_node.history import History, TransactionRecord
from solana_node.runtime import AnyMessage, LookupTableNotFoundError, Outcome, Runtime, memo_of
from solana_node.storage import ChainStorage, SavedChain

FIRST_SLOT: Final = 300_000_000
SLOT_HASHES: Final = 128
"""Entries of the SlotHashes sysvar, which the creation of a lookup table reads."""
NONCE_ACCOUNT_BYTES: Final = 80
ADVANCE_NONCE: Final = b"\x04\x00\x00\x00"


class Chain:
    """A Solana ledger with a clock. All methods except `locked` require the lock."""

    def __init__(
        self,
        *,
        slot_ms: int = 400,
        now: Callable[[], float] = time.monotonic,
        confirmed_lag: int = 1,
        finalized_lag: int = 32,
        usdc: str = USDC_MINT,
        genesis_hash: str | None = None,
        state: Path | None = None,
    ) -> None:
        self.faults = Faults()
        self.history = History()
        self.accounts = AccountVersions()
        self.runtime = Runtime()
        self.runtime.add_program(str(exchange.JUPITER), exchange.exchange_program())
        self.runtime.add_program(str(cctp.MESSENGER), cctp.burning_program())
        self.runtime.add_program(str(cctp.TRANSMITTER), cctp.receiving_program())
        self.usdc = Pubkey.from_string(usdc)
        self._lock = threading.RLock()
        self._is_current = False
        self._lags = (0, confirmed_lag, finalized_lag)
        self._mempool: list[tuple[int, VersionedTransaction]] = []
        self._storage = ChainStorage(state) if state else None

        saved = self._storage.load() if self._storage else None
        self._seed = saved.seed if saved else os.urandom(32)
        start_slot = self._slot_after_restart(saved, slot_ms=slot_ms) if saved else FIRST_SLOT
        self.clock = SlotClock(start_slot, slot_ms=slot_ms, now=now)
        self.blockhashes = BlockhashQueue(self._seed)
        own_genesis = str(Hash(hashlib.sha256(b"genesis" + self._seed).digest()))
        self.genesis_hash = _checked(genesis_hash) if genesis_hash else own_genesis
        self.first_available_slot = 0
        self.slot = start_slot - MAX_RECENT_BLOCKHASHES
        self._advance_to(start_slot)
        if saved:
            self._restore(saved)
        self._create_missing_genesis_accounts()
        self._commit()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, with the chain advanced to the clock; no time passes inside."""
        with self._lock:
            if self._is_current:
                yield
                return
            self._advance_to(self.clock.target())
            self._is_current = True
            try:
                yield
            finally:
                self._is_current = False

    def close(self) -> None:
        """Release the state file."""
        with self._lock:
            if self._storage:
                self._commit()
                self._storage.close()
                self._storage = None

    def slot_at(self, commitment: Commitment) -> int:
        """Return the newest slot of a commitment level."""
        return self.slot - self._lags[commitment]

    def commitment_of(self, record: TransactionRecord) -> Commitment:
        """Return the commitment level of a landed transaction."""
        for commitment in (Commitment.FINALIZED, Commitment.CONFIRMED):
            if record.slot <= self.slot_at(commitment):
                return commitment
        return Commitment.PROCESSED

    def account(self, address: str, commitment: Commitment = Commitment.PROCESSED) -> Account | None:
        """Return an account at a commitment level."""
        if address in self.accounts:
            return self.accounts.at(address, slot=self.slot_at(commitment))
        return self.runtime.account(address)

    def set_account(self, address: str, account: Account) -> None:
        """Write an account without a transaction; each commitment level sees it from its slot on."""
        before = self.runtime.account(address)
        self.runtime.put_account(address, account)
        self._note_change(address, before, account)
        self._commit()

    def advance(self, slots: int) -> None:
        """Advance by a number of slots immediately."""
        self.clock.skip(slots)
        self._advance_to(self.slot + slots)
        self._commit()

    def prune_before(self, slot: int) -> None:
        """Drop the history before a slot, as pruning nodes do; a state file keeps it."""
        self.history.prune_before(slot)
        self.first_available_slot = max(slot, self.first_available_slot)

    def is_blockhash_valid(self, message: AnyMessage, commitment: Commitment = Commitment.PROCESSED) -> bool:
        """Return whether a message's blockhash is usable at a commitment, or is its durable nonce."""
        blockhash = str(message.recent_blockhash)
        if self.blockhashes.is_usable(blockhash, at_slot=self.slot_at(commitment)):
            return True
        first = message.instructions[0] if message.instructions else None
        if first is None or bytes(first.data) != ADVANCE_NONCE or not first.accounts:
            return False
        if str(message.account_keys[first.program_id_index]) != SYSTEM:
            return False
        nonce = self.account(str(message.account_keys[bytes(first.accounts)[0]]), commitment)
        data = bytes(nonce.data) if nonce else b""
        return len(data) == NONCE_ACCOUNT_BYTES and base58.encode(data[40:72]) == blockhash

    def simulate(self, transaction: VersionedTransaction, commitment: Commitment, *, check_age: bool = True) -> Outcome:
        """Simulate a transaction on the state of a commitment level."""
        message = transaction.message
        if self.history.get(str(transaction.signatures[0]), up_to_slot=self.slot_at(commitment)):
            return Outcome(error="AlreadyProcessed")
        if check_age and not self.is_blockhash_valid(message, commitment):
            return Outcome(error="BlockhashNotFound")
        try:
            keys = self.runtime.keys_of(message)
        except LookupTableNotFoundError:
            return Outcome(error="AddressLookupTableNotFound")
        view = {
            address: self.account(address, commitment) for address in keys.all + keys.tables if address in self.accounts
        }
        return self.runtime.simulate(transaction, view=view)

    def submit(self, transaction: VersionedTransaction) -> str:
        """Accept a transaction and return its signature. It may still fail to land."""
        if not self.faults.take_drop():
            self._mempool.append((self.slot + self.faults.delay_slots, transaction))
            self._land_due()
        return str(transaction.signatures[0])

    def execute(self, transaction: VersionedTransaction) -> None:
        """Execute in the current slot. An expired, forged or unpayable transaction is not recorded."""
        message = transaction.message
        signature = str(transaction.signatures[0])
        if self.history.has_message(bytes(transaction)) or not self.is_blockhash_valid(message):
            return
        try:
            keys = self.runtime.keys_of(message)
        except LookupTableNotFoundError:
            return
        before = [self.runtime.account(key) for key in keys.all]
        tokens_before = self._token_balances(before)
        outcome = self.runtime.execute(transaction)
        if not outcome.landed:
            return
        after = [self.runtime.account(key) for key in keys.all]
        for key, old, new in zip(keys.all, before, after, strict=True):
            if old != new:
                self._note_change(key, old, new)
        record = TransactionRecord(
            signature=signature,
            raw=base64.b64encode(bytes(transaction)).decode(),
            slot=self.slot,
            block_time=int(time.time()),
            error=outcome.error,
            fee_lamports=outcome.fee_lamports or 0,
            logs=outcome.logs,
            compute_units=outcome.compute_units,
            inner_instructions=outcome.inner_instructions,
            return_data=outcome.return_data,
            pre_lamports=_lamports(before),
            post_lamports=_lamports(after),
            pre_token_balances=tokens_before,
            post_token_balances=self._token_balances(after),
            keys=keys.all,
            loaded_writable=keys.loaded_writable,
            loaded_readonly=keys.loaded_readonly,
            memo=memo_of(message, keys.all),
        )
        self.history.add(record)
        if self._storage:
            self._storage.add_transaction(record)
        self._commit()

    def summary(self) -> JsonObject:
        """Return the settings and sizes of this chain."""
        return {
            "slotMs": self.clock.slot_ms,
            "lags": list(self._lags),
            "faucet": str(FAUCET.pubkey()),
            "usdc": str(self.usdc),
            "mempool": len(self._mempool),
            "transactions": len(self.history),
            "accounts": len(self.accounts),
        }

    def _advance_to(self, target: int) -> None:
        """Advance slot by slot, executing delayed transactions in theirs."""
        while self.slot < target:
            due = [slot for slot, _ in self._mempool if slot > self.slot]
            stop = min([target, *due])
            first = max(self.slot + 1, stop - MAX_RECENT_BLOCKHASHES)
            for slot in range(first, stop + 1):
                self.blockhashes.push(slot)
            self.slot = stop
            self.runtime.set_slot(stop, self.blockhashes.newest(SLOT_HASHES))
            self._land_due()

    def _land_due(self) -> None:
        due = [transaction for slot, transaction in self._mempool if slot <= self.slot]
        self._mempool = [waiting for waiting in self._mempool if waiting[0] > self.slot]
        for transaction in due:
            self.execute(transaction)

    def _token_balances(self, accounts: list[Account | None]) -> list[JsonObject]:
        """Return the token balances of a transaction's accounts in the format of its metadata."""
        balances = []
        for index, account in enumerate(accounts):
            token_account = tokens.read_token_account(account)
            if account is None or token_account is None:
                continue
            mint = tokens.read_mint(self.runtime.account(token_account.mint))
            balances.append(
                {
                    "accountIndex": index,
                    "mint": token_account.mint,
                    "owner": token_account.owner,
                    "programId": str(account.owner),
                    "uiTokenAmount": tokens.amount_json(
                        token_account.amount, decimals=mint.decimals if mint else 0, null_when_zero=True
                    ),
                }
            )
        return balances

    def _note_change(self, address: str, before: Account | None, after: Account | None) -> None:
        """Record the state of an account as of this slot, and its former state if that is unknown."""
        finalized_slot = self.slot_at(Commitment.FINALIZED)
        if address not in self.accounts:
            self.accounts.record(address, before, slot=GENESIS_SLOT, finalized_slot=finalized_slot)
        self.accounts.record(address, after, slot=self.slot, finalized_slot=finalized_slot)
        if self._storage:
            self._storage.put_account(address, after)

    def _commit(self) -> None:
        if self._storage:
            self._storage.commit(seed=self._seed, slot=self.slot, unix_seconds=time.time())

    def _slot_after_restart(self, saved: SavedChain, *, slot_ms: int) -> int:
        """Return the first slot after a restart: later than the last, and beyond every blockhash and open commitment.

        A transaction that had not landed is then permanently expired, and one that had landed is finalized.
        """
        away_seconds = max(0.0, time.time() - saved.unix_seconds)
        passed = int(away_seconds * 1000 / slot_ms) if slot_ms else 0
        return saved.slot + max(MAX_RECENT_BLOCKHASHES + self._lags[Commitment.FINALIZED], passed)

    def _restore(self, saved: SavedChain) -> None:
        for address, account in saved.accounts.items():
            self._set_genesis_account(address, account)
        for record in saved.transactions:
            self.history.add(record)

    def _create_missing_genesis_accounts(self) -> None:
        for address, account in genesis_accounts(self.usdc).items():
            if address not in self.accounts:
                self._set_genesis_account(address, account)
                if self._storage:
                    self._storage.put_account(address, account)

    def _set_genesis_account(self, address: str, account: Account) -> None:
        """Write an account for all commitment levels."""
        self.runtime.put_account(address, account)
        self.accounts.record(address, account, slot=GENESIS_SLOT, finalized_slot=GENESIS_SLOT)


def _checked(genesis_hash: str) -> str:
    """Return a valid genesis hash unchanged.

    Raises:
        ValueError: it is malformed.
    """
    try:
        return str(Hash.from_string(genesis_hash))
    except ParseHashError:
        raise ValueError(f"{genesis_hash} is not a genesis hash") from None


def _lamports(accounts: list[Account | None]) -> list[int]:
    return [account.lamports if account else 0 for account in accounts]
