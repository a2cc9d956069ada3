"""Live balances of a wallet, all chains read side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from flask import current_app

from app.core.chains import ChainName, tokens
from app.core.money import TokenAmount, value_nanos
from app.errors import BalanceFetchError
from app.ports import provider
from app.ports.chain import Balances
from app.ports.errors import PortError
from app.wallets.service import WalletView

_READERS_PER_CHAIN = 12
_PATIENCE_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Holding:
    """What a wallet has of one token on one chain; `usd_nanos` is None where no price is known."""

    chain: ChainName
    amount: TokenAmount
    usd_nanos: int | None


@dataclass(frozen=True, slots=True)
class Reading:
    """What could be read of a wallet, and the chains that could not."""

    holdings: Sequence[Holding]
    unreadable: Sequence[ChainName]


def of_wallet(wallet: WalletView) -> Sequence[Holding]:
    """Read every served token on every chain: always the same rows, zero or not.

    Raises: BalanceFetchError naming each chain that could not be read.
    """
    reading = readable(wallet)
    if reading.unreadable:
        names = [name.value for name in reading.unreadable]
        raise BalanceFetchError(
            f"The balances on {', '.join(names)} cannot be read at the moment.", details={"chains": names}
        )
    return reading.holdings


def readable(wallet: WalletView) -> Reading:
    """Read every served token on those chains that answer."""
    ports = provider.current()
    readers: Mapping[ChainName, ThreadPoolExecutor] = current_app.extensions["balance_readers"]
    deadline = time.monotonic() + _PATIENCE_SECONDS
    answers = {
        name: readers[name].submit(chain.balances, wallet.address_on(name))
        for name, chain in ports.chains.items()
    }
    prices = {token: ports.prices.nanos_per_token(token) for name in answers for token in tokens(name)}
    read: dict[ChainName, Balances] = {}
    unreadable = []
    for name, answer in answers.items():
        try:
            read[name] = answer.result(max(0, deadline - time.monotonic()))
        except (PortError, TimeoutError):
            answer.cancel()
            unreadable.append(name)
    holdings = []
    for name, balances in read.items():
        for token in tokens(name):
            amount, price = balances.of(token), prices[token]
            holdings.append(Holding(name, amount, None if price is None else value_nanos(amount, price)))
    return Reading(holdings, unreadable)


def open_readers() -> None:
    """Make this application's reading threads, a few per chain: one that is slow must not hold up the others.

    The factory calls it once; threads start when they are needed, so a server may fork before.
    """
    current_app.extensions["balance_readers"] = {
        name: ThreadPoolExecutor(_READERS_PER_CHAIN, thread_name_prefix=f"balances-{name}")
        for name in provider.current().chains
    }
