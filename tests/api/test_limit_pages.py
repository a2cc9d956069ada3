"""The pages on which an owner sets limits and names addresses: previews, presets, names and warnings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from eth_utils.address import to_checksum_address
from flask import Flask
from sqlalchemy import update
from werkzeug.test import TestResponse

from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.owner.address_names import AddressName
from app.wallets.core.lifecycle import MovementStatus
from tests.support.fake_shopper import FakeShopper
from tests.support.owner_world import RECIPIENT, World
from tests.support.owners import Owner, person

ALICE = str(to_checksum_address("0x51a5000000000000000000000000000000005d9f"))
TWIN = str(to_checksum_address("0x51a5ffff00000000000000000000000000005d9f"))
USUAL = {"per_tx_limit_usd": "50", "daily_limit_usd": "100", "weekly_limit_usd": "500", "monthly_limit_usd": "1000"}


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Iterator[Flask]:
    """An application on SQLite, or on the databases that a test names."""
    url = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")
    build: Callable[..., Flask] = request.getfixturevalue("build_app")
    made = build(url, shopper=FakeShopper())
    with made.app_context():
        yield made


on_each_database = pytest.mark.parametrize(
    "app", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


@pytest.fixture
def world(app: Flask) -> World:
    return World(app, "", {})


def owned(app: Flask, made: dict[str, Any]) -> tuple[Owner, str, str]:
    """Return the owner of an agent, and the addresses of its limits and its address book."""
    ada, path = person(app), f"/owner/agents/{made['agentId']}"
    ada.claim(made)
    return ada, f"{path}/wallets/{made['wallet']['id']}/limits", f"{path}/addresses"


def decisions(page: TestResponse) -> dict[str, tuple[str, str]]:
    """Return the number of payments by decision, under the limits in force and the new ones."""
    rows = re.findall(r'<th scope="row">([^<]+)</th><td class="number">(\d+).*?<td class="number">(\d+)', page.text)
    return {name.split()[0]: (before, after) for name, before, after in rows}


@on_each_database
def test_a_change_is_compared_with_the_payments_of_thirty_days_before_it_is_saved(world: World, app: Flask) -> None:
    with time_machine.travel(clock.now() - timedelta(days=50), tick=False):
        made = world.register(name="Buyer")
    for days, dollars in ((40, 45), (20, 40), (3, 30), (2, 4)):
        at = clock.now() - timedelta(days=days)
        with_time = {"created_at": at, "amount_units": dollars * 10**6, "cost_nanos": dollars * 10**9}
        recipient = RECIPIENT if days > 30 else ALICE
        world.add_transaction(made, id=new_id(), to_address=recipient, **with_time)
    world.buy(made)
    ada, limits, _ = owned(app, made)
    review = ada.send(ada.get(limits), limits, **{**USUAL, "per_tx_limit_usd": "35"}, step="review")
    assert review.status_code == 200
    assert decisions(review) == {"Stopped": ("0", "1"), "Waits": ("0", "0"), "Paid": ("4", "3")}
    assert "Decided otherwise" in review.text
    assert "owner key" not in review.text.split("</form>")[1]
    assert 'value="35"' in review.text
    page = ada.send(ada.get(limits), limits, **USUAL, approve_new_recipients="on", step="review")
    assert decisions(page) == {"Stopped": ("0", "0"), "Waits": ("0", "1"), "Paid": ("4", "3")}
    page = ada.send(ada.get(limits), limits, **USUAL, approve_new_domains="on", step="review")
    assert decisions(page)["Waits"] == ("0", "1")
    page = ada.send(ada.get(limits), limits, **USUAL, allowed_domains="elsewhere.example", step="review")
    assert decisions(page)["Stopped"] == ("0", "1")
    # Nothing was saved.
    assert "There is nothing to save" in ada.send(ada.get(limits), limits, **USUAL, step="review").text
    looser = ada.send(ada.get(limits), limits, **{**USUAL, "per_tx_limit_usd": ""}, step="review")
    assert "needs your owner key" in looser.text


def test_what_waits_for_the_owner_is_compared_too(world: World, app: Flask) -> None:
    made = world.register(name="Buyer")
    ada, limits, _ = owned(app, made)
    assert ada.send(ada.get(limits), limits, **USUAL, approval_threshold_usd="5").status_code == 303
    world.order(made)
    page = ada.send(ada.get(limits), limits, **USUAL, step="review", owner_key=ada.key)
    assert decisions(page) == {"Stopped": ("0", "0"), "Waits": ("1", "0"), "Paid": ("0", "1")}


@pytest.mark.parametrize(
    ("preset", "fields"),
    [
        ("careful", {"per_tx_limit_usd": "10", "monthly_limit_usd": "100", "approval_threshold_usd": "5"}),
        ("normal", {"per_tx_limit_usd": "50", "monthly_limit_usd": "1000", "approval_threshold_usd": ""}),
        ("free", {"per_tx_limit_usd": "", "monthly_limit_usd": "", "approval_threshold_usd": ""}),
    ],
)
def test_a_preset_fills_the_form_keeps_the_lists_and_saves_nothing(
    world: World, app: Flask, preset: str, fields: dict[str, str]
) -> None:
    made = world.register(name="Buyer")
    ada, limits, _ = owned(app, made)
    assert ada.send(ada.get(limits), limits, **USUAL, allowed_addresses=RECIPIENT).status_code == 303
    page = ada.get(f"{limits}?preset={preset}")
    for name, value in fields.items():
        assert f'id="{name}" name="{name}" value="{value}"' in page.text
    assert page.text.lower().count(RECIPIENT.lower()) >= 2
    assert ('name="approve_new_recipients" value="on" checked' in page.text) is (preset != "free")
    assert 'value="50"' in ada.get(limits).text


@on_each_database
def test_only_the_owner_key_names_an_address_and_the_name_is_shown_for_its_network(world: World, app: Flask) -> None:
    made, other = world.register(name="Buyer"), world.register(name="Other")
    for chain in ("base", "ethereum"):
        world.add_transaction(made, to_address=ALICE, chain=chain)
    ada, limits, book = owned(app, made)
    eve, _, hers = owned(app, other)
    typed = {"name": "Alice & Söhne", "address": ALICE, "chain": "base"}
    assert ada.send(ada.get(book), book, **typed).status_code == 403
    assert ada.send(ada.get(book), book, **typed, owner_key=made["apiKey"]).status_code == 403
    assert ada.send(ada.get(book), book, **{**typed, "name": " "}, owner_key=ada.key).status_code == 400
    assert ada.send(ada.get(book), book, **{**typed, "chain": "solana"}, owner_key=ada.key).status_code == 400
    assert ada.send(ada.get(book), book, **typed, owner_key=ada.key).status_code == 303
    assert eve.get(book).status_code == 404
    assert eve.send(eve.get(hers), hers, **typed, owner_key=ada.key).status_code == 403
    assert ada.get(book).text.count("Alice &amp; Söhne") == 2
    activity = ada.get(f"/owner/agents/{made['agentId']}/activity").text
    assert activity.count("Alice &amp; Söhne") == 1
    renamed = {**typed, "name": "Bob", "owner_key": ada.key}
    assert ada.send(ada.get(book), book, **renamed).status_code == 303
    assert "Alice" not in ada.get(book).text
    assert ada.send(ada.get(limits), limits, **USUAL, allowed_addresses=ALICE).status_code == 303
    assert '<bdi>Bob</bdi></strong> <span class="badge">Ethereum and Base' in ada.get(limits).text
    with unit_of_work() as session:
        session.execute(update(AddressName).values(name="Mallory", mac="forged"))
    assert "Mallory" not in ada.get(limits).text
    with unit_of_work() as session:
        session.query(AddressName).delete()


def test_a_name_is_removed_without_the_owner_key(world: World, app: Flask) -> None:
    made = world.register(name="Buyer")
    ada, _, book = owned(app, made)
    ada.send(ada.get(book), book, name="Alice", address=ALICE, chain="base", owner_key=ada.key)
    page = ada.get(book)
    assert ada.send(page, f"{book}/remove").status_code == 303
    assert "Alice" not in ada.get(book).text


def test_addresses_that_look_like_known_ones_are_shown_before_they_are_named_or_allowed(
    world: World, app: Flask
) -> None:
    made = world.register(name="Buyer")
    world.add_transaction(made, to_address=ALICE, status=MovementStatus.CONFIRMED)
    ada, limits, book = owned(app, made)
    typed = {"name": "Alice", "address": TWIN, "chain": "base", "owner_key": ada.key}
    warned = ada.send(ada.get(book), book, **typed)
    assert (warned.status_code, "looks almost the same" in warned.text) == (400, True)
    assert ALICE.lower() in warned.text.lower()
    assert ada.send(warned, book, **typed).status_code == 303
    page = ada.send(ada.get(limits), limits, **USUAL, allowed_addresses=TWIN, step="review")
    assert "looks almost like" not in page.text
    other = TWIN.lower().replace("ffff", "eeee")
    page = ada.send(ada.get(limits), limits, **USUAL, allowed_addresses=f"{ALICE} {other}", step="review")
    # Also the one that was paid before: it was the agent's choice.
    assert page.text.count("looks almost like") == 2
