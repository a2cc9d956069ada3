"""A chain in memory that behaves: nonce slots, a pool, fees, blocks, reverts, reorganisations; and a till on it.

For machines that walk at random through hundreds of steps, where a real node would take minutes. What it does is
what the contract of `ports.chain` says; the real adapters are held against the same in `tests/ports`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from app.core import clock
from app.core.chains import TOKENS_BY_SYMBOL, USDC, ChainName, Token, native, tokens
from app.core.money import TokenAmount
from app.ports.chain import (
    Attempt,
    Balances,
    BlockRef,
    Deposit,
    Diagnosis,
    Draft,
    EndpointState,
    Fate,
    Intent,
    Outcome,
    Scan,
    Signed,
    Terms,
    Watch,
    WatchedAddress,
)
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable
from app.ports.till import Arrival, Asset, Authorization, Demand, Readiness
from app.ports.vault import Signer

SAFE_DEPTH = 4
DEPOSIT_DEPTH = 2
# A movement takes three times the gas of an empty transaction.
GAS, EMPTY_GAS = 3, 1
FEE_UNITS = 21_000
SYSTEM = "0x" + "5" * 40
"""Who pays where the chain itself does."""
_REORG_REACH = 64
_BUMP = 8


@dataclass(frozen=True, slots=True)
class SimTx:
    """A transaction: tokens of `source` (its sender, unless it submits what another one has signed) move.

    `auth` can be used once. A swap `wants` another token, and `least` so much of it, or it reverts.
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
    """A transaction in a block; `brought` is what a swap made of what it was given."""

    tx: SimTx
    succeeded: bool
    brought: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """A block with what it executed."""

    number: int
    hash: str
    at: int
    landed: tuple[Landed, ...] = ()

    @property
    def ref(self) -> BlockRef:
        return BlockRef(self.number, self.hash)


