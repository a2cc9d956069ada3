"""Funding: requests for deposits, and the deposits that fulfil them (decisions 5).

Deposits are watched for wallets with open requests. The oldest open request is served first and the remainder of
a deposit flows to the next; a request is confirmed when its sum is reached. What came before a request is no deposit.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

import structlog
from sqlalchemy import func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from app.core import clock, logs
from app.core.chains import TOKENS_BY_SYMBOL, ChainName
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.core.unit_of_work import after_commit, reading, unit_of_work
from app.errors import BalanceFetchError, LimitReached, NotFound
from app.extensions import db
from app.jobs import JobName
from app.ports import provider
from app.ports.chain import BlockRef
from app.ports.errors import PortError, Rejected, Unreachable
from app.ports.faucet import Faucet
from app.spending import service as spending
from app.wallets import lifecycle, orders
from app.wallets.lifecycle import Reason, Status, TransactionType
from app.wallets.models import DepositCursor, DepositMark, Transaction
from app.wallets.service import WalletView
from app.web import idempotency

_log = structlog.get_logger(__name__)
MAX_OPEN_PER_WALLET = 20


@dataclass(frozen=True, slots=True)
class FundingRequest:
    """A request for a deposit, as answered to its maker."""

    id: str
    wallet_id: str
    deposit_address: str
    amount: TokenAmount
    chain: ChainName
    status: str
    message: str


def request(wallet: WalletView, *, chain: str, amount: str, currency: str) -> FundingRequest:
    """Record that a deposit is expected, from now on.

    Raises: InvalidInput, LimitReached, BalanceFetchError when the chain cannot be read.
    """
    name, expected = orders.parse_deposit(chain=chain, amount=amount, currency=currency)
    address = wallet.address_on(name)
    adapter = provider.current().chains[name]
    try:
        # The mark first: a deposit that is mined between the two then lies before the request and does not count.
        mark = adapter.mark(address)
        head = adapter.head()
    except PortError:
        raise BalanceFetchError(
            f"{name} cannot be read at the moment, so deposits could not be told from what is there.",
            details={"chains": [name.value]},
        ) from None
    now, request_id = clock.now(), new_id()
    ttl = timedelta(seconds=provider.settings().funding_request_ttl_seconds)
    with unit_of_work() as session:
        spending.lock_account(wallet.id)
        open_here = _count_open(wallet.id)
        if open_here >= MAX_OPEN_PER_WALLET:
            raise LimitReached(
                f"This wallet has {MAX_OPEN_PER_WALLET} open funding requests; let some end first."
            )
        _start_watching(wallet.id, name, head=head, mark=dict(mark))
        transaction = Transaction(
            id=request_id, wallet_id=wallet.id, type=TransactionType.FUNDING.value, chain=name.value,
            to_address=address, amount_units=expected.units, currency=expected.token.symbol, cost_nanos=0,
            created_at=now, opened_block=head.number, expires_at=now + ttl, checks=0,
        )  # fmt: skip
        lifecycle.record(transaction, status=Status.PENDING)
        idempotency.bind(request_id)
        if provider.current().faucet is not None:
            queue = provider.current().queue
            after_commit(lambda: queue.put(JobName.PAY_FROM_FAUCET, request_id))
        session.flush()
    return FundingRequest(
        request_id,
        wallet.id,
        address,
        expected,
        name,
        Status.PENDING.value,
        message_for(expected, name, address),
    )


def as_first_answered(request_id: str) -> FundingRequest | None:
    """Return a request as its maker was answered, pending, whatever became of it; in the current unit."""
    row = db.session.get(Transaction, request_id)
    if row is None:
        return None
    amount, name = TokenAmount(row.amount_units, TOKENS_BY_SYMBOL[row.currency]), ChainName(row.chain)
    return FundingRequest(
        row.id, row.wallet_id, row.to_address, amount, name, Status.PENDING.value,
        message_for(amount, name, row.to_address),
    )  # fmt: skip


def message_for(amount: TokenAmount, chain: ChainName, address: str) -> str:
    """Return the instruction for the person or program that pays."""
    return (
        f"Send {amount} {amount.token.symbol} on {chain} to {address}. "
        "The request is confirmed when the deposit has enough confirmations."
    )


def fail_expired(now: datetime) -> int:
    """End requests whose time is over; return how many."""
    with reading() as session:
        expired = session.execute(
            select(Transaction.wallet_id, Transaction.id)
            .where(
                Transaction.type == TransactionType.FUNDING.value,
                Transaction.status == Status.PENDING.value,
                Transaction.expires_at < now,
            )
            .order_by(Transaction.wallet_id, Transaction.id)
            .limit(500)
        ).all()
    ended = 0
    for wallet_id, of_wallet in groupby(expired, key=lambda row: row.wallet_id):
        # Under its account the wallet is neither deleted nor served from a deposit meanwhile.
        with suppress(NotFound), unit_of_work():
            spending.lock_account(wallet_id)
            ended += sum(
                lifecycle.move(
                    row.id, source=Status.PENDING, target=Status.FAILED, reason=Reason.EXPIRED.value
                )
                for row in of_wallet
            )
    return ended


def unpaid_in_sandbox(now: datetime, *, limit: int = 50) -> Sequence[str]:
    """Return open requests that the sandbox's faucet should have paid by now, in the current unit."""
    since = now - timedelta(hours=1)
    return db.session.scalars(
        select(Transaction.id)
        .where(
            Transaction.type == TransactionType.FUNDING.value,
            Transaction.error.is_(None),
            Transaction.status == Status.PENDING.value,
            Transaction.created_at.between(since, now - timedelta(seconds=10)),
        )
        .order_by(Transaction.created_at, Transaction.id)
        .limit(limit)
    ).all()


