"""What bridges bring to wallets, so that it is not taken for deposits: their own money is no funding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import and_, or_, select

from app.core.chains import TOKENS_BY_SYMBOL, ChainName, Token, native
from app.extensions import db
from app.ports.chain import OwnTransaction
from app.wallets.bridge_states import Stage
from app.wallets.models import Bridge, Transaction


def expected(chain: ChainName, wallet_ids: Sequence[str]) -> Mapping[str, frozenset[Token]]:
    """Return the tokens that are on their way to wallets on a chain, or may come back there; in the current unit."""
    found: dict[str, frozenset[Token]] = {}
    if not wallet_ids:
        return found
    rows = db.session.execute(
        select(Bridge.wallet_id, Transaction.currency)
        .join(Transaction, Transaction.id == Bridge.id)
        .where(
            or_(
                Bridge.destination_chain == chain.value,
                and_(Transaction.chain == chain.value, Bridge.may_return.is_(True)),
            ),
            Bridge.stage.in_([Stage.SOURCE.value, Stage.CROSSING.value]),
            Bridge.wallet_id.in_(wallet_ids),
        )
    )
    for wallet_id, currency in rows:
        found[wallet_id] = found.get(wallet_id, frozenset()) | {TOKENS_BY_SYMBOL[currency]}
    return found


def of(chain: ChainName, wallet_ids: Sequence[str]) -> Mapping[str, list[OwnTransaction]]:
    """Return what has arrived or come back on a chain, by wallet; in the current unit."""
    found: dict[str, list[OwnTransaction]] = {}
    if not wallet_ids:
        return found
    rows = db.session.execute(
        select(
            Bridge.wallet_id, Bridge.arrival_hash, Bridge.arrival_takes_slot, Bridge.arrival_block,
            Bridge.received_units, Transaction.currency,
        )
        .join(Transaction, Transaction.id == Bridge.id)
        .where(
            Bridge.destination_chain == chain.value,
            Bridge.stage == Stage.ARRIVED.value,
            Bridge.arrival_hash.is_not(None),
            Bridge.wallet_id.in_(wallet_ids),
        )
    )  # fmt: skip
    for wallet_id, tx_hash, takes_slot, block, units, currency in rows:
        is_native = TOKENS_BY_SYMBOL[currency] == native(chain)
        out = -(units or 0) if is_native else 0
        # A mint of ours is told as a movement besides, with what it cost.
        found.setdefault(wallet_id, []).append(OwnTransaction(tx_hash or "", None, out, block, takes_slot))
    for wallet_id, came_back in _refunds(chain, wallet_ids):
        found.setdefault(wallet_id, []).append(came_back)
    return found


def _refunds(chain: ChainName, wallet_ids: Sequence[str]) -> Iterator[tuple[str, OwnTransaction]]:
    rows = db.session.execute(
        select(
            Bridge.wallet_id,
            Bridge.refund_hash,
            Bridge.refund_block,
            Bridge.refund_units,
            Transaction.currency,
        )
        .join(Transaction, Transaction.id == Bridge.id)
        .where(
            Transaction.chain == chain.value,
            Bridge.refund_hash.is_not(None),
            Bridge.wallet_id.in_(wallet_ids),
        )
    )
    for wallet_id, tx_hash, block, units, currency in rows:
        out = -(units or 0) if TOKENS_BY_SYMBOL[currency] == native(chain) else 0
        yield wallet_id, OwnTransaction(tx_hash or "", None, out, block)
