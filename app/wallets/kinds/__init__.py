"""The movements with a route below `/v1/wallets/{id}/`, one file per kind; `app.movements` is the registry of all."""

from app.wallets.kinds.bridge import BRIDGE
from app.wallets.kinds.definition import add_route
from app.wallets.kinds.swap import SWAP
from app.wallets.kinds.transfer import TRANSFER, WITHDRAWAL

WALLET_MOVEMENTS = (TRANSFER, WITHDRAWAL, SWAP, BRIDGE)
for _kind in WALLET_MOVEMENTS:
    add_route(_kind)
