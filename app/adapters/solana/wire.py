"""Solana's JSON as values: what an answer must look like to be believed, and the bounded parser before it.

Only what is used is read, so that a field or an error that a newer validator invents does not make it unreadable.
Shapes: solana.com/docs/rpc.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from solders.errors import BincodeError, SerdeJSONError
from solders.hash import Hash, ParseHashError
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.adapters.json_rpc import MalformedAnswerError
from app.core.addresses import base58_bytes

LEVELS = ("processed", "confirmed", "finalized")
"""The commitment levels, the weakest first."""

_U64 = 2**64
_LONGEST_U64 = 20
_LONGEST_SAID = 14_000
"""Letters of base58: programs tell each other 10 KiB at most."""


@dataclass(frozen=True, slots=True)
class AccountState:
    """An account as a node shows it."""

    lamports: int
    owner: Pubkey
    is_executable: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class Accounts:
    """Accounts of one slot, None for those that do not exist."""

    slot: int
    states: tuple[AccountState | None, ...]


@dataclass(frozen=True, slots=True)
class Blockhash:
    """A recent blockhash with the slot that it was read at and the last block height at which it may be used."""

    slot: int
    blockhash: str
    last_valid_block_height: int


@dataclass(frozen=True, slots=True)
class EpochInfo:
    """Slot and block height of one moment."""

    slot: int
    block_height: int


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a transaction would do at a slot; `error` is the node's JSON."""

    slot: int
    error: object
    compute_units: int


@dataclass(frozen=True, slots=True)
class Status:
    """A transaction in a slot, at one of the commitment levels."""

    slot: int
    level: str
    failed: bool


