"""A chain on which wallets hold and transfer tokens.

The methods follow the phases of a movement: `draft` reads (no unit of work open), `sign` does no I/O (inside the unit
that records), `broadcast` sends, `outcomes` finds what happened. All methods that use the network raise `Unreachable`
when no node answers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from app.core.chains import USDC, AddressError, ChainName, Token, address_for_chain
from app.core.money import TokenAmount, decimal_string
from app.ports.errors import Rejected
from app.ports.vault import Signer

Terms = Mapping[str, str | int | None]
"""An adapter's own data about a transaction (gas, fees, …), storable as JSON and opaque to feature packages."""

CONTRACT = "contract"


class Shortage(Rejected):
    """Certain: a balance does not cover what is required."""

    def __init__(self, token: Token, reason: str, available: int, required: int) -> None:
        amounts = {"available": available, "required": required, "missing": required - available}
        texts = {name: decimal_string(units, token.decimals) for name, units in amounts.items()}
        super().__init__(reason, details={"currency": token.symbol, **texts})

    @classmethod
    def check(cls, token: Token, reason: str, available: int, required: int) -> None:
        if required > available:
            raise cls(token, reason, available, required)


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A block by number and hash.

    On Solana the slot: with its blockhash if it is the newest block, and with a transaction's signature if a
    transaction is meant, because a slot can be checked for a signature.
    """

    number: int
    hash: str


@dataclass(frozen=True, slots=True)
class TransferIntent:
    """A requested transfer: exactly this amount from the sender (one of our wallets) to the recipient."""

    sender: str
    recipient: str
    amount: TokenAmount


@dataclass(frozen=True, slots=True)
class TransactionDraft:
    """The chain data for an intent: everything that signing needs, and the figures to check before it.

    `fee_units` is the most that the network can charge, in native base units; `native_units` and `token_units` are
    the sender's balances (equal for a native intent); `sequence` is the sender's next nonce in the latest block (None
    on chains without nonces), read before the balances. On those chains `as_of` is the slot of the balances:
    transactions that landed later are not included in them. `recipient_is` is `CONTRACT` if code decides what
    becomes of the amount.
    """

    intent: TransferIntent
    fee_units: int
    native_units: int
    token_units: int
    sequence: int | None
    terms: Terms
    as_of: int | None = None
    recipient_is: str | None = None
    payer_units: int | None = None
    """The payer's balance, for a payment that is submitted for another party."""
    rent_units: int = 0
    """The part of `fee_units` that creates the recipient's account, who can take it out: it counts like the amount."""
    is_risky: bool = False
    """Whether the payer can make its failure dear: by code of its account, which may answer differently in its block,
    or by a high priority fee."""


@dataclass(frozen=True, slots=True)
class SignedTransaction:
    """A signed transaction. Its hash is known before it is broadcast, and broadcasting it twice is harmless."""

    tx_hash: str
    raw: bytes
    sequence: int | None
    expires_at_height: int | None
    terms: Terms


@dataclass(frozen=True, slots=True)
class StoredTransaction:
    intent: TransferIntent
    tx_hash: str
    raw: bytes
    sequence: int | None
    terms: Terms


@dataclass(frozen=True, slots=True)
class TransactionQuery:
    """A movement to look up: any of its hashes may be the one that landed.

    `expected_token` is the token that the sender should receive by it, if any. `terms` are those of the bytes signed
    last.
    """

    key: str
    sender: str
    sequence: int | None
    tx_hashes: tuple[str, ...]
    expires_at_height: int | None = None
    expected_token: Token | None = None
    terms: Terms = field(default_factory=dict)


class TransactionStatus(StrEnum):
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    REVERTED = "reverted"
    VOID = "void"
    """Certain at `safe` depth: none of its transactions can still land (nonce used by another, or expired)."""


@dataclass(frozen=True, slots=True)
class TransactionOutcome:
    """The outcome with its evidence; `confirmations` is 1 in the block itself, `fee_units` was charged.

    A query with `expected_token` has `received_units` with SUCCEEDED, and stays WAITING until the chain can show
    them; None if a chain without nonces could not for about ten minutes after the outcome was final.
    """

    status: TransactionStatus
    tx_hash: str | None = None
    block: BlockRef | None = None
    confirmations: int = 0
    fee_units: int | None = None
    received_units: int | None = None


