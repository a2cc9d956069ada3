"""Strict parsing of Solana's JSON, after a parser with bounded depth.

Only what is used is parsed, so that a field or an error that a newer validator adds does not make a response
unreadable. Formats: solana.com/docs/rpc.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from solders.errors import BincodeError, SerdeJSONError
from solders.hash import Hash, ParseHashError
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.adapters.jsonrpc.replies import MalformedResponseError
from app.core.addresses import base58_bytes

LEVELS = ("processed", "confirmed", "finalized")
"""The commitment levels, the weakest first."""

_U64 = 2**64
_MAX_ESTIMATE = 2**53
_MAX_U64_DIGITS = 20
_MAX_DATA_CHARACTERS = 14_000
"""Letters of base58: instructions between programs have 10 KiB at most."""


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
    """Slot and block height at one moment."""

    slot: int
    block_height: int


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of simulating a transaction at a slot; `error` is the node's JSON."""

    slot: int
    error: object
    compute_units: int


@dataclass(frozen=True, slots=True)
class SignatureStatus:
    """A transaction in a slot, at one of the commitment levels."""

    slot: int
    level: str
    failed: bool


@dataclass(frozen=True, slots=True)
class SignatureStatuses:
    """The statuses of signatures at a slot, None for unknown signatures."""

    slot: int
    found: tuple[SignatureStatus | None, ...]


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    signature: str
    slot: int


@dataclass(frozen=True, slots=True)
class TokenBalance:
    """The balance of a token account before or after a transaction."""

    account: str
    mint: str
    owner: str
    units: int


@dataclass(frozen=True, slots=True)
class LandedTransaction:
    """A landed transaction with its balance changes; keys include those from lookup tables."""

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
class TracedTransaction:
    """A landed transaction with the programs that it called, inner calls included, and their instruction data."""

    landed: LandedTransaction
    calls: tuple[tuple[str, bytes], ...]


def number(value: object) -> int:
    """Read an unsigned 64-bit integer."""
    if type(value) is not int or not 0 <= value < _U64:
        raise MalformedResponseError("expected a number")
    return value


def text(value: object) -> str:
    if not isinstance(value, str):
        raise MalformedResponseError("expected a string")
    return value