class SimulatedChain:
    """An EVM-like chain. `away`, `loses_answers` and `swallows` say how sending goes wrong."""

    def __init__(self, name: ChainName = ChainName.BASE) -> None:
        self.name = name
        # No two chains have a hash in common.
        self._salts = itertools.count(10**9 * list(ChainName).index(name))
        self.market: Callable[[SimTx], int] = lambda _tx: 0
        self.reset()

    def reset(self) -> None:
        """Begin anew, with nobody owning anything."""
        self.blocks = [self._block(0)]
        self.pool: dict[tuple[str, int], SimTx] = {}
        self.given: Counter[tuple[str, str]] = Counter()
        self.away = self.loses_answers = self.swallows = False

    # What the world does.

    def give(self, address: str, token: Token, units: int) -> None:
        """Let an address own something from the beginning."""
        self.given[address, token.symbol] += units

    def take(self, address: str, token: Token, units: int) -> None:
        """Let an address never have had something, as when what had brought it was reorganised away."""
        self.given[address, token.symbol] -= units

    def pay(self, recipient: str, token: Token, units: int) -> str:
        """Let a stranger send a payment, which waits for a block; return its hash."""
        salt = next(self._salts)
        payer = "0x" + hashlib.sha256(f"payer {salt}".encode()).hexdigest()[:40]
        self.give(payer, token, units)
        self.give(payer, native(self.name), FEE_UNITS)
        tx = SimTx(payer, 0, recipient, token.symbol, units, FEE_UNITS, salt, payer)
        self.pool[payer, 0] = tx
        return tx.tx_hash

    def take_slot(self, sender: str) -> None:
        """Let another user of the same key use up the sender's next nonce, in a block of its own."""
        tx = SimTx(
            sender, self.count(sender), sender, native(self.name).symbol, 0, 0, next(self._salts), sender
        )
        self._add((Landed(tx, succeeded=True),))

    def bring(self, recipient: str, units: int, auth: str) -> str:
        """Let the chain itself pay its coin, by a transaction that counts as its recipient's; return its hash."""
        symbol = native(self.name).symbol
        tx = SimTx(
            recipient, self.count(recipient), recipient, symbol, units, 0, next(self._salts), SYSTEM, auth
        )
        self._add((Landed(tx, succeeded=True),))
        return tx.tx_hash

    def mine(self, blocks: int = 1, *, reverting: bool = False, empty: bool = False) -> None:
        """Take what the pool has, in the order of nonces, into the next block; further ones are empty."""
        self._add(() if empty else tuple(self._executed(reverting=reverting)))
        for _ in range(blocks - 1):
            self._add(())

    def forget_pool(self) -> None:
        """Let the nodes forget what they had taken."""
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
        """The number of the newest block that no reorganisation reaches."""
        return max(0, self.blocks[-1].number - SAFE_DEPTH)

    def landed(self, tx_hash: str) -> tuple[Block, Landed] | None:
        """Return where a transaction is."""
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
        """Return what an address has at the newest block."""
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
        """Return the hash by which a signed payment took place."""
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
            # What cannot pay its fee waits, and whatever comes after it.
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
        """Return how much of a token a transaction needs beyond what there is, after others of its block."""
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

    # What `ports.chain` asks.

    def verify_identity(self) -> None:
        self._ask()

    def diagnose(self) -> Diagnosis:
        return Diagnosis((EndpointState(1, None, self.blocks[-1].number),))

    def explorer_url(self, _tx_hash: str) -> str | None:
        return None

    def refusal_of(self, _recipient: str, _token: Token) -> str | None:
        return None

    def balances(self, address: str) -> Balances:
        self._ask()
        return Balances(tuple(TokenAmount(self.owned(address, each), each) for each in tokens(self.name)))

    def draft(self, intent: Intent) -> Draft:
        self._ask()
        return self.draft_of(intent, FEE_UNITS, {})

    def draft_of(self, intent: Intent, fee_units: int, terms: Terms) -> Draft:
        """Draft without looking whether it can be paid."""
        return Draft(
            intent=intent,
            fee_units=fee_units,
            native_units=self.owned(intent.sender, native(self.name)),
            token_units=self.owned(intent.sender, intent.amount.token),
            sequence=self.count(intent.sender),
            terms={**terms, "fee": fee_units},
        )

    def sign(self, draft: Draft, signer: Signer, *, sequence: int | None) -> Signed:
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
        return Signed(tx.tx_hash, tx.raw, sequence, None, terms)

    def replacement(self, attempt: Attempt) -> Draft | None:
        self._ask()
        gas = int(attempt.terms.get("gas") or GAS)
        return self._payable(self.draft_of(attempt.intent, gas * _dearer(attempt), attempt.terms))

    def cancellation(self, attempt: Attempt) -> Draft | None:
        self._ask()
        sender = attempt.intent.sender
        nothing = Intent(sender, sender, TokenAmount(0, native(self.name)))
        return self._payable(self.draft_of(nothing, EMPTY_GAS * _dearer(attempt), {"gas": EMPTY_GAS}))

    def _payable(self, draft: Draft) -> Draft:
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
        there = self.pool.get((tx.sender, tx.nonce))
        if there is None or there.price < tx.price:
            self.pool[tx.sender, tx.nonce] = tx
        elif there != tx:
            raise Rejected("fee_too_low")
        if self.loses_answers:
            raise OutcomeUnknown("no_answer")

    def rebroadcast(self, raws: Sequence[bytes]) -> None:
        self._ask()
        for raw in raws:
            try:
                self.broadcast(raw)
            except (Rejected, OutcomeUnknown):
                continue

    def outcomes(self, watches: Sequence[Watch]) -> Mapping[str, Outcome]:
        self._ask()
        return {watch.key: self._outcome(watch) for watch in watches}

    def orphaned(self, blocks: Sequence[BlockRef]) -> tuple[frozenset[BlockRef], int]:
        self._ask()
        return frozenset(ref for ref in blocks if not self._stands(ref)), self.safe

    def head(self) -> BlockRef:
        self._ask()
        return self.blocks[-1].ref

    def mark(self, _address: str) -> Terms:
        self._ask()
        return {}

    def deposits(self, watched: Sequence[WatchedAddress], *, cursor: BlockRef | None) -> Scan:
        """Find what came to watched addresses and left a trace. It goes back behind a place that is gone."""
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
        return Scan(to, {entry.address: entry.mark for entry in watched}, found)

    def _outcome(self, watch: Watch) -> Outcome:
        for tx_hash in watch.tx_hashes:
            found = self.landed(tx_hash)
            if found is not None:
                block, entry = found
                fate = Fate.SUCCEEDED if entry.succeeded else Fate.REVERTED
                deep = self.blocks[-1].number - block.number + 1
                received = entry.brought if watch.receives is not None else None
                return Outcome(fate, tx_hash, block.ref, deep, entry.tx.fee_units, received)
        if watch.sequence is not None and self.count(watch.sender, up_to=self.safe) > watch.sequence:
            return Outcome(Fate.VOID)
        return Outcome(Fate.WAITING)

    def _stands(self, ref: BlockRef) -> bool:
        return ref.number < len(self.blocks) and self.blocks[ref.number].hash == ref.hash

    def _ask(self) -> None:
        if self.away:
            raise Unreachable("chain_unreachable")


