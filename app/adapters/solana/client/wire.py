"""Solana's JSON, read strictly after a parser with bounded depth.

Only what is used is read, so that a field or an error that a newer validator adds does not make a response unreadable.
Formats: solana.com/docs/rpc.
"""

import base64
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from operator import itemgetter
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, AliasPath, Field, model_validator
from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from werkzeug.utils import cached_property

from app.core import foreign
from app.core.chains import MAX_DECIMALS, Token, base58_bytes, token_named

T = TypeVar("T")
F = TypeVar("F", bound="_Found[Any]")
L = TypeVar("L", bound="LandedTransaction")

LEVELS = ("processed", "confirmed", "finalized")
"""By their numbers as `CommitmentLevel`."""

_MAX_DATA_CHARACTERS = 14_000
"""Letters of base58: instructions between programs have 10 KiB at most."""


def _base64(encoded: Any) -> bytes:
    return base64.b64decode(encoded[0], validate=True)


def _at(*path: str, default: Any = ...) -> Any:
    return Field(default, validation_alias=AliasPath(*path))


PubkeyText = Annotated[Pubkey, foreign.parsed(Pubkey.from_string)]
SignatureText = Annotated[str, foreign.parsed(lambda found: str(Signature.from_string(found)))]


class AccountState(foreign.ForeignModel):
    lamports: foreign.U64
    owner: PubkeyText
    is_executable: bool = Field(alias="executable")
    data: Annotated[bytes, foreign.parsed(_base64)]


class _AtSlot(foreign.ForeignModel):
    slot: foreign.U64 = _at("context", "slot")


class _Found(_AtSlot, Generic[T]):
    """What was asked for, at a slot; None for what does not exist."""

    found: foreign.Items[T | None] = Field(alias="value")


class OwnedToken(foreign.ForeignModel):
    """A token account as nodes read it: not at all if its mint does not exist any more."""

    address: PubkeyText = Field(alias="pubkey")
    program: PubkeyText = _at("account", "owner")
    mint: PubkeyText = _at("account", "data", "parsed", "info", "mint", default=Pubkey.default())
    state: str = _at("account", "data", "parsed", "info", "state", default="")
    units: foreign.U64Digits = _at("account", "data", "parsed", "info", "tokenAmount", "amount", default=0)
    decimals: foreign.U64 = _at("account", "data", "parsed", "info", "tokenAmount", "decimals", default=0)

    @property
    def token(self) -> Token:
        return token_named(f"{self.mint}:{self.decimals if self.decimals <= MAX_DECIMALS else 0}")


OwnedTokens = _Found[OwnedToken]


class Blockhash(_AtSlot):
    """A recent blockhash with the slot that it was read at and the last block height at which it may be used."""

    blockhash: Annotated[str, foreign.parsed(lambda found: str(Hash.from_string(found)))] = _at("value", "blockhash")
    last_valid_block_height: foreign.U64 = _at("value", "lastValidBlockHeight")


class EpochInfo(foreign.ForeignModel):
    slot: foreign.U64 = Field(alias="absoluteSlot")
    block_height: foreign.U64


class Simulation(_AtSlot):
    """The result of simulating a transaction at a slot; `error` is the node's JSON."""

    error: Any = _at("value", "err")
    units_consumed: foreign.U64 | None = _at("value", "unitsConsumed", default=None)
    accounts: foreign.OptionalItems[AccountState | None] = _at("value", "accounts", default=())

    @property
    def compute_units(self) -> int:
        return self.units_consumed or 0


class SignatureStatus(foreign.ForeignModel):
    slot: foreign.U64
    error: Any = Field(alias="err")
    confirmation_status: Literal["processed", "confirmed", "finalized"] | None = None
    confirmations: Any = None

    @property
    def failed(self) -> bool:
        return self.error is not None

    @property
    def level(self) -> str:
        # Before Agave 1.5 only the count existed: null for what is rooted.
        return self.confirmation_status or ("finalized" if self.confirmations is None else "processed")


Accounts = _Found[AccountState]
SignatureStatuses = _Found[SignatureStatus]


class HistoryEntry(foreign.ForeignModel):
    signature: SignatureText
    slot: foreign.U64


class TokenBalance(foreign.ForeignModel):
    """The balance of a token account before or after a transaction; old blocks have no owner."""

    account_index: foreign.U64
    mint: str
    owner: str | None = None
    units: foreign.U64Digits = _at("uiTokenAmount", "amount")


