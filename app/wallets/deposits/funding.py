"""Funding requests and the deposits that fulfil them (decision 0009).

A deposit is allocated to the oldest open request and its remainder to the next; a request is confirmed once its amount
is reached. What arrived before a request, or is left, is recorded as a deposit without a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

import structlog
from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import TOKENS_BY_SYMBOL, ChainName
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.db.tables import count
from app.db.unit_of_work import after_commit, read_only_unit, unit_of_work
from app.errors import BalanceFetchError, InvalidInput, LimitReached, NotFound
from app.idempotency.service import Claim
from app.jobs import JobName
from app.observability import telemetry
from app.ports.chain import Terms
from app.ports.errors import PortError, Rejected, Unreachable
from app.ports.services import Faucet
from app.spending import accounts as spending_accounts
from app.state import app_state
from app.wallets.core import lifecycle, parsing
from app.wallets.core.lifecycle import MovementStatus, StatusReason, TransactionType
from app.wallets.core.models import DepositScanState, Transaction, Wallet
from app.wallets.core.wallets import WalletView
from app.wallets.deposits import scan_states

_log = structlog.get_logger(__name__)
MAX_OPEN_PER_WALLET = 20
_IS_OPEN = and_(Transaction.type == TransactionType.FUNDING.value, Transaction.status == MovementStatus.PENDING.value)
_IS_UNPAID = and_(_IS_OPEN, Transaction.error.is_(None))
_ACTS = {"blacklisted": "blacklisted its address", "paused": "paused it", "frozen": "frozen its account"}


def create_request(wallet: WalletView, *, chain: str, amount: str, currency: str, claim: Claim) -> Mapping[str, Any]:
    """Create a funding request, and return the response; deposits count from now on.

    Raises: InvalidInput, LimitReached, BalanceFetchError if the chain cannot be read.
    """
    name, expected = parsing.parse_deposit(chain=chain, amount=amount, currency=currency)
    address = wallet.address_on(name)
    state = app_state()
    adapter = state.ports.chains[name]
    with read_only_unit() as session:
        stored = session.get(DepositScanState, (wallet.id, name.value))
        new_to_scans = session.scalar(select(Wallet.new_to_scans).where(Wallet.id == wallet.id))
    try:
        head = adapter.head()
        known: Terms | None = None if stored is None else stored.mark
        at = head.number if stored is None else stored.block_number
        if stored is None and new_to_scans:
            at = scan_states.start_block(name, head)
            known = adapter.unused_scan_state(at)
        # Read after the head: what arrives after this state has arrived after the request.
        scan_state = adapter.scan_state(address, before=known)
        refusal = adapter.receiving_refusal(address, expected.token)
    except PortError:
        raise BalanceFetchError(
            f"{name} cannot be read at the moment, so deposits could not be distinguished from the present balance.",
            details={"chains": [name.value]},
        ) from None
    if refusal is not None:
        problem = f"cannot arrive on {name} at this wallet now: its issuer has {_ACTS[refusal]}"
        raise InvalidInput.field("currency", problem)
    now, request_id = clock.now(), new_id()
    ttl = timedelta(seconds=state.settings.funding_request_ttl_seconds)
    with unit_of_work() as session:
        spending_accounts.lock_account(session, wallet.id)
        if count(session, Transaction, Transaction.wallet_id == wallet.id, _IS_OPEN) >= MAX_OPEN_PER_WALLET:
            raise LimitReached(
                f"This wallet has {MAX_OPEN_PER_WALLET} open funding requests; wait until one is confirmed or expires."
            )
        if stored is None or scan_state != known:
            revision = None if stored is None else stored.revision
            scan_states.store(session, name, wallet.id, revision, scan_state, at=at)
        transaction = Transaction(
            id=request_id, wallet_id=wallet.id, type=TransactionType.FUNDING.value, chain=name.value,
            to_address=address, amount_units=expected.units, currency=expected.token.symbol, cost_nanos=0,
            created_at=now, opened_block=head.number, expires_at=now + ttl, checks=0,
        )  # fmt: skip
        lifecycle.record(session, transaction, status=MovementStatus.PENDING)
        claim.bind(session, request_id)
        if state.ports.faucet is not None:
            after_commit(lambda: state.ports.queue.enqueue(JobName.PAY_FROM_FAUCET, request_id))
        session.flush()
        return _first_response(transaction)


def initial_response(request_id: str) -> Mapping[str, Any] | None:
    """Return a request as it was first returned, pending, whatever its status now."""
    with read_only_unit() as session:
        row = session.get(Transaction, request_id)
        return None if row is None else _first_response(row)


def _first_response(row: Transaction) -> Mapping[str, Any]:
    amount = _amount(row)
    message = (
        f"Send {amount} {row.currency} on {row.chain} to {row.to_address}. "
        "The request is confirmed when the deposit has enough confirmations."
    )
    return {
        "id": row.id, "wallet_id": row.wallet_id, "deposit_address": row.to_address, "amount": amount,
        "currency": row.currency, "chain": row.chain, "status": MovementStatus.PENDING.value, "message": message,
    }  # fmt: skip


def _amount(row: Transaction) -> TokenAmount:
    return TokenAmount(row.amount_units, TOKENS_BY_SYMBOL[row.currency])


def fail_expired(now: datetime) -> int:
    """Fail expired requests; return how many."""
    with read_only_unit() as session:
        expired = session.execute(
            select(Transaction.wallet_id, Transaction.id)
            .where(_IS_OPEN, Transaction.expires_at < now)
            .order_by(Transaction.wallet_id, Transaction.id)
            .limit(500)
        ).all()
    ended = 0
    for wallet_id, of_wallet in groupby(expired, key=lambda row: row.wallet_id):
        # The account lock excludes a concurrent deletion of the wallet and allocation of a deposit.
        with suppress(NotFound), unit_of_work() as session:
            spending_accounts.lock_account(session, wallet_id)
            of_these = Transaction.id.in_([row.id for row in of_wallet])
            pending, failed, reason = MovementStatus.PENDING, MovementStatus.FAILED, StatusReason.EXPIRED
            ended += len(lifecycle.TRANSACTIONS.move(session, of_these, pending, failed, reason=reason))
    return ended


def unpaid_by_faucet(session: Session, now: datetime) -> Sequence[str]:
    """Return open requests that the sandbox's faucet should have paid already."""
    is_overdue = Transaction.created_at.between(now - timedelta(hours=1), now - timedelta(seconds=10))
    unpaid = select(Transaction.id).where(_IS_UNPAID, is_overdue).order_by(Transaction.created_at, Transaction.id)
    return session.scalars(unpaid.limit(50)).all()


