"""Recovery phrases of wallets, as only an operator's command may read them."""

from __future__ import annotations

from app.db.unit_of_work import read_only_unit
from app.state import app_state
from app.wallets.core import custody
from app.wallets.core.models import WalletKey
from signer.client import SignerClient
from tests.support.signers import VAULTS


def phrase_of(wallet_id: str) -> str:
    """Return the words of a wallet."""
    with read_only_unit() as session:
        sealed = session.get_one(WalletKey, wallet_id).sealed
    own, client = custody.assert_network(), app_state().ports.signer
    vault = VAULTS[client.path] if isinstance(client, SignerClient) else own
    return vault.recovery_phrase(sealed, custody.key_location(wallet_id))
