"""Execution of transactions by LiteSVM.

Two virtual machines: one holds the ledger, the other simulates on older states of it. LiteSVM has only one blockhash,
so the chain checks the age of blockhashes first.
"""

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from solders.account import Account
from solders.clock import Clock
from solders.hash import Hash
from solders.litesvm import LiteSVM
from solders.message import Message, MessageV0, MessageV1
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, SimulatedTransactionInfo, TransactionMetadata

from solana_node import base58
from solana_node.addresses import MEMO_PROGRAMS, SYSTEM
from solana_node.errors import JsonObject, TransactionError

AnyMessage = Message | MessageV0 | MessageV1

_REMEMBERED_TRANSACTIONS: Final = 1_000_000
_LOOKUP_TABLE_META_BYTES: Final = 56


class LookupTableNotFoundError(LookupError):
    """A transaction loads addresses from a missing table."""


@dataclass(frozen=True, slots=True)
class TransactionKeys:
    """The accounts of a transaction in the order of their indexes."""

    all: list[str]
    loaded_writable: list[str]
    loaded_readonly: list[str]
    tables: list[str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a transaction."""

    error: TransactionError | None = None
    landed: bool = False
    """False for a transaction that could not pay its fee, which is not recorded."""
    fee_lamports: int | None = None
    compute_units: int = 0
    logs: list[str] = field(default_factory=list)
    inner_instructions: list[JsonObject] = field(default_factory=list)
    return_data: JsonObject | None = None
    post_accounts: dict[str, Account] = field(default_factory=dict)
    """The accounts after a successful simulation; empty otherwise."""


class Runtime:
    """The accounts and programs of the ledger."""

    def __init__(self) -> None:
        self._ledger = (
            LiteSVM().with_blockhash_check(False).with_transaction_history(_REMEMBERED_TRANSACTIONS)  # noqa: FBT003
        )
        self._scratch = LiteSVM().with_blockhash_check(False).with_sigverify(False)  # noqa: FBT003

    def account(self, address: str) -> Account | None:
        """Return the current state of an account."""
        return self._ledger.get_account(Pubkey.from_string(address))

    def put_account(self, address: str, account: Account) -> None:
        """Write an account directly."""
        self._ledger.set_account(Pubkey.from_string(address), account)

    def add_program(self, address: str, elf: bytes) -> None:
        """Deploy an sBPF program."""
        for machine in (self._ledger, self._scratch):
            machine.add_program(Pubkey.from_string(address), elf)

    def rent_exempt_lamports(self, data_bytes: int) -> int:
        """Return the rent-exempt balance of an account of this size."""
        return self._ledger.minimum_balance_for_rent_exemption(data_bytes)

    def set_slot(self, slot: int, slot_hashes: list[tuple[int, Hash]]) -> None:
        """Set the Clock and SlotHashes sysvars."""
        for machine in (self._ledger, self._scratch):
            clock = machine.get_clock()
            machine.set_slot_hashes(slot_hashes)
            machine.set_clock(
                Clock(slot, clock.epoch_start_timestamp, clock.epoch, clock.leader_schedule_epoch, int(time.time()))
            )

    def keys_of(self, message: AnyMessage) -> TransactionKeys:
        """Return the accounts of a message, including those from lookup tables.

        Raises:
            LookupTableNotFoundError: a table does not exist.
        """
        writable: list[str] = []
        readonly: list[str] = []
        lookups = message.address_table_lookups if isinstance(message, MessageV0) else []
        for lookup in lookups:
            table = self._ledger.get_account(lookup.account_key)
            if table is None:
                raise LookupTableNotFoundError
            data = bytes(table.data)
            entries = [
                base58.encode(data[start : start + Pubkey.LENGTH])
                for start in range(_LOOKUP_TABLE_META_BYTES, len(data), Pubkey.LENGTH)
            ]
            writable += [entries[index] for index in lookup.writable_indexes]
            readonly += [entries[index] for index in lookup.readonly_indexes]
        return TransactionKeys(
            all=[str(key) for key in message.account_keys] + writable + readonly,
            loaded_writable=writable,
            loaded_readonly=readonly,
            tables=[str(lookup.account_key) for lookup in lookups],
        )

    def execute(self, transaction: VersionedTransaction) -> Outcome:
        """Run a transaction on the ledger."""
        return _outcome(self._ledger.send_transaction(transaction))

    def simulate(self, transaction: VersionedTransaction, *, view: Mapping[str, Account | None]) -> Outcome:
        """Simulate a transaction with its accounts at an older state."""
        absent = Account(0, b"", Pubkey.from_string(SYSTEM))
        for address, account in view.items():
            self._scratch.set_account(Pubkey.from_string(address), account or absent)
        return _outcome(self._scratch.simulate_transaction(transaction))


def memo_of(message: AnyMessage, keys: list[str]) -> str | None:
    """Return a message's memos in the format of `getSignaturesForAddress`: `[bytes] text; …`."""
    texts = []
    for instruction in message.instructions:
        if keys[instruction.program_id_index] in MEMO_PROGRAMS:
            data = bytes(instruction.data)
            texts.append(f"[{len(data)}] {data.decode(errors='replace')}")
    return "; ".join(texts) or None


def _outcome(result: TransactionMetadata | FailedTransactionMetadata | SimulatedTransactionInfo) -> Outcome:
    metadata = result if isinstance(result, TransactionMetadata) else result.meta()
    failed = isinstance(result, FailedTransactionMetadata)
    returned = metadata.return_data()
    return Outcome(
        error=json.loads(result.to_json())["err"] if failed else None,
        landed=metadata.signature() != Signature.default(),
        fee_lamports=metadata.fee(),
        compute_units=metadata.compute_units_consumed(),
        logs=list(metadata.logs()),
        inner_instructions=_inner_instructions(metadata),
        return_data={
            "programId": str(returned.program_id),
            "data": [base64.b64encode(bytes(returned.data)).decode(), "base64"],
        }
        if returned.data
        else None,
        post_accounts={str(key): account for key, account in result.post_accounts()}
        if isinstance(result, SimulatedTransactionInfo)
        else {},
    )


def _inner_instructions(metadata: TransactionMetadata) -> list[JsonObject]:
    groups = []
    for index, group in enumerate(metadata.inner_instructions()):
        instructions = [
            {
                "programIdIndex": inner.instruction().program_id_index,
                "accounts": list(bytes(inner.instruction().accounts)),
                "data": base58.encode(bytes(inner.instruction().data)),
                "stackHeight": inner.stack_height(),
            }
            for inner in group
        ]
        if instructions:
            groups.append({"index": index, "instructions": instructions})
    return groups