def pay_from_faucet(request_id: str) -> None:
    """Let the sandbox's faucet pay a request; it pays each request once, however often it is asked."""
    faucet = provider.current().faucet
    if faucet is None:
        return
    with reading() as session:
        wanted = as_first_answered(request_id)
        origin = session.scalar(select(Transaction.request_id).where(Transaction.id == request_id))
    if wanted is None:
        return
    with logs.caused_by(origin):
        _ask(faucet, wanted)


def _ask(faucet: Faucet, wanted: FundingRequest) -> None:
    try:
        faucet.pay(wanted.id, chain=wanted.chain, address=wanted.deposit_address, amount=wanted.amount)
    except Rejected as error:
        # Told to its maker, and not asked again: a deposit from elsewhere still fulfils the request.
        _log.warning("faucet_refused", transaction_id=wanted.id, reason=error.reason)
        with unit_of_work() as session:
            session.execute(
                update(Transaction)
                .where(Transaction.id == wanted.id, Transaction.status == Status.PENDING.value)
                .values(error=error.reason[:200])
            )
    except Unreachable as error:
        _log.warning("faucet_did_not_pay", transaction_id=wanted.id, reason=error.reason)
    else:
        _log.info("faucet_asked", transaction_id=wanted.id)


def _count_open(wallet_id: str) -> int:
    open_requests = select(func.count()).select_from(Transaction).where(
        Transaction.wallet_id == wallet_id,
        Transaction.type == TransactionType.FUNDING.value,
        Transaction.status == Status.PENDING.value,
    )  # fmt: skip
    return db.session.scalar(open_requests) or 0


def _start_watching(wallet_id: str, chain: ChainName, *, head: BlockRef, mark: dict[str, object]) -> None:
    """Set cursor and mark to now where nobody is waited for yet; otherwise what is there must be kept.

    The cursor's row is the lock: of two first requests at once, the second sees the first.
    """
    session = db.session
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    session.execute(
        insert(DepositCursor)
        .values(chain=chain.value)
        .on_conflict_do_update(index_elements=[DepositCursor.chain], set_={"chain": chain.value})
    )
    waited_for = (
        select(Transaction.wallet_id)
        .where(
            Transaction.chain == chain.value,
            Transaction.type == TransactionType.FUNDING.value,
            Transaction.status == Status.PENDING.value,
        )
        .distinct()
    )
    if session.scalar(waited_for.limit(1)) is None:
        session.execute(
            update(DepositCursor)
            .where(DepositCursor.chain == chain.value)
            .values(block_number=head.number, block_hash=head.hash)
        )
    if session.scalar(waited_for.where(Transaction.wallet_id == wallet_id).limit(1)) is None:
        now: dict[str, object] = {"mark": mark, "block_number": head.number}
        session.execute(
            insert(DepositMark)
            .values(wallet_id=wallet_id, chain=chain.value, revision=0, **now)
            .on_conflict_do_update(
                index_elements=[DepositMark.wallet_id, DepositMark.chain],
                set_={**now, "revision": DepositMark.revision + 1},
            )
        )
