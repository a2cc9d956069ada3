"""Live balances of a wallet, for which all chains are read concurrently; pending transactions, counted by age.

Foreign tokens are those that this service does not know; on EVM chains, those that scans for deposits have found.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import ChainName, tokens
from app.core.money import TokenAmount, value_nanos
from app.db.unit_of_work import read_only_unit
from app.errors import BalanceFetchError, ServiceError, WalletNotEmpty
from app.ports.errors import PortError
from app.state import app_state
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import DepositScanState, Transaction
from app.wallets.core.wallets import WalletView

_READERS_PER_CHAIN, _TIMEOUT_SECONDS = 12, 15
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Holding:
    """The balance of one token on one chain; `usd_nanos` is None if no price is known."""

    chain: ChainName
    amount: TokenAmount
    usd_nanos: int | None


def read_all(wallet: WalletView) -> Sequence[Holding]:
    """Read every token on every chain, zeros included. Raises: BalanceFetchError with the unreadable chains."""
    holdings, unreadable = read_available(wallet)
    if unreadable:
        raise _unreadable(unreadable)
    return holdings


def _unreadable(names: Sequence[ChainName]) -> BalanceFetchError:
    message = f"The balances on {', '.join(names)} cannot be read at the moment."
    return BalanceFetchError(message, details={"chains": [*names]})


def read_foreign(wallet: WalletView) -> dict[str, list[Any]]:
    """Read the foreign `tokens` of a wallet on all chains concurrently, but those on `unreadable_chains`."""
    state = app_state()
    with read_only_unit() as session:
        rows = session.scalars(select(DepositScanState).filter_by(wallet_id=wallet.id))
        marks = {row.chain: row.mark for row in rows}
    listed, unreadable = _results({
        name: state.foreign_readers[name].submit(chain.foreign_tokens, wallet.address_on(name), marks.get(name, {}))
        for name, chain in state.ports.chains.items()
    })  # fmt: skip
    held = ({"chain": name, "token": each} for name, found in listed.items() for each in found)
    return {"tokens": [*held], "unreadable_chains": unreadable}


def find_deletion_refusal(wallet: WalletView) -> ServiceError | None:
    """Return why a wallet is to be deleted with `force` only: what it holds, or that this cannot be read.

    A wallet without transactions holds nothing that this service knows of.
    """
    holdings, unreadable = read_available(wallet)
    found = [(each.chain, each.amount) for each in holdings if each.amount.units]
    if not unreadable:
        foreign = read_foreign(wallet)
        found += [(each["chain"], each["token"].amount) for each in foreign["tokens"]]
        unreadable = foreign["unreadable_chains"]
    if unreadable and wallet.transaction_count:
        return _unreadable(unreadable)
    listed = [{"chain": name.value, "token": each.token.symbol, "balance": str(each)} for name, each in found]
    message = "This wallet holds tokens. Transfer them out, or repeat the request with `force` set to true."
    return WalletNotEmpty(message, details={"balances": listed}) if listed else None


def read_available(wallet: WalletView) -> tuple[Sequence[Holding], Sequence[ChainName]]:
    """Read every served token on the chains that can be read; return the other chains too."""
    ports, readers = app_state().ports, app_state().balance_readers
    futures = {
        name: readers[name].submit(chain.balances, wallet.address_on(name)) for name, chain in ports.chains.items()
    }
    prices = {token: ports.prices.nanos_per_token(token) for name in futures for token in tokens(name)}
    holdings, (balances, unreadable) = [], _results(futures)
    for name, found in balances.items():
        for token in tokens(name):
            amount, price = found.of(token), prices[token]
            holdings.append(Holding(name, amount, None if price is None else value_nanos(amount, price)))
    return holdings, unreadable


def _results(futures: Mapping[ChainName, Future[T]]) -> tuple[dict[ChainName, T], list[ChainName]]:
    """Return what is read within the time limit, by chain, and the other chains."""
    found, unreadable, deadline = dict[ChainName, T](), [], time.monotonic() + _TIMEOUT_SECONDS
    for name, future in futures.items():
        try:
            found[name] = future.result(max(0, deadline - time.monotonic()))
        except (PortError, TimeoutError):
            future.cancel()
            unreadable.append(name)
    return found, unreadable


def reader_threads(chains: Iterable[ChainName]) -> dict[ChainName, ThreadPoolExecutor]:
    """Return a few threads for each chain, so that a slow one delays no other; they start after a server's fork."""
    return {name: ThreadPoolExecutor(_READERS_PER_CHAIN, thread_name_prefix=f"balances-{name}") for name in chains}


_AGES_SECONDS = (0, 60, 600, 3600)


class Backlog(NamedTuple):
    """The pending transactions of one type on one chain; `by_age` counts those of at least so many seconds."""

    type: str
    chain: str
    by_age: Mapping[int, int]
    oldest_seconds: int


def pending(session: Session) -> list[Backlog]:
    """Return the pending transactions. Both queries use a partial index."""
    found, now, is_funding = [], clock.now(), Transaction.type == TransactionType.FUNDING.value
    since, group = Transaction.created_at, (Transaction.type, Transaction.chain)
    counts = [func.count(case((since <= now - timedelta(seconds=age), 1))) for age in _AGES_SECONDS]
    query = select(*group, func.min(since), *counts).where(Transaction.status == MovementStatus.PENDING.value)
    for condition in (~is_funding & Transaction.next_check_at.is_not(None), is_funding):
        for kind, chain, oldest, *numbers in session.execute(query.where(condition).group_by(*group)):
            by_age = dict(zip(_AGES_SECONDS, numbers, strict=True))
            found.append(Backlog(kind, chain, by_age, max(0, int((now - oldest).total_seconds()))))
    return found
