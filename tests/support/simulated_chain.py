"""A chain in memory that behaves: nonce slots, a pool, blocks, reverts, reorganisations; and a till on it.

For machines that walk at random through hundreds of steps, where a real node would take minutes. What it does is
what the contract of `ports.chain` says; the real adapters are held against the same in `tests/ports`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
FEE_UNITS = 21_000
_REORG_REACH = 64
_BUMP = 8


@dataclass(frozen=True, slots=True)
class SimTx:
    """A transaction: tokens of `source` (its sender, unless it submits what another one has signed) move."""

    sender: str
    nonce: int
    recipient: str
    symbol: str
    units: int
    fee_units: int
    salt: int
    source: str
    auth: str | None = None

    @property
    def raw(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @property
    def tx_hash(self) -> str:
        return "0x" + hashlib.sha256(self.raw).hexdigest()


@dataclass(frozen=True, slots=True)
class Landed:
    """A transaction in a block."""

    tx: SimTx
    succeeded: bool


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
        self._salts = itertools.count()
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
            if keep:
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
                if entry.succeeded and tx.symbol == token.symbol:
                    units += tx.units * ((tx.recipient == address) - (tx.source == address))
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
        for (sender, nonce), tx in sorted(self.pool.items()):
            if nonce < next_nonce[sender]:
                del self.pool[sender, nonce]
            elif nonce == next_nonce[sender]:
                next_nonce[sender] += 1
                del self.pool[sender, nonce]
                fails = tx.auth is not None and (tx.auth in used or self.was_used(tx.auth) is not None)
                if tx.auth is not None:
                    used.add(tx.auth)
                yield Landed(tx, succeeded=not (reverting or fails))

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
        auth = terms.get("auth")
        units = terms.get("units") if auth else intent.amount.units
        tx = SimTx(
            intent.sender, sequence, intent.recipient, intent.amount.token.symbol, int(units or 0),
            int(terms["fee"] or 0), next(self._salts), str(terms["payer"] if auth else intent.sender),
            None if auth is None else str(auth),
        )  # fmt: skip
        return Signed(tx.tx_hash, tx.raw, sequence, None, terms)

    def replacement(self, attempt: Attempt) -> Draft | None:
        self._ask()
        return self.draft_of(attempt.intent, self._dearer(attempt), attempt.terms)

    def cancellation(self, attempt: Attempt) -> Draft | None:
        self._ask()
        sender = attempt.intent.sender
        nothing = Intent(sender, sender, TokenAmount(0, native(self.name)))
        return self.draft_of(nothing, self._dearer(attempt), {})

    def broadcast(self, raw: bytes) -> None:
        self._ask()
        if self.swallows:
            return
        tx = SimTx(**json.loads(raw))
        if tx.nonce < self.count(tx.sender):
            if self.landed(tx.tx_hash) is not None:
                return
            raise Rejected("nonce_too_low")
        there = self.pool.get((tx.sender, tx.nonce))
        if there is None or there.fee_units < tx.fee_units:
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
                return Outcome(fate, tx_hash, block.ref, deep, entry.tx.fee_units)
        if watch.sequence is not None and self.count(watch.sender, up_to=self.safe) > watch.sequence:
            return Outcome(Fate.VOID)
        return Outcome(Fate.WAITING)

    def _stands(self, ref: BlockRef) -> bool:
        return ref.number < len(self.blocks) and self.blocks[ref.number].hash == ref.hash

    def _dearer(self, attempt: Attempt) -> int:
        fee = int(attempt.terms["fee"] or 0)
        return fee + fee // _BUMP

    def _ask(self) -> None:
        if self.away:
            raise Unreachable("chain_unreachable")


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
