"""The tokens of a wallet that this service does not know; on EVM chains, those that scans for deposits have found."""

from typing import Any, NamedTuple

from sqlalchemy import select

from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit
from app.ports.chain import ForeignToken
from app.ports.errors import PortError
from app.state import app_state
from app.wallets.core.models import DepositScanState
from app.wallets.core.wallets import WalletView


class HeldToken(NamedTuple):
    chain: ChainName
    token: ForeignToken


def read(wallet: WalletView) -> dict[str, list[Any]]:
    """Read the foreign `tokens` of a wallet on all chains concurrently, but those on `unreadable_chains`."""
    found: dict[str, list[Any]] = {"tokens": [], "unreadable_chains": []}
    with read_only_unit() as session:
        rows = session.scalars(select(DepositScanState).where(DepositScanState.wallet_id == wallet.id))
        marks, readers = {row.chain: row.mark for row in rows}, app_state().balance_readers
    for name, future in [
        (name, readers[name].submit(chain.foreign_tokens, wallet.address_on(name), marks.get(name, {})))
        for name, chain in app_state().ports.chains.items()
    ]:
        try:
            found["tokens"] += [HeldToken(name, each) for each in future.result()]
        except PortError:
            found["unreadable_chains"].append(name)
    return found