class LandedTransaction(foreign.ForeignModel):
    """A landed transaction with its balance changes; keys include those from lookup tables."""

    slot: foreign.U64
    transaction: Annotated[
        VersionedTransaction, foreign.parsed(lambda encoded: VersionedTransaction.from_bytes(_base64(encoded)))
    ]
    error: Any = _at("meta", "err")
    fee_units: foreign.U64 = _at("meta", "fee")
    before: foreign.Items[foreign.U64] = _at("meta", "preBalances")
    after: foreign.Items[foreign.U64] = _at("meta", "postBalances")
    tokens_before: foreign.OptionalItems[TokenBalance] = _at("meta", "preTokenBalances", default=())
    tokens_after: foreign.OptionalItems[TokenBalance] = _at("meta", "postTokenBalances", default=())
    loaded_writable: foreign.OptionalItems[str] = _at("meta", "loadedAddresses", "writable", default=())
    loaded_readonly: foreign.OptionalItems[str] = _at("meta", "loadedAddresses", "readonly", default=())

    @property
    def failed(self) -> bool:
        return self.error is not None

    @cached_property
    def keys(self) -> tuple[str, ...]:
        return (*map(str, self.transaction.message.account_keys), *self.loaded_writable, *self.loaded_readonly)

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        """Check that everything refers to an account, and that each account has its balances."""
        places = [each.account_index for each in (*self.tokens_before, *self.tokens_after)]
        for each in self.transaction.message.instructions:
            places += [each.program_id_index, *bytes(each.accounts)]
        if max(places, default=-1) >= len(self.keys) or not len(self.keys) == len(self.before) == len(self.after):
            raise ValueError("expected the accounts and their balances")
        return self


class _InnerInstruction(foreign.ForeignModel):
    program_id_index: foreign.U64
    data: Annotated[str, Field(max_length=_MAX_DATA_CHARACTERS)]


class _InnerInstructions(foreign.ForeignModel):
    instructions: foreign.Items[_InnerInstruction]


class TracedTransaction(LandedTransaction):
    inner: foreign.OptionalItems[_InnerInstructions] = _at("meta", "innerInstructions", default=())

    @cached_property
    def calls(self) -> tuple[tuple[str, bytes], ...]:
        """The programs that it called, inner calls included, and their instruction data."""
        outer = [(each.program_id_index, bytes(each.data)) for each in self.transaction.message.instructions]
        inner = [
            (each.program_id_index, base58_bytes(each.data)) for group in self.inner for each in group.instructions
        ]
        return tuple((self.keys[place], data) for place, data in (*outer, *inner))

    @model_validator(mode="after")
    def _check_calls(self) -> Self:
        if any(each.program_id_index >= len(self.keys) for group in self.inner for each in group.instructions):
            raise ValueError("expected the programs that are called")
        _ = self.calls
        return self


number: Callable[[object], int] = foreign.reader(foreign.U64)
text: Callable[[object], str] = foreign.reader(foreign.Text)
history: Callable[[object], tuple[HistoryEntry, ...]] = foreign.reader(foreign.Items[HistoryEntry])
priority_prices: Callable[[object], tuple[int, ...]] = foreign.reader(
    foreign.Items[Annotated[foreign.U64, foreign.parsed(itemgetter("prioritizationFee"))]]
)
"""`getRecentPrioritizationFees`: micro-lamports per compute unit, one figure per slot."""
priority_estimate: Callable[[object], int] = foreign.reader(
    Annotated[
        Decimal,
        Field(ge=0, lt=2**53),
        AfterValidator(math.ceil),
        foreign.parsed(lambda found: Decimal(str(found["priorityFeeEstimate"]))),
    ]
)
"""Helius's `getPriorityFeeEstimate`: micro-lamports per compute unit, possibly with a fraction."""


def simulation(count: int = 0) -> Callable[[object], Simulation]:
    """Return a reader of `simulateTransaction` with this many resulting accounts; none after a failure."""

    def read(result: object) -> Simulation:
        tried = Simulation.read(result)
        if tried.error is None:
            _assert_count(tried.accounts, count)
        return tried

    return read


def landed_or_none(signature: str, kind: type[L]) -> Callable[[object], L | None]:
    """Return a reader of `getTransaction` in base64 that accepts only the requested transaction."""

    def read(result: object) -> L | None:
        found = None if result is None else kind.read(result)
        if found is not None and str(found.transaction.signatures[0]) != signature:
            raise foreign.MalformedResponseError("expected the requested transaction")
        return found

    return read


def _with_each(read: Callable[[object], F], count: int) -> Callable[[object], F]:
    def read_all(result: object) -> F:
        found = read(result)
        _assert_count(found.found, count)
        return found

    return read_all


accounts: Callable[[int], Callable[[object], Accounts]] = partial(_with_each, Accounts.read)
"""Returns a reader of `getMultipleAccounts` for this many accounts."""
statuses: Callable[[int], Callable[[object], SignatureStatuses]] = partial(_with_each, SignatureStatuses.read)
"""Returns a reader of `getSignatureStatuses` for this many signatures."""


def _assert_count(listed: Sequence[object], count: int) -> None:
    if len(listed) != count:
        raise foreign.MalformedResponseError("expected one entry for each that was requested")
