"""Several settlement keys: signed payments are spread over them, and no two of one payer's take the same funds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import psycopg
import pytest
from flask import Flask
from psycopg import sql
from sqlalchemy import select
from sqlalchemy.engine import make_url
from werkzeug.test import TestResponse

from app.core.chains import ChainName
from app.core.money import usd_from_nanos
from app.db.unit_of_work import read_only_unit
from app.payments import jobs as payment_jobs
from app.payments import settlement_capacity, treasury
from app.payments.models import SettlementRisk
from app.wallets.core.models import Transaction
from sandbox.evm import EvmNode
from tests.support.applications import change_settings
from tests.support.chains import ether, evm_chain
from tests.support.logs import written_logs
from tests.support.payment_scenes import Scene, held_shop
from tests.support.payments import EvmPayer
from tests.support.smart_wallets import SafePayer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.chain
BASE = ChainName.BASE
KEYS = 3


def settlers() -> list[str]:
    return [each.address_on(BASE) for each in treasury.submitters(BASE)]


def submitted() -> Counter[str]:
    with read_only_unit() as session:
        return Counter(session.scalars(select(Transaction.from_address).where(Transaction.kind == "settlement")))


@pytest.fixture
def scene(build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode) -> Iterator[Scene]:
    with opened(build_app, sqlite_url, own_base_node) as made:
        yield made


def opened(build_app: Callable[..., Flask], url: str, node: EvmNode, keys: int = KEYS) -> Any:
    return held_shop(build_app, url, node, evm_chain(node), x402_settlement_keys=keys)


def fund(node: EvmNode, *addresses: str) -> None:
    for each in addresses:
        node.fund_eth(each, ether(1))


def test_open_payments_are_spread_evenly_and_all_of_them_land(scene: Scene, own_base_node: EvmNode) -> None:
    first, *others = settlers()
    fund(own_base_node, *others)
    paid = []
    for _ in range(2 * KEYS):
        scene.hold()
        headers = EvmPayer(own_base_node).pays(scene.shop.ask())
        assert scene.shop.ask(headers).status_code == 503
        paid.append(headers)
    assert submitted() == dict.fromkeys((first, *others), 2)
    scene.land()
    assert [scene.shop.ask(headers).status_code for headers in paid] == [200] * len(paid)


def test_a_key_without_gas_is_passed_over_and_reported(scene: Scene, own_base_node: EvmNode) -> None:
    first, second, third = settlers()
    fund(own_base_node, third)
    for _ in range(4):
        scene.hold()
        assert scene.shop.ask(EvmPayer(own_base_node).pays(scene.shop.ask())).status_code == 503
    assert submitted() == {first: 2, third: 2}
    with written_logs() as logs:
        payment_jobs.check_gas_reserves()
    assert [each["address"] for each in logs() if each["event"] == "settlement_gas_low"] == [second]
    with read_only_unit() as session:
        # The key that has least is the one that needs attention.
        assert [each.submissions_left for each in settlement_capacity.reserves(session)] == [0]


def test_what_remains_on_a_further_key_can_be_withdrawn(scene: Scene, own_base_node: EvmNode) -> None:
    second = settlers()[1]
    fund(own_base_node, second)
    runner, to = scene.shop.app.test_cli_runner(), scene.shop.recipient(BASE)
    order = ("--chain", "base", "--to", to, "--amount", "0.5", "--currency", "ETH", "--from", "settlement-2")
    assert runner.invoke(args=["treasury", "withdraw", *order]).exit_code == 0
    assert second in runner.invoke(args=["treasury", "show"]).output


def racing(scene: Scene, url: str, table: str, *headers: dict[str, str]) -> list[str]:
    """Present payments at once, which all read before any writes to the table. Return the reasons of the answers."""
    facilitator, drafted = scene.shop.app.state.ports.facilitators[BASE], Barrier(len(headers), timeout=60)
    real = facilitator.draft_settlement

    def draft(*arguments: Any, **named: Any) -> Any:
        made = real(*arguments, **named)
        # Until now the chain was read, which takes a while; a lock is waited for some seconds only.
        drafted.wait()
        return made

    facilitator.draft_settlement = draft
    dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with (
        ThreadPoolExecutor(len(headers)) as threads,
        psycopg.connect(dsn) as locking,
        psycopg.connect(dsn, autocommit=True) as watching,
    ):
        locking.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(sql.Identifier(table)))
        answers = threads.map(lambda each, path: scene.shop.ask(each, path=path), headers, PATHS)
        wait_until(lambda: watching.execute(waiting).fetchone() == (len(headers),))
        locking.rollback()
        return [reason(each) for each in answers]


def reason(answer: TestResponse) -> str:
    found: str = answer.get_json().get("details", {}).get("reason") or answer.get_json()["code"]
    return found


PATHS = tuple(f"/v1/gateway/brave/web/search?q={number}" for number in range(3))


@pytest.fixture
def racetrack(build_app: Callable[..., Flask], postgres_url: str, own_base_node: EvmNode) -> Iterator[Scene]:
    """A shop with a key for each payment and more, all with gas."""
    with opened(build_app, postgres_url, own_base_node, 8) as made:
        fund(own_base_node, *settlers())
        yield made


@pytest.mark.postgres
def test_payments_of_one_balance_that_race_on_several_keys_are_not_submitted_together(
    racetrack: Scene, postgres_url: str, own_base_node: EvmNode
) -> None:
    payer = EvmPayer(own_base_node, dollars=0.015)
    headers = [payer.pays(racetrack.shop.ask(path=path)) for path in PATHS]
    racetrack.hold()
    found = Counter(racing(racetrack, postgres_url, "payments", *headers))
    assert found == {"settlement_pending": 1, "funds_in_use": len(PATHS) - 1}
    assert racetrack.submissions() == 1


@pytest.mark.postgres
def test_risky_payments_that_race_on_several_keys_share_one_budget(
    racetrack: Scene, postgres_url: str, own_base_node: EvmNode
) -> None:
    racetrack.hold()
    shop, safe = racetrack.shop, SafePayer(own_base_node, is_deployed=True)
    assert shop.ask(safe.pays(shop.ask())).status_code == 503
    with read_only_unit() as session:
        [first] = session.scalars(select(SettlementRisk))
    # Enough for one more; the fee falls in empty blocks.
    change_settings(shop.app, x402_failed_gas_usd_per_day=usd_from_nanos(2 * first.cost_nanos))
    payers = [SafePayer(own_base_node, is_deployed=True) for _ in PATHS]
    headers = [payer.pays(shop.ask(path=path)) for payer, path in zip(payers, PATHS, strict=True)]
    found = Counter(racing(racetrack, postgres_url, "settlement_risks", *headers))
    assert found == {"settlement_pending": 1, "risky_payments_paused": len(PATHS) - 1}
