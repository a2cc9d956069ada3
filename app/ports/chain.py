"""A chain on which wallets hold and move tokens.

The verbs follow the four beats of a movement: `draft` reads (no unit open), `sign` is pure (inside the unit that
records it), `broadcast` sends, `outcomes` finds out. All network verbs raise `Unreachable` when no node answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from app.core.chains import ChainName, Token
from app.core.money import TokenAmount
from app.ports.vault import Signer

Terms = Mapping[str, str | int | None]
"""An adapter's own facts about a transaction (gas, fees, …), storable as JSON; rooms never look inside."""


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A block by number and hash.

    On Solana the slot: with its blockhash where it is the newest, and where a transaction is meant with the
    signature of that one, for this is what a slot can be asked for.
    """

    number: int
    hash: str


@dataclass(frozen=True, slots=True)
class Intent:
    """What shall move: exactly this amount from the sender (one of our wallets) to the recipient."""

    sender: str
    recipient: str
    amount: TokenAmount


@dataclass(frozen=True, slots=True)
class Draft:
    """What the chain said about an intent: all that signing needs, and the figures for the refusals before it.

    `fee_units` is the most that the network can charge, in native base units; `native_units` and `token_units` are
    the sender's balances (the same figure for a native intent); `sequence` is the sender's next nonce in the latest
    block (None on chains without nonces), read before the balances. There, `as_of` says which block (slot) the
    balances are of: what landed in a later one is not in them.
    """

    intent: Intent
    fee_units: int
    native_units: int
    token_units: int
    sequence: int | None
    terms: Terms
    as_of: int | None = None


@dataclass(frozen=True, slots=True)
class Signed:
    """A signed transaction. Its hash is known before anything is sent, and sending it twice is harmless."""

    tx_hash: str
    raw: bytes
    sequence: int | None
    expires_at_height: int | None
    terms: Terms


@dataclass(frozen=True, slots=True)
class Attempt:
    """A transaction that was signed earlier, as stored."""

    intent: Intent
    tx_hash: str
    raw: bytes
    sequence: int | None
    terms: Terms


@dataclass(frozen=True, slots=True)
class Watch:
    """A movement whose end is looked for: any of its hashes may be the one that landed.

    `receives` names the token that it shall bring the sender, where it shall bring one. `terms` are those of the
    bytes that were signed last.
    """

    key: str
    sender: str
    sequence: int | None
    tx_hashes: tuple[str, ...]
    expires_at_height: int | None = None
    receives: Token | None = None
    terms: Terms = field(default_factory=dict)


class Fate(StrEnum):
    """What became of a watched movement."""

    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    REVERTED = "reverted"
    VOID = "void"
    """Certain at `safe` depth: none of its transactions can land any more (nonce used by another, or expired)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Fate with its evidence; `confirmations` is 1 in the block itself, `fee_units` what the network took.

    A watch that `receives` has `received_units` with SUCCEEDED, and is WAITING until the chain can tell them; None
    where a chain without nonces could not within about ten minutes after the end was final.
    """

    fate: Fate
    tx_hash: str | None = None
    block: BlockRef | None = None
    confirmations: int = 0
    fee_units: int | None = None
    received_units: int | None = None


class Does(StrEnum):
    """What a transaction that took a slot does, against what was to be done there."""

    SAME = "same"
    NOTHING = "nothing"
    """An empty transaction to oneself: the slot was used up on purpose."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Sent:
    """A transaction of one of our addresses as the chain shows it; `amount` is None for more than a plain payment.

    `raw` are its signed bytes, None where they cannot be had.
    """

    tx_hash: str
    recipient: str | None
    amount: TokenAmount | None
    does: Does
    raw: bytes | None


@dataclass(frozen=True, slots=True)
class OwnTransaction:
    """One of our own transactions from a watched address: it explains a change of balance that is no deposit.

    `native_out_units` is what it took from the native balance, fee included (negative when it brought some); None
    while its outcome is open. One that somebody else sent for us, as bridges do, has no sequence and is told by its
    `block_number`; `takes_slot` where it used up a nonce nevertheless.
    """

    tx_hash: str
    sequence: int | None
    native_out_units: int | None
    block_number: int | None = None
    takes_slot: bool = False


@dataclass(frozen=True, slots=True)
class WatchedAddress:
    """An address that waits for deposits, with the adapter's mark of what was seen there already.

    `awaits` names tokens that a bridge of its own is about to bring: what comes of them now may be no deposit.
    """

    address: str
    mark: Terms
    own: tuple[OwnTransaction, ...] = ()
    awaits: frozenset[Token] = frozenset()


