"""The kinds of movements of a wallet, one file per kind, and the routes that they have in common."""

from app.wallets.kinds.bridge import BRIDGE
from app.wallets.kinds.swap import SWAP
from app.wallets.kinds.transfer import TRANSFER, WITHDRAWAL

WALLET_MOVEMENTS = (TRANSFER, WITHDRAWAL, SWAP, BRIDGE)
