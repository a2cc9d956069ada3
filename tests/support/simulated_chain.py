"""A deterministic chain in memory: nonces, a pool, fees, blocks, reverts, reorgs; and a facilitator on it.

For state machines of hundreds of random steps, where a real node would take minutes. It follows the contract of
`ports.chain`; the real adapters are checked against the same in `tests/adapters`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from app.adapters.evm.contracts.deployments import dead_end
from app.core import clock
from app.core.chains import TOKENS_BY_SYMBOL, USDC, ChainName, Family, Token, native, tokens
from app.core.money import TokenAmount
from app.ports.chain import (
    Balances,
    BlockRef,
    ChainDiagnosis,
    Deposit,
    DepositScan,
    EndpointStatus,
    ForeignToken,
    SignedTransaction,
    StoredTransaction,
    Terms,
    TransactionDraft,
    TransactionOutcome,
    TransactionQuery,
    TransactionStatus,
    TransferIntent,
    WatchedAddress,
)
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable
from app.ports.facilitator import (
    ExpectedPayment,
    IncomingPayment,
    PaymentAsset,
    PaymentAuthorization,
    SettlementCapacity,
)
from app.ports.vault import Signer

SAFE_DEPTH = 4
DEPOSIT_DEPTH = 2
# A movement takes three times the gas of an empty transaction.
GAS, EMPTY_GAS = 3, 1
FEE_UNITS = 21_000
SYSTEM = "0x" + "5" * 40
"""The payer of payments by the chain itself."""
_REORG_REACH = 64
_BUMP = 8


@dataclass(frozen=True, slots=True)
class SimTx:
    """A transaction that transfers tokens of `source` (its sender, unless it submits a payment signed by another).

    `auth` can be used once. A swap `wants` another token, and `least` of it, or it reverts.
    """

    sender: str
    nonce: int
    recipient: str
    symbol: str
    units: int
    fee_units: int
    salt: int
    source: str
    auth: str | None = None
    wants: str | None = None
    least: int = 0
    gas: int = GAS

    @property
    def price(self) -> int:
        return self.fee_units // self.gas

    @property
    def raw(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @property
    def tx_hash(self) -> str:
        return "0x" + hashlib.sha256(self.raw).hexdigest()


@dataclass(frozen=True, slots=True)
class Landed:
    """A transaction in a block; `brought` is the output of a swap."""

    tx: SimTx
    succeeded: bool
    brought: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """A block with its executed transactions."""

    number: int
    hash: str
    at: int
    landed: tuple[Landed, ...] = ()

    @property
    def ref(self) -> BlockRef:
        return BlockRef(self.number, self.hash)


class SimulatedChain:
    """An EVM-like chain. `away`, `loses_answers` and `swallows` make sending fail in different ways."""

    def __init__(self, name: ChainName = ChainName.BASE) -> None:
        self.name = name
        self.block_time = timedelta(0)
        # No two chains have a hash in common.
        self._salts = itertools.count(10**9 * list(ChainName).index(name))
        self.market: Callable[[SimTx], int] = lambda _tx: 0
        self.reset()

    def reset(self) -> None:
        """Reset to the initial state, without balances."""
        self.blocks = [self._block(0)]
        self.pool: dict[tuple[str, int], SimTx] = {}
        self.given: Counter[tuple[str, str]] = Counter()
        self.away = self.loses_answers = self.swallows = False

    # External events.

    def give(self, address: str, token: Token, units: int) -> None:
        """Add to an address's initial balance."""
        self.given[address, token.symbol] += units

    def take(self, address: str, token: Token, units: int) -> None:
        """Remove from an address's initial balance, like a reorg of what had paid it."""
        self.given[address, token.symbol] -= units

    def pay(self, recipient: str, token: Token, units: int) -> str:
        """Send a payment from another account, which waits for a block; return its hash."""
        salt = next(self._salts)
        payer = "0x" + hashlib.sha256(f"payer {salt}".encode()).hexdigest()[:40]
        self.give(payer, token, units)
        self.give(payer, native(self.name), FEE_UNITS)
        tx = SimTx(payer, 0, recipient, token.symbol, units, FEE_UNITS, salt, payer)
        self.pool[payer, 0] = tx
        return tx.tx_hash

    def use_next_nonce(self, sender: str) -> None:
        """Use the sender's next nonce with another client of the same key, in a separate block."""
        tx = SimTx(sender, self.count(sender), sender, native(self.name).symbol, 0, 0, next(self._salts), sender)
        self._add((Landed(tx, succeeded=True),))

    def bring(self, recipient: str, units: int, auth: str) -> str:
        """Pay native coins from the chain itself, by a transaction that counts as its recipient's; return its hash."""
        symbol = native(self.name).symbol
        tx = SimTx(recipient, self.count(recipient), recipient, symbol, units, 0, next(self._salts), SYSTEM, auth)
        self._add((Landed(tx, succeeded=True),))
        return tx.tx_hash

    def mine(self, blocks: int = 1, *, reverting: bool = False, empty: bool = False) -> None:
        """Mine the pool, in the order of nonces, into the next block; further ones are empty."""
        self._add(() if empty else tuple(self._executed(reverting=reverting)))
        for _ in range(blocks - 1):
            self._add(())

    def forget_pool(self) -> None:
        """Drop the nodes' pool."""
        self.pool.clear()

    def reorganise(self, depth: int, *, keep: bool) -> None:
        """Replace the newest blocks, never safe ones, by one more empty block; `keep` returns theirs to the pool."""
        depth = min(depth, self.head().number - self.safe)
        gone = self.blocks[len(self.blocks) - depth :]
        del self.blocks[len(self.blocks) - depth :]
        for _ in range(depth + 1):
            self._add(())
        for landed in itertools.chain.from_iterable(block.landed for block in gone):
            if keep and landed.tx.source != SYSTEM:
                self.pool.setdefault((landed.tx.sender, landed.tx.nonce), landed.tx)

    @property
    def safe(self) -> int:
        """The number of the newest block that no reorg reaches."""
        return max(0, self.blocks[-1].number - SAFE_DEPTH)

    def landed(self, tx_hash: str) -> tuple[Block, Landed] | None:
        """Return a transaction with its block."""
        for block in self.blocks:
            for entry in block.landed:
                if entry.tx.tx_hash == tx_hash:
                    return block, entry
        return None

    def count(self, sender: str, *, up_to: int | None = None) -> int:
        """Return how many nonces a sender has used, up to a block."""
        return sum(
            entry.tx.sender == sender
            for block in self.blocks
            if up_to is None or block.number <= up_to
            for entry in block.landed
        )

    def owned(self, address: str, token: Token) -> int:
        """Return the balance of an address at the newest block."""
        units = self.given[address, token.symbol]
        for block in self.blocks:
            for entry in block.landed:
                tx = entry.tx
                if tx.sender == address and token == native(self.name):
                    units -= tx.fee_units
                if entry.succeeded:
                    units += _change(entry, address, token.symbol)
        return units

    def was_used(self, auth: str) -> str | None:
        """Return the hash by which a signed payment was executed."""
        for block in self.blocks:
            for entry in block.landed:
                if entry.tx.auth == auth and entry.succeeded:
                    return entry.tx.tx_hash
        return None

    def _block(self, number: int, landed: tuple[Landed, ...] = ()) -> Block:
        digest = hashlib.sha256(f"block {number} {next(self._salts)}".encode()).hexdigest()
        return Block(number, "0x" + digest, int(clock.now().timestamp()), landed)

    def _add(self, landed: tuple[Landed, ...]) -> None:
        self.blocks.append(self._block(self.blocks[-1].number + 1, landed))

    def _executed(self, *, reverting: bool) -> Iterator[Landed]:
        next_nonce = {sender: self.count(sender) for sender, _ in self.pool}
        used: set[str] = set()
        done: list[Landed] = []
        for (sender, nonce), tx in sorted(self.pool.items()):
            if nonce < next_nonce[sender]:
                del self.pool[sender, nonce]
            # A transaction that cannot pay its fee waits, and so do those after it.
            elif nonce == next_nonce[sender] and self._lacks(tx, self._native, done) <= 0:
                next_nonce[sender] += 1
                del self.pool[sender, nonce]
                fails = tx.auth is not None and (tx.auth in used or self.was_used(tx.auth) is not None)
                if tx.auth is not None:
                    used.add(tx.auth)
                brought = 0 if tx.wants is None else self.market(tx)
                fails = fails or self._lacks(tx, TOKENS_BY_SYMBOL[tx.symbol], done) > 0
                succeeded = not (reverting or fails or brought < tx.least)
                done.append(Landed(tx, succeeded, brought if succeeded else 0))
                yield done[-1]

    @property
    def _native(self) -> Token:
        return native(self.name)

    def _lacks(self, tx: SimTx, token: Token, done: Sequence[Landed] = ()) -> int:
        """Return how much of a token a transaction lacks, after others of its block."""
        symbol, source = token.symbol, tx.sender if token == self._native else tx.source
        if source == SYSTEM:
            return 0
        needed = tx.units if tx.symbol == symbol and tx.source == source else 0
        if token == self._native:
            needed += tx.fee_units
        owned = self.owned(source, token)
        for entry in done:
            if entry.succeeded:
                owned += _change(entry, source, symbol)
            if entry.tx.sender == source and token == self._native:
                owned -= entry.tx.fee_units
        return needed - owned

    # The methods of `ports.chain`.

    def diagnose(self) -> ChainDiagnosis:
        return ChainDiagnosis((EndpointStatus(1, "simulated", height=self.blocks[-1].number),))

    def explorer_url(self, _tx_hash: str) -> str | None:
        return None

    def recipient_rejection(self, recipient: str, _token: Token) -> str | None:
        known = dead_end(recipient) if self.name.family is Family.EVM else None
        return None if known is None else f"is {known}, from which tokens cannot be recovered"

    def receiving_refusal(self, _address: str, _token: Token) -> str | None:
        self._ask()
        return None

    def balances(self, address: str) -> Balances:
        self._ask()
        return Balances(tuple(TokenAmount(self.owned(address, each), each) for each in tokens(self.name)))

    def foreign_tokens(self, _address: str, _scan_state: Terms) -> Sequence[ForeignToken]:
        self._ask()
        return []

    def draft(self, intent: TransferIntent) -> TransactionDraft:
        self._ask()
        return self.draft_of(intent, FEE_UNITS, {})

    def draft_of(self, intent: TransferIntent, fee_units: int, terms: Terms) -> TransactionDraft:
        """Draft without checking whether it can be paid."""
        return TransactionDraft(
            intent=intent,
            fee_units=fee_units,
            native_units=self.owned(intent.sender, native(self.name)),
            token_units=self.owned(intent.sender, intent.amount.token),
            sequence=self.count(intent.sender),
            terms={**terms, "fee": fee_units},
        )

    def sign(self, draft: TransactionDraft, signer: Signer, *, sequence: int | None) -> SignedTransaction:
        assert signer is not None
        assert sequence is not None
        terms, intent = draft.terms, draft.intent
        auth, wants = terms.get("auth"), terms.get("wants")
        units = terms.get("units") if auth else intent.amount.units
        tx = SimTx(
            intent.sender, sequence, intent.recipient, intent.amount.token.symbol, int(units or 0),
            int(terms["fee"] or 0), next(self._salts), str(terms["payer"] if auth else intent.sender),
            None if auth is None else str(auth), None if wants is None else str(wants),
            int(terms.get("least") or 0), int(terms.get("gas") or GAS),
        )  # fmt: skip
        return SignedTransaction(tx.tx_hash, tx.raw, sequence, None, terms)

    def draft_replacement(self, attempt: StoredTransaction) -> TransactionDraft | None:
        self._ask()
        gas = int(attempt.terms.get("gas") or GAS)
        return self._payable(self.draft_of(attempt.intent, gas * _dearer(attempt), attempt.terms))

    def draft_cancellation(self, attempt: StoredTransaction) -> TransactionDraft | None:
        self._ask()
        sender = attempt.intent.sender
        nothing = TransferIntent(sender, sender, TokenAmount(0, native(self.name)))
        return self._payable(self.draft_of(nothing, EMPTY_GAS * _dearer(attempt), {"gas": EMPTY_GAS}))

    def _payable(self, draft: TransactionDraft) -> TransactionDraft:
        amount = draft.intent.amount
        if amount.token == self._native:
            _require("insufficient_funds", self._native, draft.native_units, draft.fee_units + amount.units)
        else:
            _require("insufficient_funds", amount.token, draft.token_units, amount.units)
            _require("insufficient_gas", self._native, draft.native_units, draft.fee_units)
        return draft

    def broadcast(self, raw: bytes) -> None:
        self._ask()
        if self.swallows:
            return
        tx = SimTx(**json.loads(raw))
        if tx.nonce < self.count(tx.sender):
            if self.landed(tx.tx_hash) is not None:
                return
            raise Rejected("nonce_too_low")
        if self._lacks(tx, self._native) > 0:
            if self.pool.get((tx.sender, tx.nonce)) == tx:
                del self.pool[tx.sender, tx.nonce]
            raise Rejected("insufficient_funds")
        pooled = self.pool.get((tx.sender, tx.nonce))
        if pooled is None or pooled.price < tx.price:
            self.pool[tx.sender, tx.nonce] = tx
        elif pooled != tx:
            raise Rejected("fee_too_low")
        if self.loses_answers:
            raise OutcomeUnknown("no_answer")

    def rebroadcast(self, raws: Sequence[bytes], *, publicly: bool = True) -> None:  # noqa: ARG002 - part of the port
        self._ask()
        for raw in raws:
            try:
                self.broadcast(raw)
            except (Rejected, OutcomeUnknown):
                continue

    def outcomes(
        self,
        queries: Sequence[TransactionQuery],
        *,
        landed_only: bool = False,  # noqa: ARG002 - part of the port
    ) -> Mapping[str, TransactionOutcome]:
        self._ask()
        return {watch.key: self._outcome(watch) for watch in queries}

    def orphaned_blocks(self, blocks: Sequence[BlockRef]) -> tuple[frozenset[BlockRef], int]:
        self._ask()
        return frozenset(ref for ref in blocks if not self._stands(ref)), self.safe

    def head(self) -> BlockRef:
        self._ask()
        return self.blocks[-1].ref

    def scan_state(self, _address: str, *, before: Terms | None = None) -> Terms:
        self._ask()
        return before or {}

    def unused_scan_state(self, _since: int) -> Terms:
        return {}

    def deposits(self, watched: Sequence[WatchedAddress], *, cursor: BlockRef | None) -> DepositScan:
        """Find transfers to watched addresses. Rewinds when the cursor was removed by a reorg."""
        self._ask()
        upto = self.blocks[-1].number - DEPOSIT_DEPTH + 1
        since = 0
        if cursor is not None:
            since = cursor.number if self._stands(cursor) else max(0, cursor.number - _REORG_REACH)
        addresses = {entry.address for entry in watched}
        found = tuple(
            Deposit(
                entry.tx.recipient, TokenAmount(entry.tx.units, TOKENS_BY_SYMBOL[entry.tx.symbol]),
                entry.tx.tx_hash, entry.tx.sender, "0", block.ref,
            )
            for block in self.blocks
            if since < block.number <= upto
            for entry in block.landed
            if entry.succeeded and entry.tx.recipient in addresses and entry.tx.sender != entry.tx.recipient
        )  # fmt: skip
        to = self.blocks[max(upto, 0)].ref if upto > since else None
        if to is None and cursor is not None and not self._stands(cursor):
            to = self.blocks[since].ref
        return DepositScan(to, {entry.address: entry.scan_state for entry in watched}, {}, found)

    def _outcome(self, watch: TransactionQuery) -> TransactionOutcome:
        for tx_hash in watch.tx_hashes:
            found = self.landed(tx_hash)
            if found is not None:
                block, entry = found
                fate = TransactionStatus.SUCCEEDED if entry.succeeded else TransactionStatus.REVERTED
                deep = self.blocks[-1].number - block.number + 1
                received = entry.brought if watch.expected_token is not None else None
                return TransactionOutcome(fate, tx_hash, block.ref, deep, entry.tx.fee_units, received)
        if watch.sequence is not None and self.count(watch.sender, up_to=self.safe) > watch.sequence:
            return TransactionOutcome(TransactionStatus.VOID)
        return TransactionOutcome(TransactionStatus.WAITING)

    def _stands(self, ref: BlockRef) -> bool:
        return ref.number < len(self.blocks) and self.blocks[ref.number].hash == ref.hash

    def _ask(self) -> None:
        if self.away:
            raise Unreachable("chain_unreachable")


