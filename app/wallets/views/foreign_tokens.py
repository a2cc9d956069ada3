"""The tokens of a wallet that this service does not know, read when somebody asks.

On EVM chains their contracts are searched in the logs of the blocks, some at a time; the next reading goes on from there.
"""

from collections.abc import Sequence
from typing import NamedTuple

from app.core import clock
from app.core.chains import ChainName
from app.db.tables import insert_into
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.ports.chain import ForeignToken, TokenSearch
from app.ports.errors import PortError
from app.state import app_state
from app.wallets.core.models import ForeignTokenSearch
from app.wallets.core.wallets import WalletView


class HeldToken(NamedTuple):
    chain: ChainName
    token: ForeignToken


class FoundTokens(NamedTuple):
    """Tokens, and the chains that could not be read, or of which blocks remain to be searched."""

    tokens: Sequence[HeldToken]
    unfinished: Sequence[ChainName]


def read(wallet: WalletView) -> FoundTokens:
    """Read the foreign tokens of a wallet on all chains concurrently, and store how far they were searched."""
    state, tokens, unfinished, age = app_state(), [], [], clock.now() - wallet.created_at
    with read_only_unit() as session:
        rows = {name: session.get(ForeignTokenSearch, (wallet.id, name.value)) for name in state.ports.chains}
    before = {
        name: TokenSearch(tuple(row.contracts), row.block_number) if row else TokenSearch()
        for name, row in rows.items()
    }
    futures = {
        name: state.balance_readers[name].submit(chain.foreign_tokens, wallet.address_on(name), before[name], age=age)
        for name, chain in state.ports.chains.items()
    }
    for name, future in futures.items():
        try:
            search, found = future.result()
        except PortError:
            unfinished.append(name)
            continue
        tokens += [HeldToken(name, each) for each in found]
        unfinished += [] if search.is_complete else [name]
        if search.block is not None:
            _store(wallet, name, search)
    return FoundTokens(tokens, unfinished)


def _store(wallet: WalletView, name: ChainName, search: TokenSearch) -> None:
    values = {"contracts": list(search.contracts), "block_number": search.block}
    with unit_of_work() as session:
        new = insert_into(session, ForeignTokenSearch).values(wallet_id=wallet.id, chain=name.value, **values)
        session.execute(new.on_conflict_do_update(index_elements=["wallet_id", "chain"], set_=values))
