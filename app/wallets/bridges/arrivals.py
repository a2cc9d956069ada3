"""Arrivals and refunds of bridges, so that they are not taken for deposits."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from app.core.chains import TOKENS_BY_SYMBOL, ChainName, Token, native
from app.db.tables import in_list
from app.db.unit_of_work import read_only_unit
from app.ports.chain import OwnTransaction
from app.wallets.bridges.state import BridgeStage
from app.wallets.core.models import Bridge, DepositScanState, Transaction


def expected_tokens(session: Session, chain: ChainName, wallet_ids: Sequence[str]) -> Mapping[str, frozenset[Token]]:
    """Return the tokens that bridges may deliver or refund to wallets on a chain."""
    tokens_by_wallet: dict[str, frozenset[Token]] = defaultdict(frozenset)
    rows = session.execute(
        select(Bridge.wallet_id, Transaction.currency)
        .join(Transaction, Transaction.id == Bridge.id)
        .where(
            or_(
                Bridge.destination_chain == chain.value,
                and_(Transaction.chain == chain.value, Bridge.may_return.is_(True)),
            ),
            Bridge.stage.in_([BridgeStage.SOURCE.value, BridgeStage.CROSSING.value]),
            in_list(session, Bridge.wallet_id, wallet_ids),
        )
    )
    for wallet_id, currency in rows:
        tokens_by_wallet[wallet_id] |= {TOKENS_BY_SYMBOL[currency]}
    return tokens_by_wallet


def recorded_arrivals(
    session: Session, chain: ChainName, wallet_ids: Sequence[str], *, is_recent: Callable[..., ColumnElement[bool]]
) -> Mapping[str, list[OwnTransaction]]:
    """Return the recent arrivals and refunds; `is_recent` compares a block with the wallet's scan state."""
    arrivals: dict[str, list[OwnTransaction]] = defaultdict(list)
    # A bridge has an arrival or a refund, never both.
    tx_hash = func.coalesce(Bridge.refund_hash, Bridge.arrival_hash)
    block = func.coalesce(Bridge.refund_block, Bridge.arrival_block)
    units = func.coalesce(Bridge.refund_units, Bridge.received_units)
    has_arrived = (Bridge.destination_chain == chain.value) & (Bridge.stage == BridgeStage.ARRIVED.value)
    is_refunded = (Transaction.chain == chain.value) & Bridge.refund_hash.is_not(None)
    rows = session.execute(
        select(Bridge.wallet_id, tx_hash, block, units, Bridge.arrival_takes_slot, Transaction.currency)
        .join(Transaction, Transaction.id == Bridge.id)
        .join(DepositScanState, DepositScanState.wallet_id == Bridge.wallet_id)
        .where(in_list(session, Bridge.wallet_id, wallet_ids), tx_hash.is_not(None), has_arrived | is_refunded)
        .where(DepositScanState.chain == chain.value, is_recent(block))
    )
    for wallet_id, found_hash, number, received, uses_nonce, currency in rows:
        out = -(received or 0) if TOKENS_BY_SYMBOL[currency] == native(chain) else 0
        # Our own mint is also listed as a movement, with its fee.
        arrivals[wallet_id].append(OwnTransaction(found_hash, None, out, number, uses_nonce))
    return arrivals


def count_newest(chain: ChainName, wallet_id: str, address: str) -> int:
    """Return how many arrivals of bridges used nonces of an address after its newest own transaction."""
    newest_block = select(func.coalesce(func.max(Transaction.block_number), -1)).where(
        Transaction.chain == chain.value, Transaction.from_address == address, Transaction.nonce.is_not(None)
    )
    found = (
        select(func.count())
        .select_from(Bridge)
        .where(
            Bridge.wallet_id == wallet_id,
            Bridge.destination_chain == chain.value,
            Bridge.arrival_takes_slot.is_(True),
            Bridge.arrival_block > newest_block.scalar_subquery(),
        )
    )
    with read_only_unit() as session:
        return session.scalar(found) or 0