def _change(entry: Landed, address: str, symbol: str) -> int:
    """Return an executed transaction's balance change of an address, without its fee."""
    tx = entry.tx
    if tx.wants is not None:
        if tx.sender != address:
            return 0
        return entry.brought * (tx.wants == symbol) - tx.units * (tx.symbol == symbol)
    return tx.units * ((tx.recipient == address) - (tx.source == address)) * (tx.symbol == symbol)


def _dearer(attempt: StoredTransaction) -> int:
    """Return the gas price at which an attempt is replaced."""
    price = int(attempt.terms["fee"] or 0) // int(attempt.terms.get("gas") or GAS)
    return price + price // _BUMP


def _require(reason: str, token: Token, available: int, required: int) -> None:
    if available < required:
        raise Rejected(reason, details={"currency": token.symbol, "missing": str(required - available)})


class SimulatedFacilitator:
    """The facilitator of a simulated chain; a signed payment's payload is its content."""

    metered = None

    def __init__(self, chain: SimulatedChain) -> None:
        self.chain = chain

    @property
    def name(self) -> ChainName:
        return self.chain.name

    @property
    def asset(self) -> PaymentAsset:
        return PaymentAsset("eip155:1", "simulated", "0x" + "5" * 40)

    def canonical_hash(self, text: str) -> str | None:
        return text.lower() if text.startswith("0x") else None

    def incoming_payment(self, tx_hash: str, recipient: str) -> IncomingPayment | None:
        self.chain.head()
        found = self.chain.landed(tx_hash)
        if found is None:
            return None
        block, entry = found
        tx, counts = entry.tx, entry.succeeded and entry.tx.recipient == recipient
        deep = self.chain.blocks[-1].number - block.number + 1
        return IncomingPayment(
            tx_hash, entry.succeeded, tx.units if counts and tx.symbol == USDC.symbol else 0,
            frozenset({tx.source}), () if tx.auth is None else (tx.auth,), block.at, deep >= DEPOSIT_DEPTH,
        )  # fmt: skip

    def claim_of(self, payload: Mapping[str, Any]) -> str:
        return str(payload["claim"])

    def verify(self, payload: Mapping[str, Any], expected: ExpectedPayment, *, now: int) -> PaymentAuthorization:
        assert now
        if payload["units"] != expected.units:
            raise Rejected("invalid_exact_evm_payload_authorization_value")
        return PaymentAuthorization(
            str(payload["claim"]),
            str(payload["payer"]),
            expected.recipient,
            expected.units,
            {"payer": payload["payer"]},
        )

    def draft_settlement(self, authorization: PaymentAuthorization, *, settler: str) -> TransactionDraft:
        self.chain.head()
        if self.chain.was_used(authorization.claim) is not None:
            raise Rejected("invalid_exact_evm_nonce_already_used")
        intent = TransferIntent(settler, authorization.recipient, TokenAmount(0, USDC))
        terms = {"auth": authorization.claim, "payer": authorization.payer, "units": authorization.units}
        return self.chain.draft_of(intent, FEE_UNITS, terms)

    def submit_externally(self, claim: str, payer: str, recipient: str, units: int) -> str:
        """Submit a signed payment from another account, in a separate block; return the hash."""
        salt = next(self.chain._salts)
        sender = "0x" + hashlib.sha256(f"submitter {salt}".encode()).hexdigest()[:40]
        tx = SimTx(sender, 0, recipient, USDC.symbol, units, 0, salt, payer, claim)
        used = self.chain.was_used(claim) is not None
        self.chain._add((Landed(tx, succeeded=not used),))
        return tx.tx_hash

    def find_settlement(self, authorization: PaymentAuthorization) -> str | None:
        self.chain.head()
        return self.chain.was_used(authorization.claim)

    def settlement_capacity(self, _settler: str, _recipient: str) -> SettlementCapacity:
        self.chain.head()
        return SettlementCapacity(
            native_units=10**18, fee_units=FEE_UNITS, max_fee_units=FEE_UNITS, recipient_can_receive=True
        )

    def draft_recipient_account(self, _settler: str, _recipient: str) -> TransactionDraft | None:
        return None

    def is_signed_by(self, payer: str, text: str, signature: str) -> bool:
        return signature == f"{payer} {text}"
