"""Questions that were asked for a wallet outside all chains: each leaves a row in its history, and moves nothing."""

from __future__ import annotations

from app.core import clock
from app.core.chains import USDC
from app.core.identifiers import new_id
from app.core.unit_of_work import unit_of_work
from app.spending import service as spending
from app.wallets import lifecycle
from app.wallets.lifecycle import EXCHANGE, Status, TransactionType
from app.wallets.models import Transaction


def record(wallet_id: str, *, address: str, kind: str) -> str:
    """Leave a `trading_query` in a wallet's history: nothing was paid, and nobody but the exchange was asked.

    Returns its id.

    Raises: NotFound when the wallet was deleted meanwhile.
    """
    transaction_id, now = new_id(), clock.now()
    with unit_of_work():
        # Under this lock the wallet is not being deleted: no row is left behind.
        spending.lock_account(wallet_id)
        lifecycle.record(
            Transaction(
                id=transaction_id, wallet_id=wallet_id, type=TransactionType.TRADING_QUERY.value, kind=kind,
                chain=EXCHANGE, from_address=address, to_address=EXCHANGE, amount_units=0,
                currency=USDC.symbol, cost_nanos=0, created_at=now, confirmed_at=now, checks=0,
            ),
            status=Status.CONFIRMED,
        )  # fmt: skip
    return transaction_id