def members(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise MalformedResponseError("expected an object")
    return value


def entries(value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise MalformedResponseError("expected a list")
    return value


def field(value: object, name: str) -> object:
    """Read a required member."""
    found = members(value)
    if name not in found:
        raise MalformedResponseError(f"expected {name}")
    return found[name]


def accounts(count: int) -> Callable[[object], Accounts]:
    """Return a reader of `getMultipleAccounts` for this many accounts."""

    def read(result: object) -> Accounts:
        found = _all(count, field(result, "value"))
        return Accounts(_slot_of(result), tuple(_account(entry) for entry in found))

    return read


def blockhash(result: object) -> Blockhash:
    """Read `getLatestBlockhash`."""
    value = field(result, "value")
    try:
        latest = str(Hash.from_string(text(field(value, "blockhash"))))
    except ParseHashError:
        raise MalformedResponseError("expected a blockhash") from None
    return Blockhash(_slot_of(result), latest, number(field(value, "lastValidBlockHeight")))


def epoch_info(result: object) -> EpochInfo:
    return EpochInfo(number(field(result, "absoluteSlot")), number(field(result, "blockHeight")))


def priority_prices(result: object) -> tuple[int, ...]:
    """Read `getRecentPrioritizationFees`: micro-lamports per compute unit, one figure per slot."""
    return tuple(number(field(entry, "prioritizationFee")) for entry in entries(result))


def priority_estimate(result: object) -> int:
    """Read Helius's `getPriorityFeeEstimate`: micro-lamports per compute unit, possibly with a fraction."""
    try:
        estimate = Decimal(str(field(result, "priorityFeeEstimate")))
    except InvalidOperation:
        raise MalformedResponseError("expected a priority fee") from None
    if not estimate.is_finite() or not 0 <= estimate < _MAX_ESTIMATE:
        raise MalformedResponseError("expected a priority fee")
    return math.ceil(estimate)


def simulation(result: object) -> Simulation:
    """Read `simulateTransaction`."""
    value = members(field(result, "value"))
    units = value.get("unitsConsumed")
    return Simulation(_slot_of(result), field(value, "err"), 0 if units is None else number(units))


def simulation_with(count: int) -> Callable[[object], tuple[Simulation, tuple[AccountState | None, ...]]]:
    """Return a reader of `simulateTransaction` with this many resulting accounts; none after a failure."""

    def read(result: object) -> tuple[Simulation, tuple[AccountState | None, ...]]:
        tried = simulation(result)
        if tried.error is not None:
            return tried, ()
        states = _all(count, field(field(result, "value"), "accounts"))
        return tried, tuple(_account(entry) for entry in states)

    return read


def statuses(count: int) -> Callable[[object], SignatureStatuses]:
    """Return a reader of `getSignatureStatuses` for this many signatures."""

    def read(result: object) -> SignatureStatuses:
        found = _all(count, field(result, "value"))
        return SignatureStatuses(_slot_of(result), tuple(_status(entry) for entry in found))

    return read


def history(result: object) -> tuple[HistoryEntry, ...]:
    """Read `getSignaturesForAddress`, newest first."""
    return tuple(
        HistoryEntry(_signature(field(entry, "signature")), number(field(entry, "slot"))) for entry in entries(result)
    )


def landed_or_none(signature: str) -> Callable[[object], LandedTransaction | None]:
    """Return a reader of `getTransaction` in base64 that accepts only the requested transaction."""

    def read(result: object) -> LandedTransaction | None:
        if result is None:
            return None
        found = _landed(result)
        if str(found.transaction.signatures[0]) != signature:
            raise MalformedResponseError("expected the requested transaction")
        return found

    return read


def traced_or_none(signature: str) -> Callable[[object], TracedTransaction | None]:
    """Return a reader of `getTransaction` in base64 that also reads inner calls."""
    landed_in = landed_or_none(signature)

    def read(result: object) -> TracedTransaction | None:
        landed = landed_in(result)
        return None if landed is None else TracedTransaction(landed, tuple(_calls(result, landed)))

    return read


def _calls(result: object, landed: LandedTransaction) -> Iterator[tuple[str, bytes]]:
    for each in landed.transaction.message.instructions:
        yield landed.keys[each.program_id_index], bytes(each.data)
    for group in entries(members(field(result, "meta")).get("innerInstructions") or []):
        for inner in entries(field(group, "instructions")):
            place, data = number(field(inner, "programIdIndex")), text(field(inner, "data"))
            if place >= len(landed.keys) or len(data) > _MAX_DATA_CHARACTERS:
                raise MalformedResponseError("expected instruction data")
            try:
                yield landed.keys[place], base58_bytes(data)
            except ValueError:
                raise MalformedResponseError("expected base58") from None


def _landed(result: object) -> LandedTransaction:
    encoded = entries(field(result, "transaction"))
    try:
        transaction = VersionedTransaction.from_bytes(base64.b64decode(text(encoded[0]), validate=True))
    except (BincodeError, SerdeJSONError, binascii.Error, ValueError, IndexError):
        raise MalformedResponseError("expected a transaction") from None
    meta = members(field(result, "meta"))
    loaded = members(meta.get("loadedAddresses") or {})
    keys = [str(key) for key in transaction.message.account_keys]
    for side in ("writable", "readonly"):
        keys += [text(key) for key in entries(loaded.get(side) or [])]
    named = [
        place for each in transaction.message.instructions for place in (each.program_id_index, *bytes(each.accounts))
    ]
    if any(place >= len(keys) for place in named):
        raise MalformedResponseError("expected the accounts that the instructions refer to")
    before = tuple(number(units) for units in entries(field(meta, "preBalances")))
    after = tuple(number(units) for units in entries(field(meta, "postBalances")))
    if not len(keys) == len(before) == len(after):
        raise MalformedResponseError("expected a balance for each account")
    return LandedTransaction(
        slot=number(field(result, "slot")),
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
        if index >= len(keys) or not (units.isascii() and units.isdigit() and len(units) <= _MAX_U64_DIGITS):
            raise MalformedResponseError("expected a token balance")
        # Old blocks have no owner.
        owner = text(members(entry).get("owner") or "")
        balances.append(TokenBalance(keys[index], text(field(entry, "mint")), owner, int(units)))
    return tuple(balances)


def _signature(value: object) -> str:
    try:
        return str(Signature.from_string(text(value)))
    except ValueError:
        raise MalformedResponseError("expected a signature") from None


def _all(count: int, value: object) -> Sequence[object]:
    if len(found := entries(value)) != count:
        raise MalformedResponseError("expected one entry for each that was requested")
    return found


def _slot_of(result: object) -> int:
    return number(field(field(result, "context"), "slot"))


def _account(entry: object) -> AccountState | None:
    if entry is None:
        return None
    encoded = entries(field(entry, "data"))
    try:
        data = base64.b64decode(text(encoded[0]), validate=True)
        owner = Pubkey.from_string(text(field(entry, "owner")))
    except (binascii.Error, ValueError, IndexError):
        raise MalformedResponseError("expected an account") from None
    return AccountState(number(field(entry, "lamports")), owner, field(entry, "executable") is True, data)


def _status(entry: object) -> SignatureStatus | None:
    if entry is None:
        return None
    found = members(entry)
    level = found.get("confirmationStatus")
    if level is None:
        # Before Agave 1.5 only the count existed: null for what is rooted.
        level = "finalized" if found.get("confirmations") is None else "processed"
    if level not in LEVELS:
        raise MalformedResponseError("expected a commitment level")
    return SignatureStatus(number(field(found, "slot")), str(level), field(found, "err") is not None)