def pay_from_faucet(request_id: str) -> None:
    """Request the payment of a request from the sandbox's faucet, which pays each request once.

    Deposits go to the oldest request first. So the older open ones of the wallet are paid before it: one with a lost
    job would take its deposit, be confirmed, and never be paid.
    """
    faucet = app_state().ports.faucet
    if faucet is None:
        return
    with read_only_unit() as session:
        asked = session.get(Transaction, request_id)
        if asked is None:
            return
        alike = [getattr(Transaction, name) == getattr(asked, name) for name in ("wallet_id", "chain", "currency")]
        unpaid = select(Transaction).where(_IS_UNPAID, *alike, Transaction.created_at <= asked.created_at)
        rows = session.scalars(unpaid.order_by(Transaction.created_at, Transaction.id)).all()
    for each in rows:
        with telemetry.caused_by(each.request_id):
            if not _request_faucet_payment(faucet, each):
                return


def _request_faucet_payment(faucet: Faucet, request: Transaction) -> bool:
    """Return whether requests after this one may be paid."""
    try:
        faucet.pay(request.id, chain=ChainName(request.chain), address=request.to_address, amount=_amount(request))
    except Rejected as error:
        # Recorded and not retried: a deposit from elsewhere can still fulfil the request.
        _log.warning("faucet_refused", transaction_id=request.id, reason=error.reason)
        with unit_of_work() as session:
            lifecycle.set_error(session, request.id, error.reason)
    except Unreachable as error:
        _log.warning("faucet_payment_failed", transaction_id=request.id, reason=error.reason)
        return False
    else:
        _log.info("faucet_payment_requested", transaction_id=request.id)
    return True