class NonceUse(StrEnum):
    """Whether the transaction that used a nonce does what the recorded attempt would have done."""

    SAME = "same"
    NOTHING = "nothing"
    """An empty transaction to the sender itself: the nonce was consumed on purpose."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class SentTransaction:
    """A payment of ours on the chain: `amount` if it is known, `raw` if a node returns bytes in the form that we sign.

    Our bytes that have one of the `references` are in it, and `terms` find its outcome.
    """

    tx_hash: str
    sender: str
    recipient: str | None
    amount: TokenAmount | None
    references: tuple[str, ...]
    terms: Terms
    sequence: int | None = None
    raw: bytes | None = None
    nonce_use: NonceUse = NonceUse.OTHER


@dataclass(frozen=True, slots=True)
class OwnTransaction:
    """One of our own transactions from a watched address: it explains a balance change that is no deposit.

    `native_out_units` is what it took from the native balance, fee included (negative for a gain); None while its
    outcome is unknown. One that a third party submitted for us has no sequence and is identified by
    its
    `block_number`; `consumes_nonce` if it used a nonce nevertheless.
    """

    tx_hash: str
    sequence: int | None
    native_out_units: int | None
    block_number: int | None = None
    consumes_nonce: bool = False


@dataclass(frozen=True, slots=True)
class WatchedAddress:
    """An address that is scanned for deposits, with the adapter's scan state.

    `expected_tokens` are tokens that one of its own movements is about to deliver: what arrives of them may be no
    deposit. `is_exported` if others may sign with its keys.
    """

    address: str
    scan_state: Terms
    own_transactions: tuple[OwnTransaction, ...] = ()
    expected_tokens: frozenset[Token] = frozenset()
    is_exported: bool = False


@dataclass(frozen=True, slots=True)
class Deposit:
    """Tokens that arrived from outside; hash and payer are None for a transfer that leaves no trace of its own.

    `position` makes `(tx_hash or block hash, position)` unique. `scan_state_before` is set if a balance change
    revealed the deposit: the scan state to resume from when the block is removed by a reorg.
    """

    address: str
    amount: TokenAmount
    tx_hash: str | None
    payer: str | None
    position: str
    block: BlockRef
    scan_state_before: Terms | None = None
    # The block after which it arrived, if it may have arrived in an earlier block than `block`.
    arrived_after: int | None = None


@dataclass(frozen=True, slots=True)
class DepositScan:
    """New deposits and the positions to continue from; store all of it in one unit of work.

    `state_blocks` are the blocks of the changed scan states: own transactions after them are still to be explained.
    """

    cursor: BlockRef | None
    scan_states: Mapping[str, Terms]
    state_blocks: Mapping[str, int]
    deposits: tuple[Deposit, ...]


@dataclass(frozen=True, slots=True)
class AvailableFunds:
    """The balance of an address in one token as of a nonce and a block."""

    units: int
    sequence: int | None
    block: int


@dataclass(frozen=True, slots=True)
class Balances:
    """The balances of an address: every supported token, zero or not."""

    amounts: tuple[TokenAmount, ...] = field(default_factory=tuple)

    def of(self, token: Token) -> TokenAmount:
        return next(amount for amount in self.amounts if amount.token == token)


@dataclass(frozen=True, slots=True)
class ForeignToken:
    """A token that this service does not know, what it calls itself, and why it cannot be withdrawn."""

    amount: TokenAmount
    symbol: str | None
    name: str | None
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """The state of one endpoint, by its position in the operator's list; `problem` is None if it is usable."""

    number: int
    host: str
    problem: str | None = None
    height: int | None = None


@dataclass(frozen=True, slots=True)
class ChainDiagnosis:
    """The state of a chain's endpoints, and which of the contracts that we call are missing."""

    endpoints: tuple[EndpointStatus, ...]
    missing_contracts: tuple[str, ...] = ()


