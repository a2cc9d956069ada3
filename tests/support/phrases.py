"""Recovery phrases of wallets, as only an operator's command may read them."""

from __future__ import annotations

from app.db.unit_of_work import read_only_unit
from app.wallets.core import custody
from app.wallets.core.models import WalletKey


def phrase_of(wallet_id: str) -> str:
    """Return the words of a wallet."""
    with read_only_unit() as session:
        sealed = session.get_one(WalletKey, wallet_id).sealed
    return custody.assert_network().recovery_phrase(sealed, custody.key_location(wallet_id))