@dataclass(frozen=True, slots=True)
class Statuses:
    """The statuses of signatures as known in a slot, None where a signature is not known."""

    slot: int
    found: tuple[Status | None, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of an address's history."""

    signature: str
    slot: int


@dataclass(frozen=True, slots=True)
class TokenBalance:
    """What a token account held on one side of a transaction."""

    account: str
    mint: str
    owner: str
    units: int


@dataclass(frozen=True, slots=True)
class Landed:
    """A landed transaction with what it changed; keys include those from lookup tables."""

    slot: int
    transaction: VersionedTransaction
    failed: bool
    fee_units: int
    keys: tuple[str, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    tokens_before: tuple[TokenBalance, ...]
    tokens_after: tuple[TokenBalance, ...]


@dataclass(frozen=True, slots=True)
class Called:
    """A landed transaction with the programs that it called, also from within, and what was said to them."""

    landed: Landed
    calls: tuple[tuple[str, bytes], ...]


def number(value: object) -> int:
    """Read an unsigned 64-bit integer."""
    if type(value) is not int or not 0 <= value < _U64:
        raise MalformedAnswerError("expected a number")
    return value


def text(value: object) -> str:
    """Read a string."""
    if not isinstance(value, str):
        raise MalformedAnswerError("expected a string")
    return value


def members(value: object) -> Mapping[str, object]:
    """Read an object."""
    if not isinstance(value, dict):
        raise MalformedAnswerError("expected an object")
    return value


def entries(value: object) -> Sequence[object]:
    """Read a list."""
    if not isinstance(value, list):
        raise MalformedAnswerError("expected a list")
    return value


def field(value: object, name: str) -> object:
    """Read a member that must be there."""
    found = members(value)
    if name not in found:
        raise MalformedAnswerError(f"expected {name}")
    return found[name]


def accounts(count: int) -> Callable[[object], Accounts]:
    """Return a reader of `getMultipleAccounts` for so many accounts."""

    def read(answer: object) -> Accounts:
        found = entries(field(answer, "value"))
        if len(found) != count:
            raise MalformedAnswerError("expected all accounts")
        return Accounts(_slot_of(answer), tuple(_account(entry) for entry in found))

    return read


def blockhash(answer: object) -> Blockhash:
    """Read `getLatestBlockhash`."""
    value = field(answer, "value")
    try:
        latest = str(Hash.from_string(text(field(value, "blockhash"))))
    except ParseHashError:
        raise MalformedAnswerError("expected a blockhash") from None
    return Blockhash(_slot_of(answer), latest, number(field(value, "lastValidBlockHeight")))


def epoch_info(answer: object) -> EpochInfo:
    """Read `getEpochInfo`."""
    return EpochInfo(number(field(answer, "absoluteSlot")), number(field(answer, "blockHeight")))


def priority_prices(answer: object) -> tuple[int, ...]:
    """Read `getRecentPrioritizationFees`: micro-lamports per compute unit, one figure per slot."""
    return tuple(number(field(entry, "prioritizationFee")) for entry in entries(answer))


def simulation(answer: object) -> Simulation:
    """Read `simulateTransaction`."""
    value = members(field(answer, "value"))
    units = value.get("unitsConsumed")
    return Simulation(_slot_of(answer), field(value, "err"), 0 if units is None else number(units))


def simulation_with(count: int) -> Callable[[object], tuple[Simulation, tuple[AccountState | None, ...]]]:
    """Return a reader of `simulateTransaction` with so many accounts as they would be; none after a failure."""

    def read(answer: object) -> tuple[Simulation, tuple[AccountState | None, ...]]:
        tried = simulation(answer)
        if tried.error is not None:
            return tried, ()
        states = entries(field(field(answer, "value"), "accounts"))
        if len(states) != count:
            raise MalformedAnswerError("expected all accounts")
        return tried, tuple(_account(entry) for entry in states)

    return read


def statuses(count: int) -> Callable[[object], Statuses]:
    """Return a reader of `getSignatureStatuses` for so many signatures."""

    def read(answer: object) -> Statuses:
        found = entries(field(answer, "value"))
        if len(found) != count:
            raise MalformedAnswerError("expected all statuses")
        return Statuses(_slot_of(answer), tuple(_status(entry) for entry in found))

    return read


def history(answer: object) -> tuple[Entry, ...]:
    """Read `getSignaturesForAddress`, newest first."""
    return tuple(
        Entry(_signature(field(entry, "signature")), number(field(entry, "slot")))
        for entry in entries(answer)
    )


def landed_or_none(signature: str) -> Callable[[object], Landed | None]:
    """Return a reader of `getTransaction` in base64 that takes only the transaction that was asked for."""

    def read(answer: object) -> Landed | None:
        if answer is None:
            return None
        found = _landed(answer)
        if str(found.transaction.signatures[0]) != signature:
            raise MalformedAnswerError("expected the transaction that was asked for")
        return found

    return read


def called_or_none(signature: str) -> Callable[[object], Called | None]:
    """Return a reader of `getTransaction` in base64 that reads what programs called, too."""
    landed_in = landed_or_none(signature)

    def read(answer: object) -> Called | None:
        landed = landed_in(answer)
        return None if landed is None else Called(landed, tuple(_calls(answer, landed)))

    return read


def _calls(answer: object, landed: Landed) -> Iterator[tuple[str, bytes]]:
    for each in landed.transaction.message.instructions:
        yield landed.keys[each.program_id_index], bytes(each.data)
    for group in entries(members(field(answer, "meta")).get("innerInstructions") or []):
        for inner in entries(field(group, "instructions")):
            place, said = number(field(inner, "programIdIndex")), text(field(inner, "data"))
            if place >= len(landed.keys) or len(said) > _LONGEST_SAID:
                raise MalformedAnswerError("expected what a program was told")
            try:
                yield landed.keys[place], base58_bytes(said)
            except ValueError:
                raise MalformedAnswerError("expected base58") from None


def _landed(answer: object) -> Landed:
    encoded = entries(field(answer, "transaction"))
    try:
        transaction = VersionedTransaction.from_bytes(base64.b64decode(text(encoded[0]), validate=True))
    except (BincodeError, SerdeJSONError, binascii.Error, ValueError, IndexError):
        raise MalformedAnswerError("expected a transaction") from None
    meta = members(field(answer, "meta"))
    loaded = members(meta.get("loadedAddresses") or {})
    keys = [str(key) for key in transaction.message.account_keys]
    for side in ("writable", "readonly"):
        keys += [text(key) for key in entries(loaded.get(side) or [])]
    named = [
        place
        for each in transaction.message.instructions
        for place in (each.program_id_index, *bytes(each.accounts))
    ]
    if any(place >= len(keys) for place in named):
        raise MalformedAnswerError("expected the accounts that the instructions name")
    before = tuple(number(units) for units in entries(field(meta, "preBalances")))
    after = tuple(number(units) for units in entries(field(meta, "postBalances")))
    if not len(keys) == len(before) == len(after):
        raise MalformedAnswerError("expected a balance for each account")
    return Landed(
        slot=number(field(answer, "slot")),
        transaction=transaction,
        failed=field(meta, "err") is not None,
        fee_units=number(field(meta, "fee")),
        keys=tuple(keys),
        before=before,
        after=after,
        tokens_before=_token_balances(meta.get("preTokenBalances"), keys),
        tokens_after=_token_balances(meta.get("postTokenBalances"), keys),
    )


def _token_balances(listed: object, keys: Sequence[str]) -> tuple[TokenBalance, ...]:
    balances = []
    for entry in entries(listed or []):
        index = number(field(entry, "accountIndex"))
        units = text(field(field(entry, "uiTokenAmount"), "amount"))
        if index >= len(keys) or not (units.isascii() and units.isdigit() and len(units) <= _LONGEST_U64):
            raise MalformedAnswerError("expected a token balance")
        # Old blocks have no owner.
        owner = text(members(entry).get("owner") or "")
        balances.append(TokenBalance(keys[index], text(field(entry, "mint")), owner, int(units)))
    return tuple(balances)


def _signature(value: object) -> str:
    try:
        return str(Signature.from_string(text(value)))
    except ValueError:
        raise MalformedAnswerError("expected a signature") from None


def _slot_of(answer: object) -> int:
    return number(field(field(answer, "context"), "slot"))


def _account(entry: object) -> AccountState | None:
    if entry is None:
        return None
    encoded = entries(field(entry, "data"))
    try:
        data = base64.b64decode(text(encoded[0]), validate=True)
        owner = Pubkey.from_string(text(field(entry, "owner")))
    except (binascii.Error, ValueError, IndexError):
        raise MalformedAnswerError("expected an account") from None
    return AccountState(number(field(entry, "lamports")), owner, field(entry, "executable") is True, data)


def _status(entry: object) -> Status | None:
    if entry is None:
        return None
    found = members(entry)
    level = found.get("confirmationStatus")
    if level is None:
        # Before Agave 1.5 only the count told: null for what is rooted.
        level = "finalized" if found.get("confirmations") is None else "processed"
    if level not in LEVELS:
        raise MalformedAnswerError("expected a commitment level")
    return Status(number(field(found, "slot")), str(level), field(found, "err") is not None)
