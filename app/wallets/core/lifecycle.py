"""Recording of transactions with their nonces and signed bytes, their state machine, and when to look for outcomes.

The only writer of `nonces`. Providers bill each call, and between two blocks there is nothing to find: a row is looked
for by the block time of its chain, and less often the older it is.
"""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

import structlog
from sqlalchemy import BigInteger, bindparam, case, select, update
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import ChainName, token_named
from app.core.money import TokenAmount
from app.core.movement_kinds import MovementKind
from app.db.prepared import PreparedInsert, PreparedRead, PreparedStatement
from app.db.state_machine import StateMachine
from app.db.tables import insert_into, table_of, update_rows
from app.events.outbox import EventType, OutboxOf
from app.observability import telemetry
from app.ports.chain import SignedTransaction, TransactionDraft
from app.ports.errors import Rejected
from app.state import app_state
from app.wallets.core.models import Bridge, Nonce, SignedAttempt, Transaction, TransactionEvent, Wallet

_ZERO = timedelta(0)
_MIN_WAIT = timedelta(seconds=5)
_MIN_FIRST_CHECK = timedelta(seconds=3)
_RECHECK_SECONDS = (1, 2, 2, 4, 8, 15, *[30] * 20, 120)
# Nodes drop bytes that expire within about a minute, so these are sent and checked continually.
_RECHECK_EXPIRING_SECONDS = (1, *[2] * 150, 30)
_REBROADCAST = timedelta(seconds=15)
_REBROADCAST_EXPIRING = timedelta(seconds=2)
_MIN_FINALITY, _MAX_FINALITY = timedelta(seconds=5), timedelta(minutes=5)
_MAX_DOUBLINGS = 16
_MIN_SCAN, _MAX_SCAN = timedelta(seconds=5), timedelta(seconds=30)
_SCAN_AGE_SHARE = 10


def block_time(chain: ChainName) -> timedelta:
    """Return the time between two blocks; zero if blocks are made on demand, or the chain is not served."""
    served = app_state().ports.chains.get(chain)
    return _ZERO if served is None else served.block_time


def default_wait_seconds(chain: ChainName) -> Decimal:
    """Return how long a request waits for an outcome: CONFIRMATION_WAIT_SECONDS, or one and a half block times."""
    configured = app_state().settings.confirmation_wait_seconds
    if configured is not None:
        return configured
    return Decimal(str(max(_MIN_WAIT, _usual_landing_time(chain)).total_seconds()))


def first_check_after(chain: ChainName) -> timedelta:
    """Return when workers first check what was sent: the request that sent it waits first."""
    return max(_MIN_FIRST_CHECK, _usual_landing_time(chain))


def pending_recheck_after(chain: ChainName, checks: int, *, expires: bool) -> timedelta:
    """Return when a movement that has not landed after so many checks is checked again."""
    delays = _RECHECK_EXPIRING_SECONDS if expires else _RECHECK_SECONDS
    return max(block_time(chain), timedelta(seconds=delays[min(checks, len(delays) - 1)]))


def rebroadcast_after(age_when_sent: timedelta, *, expires: bool) -> timedelta:
    """Return the pause before a broadcast that nodes may have dropped is repeated: it doubles, unless bytes expire."""
    return _REBROADCAST_EXPIRING if expires else max(_REBROADCAST, age_when_sent)


def finality_recheck_after(chain: ChainName, checks: int) -> timedelta:
    """Return when a block that is not final is checked again: reorgs mostly remove the newest blocks."""
    first = max(_MIN_FINALITY, 2 * block_time(chain))
    return min(first * (1 << min(checks, _MAX_DOUBLINGS)), _MAX_FINALITY)


def scan_pause(chain: ChainName, age: timedelta) -> timedelta:
    """Return the pause between two scans for deposits; `age` is that of the newest request or deposit."""
    pace = block_time(chain)
    if not pace:
        return _ZERO
    return max(pace, _MIN_SCAN, min(age / _SCAN_AGE_SHARE, _MAX_SCAN))


def _usual_landing_time(chain: ChainName) -> timedelta:
    return 3 * block_time(chain) / 2


