"""The tokens of a wallet that this service does not know; on EVM chains, those that scans for deposits have found."""

from collections.abc import Sequence
from typing import NamedTuple

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


def read(wallet: WalletView) -> tuple[Sequence[HeldToken], Sequence[ChainName]]:
    """Read the foreign tokens of a wallet on all chains concurrently; return the chains that do not respond, too."""
    chains, readers, held, unreadable = app_state().ports.chains, app_state().balance_readers, [], []
    with read_only_unit() as session:
        rows = session.scalars(select(DepositScanState).where(DepositScanState.wallet_id == wallet.id))
        marks = {row.chain: row.mark for row in rows}
    futures = {
        name: readers[name].submit(chain.foreign_tokens, wallet.address_on(name), marks.get(name, {}))
        for name, chain in chains.items()
    }
    for name, future in futures.items():
        try:
            held += [HeldToken(name, each) for each in future.result()]
        except PortError:
            unreadable.append(name)
    return held, unreadable
