"""Keys of deleted wallets: kept while their addresses may hold tokens, then purged and logged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import select

from app.audit_log import actors
from app.core import clock
from app.core.chains import ChainName, Token, tokens
from app.core.money import TokenAmount
from app.db.unit_of_work import read_only_unit
from app.platform import keys
from app.ports.chain import Balances
from app.ports.errors import Unreachable
from app.wallets.core.models import RetiredKey
from tests.support.agents import Agent, register
from tests.support.operators import entries
from workers import sweeps

DAY = timedelta(days=1)


@dataclass
class Ledger:
    """A read-only chain with balances set by the test."""

    name: ChainName
    held: dict[tuple[str, Token], int] = field(default_factory=dict)
    away: bool = False
    block_time: timedelta = timedelta(0)
    asked: list[str] = field(default_factory=list)

    def explorer_url(self, tx_hash: str) -> str | None:
        return tx_hash and None

    def balances(self, address: str) -> Balances:
        self.asked.append(address)
        if self.away:
            raise Unreachable("no_endpoint")
        return Balances(tuple(TokenAmount(self.held.get((address, token), 0), token) for token in tokens(self.name)))


@dataclass(frozen=True)
class Stage:
    """An application with such chains, and an agent that deleted its wallet."""

    chains: dict[ChainName, Ledger]
    agent: Agent

    def kept(self) -> bool:
        with read_only_unit() as session:
            return session.scalar(select(RetiredKey.wallet_id)) == self.agent.wallet_id

    def sweep(self, later: timedelta) -> None:
        with time_machine.travel(clock.now() + later, tick=True):
            sweeps.sweep()


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Stage]:
    chains = {name: Ledger(name) for name in ChainName}
    parts: dict[str, Any] = {"chains": MappingProxyType(chains)}
    app = build_app(sqlite_url, **parts)
    with app.app_context():
        agent = register(app.test_client())
        assert agent.delete(f"{agent.wallet_url}?force=true").status_code == 200
        yield Stage(chains, agent)


def test_the_key_of_an_empty_wallet_is_purged_after_two_checks_a_day_apart(stage: Stage) -> None:
    stage.sweep(89 * DAY)
    assert stage.chains[ChainName.BASE].asked == []
    stage.sweep(91 * DAY)
    assert stage.kept()
    stage.sweep(91 * DAY + timedelta(hours=23))
    assert stage.kept()
    assert stage.chains[ChainName.BASE].asked == [stage.agent.address]
    stage.sweep(92 * DAY + timedelta(minutes=1))
    assert not stage.kept()
    assert stage.chains[ChainName.SOLANA].asked == [stage.agent.solana_address] * 2
    (entry,) = entries(action="retired_key.purged")
    assert (entry.actor_kind, entry.subject_id) == ("worker", stage.agent.wallet_id)
    assert entry.before is not None
    assert entry.before["evm_address"] == stage.agent.address


@pytest.mark.parametrize("name", list(ChainName))
def test_a_key_is_kept_while_its_addresses_hold_any_token(stage: Stage, name: ChainName) -> None:
    address = stage.agent.solana_address if name is ChainName.SOLANA else stage.agent.address
    for token in tokens(name):
        stage.chains[name].held = {(address, token): 1}
        for days in range(91, 130, 8):
            stage.sweep(days * DAY)
        assert stage.kept()
    stage.chains[name].held = {}
    stage.sweep(140 * DAY)
    assert stage.kept()
    stage.sweep(142 * DAY)
    assert not stage.kept()


def test_a_payment_between_the_checks_keeps_the_key(stage: Stage) -> None:
    stage.sweep(91 * DAY)
    stage.chains[ChainName.BASE].held = {(stage.agent.address, tokens(ChainName.BASE)[1]): 1}
    stage.sweep(93 * DAY)
    stage.chains[ChainName.BASE].held = {}
    stage.sweep(101 * DAY)
    assert stage.kept()


@pytest.mark.parametrize("name", list(ChainName))
def test_a_key_is_kept_while_any_chain_cannot_be_read(stage: Stage, name: ChainName) -> None:
    stage.chains[name].away = True
    for days in range(91, 100, 2):
        stage.sweep(days * DAY)
    assert stage.kept()
    stage.chains[name].away = False
    stage.sweep(101 * DAY)
    stage.sweep(103 * DAY)
    assert not stage.kept()


def test_an_operator_cannot_purge_before_the_sweep(stage: Stage) -> None:
    assert keys.purge_retired_keys(actors.shell_actor()) == []
    with time_machine.travel(clock.now() + 91 * DAY, tick=True):
        assert keys.purge_retired_keys(actors.shell_actor()) == []
    with time_machine.travel(clock.now() + 93 * DAY, tick=True):
        assert keys.purge_retired_keys(actors.shell_actor()) == [stage.agent.wallet_id]
        assert keys.purge_retired_keys(actors.shell_actor()) == []
    assert [entry.actor_kind for entry in entries(action="retired_key.purged")] == ["command"]