COLUMNS = (
    Transaction.id, Transaction.wallet_id, Transaction.type, Transaction.kind, Transaction.chain,
    Transaction.to_address, Transaction.amount_units, Transaction.currency, Transaction.tx_hash,
    Transaction.output_currency, Transaction.output_units, Transaction.created_at, Transaction.confirmed_at,
)  # fmt: skip
_GROUPS = {"funding": "funding", "payment": "payment"}
"""The groups of events by the type of transaction; all others are `transaction`."""
_UNANNOUNCED_TYPES = {"trading_query"}
_UNANNOUNCED_KINDS = {MovementKind.SETTLEMENT, MovementKind.LEG}
"""What is no movement of an agent: queries, submissions by the service's own key, and single legs of a movement."""
_WALLETS = table_of(Wallet)
_OUTBOX = OutboxOf(select(_WALLETS.c.agent_id).where(_WALLETS.c.id == bindparam("of_wallet")).scalar_subquery())
# A database that was restored from a backup may lack some used nonces.
_MAX_NONCE_GAP = 100
PERPDEX_CHAIN = "perpdex"
"""The `chain` of rows that are on no chain: queries to the trading exchange."""
_INSERT_ATTEMPT = PreparedInsert(SignedAttempt)
_COUNT_IN_WALLET = PreparedStatement(
    update(table_of(Wallet))
    .where(Wallet.id == bindparam("of_wallet"))
    .values({Wallet.transaction_count: Wallet.transaction_count + 1})
)
_OF_ADDRESS = (Nonce.chain == bindparam("of_chain")) & (Nonce.address == bindparam("of_address"))
_FLOOR = bindparam("floor", type_=BigInteger)
# The UPDATE acquires the row lock on PostgreSQL and the write lock on SQLite.
_ALLOCATE_NONCE = PreparedStatement(
    update(table_of(Nonce))
    .where(_OF_ADDRESS, Nonce.next_nonce >= _FLOOR - _MAX_NONCE_GAP)
    .values({Nonce.next_nonce: case((Nonce.next_nonce < _FLOOR, _FLOOR), else_=Nonce.next_nonce) + 1})
    .returning(Nonce.next_nonce)
)
_SET_NONCE = PreparedStatement(
    update(table_of(Nonce)).where(_OF_ADDRESS).values({Nonce.next_nonce: bindparam("following")})
)
_USED_NONCES = PreparedRead(
    select(Transaction.nonce)
    .filter_by(chain=bindparam("of_chain"), from_address=bindparam("of_address"))
    .where(Transaction.nonce >= _FLOOR)
)


def announce(session: Session, row: Any, status: str, reason: str | None) -> None:
    """Record the event of a status, unless none is meant for agents."""
    if row.type in _UNANNOUNCED_TYPES or row.kind in _UNANNOUNCED_KINDS:
        return
    event_type = EventType(f"{_GROUPS.get(row.type, 'transaction')}.{status}")
    if row.type == TransactionType.FUNDING and row.kind is not None:
        if status == MovementStatus.PENDING:
            return  # a reorganisation removed it, and the next status says so
        event_type = EventType.FUNDING_RECEIVED if status == MovementStatus.CONFIRMED else event_type
    _OUTBOX.record(
        session, event_type, object_id=row.id, data=_data(row, status, reason), parameters={"of_wallet": row.wallet_id}
    )


def _data(row: Any, status: str, reason: str | None) -> dict[str, Any]:
    data = {
        "transaction_id": row.id, "wallet_id": row.wallet_id, "type": row.type, "kind": row.kind, "chain": row.chain,
        "status": status, "reason": reason, "to": row.to_address, "amount": _amount(row.amount_units, row.currency),
        "currency": row.currency, "tx_hash": row.tx_hash, "created_at": clock.isoformat(row.created_at),
        "confirmed_at": None if row.confirmed_at is None else clock.isoformat(row.confirmed_at),
    }  # fmt: skip
    if row.output_currency is not None:
        received = None if row.output_units is None else _amount(row.output_units, row.output_currency)
        data |= {"output_currency": row.output_currency, "output_amount": received}
    return data


def _amount(units: int, currency: str) -> str:
    return str(TokenAmount(units, token_named(currency)))


class MovementStatus(StrEnum):
    PENDING = "pending"
    CONFIRMED = "confirmed"
    FAILED = "failed"


class TransactionType(StrEnum):
    TRANSFER = "transfer"
    WITHDRAWAL = "withdrawal"
    FUNDING = "funding"
    SWAP = "swap"
    TRADING_QUERY = "trading_query"
    TRADING_ORDER = "trading_order"
    PAYMENT = "payment"


class StatusReason(StrEnum):
    REVERTED = "reverted"
    SLOT_TAKEN = "slot_taken"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REORGANISED = "reorganised"
    FOUND_ON_CHAIN = "found_on_chain"
    REFUNDED = "refunded"
    WRITTEN_OFF = "written_off"


class AttemptPurpose(StrEnum):
    PAYMENT = "payment"
    CANCELLATION = "cancellation"
    AUTHORIZATION = "authorized"
    """A payment that its recipient submits: `tx_hash` is its identity on the chain, `raw` what the recipient gets."""


TRANSACTIONS = StateMachine(
    Transaction.status,
    # `failed` if it was refused before signing, `confirmed` if it is a completed query.
    initial={MovementStatus.PENDING, MovementStatus.FAILED, MovementStatus.CONFIRMED},
    permitted={
        MovementStatus.PENDING: {MovementStatus.CONFIRMED, MovementStatus.FAILED},
        # A reorg removed the deciding block; or a restored database lacked the bytes that executed it.
        MovementStatus.CONFIRMED: {MovementStatus.PENDING},
        MovementStatus.FAILED: {MovementStatus.PENDING},
    },
    event=TransactionEvent,
    logger=structlog.get_logger(__name__),
    values=lambda status, reason: {
        "error": reason if status is MovementStatus.FAILED else None,
        "quarantined_at": None,
    },
    announce=announce,
    announced=COLUMNS,
)


