"""Reconciliation with the chains after a database restore: transactions of our addresses that it does not know.

Only this service has the keys, so nothing is found unless the database was restored. Reading changes nothing;
`adopt_onchain_tx`, `book` and `advance_nonce` make it safe to continue.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.core import clock
from app.core.chains import ChainName, Family
from app.core.identifiers import new_id
from app.core.money import value_nanos
from app.core.movement_kinds import MovementKind
from app.db.tables import count, update_rows
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import NotFound
from app.ports.chain import Chain, NonceUse, SentTransaction, SignedTransaction, TransactionOutcome, TransactionStatus
from app.spending import accounts as spending_accounts
from app.spending import holds as spending_holds
from app.state import app_state
from app.wallets.bridges import state as bridges
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import AttemptPurpose, MovementStatus, StatusReason, TransactionType
from app.wallets.core.models import DepositCursor, Nonce, SignedAttempt, Transaction, Wallet
from app.wallets.transactions import open_transactions, settlement
from app.wallets.transactions.open_transactions import OpenMovement

_BATCH_SIZE = 500
_RECENT = 200
_MARGIN_BLOCKS = 256


@dataclass(frozen=True, slots=True)
class NonceGap:
    """An address that has used more nonces on a chain than the database knows."""

    chain: ChainName
    wallet_id: str
    agent_id: str
    address: str
    allocated: int
    used: int

    @property
    def missing_nonces(self) -> range:
        return range(self.allocated, self.used)


@dataclass(frozen=True, slots=True)
class UnknownSpend:
    """A movement with a nonce that unknown bytes have used; `sent` is None if no node can return them."""

    movement: OpenMovement
    sent: SentTransaction | None

    @property
    def purpose(self) -> AttemptPurpose | None:
        """Return the purpose of the unknown bytes; None if they are unavailable or not of this movement."""
        if self.sent is None or self.sent.raw is None:
            return None
        return {NonceUse.SAME: AttemptPurpose.PAYMENT, NonceUse.NOTHING: AttemptPurpose.CANCELLATION}.get(
            self.sent.nonce_use
        )

    @property
    def is_undetermined(self) -> bool:
        """Return whether it is unknown if the movement was executed."""
        return self.purpose is None and (self.sent is None or self.sent.nonce_use is not NonceUse.OTHER)

    @property
    def needs_adoption(self) -> bool:
        """Return whether the record is or will be wrong unless the unknown bytes are adopted."""
        # A cancellation confirms the status of a movement that has failed.
        return self.purpose is AttemptPurpose.PAYMENT or (
            self.purpose is AttemptPurpose.CANCELLATION and self.movement.status is MovementStatus.PENDING
        )


def nonce_gaps(chain: Chain, *, only_recent: bool = False) -> Iterator[NonceGap]:
    """Compare the nonces of every wallet with a chain, or of those that signed last as a quick check.

    Raises: PortError.
    """
    if chain.name.family is not Family.EVM:
        return
    for ids in _wallets(Wallet.evm_address, only_recent=only_recent):
        # Read the chain first: a nonce is allocated before it is used.
        used = chain.transaction_counts([*ids])
        with read_only_unit() as session:
            rows = select(Nonce.address, Nonce.next_nonce).filter_by(chain=chain.name.value)
            allocated = {row.address: row.next_nonce for row in session.execute(rows.where(Nonce.address.in_(ids)))}
        for address, (wallet_id, agent_id) in ids.items():
            unknown_count = used[address] - allocated.get(address, 0)
            if unknown_count > 0 and unknown_count > bridges.count_newest_arrivals(chain.name, wallet_id, address):
                yield NonceGap(chain.name, wallet_id, agent_id, address, allocated.get(address, 0), used[address])


def unknown_outflows(chain: Chain, *, restored_at: datetime) -> Iterator[tuple[str, str, SentTransaction]]:
    """Yield wallet, agent and payment for what left wallets after the backup and the database does not have.

    Blocks are read since the last scan for deposits, which was before the backup, and since the restore: what was
    signed before may land later. Raises: PortError.
    """
    with read_only_unit() as session:
        scanned = session.scalar(select(func.max(DepositCursor.block_number)).filter_by(chain=chain.name.value)) or 0
    # Blocks may be twice as fast as usual.
    passed = int(2 * (clock.now() - restored_at) / (chain.block_time or timedelta.resolution))
    since = max(0, min(scanned, chain.head().number - passed) - _MARGIN_BLOCKS)
    is_evm = chain.name.family is Family.EVM
    for ids in _wallets(Wallet.evm_address if is_evm else Wallet.solana_address):
        for sent in chain.outflows(ids.keys(), since=since):
            with read_only_unit() as session:
                is_known = _is_recorded(session, chain.name, ids[sent.sender][0], sent)
            if not is_known and sent.tx_hash in sent.references:
                # One of Permit2 has no identity in the chain; that of a movement that was pending shows its hash.
                pending = [movement.query for movement in open_transactions.pending_of(sent.sender, chain.name)]
                is_known = any(outcome.tx_hash == sent.tx_hash for outcome in chain.outcomes(pending).values())
            if not is_known:
                yield *ids[sent.sender], sent


def unknown_spends(chain: Chain) -> Iterator[UnknownSpend]:
    """Yield movements with nonces used by unknown bytes, which workers would fail or did. Raises: PortError."""
    candidates = open_transactions.possibly_displaced(chain.name)
    for start in range(0, len(candidates), _BATCH_SIZE):
        batch = candidates[start : start + _BATCH_SIZE]
        used = chain.transaction_counts(sorted({movement.sender for movement in batch}))
        passed_nonce = [each for each in batch if each.nonce is not None and each.nonce < used[each.sender]]
        outcomes = chain.outcomes([each.query for each in passed_nonce])
        for movement in passed_nonce:
            if not _has_landed(outcomes, movement):
                sent = chain.transaction_at_nonce(movement.sender, movement.nonce or 0, expected=movement.attempt())
                # In a running service it may land or be replaced concurrently.
                if sent is None:
                    is_known = _has_landed(chain.outcomes([movement.query]), movement)
                else:
                    with read_only_unit() as session:
                        is_known = _is_known(session, chain.name, sent.tx_hash)
                if not is_known:
                    yield UnknownSpend(movement, sent)


def adopt_onchain_tx(spend: UnknownSpend, *, on_reopened: Callable[[Session, str], None]) -> bool:
    """Add bytes that were signed for a movement after the backup to its attempts; return whether anything changed.

    A failed movement is reopened, together with what depends on it (`on_reopened`) in the same unit, until a worker
    settles it.
    """
    movement, sent, purpose = spend.movement, spend.sent, spend.purpose
    if sent is None or sent.raw is None or purpose is None or not spend.needs_adoption:
        return False
    now = clock.now()
    # Nothing changes if its wallet was deleted.
    with suppress(NotFound), unit_of_work() as session:
        # The lock of settlements: a worker that fails the movement did so before, or sees these bytes.
        spending_accounts.lock_account(session, movement.wallet_id)
        row = session.get(Transaction, movement.id)
        if (
            purpose is AttemptPurpose.PAYMENT
            and row is not None
            and settlement.reopen_from(session, row, MovementStatus.FAILED, reason=StatusReason.FOUND_ON_CHAIN)
        ):
            on_reopened(session, movement.id)
        is_pending = Transaction.id == movement.id, Transaction.status == MovementStatus.PENDING.value
        locked = update_rows(session, Transaction, *is_pending, quarantined_at=None, next_check_at=now, checks=0)
        if not locked or _is_known(session, movement.chain, sent.tx_hash):
            return False
        signed = SignedTransaction(
            sent.tx_hash, sent.raw, movement.nonce, movement.query.expires_at_height, movement.latest.terms
        )
        lifecycle.add_attempt(session, movement.id, movement.chain, signed, purpose)
        return True
    return False


def quarantine(spend: UnknownSpend) -> None:
    """Exclude a pending movement from settlement while it is unknown whether it was executed."""
    # Nothing is left to exclude if its wallet was deleted.
    with suppress(NotFound), unit_of_work() as session:
        # The lock of settlements: one that fails the movement did so before, or sees this.
        spending_accounts.lock_account(session, spend.movement.wallet_id)
        is_pending = Transaction.id == spend.movement.id, Transaction.status == MovementStatus.PENDING.value
        update_rows(session, Transaction, *is_pending, quarantined_at=clock.now())


def release_quarantine(chain: ChainName, *, except_ids: Collection[str]) -> None:
    """Return quarantined movements to the workers, except those that are still undetermined."""
    with unit_of_work() as session:
        are_released = Transaction.chain == chain.value, Transaction.id.not_in(except_ids)
        is_quarantined, now = Transaction.quarantined_at.is_not(None), clock.now()
        update_rows(
            session, Transaction, *are_released, is_quarantined, quarantined_at=None, next_check_at=now, checks=0
        )


def book(chain: ChainName, wallet_id: str, sent: SentTransaction) -> bool:
    """Record a payment that is not in the database, with a hold that counts from today; return whether this call did.

    It is pending until a worker has read its outcome. Only bytes in the form that we sign are sent again.
    """
    if sent.amount is None or sent.recipient is None:
        return False
    price, now = app_state().ports.prices.nanos_per_token(sent.amount.token), clock.now()
    is_own = sent.raw is not None or sent.sequence is not None
    transaction = Transaction(
        id=new_id(), wallet_id=wallet_id, type=TransactionType.TRANSFER.value, kind=MovementKind.RECOVERED.value,
        chain=chain.value, from_address=sent.sender, to_address=sent.recipient, amount_units=sent.amount.units,
        currency=sent.amount.token.symbol, tx_hash=sent.tx_hash, nonce=sent.sequence, fee_cap_units=0,
        gas_fee_units=None if is_own else 0, cost_nanos=0 if price is None else value_nanos(sent.amount, price),
        created_at=now, next_check_at=now, checks=0,
    )  # fmt: skip
    signed = SignedTransaction(sent.references[0], sent.raw or b"", sent.sequence, None, sent.terms)
    purpose = AttemptPurpose.AUTHORIZATION if sent.raw is None else AttemptPurpose.PAYMENT
    # Nothing is booked if its wallet was deleted, or if one hash stands for payments of two wallets.
    with suppress(NotFound), unit_of_work() as session:
        spending_accounts.lock_account(session, wallet_id)
        if not _is_recorded(session, chain, wallet_id, sent) and not _is_known(session, chain, signed.tx_hash):
            cost_nanos = transaction.cost_nanos
            lifecycle.record(session, transaction, status=MovementStatus.PENDING)
            lifecycle.add_attempt(session, transaction.id, chain, signed, purpose)
            spending_holds.record_without_limits(session, wallet_id, reference=transaction.id, value_nanos=cost_nanos)
            return True
    return False


def advance_nonce(gap: NonceGap) -> None:
    with unit_of_work() as session:
        lifecycle.lock_nonces(session, gap.chain, gap.address, used=gap.used)


def _has_landed(outcomes: Mapping[str, TransactionOutcome], movement: OpenMovement) -> bool:
    outcome = outcomes.get(movement.id)
    return outcome is not None and outcome.status not in (TransactionStatus.WAITING, TransactionStatus.VOID)


def _is_known(session: Session, chain: ChainName, tx_hash: str) -> bool:
    known = select(SignedAttempt.id).where(SignedAttempt.chain == chain.value, SignedAttempt.tx_hash == tx_hash)
    return session.scalar(known) is not None


def _is_recorded(session: Session, chain: ChainName, wallet_id: str, sent: SentTransaction) -> bool:
    attempts = select(SignedAttempt.transaction_id).filter_by(chain=chain.value)
    has_slot = Transaction.nonce == (-1 if sent.sequence is None else sent.sequence)
    is_signed = Transaction.id.in_(attempts.where(SignedAttempt.tx_hash.in_(sent.references)))
    is_same = or_(has_slot, is_signed, Transaction.tx_hash.in_(sent.references))
    of_wallet = Transaction.chain == chain.value, Transaction.wallet_id == wallet_id
    return count(session, Transaction, is_same, *of_wallet) > 0


def _wallets(of: InstrumentedAttribute[str], *, only_recent: bool = False) -> Iterator[dict[str, tuple[str, str]]]:
    """Yield the ids of wallets and of their agents by address, in portions."""
    wallets = select(Wallet.id, Wallet.agent_id, of).order_by(Wallet.id).limit(_BATCH_SIZE)
    if only_recent:
        newest = select(SignedAttempt.transaction_id).order_by(SignedAttempt.id.desc()).limit(_RECENT)
        signers = select(Transaction.wallet_id).where(Transaction.id.in_(newest))
        wallets = wallets.where(Wallet.id.in_(signers))
    following = wallets
    while True:
        with read_only_unit() as session:
            found = session.execute(following).all()
        if not found:
            return
        yield {address: (wallet_id, agent_id) for wallet_id, agent_id, address in found}
        following = wallets.where(Wallet.id > found[-1].id)