@dataclass(frozen=True, slots=True)
class Deposit:
    """Tokens that came in from outside; hash and payer are None for a transfer that leaves no trace of its own.

    `position` makes `(tx_hash or block hash, position)` unique. `mark_before` is set where the balance told of the
    deposit: the address's mark before it, to resume from when the block is reorganised away.
    """

    address: str
    amount: TokenAmount
    tx_hash: str | None
    payer: str | None
    position: str
    block: BlockRef
    mark_before: Terms | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """New deposits and the places to continue from; store all of it in one unit."""

    cursor: BlockRef | None
    marks: Mapping[str, Terms]
    deposits: tuple[Deposit, ...]


@dataclass(frozen=True, slots=True)
class Balances:
    """What an address holds, every served token included, zero or not."""

    amounts: tuple[TokenAmount, ...] = field(default_factory=tuple)

    def of(self, token: Token) -> TokenAmount:
        """Return the amount of one token."""
        return next(amount for amount in self.amounts if amount.token == token)


@dataclass(frozen=True, slots=True)
class EndpointState:
    """What one endpoint showed of itself, by its place in the operator's list; `problem` is None where it serves."""

    number: int
    problem: str | None = None
    height: int | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """How a chain can be reached, and which of the contracts that we call are not there."""

    endpoints: tuple[EndpointState, ...]
    missing: tuple[str, ...] = ()


class Chain(Protocol):
    """One chain on which wallets hold and move tokens, behind however many endpoints the operator configured."""

    @property
    def name(self) -> ChainName:
        """The chain's name on the wire."""
        ...

    def verify_identity(self) -> None:
        """Make sure that the endpoints serve the chain we sign for. Raises: Rejected("wrong_chain"), Unreachable."""
        ...

    def diagnose(self) -> Diagnosis:
        """Ask every endpoint by itself, and one for the contracts. Never raises for an endpoint that fails."""
        ...

    def explorer_url(self, tx_hash: str) -> str | None:
        """Return a page that shows a transaction, or None where there is no explorer."""
        ...

    def balances(self, address: str) -> Balances:
        """Read all served tokens of an address at one block."""
        ...

    def refusal_of(self, recipient: str, token: Token) -> str | None:
        """Return why a recipient can never be paid (zero address, the token's own contract), or None. No network."""
        ...

    def draft(self, intent: Intent) -> Draft:
        """Read balances, fees and simulate. Raises: Rejected("simulation_failed", "insufficient_funds", …)."""
        ...

    def sign(self, draft: Draft, signer: Signer, *, sequence: int | None) -> Signed:
        """Sign a draft for a nonce slot. Pure: no network, so it may run inside a unit of work."""
        ...

    def replacement(self, attempt: Attempt) -> Draft | None:
        """Draft the same movement for the same slot at a fee that replaces the attempt (+12.5 % or the market's).

        None on chains that never sign again.
        """
        ...

    def cancellation(self, attempt: Attempt) -> Draft | None:
        """Draft an empty transaction to oneself that uses up the attempt's slot; None on chains without slots."""
        ...

    def broadcast(self, raw: bytes) -> None:
        """Send signed bytes; "already known" is success.

        Raises: Rejected (the node refused it for good now: insufficient_funds, nonce_too_low, fee_too_low, …),
        Unreachable (certainly not sent), OutcomeUnknown (an answer was lost).
        """
        ...

    def rebroadcast(self, raws: Sequence[bytes]) -> None:
        """Send many signed bytes again in few requests; single refusals are of no interest."""
        ...

    def outcomes(self, watches: Sequence[Watch]) -> Mapping[str, Outcome]:
        """Find out about many movements in few requests, keyed like the watches."""
        ...

    def orphaned(self, blocks: Sequence[BlockRef]) -> tuple[frozenset[BlockRef], int]:
        """Return which of these blocks were reorganised away, and the number of the newest `safe` block."""
        ...

    def sent_counts(self, addresses: Sequence[str]) -> Mapping[str, int]:
        """Return how many nonce slots each address has used so far; nothing on chains without nonces."""
        ...

    def sent_in_slot(self, sender: str, sequence: int, *, instead_of: Attempt | None = None) -> Sent | None:
        """Find what used a slot, and whether it does what the attempt was to do; None where no node can tell.

        Takes two dozen requests: for an operator, not for requests or passes.
        """
        ...

    def head(self) -> BlockRef:
        """Return the newest block."""
        ...

    def mark(self, address: str) -> Terms:
        """Take note of what an address has now, so that only later deposits count."""
        ...

    def deposits(self, watched: Sequence[WatchedAddress], *, cursor: BlockRef | None) -> Scan:
        """Find deposits since the cursor and marks, at the depth that deposits must have."""
        ...