def record_signed(
    session: Session, transaction: Transaction, draft: TransactionDraft, sign: Callable[[int | None], SignedTransaction]
) -> SignedTransaction:
    nonce = None
    if draft.sequence is not None:
        nonce = allocate_nonce(session, ChainName(transaction.chain), draft.intent.sender, floor=draft.sequence)
    signed = sign(nonce)
    transaction.nonce = signed.sequence
    transaction.fee_cap_units = draft.fee_units
    set_signed(transaction, signed)
    record(session, transaction, status=MovementStatus.PENDING)
    add_attempt(session, transaction.id, ChainName(transaction.chain), signed)
    return signed


def set_signed(transaction: Transaction, signed: SignedTransaction) -> None:
    """Set the hash, the expiry and the next check of the bytes that were signed last."""
    transaction.tx_hash = signed.tx_hash
    transaction.expires_at_height = signed.expires_at_height
    transaction.checks = 0
    transaction.next_check_at = clock.now() + first_check_after(ChainName(transaction.chain))


def record(session: Session, transaction: Transaction, *, status: MovementStatus) -> None:
    transaction.request_id = telemetry.originating_request_id()
    TRANSACTIONS.add(session, transaction, status, reason=transaction.error)
    if transaction.leg is None:
        _COUNT_IN_WALLET.execute(session, {"of_wallet": transaction.wallet_id})


def add_attempt(
    session: Session,
    transaction_id: str,
    chain: ChainName,
    signed: SignedTransaction,
    purpose: AttemptPurpose = AttemptPurpose.PAYMENT,
) -> None:
    now = clock.now()
    attempt = {
        "transaction_id": transaction_id, "chain": chain.value, "tx_hash": signed.tx_hash, "purpose": purpose.value,
        "raw": signed.raw, "terms": dict(signed.terms), "sent_at": now, "created_at": now,
    }  # fmt: skip
    _INSERT_ATTEMPT.execute(session, attempt)


def allocate_nonce(session: Session, chain: ChainName, address: str, *, floor: int) -> int:
    """Allocate the lowest free nonce at or above the chain's own count.

    Gaps are filled first. Two movements never share a nonce: equal ones would sign to identical bytes, and one payment
    would serve two requests. The row stays locked until the unit ends; a rollback frees the nonce.
    """
    of_address = {"of_chain": chain.value, "of_address": address, "floor": floor}
    allocated_next = _ALLOCATE_NONCE.scalar(session, of_address)
    if allocated_next is None:
        lock_nonces(session, chain, address)
        allocated_next = _ALLOCATE_NONCE.scalar(session, of_address)
    if allocated_next is None:
        # Only this service has the keys: a chain that counts far more than was allocated is not trusted. A database
        # that was restored from an older backup needs `flask restored`.
        raise Rejected("chain_unreachable")
    newest = int(allocated_next) - 1
    if newest == floor:
        return floor
    used_nonces = {row.nonce for row in _USED_NONCES.all(session, of_address)}
    nonce = floor
    while nonce in used_nonces:
        nonce += 1
    if nonce != newest:
        following = {"following": max(newest, nonce + 1)}
        _SET_NONCE.execute(session, {"of_chain": chain.value, "of_address": address, **following})
    return nonce


def lock_nonces(session: Session, chain: ChainName, address: str, *, used: int = 0) -> None:
    """Lock the nonces of an address on a chain until the unit ends, and skip those that the chain counts as used.

    A unit that records transactions on several chains locks all of them first, in the order of the chains: recording
    one locks the rows of its wallet, which rank after nonces.
    """
    new = insert_into(session, Nonce).values(chain=chain.value, address=address, next_nonce=used)
    following = case((Nonce.next_nonce < used, used), else_=Nonce.next_nonce)
    session.execute(
        new.on_conflict_do_update(
            index_elements=[Nonce.chain, Nonce.address], set_={"next_nonce": following}
        ).execution_options(synchronize_session=False)
    )


def set_error(session: Session, transaction_id: str, error: str | None) -> None:
    is_pending = Transaction.id == transaction_id, Transaction.status == MovementStatus.PENDING.value
    update_rows(session, Transaction, *is_pending, error=error and error[:200])


def schedule_next_step(session: Session, transaction: Any) -> None:
    """Schedule the movement that a changed transaction is a leg of, if it is one, for its next step."""
    if transaction.leg is not None:
        update_rows(session, Bridge, Bridge.id == transaction.bridge_id, next_step_at=clock.now(), steps=0)
