"""Landed transactions, indexed by signature and account."""

import base64
import dataclasses
from collections import defaultdict
from dataclasses import dataclass

from solana_node.errors import JsonObject, TransactionError

_SIGNATURE_BYTES = 64


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """A landed transaction with its metadata, as JSON values."""

    signature: str
    raw: str
    """The signed bytes in base64."""
    slot: int
    block_time: int
    error: TransactionError | None
    fee_lamports: int
    logs: list[str]
    compute_units: int
    inner_instructions: list[JsonObject]
    return_data: JsonObject | None
    pre_lamports: list[int]
    post_lamports: list[int]
    pre_token_balances: list[JsonObject]
    post_token_balances: list[JsonObject]
    keys: list[str]
    """Static keys, then writable and read-only keys from lookup tables."""
    loaded_writable: list[str]
    loaded_readonly: list[str]
    memo: str | None

    def to_json(self) -> JsonObject:
        """Return the record for storage."""
        return dataclasses.asdict(self)

    @property
    def status_json(self) -> JsonObject:
        """The older `status` form of the outcome, which clients still parse."""
        return {"Ok": None} if self.error is None else {"Err": self.error}


def _message(raw: bytes) -> bytes:
    # The signatures precede it; their number is less than 128.
    return raw[1 + _SIGNATURE_BYTES * raw[0] :]


class History:
    """All landed transactions in order."""

    def __init__(self) -> None:
        self._records: dict[str, TransactionRecord] = {}
        self._positions: dict[str, int] = {}
        self._by_address: defaultdict[str, list[str]] = defaultdict(list)
        self._messages: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, signature: str) -> bool:
        return signature in self._records

    def has_message(self, raw: bytes) -> bool:
        """Return whether a message landed, under these signatures or others: a bank executes it once."""
        return _message(raw) in self._messages

    def add(self, record: TransactionRecord) -> None:
        """Append a transaction."""
        self._positions[record.signature] = len(self._records)
        self._records[record.signature] = record
        self._messages.add(_message(base64.b64decode(record.raw)))
        for address in dict.fromkeys(record.keys):
            self._by_address[address].append(record.signature)

    def get(self, signature: str, *, up_to_slot: int | None = None) -> TransactionRecord | None:
        """Return a transaction, unless it landed after a given slot."""
        record = self._records.get(signature)
        if record and up_to_slot is not None and record.slot > up_to_slot:
            return None
        return record

    def of_slot(self, slot: int) -> list[str]:
        """Return the signatures of a slot's transactions in order."""
        return [record.signature for record in self._records.values() if record.slot == slot]

    def prune_before(self, slot: int) -> None:
        """Drop what landed before a slot."""
        kept = [record for record in self._records.values() if record.slot >= slot]
        self._records, self._positions = {}, {}
        self._by_address.clear()
        self._messages.clear()
        for record in kept:
            self.add(record)

    def of_address(
        self, address: str, *, up_to_slot: int, before: str | None = None, until: str | None = None
    ) -> list[TransactionRecord]:
        """Return the transactions that name an account, newest first, strictly between `until` and `before`.

        The bounds are positions in the whole history: their transactions need not name the account. An unknown
        `before` yields nothing, an unknown `until` is ignored.
        """
        if before is not None and before not in self._positions:
            return []
        newest = self._positions[before] if before is not None else len(self._records)
        oldest = self._positions.get(until, -1) if until is not None else -1
        return [
            self._records[signature]
            for signature in reversed(self._by_address.get(address, []))
            if oldest < self._positions[signature] < newest and self._records[signature].slot <= up_to_slot
        ]