def _change(entry: Landed, address: str, symbol: str) -> int:
    """Return what an executed transaction brought an address, its fee apart."""
    tx = entry.tx
    if tx.wants is not None:
        if tx.sender != address:
            return 0
        return entry.brought * (tx.wants == symbol) - tx.units * (tx.symbol == symbol)
    return tx.units * ((tx.recipient == address) - (tx.source == address)) * (tx.symbol == symbol)


def _dearer(attempt: Attempt) -> int:
    """Return the price of gas at which an attempt is replaced."""
    price = int(attempt.terms["fee"] or 0) // int(attempt.terms.get("gas") or GAS)
    return price + price // _BUMP


def _require(reason: str, token: Token, available: int, required: int) -> None:
    if available < required:
        raise Rejected(reason, details={"currency": token.symbol, "missing": str(required - available)})


class SimulatedTill:
    """The till of a simulated chain; a signed payment's payload is what it says."""

    def __init__(self, chain: SimulatedChain) -> None:
        self.chain = chain

    @property
    def name(self) -> ChainName:
        return self.chain.name

    @property
    def asset(self) -> Asset:
        return Asset("eip155:1", "simulated", "0x" + "5" * 40)

    def canonical_hash(self, text: str) -> str | None:
        return text.lower() if text.startswith("0x") else None

    def arrival(self, tx_hash: str, recipient: str) -> Arrival | None:
        self.chain.head()
        found = self.chain.landed(tx_hash)
        if found is None:
            return None
        block, entry = found
        tx, counts = entry.tx, entry.succeeded and entry.tx.recipient == recipient
        deep = self.chain.blocks[-1].number - block.number + 1
        return Arrival(
            tx_hash, entry.succeeded, tx.units if counts and tx.symbol == USDC.symbol else 0,
            frozenset({tx.source}), () if tx.auth is None else (tx.auth,), block.at, deep >= DEPOSIT_DEPTH,
        )  # fmt: skip

    def claim_of(self, payload: Mapping[str, Any]) -> str:
        return str(payload["claim"])

    def read(self, payload: Mapping[str, Any], demand: Demand, *, now: int) -> Authorization:
        assert now
        if payload["units"] != demand.units:
            raise Rejected("invalid_exact_evm_payload_authorization_value")
        return Authorization(
            str(payload["claim"]),
            str(payload["payer"]),
            demand.recipient,
            demand.units,
            {"payer": payload["payer"]},
        )

    def draft(self, authorization: Authorization, *, settler: str) -> Draft:
        self.chain.head()
        if self.chain.was_used(authorization.claim) is not None:
            raise Rejected("invalid_exact_evm_nonce_already_used")
        intent = Intent(settler, authorization.recipient, TokenAmount(0, USDC))
        terms = {"auth": authorization.claim, "payer": authorization.payer, "units": authorization.units}
        return self.chain.draft_of(intent, FEE_UNITS, terms)

    def submit_as_stranger(self, claim: str, payer: str, recipient: str, units: int) -> str:
        """Let somebody else submit a signed payment first, in a block of its own; return the hash."""
        salt = next(self.chain._salts)
        sender = "0x" + hashlib.sha256(f"stranger {salt}".encode()).hexdigest()[:40]
        tx = SimTx(sender, 0, recipient, USDC.symbol, units, 0, salt, payer, claim)
        used = self.chain.was_used(claim) is not None
        self.chain._add((Landed(tx, succeeded=not used),))
        return tx.tx_hash

    def carried_out(self, authorization: Authorization) -> str | None:
        self.chain.head()
        return self.chain.was_used(authorization.claim)

    def readiness(self, _settler: str, _recipient: str) -> Readiness:
        self.chain.head()
        return Readiness(native_units=10**18, fee_units=FEE_UNITS, recipient_is_open=True)

    def opening(self, _settler: str, _recipient: str) -> Draft | None:
        return None

    def is_signed_by(self, payer: str, text: str, signature: str) -> bool:
        return signature == f"{payer} {text}"