class Chain(Protocol):
    """One chain on which wallets hold and transfer tokens, behind all endpoints that the operator configured."""

    name: ChainName
    """The chain's name in the API."""
    block_time: timedelta
    """The time between two blocks; zero where blocks are made on demand."""

    def diagnose(self) -> ChainDiagnosis:
        """Query every endpoint, and one of them for the contracts. Never raises for an endpoint that fails.

        The problem of one that serves another chain is "wrong_chain".
        """

    def explorer_url(self, tx_hash: str) -> str | None:
        """Return the block explorer's page of a transaction, or None if there is no explorer."""

    def balances(self, address: str) -> Balances:
        """Read all supported tokens of an address at one block."""

    def foreign_tokens(self, address: str, scan_state: Terms) -> Sequence[ForeignToken]:
        """Read the foreign tokens of an address, as far as scans found any: on EVM chains, the contracts seen last."""

    def recipient_rejection(self, recipient: str, token: Token) -> str | None:
        """Return why a recipient can never be paid (burn address, contract that keeps it, …), or None. No network."""

    def receiving_refusal(self, address: str, token: Token) -> str | None:
        """Return why the token's issuer lets nothing arrive at an address, or None: "blacklisted", "paused", "frozen".

        Raises: Unreachable.
        """

    def draft(self, intent: TransferIntent) -> TransactionDraft:
        """Read balances, fees and simulate. Raises: Rejected("simulation_failed", "insufficient_funds", …)."""

    def sign(self, draft: TransactionDraft, signer: Signer, *, sequence: int | None) -> SignedTransaction:
        """Sign a draft with a nonce. No I/O, so it may run inside a unit of work."""

    def draft_replacement(self, attempt: StoredTransaction) -> TransactionDraft | None:
        """Draft the same with a fee that replaces the attempt (+12.5 % or the market's); None without nonces."""

    def draft_cancellation(self, attempt: StoredTransaction) -> TransactionDraft | None:
        """Draft an empty transaction to the sender that consumes the attempt's nonce; None on chains without nonces."""

    def broadcast(self, raw: bytes) -> None:
        """Broadcast signed bytes; "already known" is success. Where there is a private endpoint, only that gets them.

        Raises: Rejected (the node refused it permanently: insufficient_funds, nonce_too_low, fee_too_low, …),
        Unreachable (not sent), OutcomeUnknown (the response was lost).
        """

    def rebroadcast(self, raws: Sequence[bytes], *, publicly: bool = True) -> None:
        """Send many again, ignoring single refusals; to a private endpoint, if there is one, unless `publicly`."""

    def outcomes(
        self, queries: Sequence[TransactionQuery], *, landed_only: bool = False
    ) -> Mapping[str, TransactionOutcome]:
        """Return outcomes by the queries' keys, in few requests; `VOID` is not looked for with `landed_only`."""

    def orphaned_blocks(self, blocks: Sequence[BlockRef]) -> tuple[frozenset[BlockRef], int]:
        """Return which of these blocks were removed by a reorg, and the number of the newest `safe` block."""

    def transaction_counts(self, addresses: Sequence[str]) -> Mapping[str, int]:
        """Return how many nonces each address has used so far; nothing on chains without nonces."""

    def transaction_at_nonce(
        self, sender: str, sequence: int, *, expected: StoredTransaction | None = None
    ) -> SentTransaction | None:
        """Find the transaction that used a nonce, and compare it with the expected one; None if no node has it.

        Takes about two dozen requests: for an operator's command, not for requests or periodic jobs.
        """

    def outflows(self, senders: Collection[str], *, since: int) -> Sequence[SentTransaction]:
        """Return what took USDC from addresses since a block, whoever submitted it; on Solana also what took SOL."""

    def head(self) -> BlockRef:
        """Return the newest block."""

    def scan_state(self, address: str, *, before: Terms | None = None) -> Terms:
        """Return the current state of an address, so that only later deposits count.

        With `before`, an earlier state, return that state, from which what arrived up to now can be told from the rest.
        """

    def unused_scan_state(self, since: int) -> Terms:
        """Return the state of an address that was not used up to a block. No network."""

    def deposits(self, watched: Sequence[WatchedAddress], *, cursor: BlockRef | None) -> DepositScan:
        """Find deposits since the cursor and scan states, at the depth that deposits require."""


def payable_address(chain: Chain, text: str) -> str | None:
    """Return the canonical spelling of an address that can be paid in USDC, or None for anything else. No I/O."""
    try:
        recipient = address_for_chain(text, chain.name)
    except AddressError:
        return None
    return None if chain.recipient_rejection(recipient, USDC) else recipient
