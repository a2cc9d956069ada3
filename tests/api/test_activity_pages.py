"""The activity of an agent on its owner's pages: one timeline, filters, details, CSV and isolation."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask

from app.core.identifiers import new_id
from app.wallets.core.lifecycle import MovementStatus
from tests.support.fake_shopper import PNG, FakeShopper
from tests.support.owner_world import World
from tests.support.owners import Owner, person

_CALLS = re.compile(
    r"(?:Calls to <bdi>|Service fee for web )(\w+)(?:</bdi>)?</span></span>"
    r"\s*<span class=\"ledger-amount\">−(\S+)</span>"
)
START = datetime(2026, 11, 20, 12, tzinfo=UTC)


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


def owned(app: Flask, made: dict[str, Any]) -> tuple[Owner, str]:
    ada = person(app)
    ada.claim(made)
    return ada, f"/owner/agents/{made['agentId']}/activity"


def links(text: str) -> list[str]:
    """Return the ids that the entries of a page link to, in their order."""
    return re.findall(r'class="ledger-line" href="/owner/agents/[^/]+/(?:activity|purchases)/([^"]+)"', text)


@on_each_database
def test_a_timeline_merges_everything_and_its_pages_neither_repeat_nor_skip(world: World, app: Flask) -> None:
    made = world.register(name="Buyer")
    ids = [new_id() for _ in range(60)]
    for number, each in enumerate(ids):
        # Three at each instant.
        world.add_transaction(made, id=each, created_at=START - timedelta(hours=number // 3), cost_nanos=0)
    with time_machine.travel(START - timedelta(minutes=30)):
        ids.insert(3, world.buy(made))
    for days, provider in ((0, "openai"), (0, "openai"), (1, "brave")):
        world.charge_call(made, provider, 10**7, START - timedelta(days=days))
    ada, path = owned(app, made)
    with time_machine.travel(START + timedelta(days=1)):
        page, shown, calls = ada.get(path), [], []
        for _ in range(9):
            shown += links(page.text)
            calls += _CALLS.findall(page.text)
            older = re.search(r'rel="next" href="([^"]+)"', page.text)
            if older is None:
                break
            page = ada.get(older[1].replace("&amp;", "&"))
    assert sorted(shown) == sorted(ids)
    assert shown.index(ids[3]) == 3
    assert sorted(calls) == [("brave", "$0.01"), ("openai", "$0.02"), ("shops", "$0.25")]


@on_each_database
def test_filters_find_by_kind_status_network_day_and_text(world: World, app: Flask) -> None:
    made = world.register(name="Buyer")
    named = {}
    for number, (name, facts) in enumerate(
        {
            "sent": {"to_address": "0x51a5000000000000000000000000000000005d9f"},
            "failed": {"status": MovementStatus.FAILED, "error": "reverted", "chain": "ethereum", "tx_hash": "0xfe"},
            "deposit": {"type": "funding", "cost_nanos": 0},
            "read": {"type": "trading_query", "chain": "perpdex", "to_address": "perpdex", "amount_units": 0},
            "swap": {"type": "swap", "output_currency": "ETH", "output_units": 10**16},
        }.items()
    ):
        named[name] = new_id()
        world.add_transaction(made, id=named[name], created_at=START - timedelta(days=number), **facts)
    with time_machine.travel(START - timedelta(hours=1)):
        named["shop"] = world.buy(made)
    world.charge_call(made, "openai", 10**7, START)
    ada, path = owned(app, made)
    everything = {"sent", "failed", "deposit", "swap", "shop"}
    with time_machine.travel(START + timedelta(hours=1)):
        for query, wanted in (
            ("", everything), ("kind=trading_query", {"read"}), ("kind=transfer", {"sent", "failed"}),
            ("kind=funding", {"deposit"}), ("kind=purchase", {"shop"}), ("status=failed", {"failed"}),
            ("chain=ethereum", {"failed"}),
            ("first=2026-11-19&last=2026-11-19", {"failed"}), ("last=2026-11-18", {"deposit", "swap"}),
            ("text=51A5", {"sent"}), ("text=0xfe", {"failed"}), ("text=shop.example", {"shop"}), ("text=pen", {"shop"}),
            ("text=%25", set()), ("kind=calls", set()), (f"wallet={made['wallet']['id']}", everything),
            ("kind=purchase&wallet=x", {"shop"}), ("kind=purchase&status=failed", set()),
            ("kind=x&status=x&chain=x&first=x&last=0001-01-01&before=9999-12-31", everything),
        ):  # fmt: skip
            page = ada.get(f"{path}?{query}")
            assert page.status_code == 200, query
            assert set(links(page.text)) == {named[each] for each in wanted}, query
        assert "openai" in ada.get(f"{path}?kind=calls").text
        assert "openai" not in ada.get(f"{path}?chain=base").text


def test_a_purchase_shows_its_price_coupon_delivery_and_pictures_to_its_owner_only(world: World, app: Flask) -> None:
    made, other = world.register(name="Buyer"), world.register(name="Other")
    purchase_id = world.buy(made, coupon_code="SPRING20", quantity=2)
    ada, path = owned(app, made)
    page = ada.get(f"/owner/agents/{made['agentId']}/purchases/{purchase_id}")
    for text in ("Pen at shop.example", "$29.00", "Shipping", "$5.00", "SPRING20", "Ordered"):
        assert text in page.text, text
    assert page.text.count(">Total<") == 1
    picture = re.search(r'<img src="([^"]+)"', page.text)
    assert picture
    shown = ada.get(picture[1])
    assert (shown.data, shown.mimetype, shown.headers["Cache-Control"]) == (PNG, "image/png", "no-store")
    eve, _ = owned(app, other)
    for address in (picture[1], f"/owner/agents/{other['agentId']}/purchases/{purchase_id}", path):
        assert eve.get(address).status_code == 404
    assert eve.get(picture[1].replace(made["agentId"], other["agentId"])).status_code == 404


def test_an_approval_of_a_purchase_shows_its_coupon_and_its_delivery_method(world: World, app: Flask) -> None:
    made = world.register(name="Buyer")
    ada, _ = owned(app, made)
    wallet = f"/v1/wallets/{made['wallet']['id']}/controls"
    assert world.call(made, "PUT", wallet, {"approval_threshold_usd": 5})[0] == 200
    answer = world.order(made, coupon_code="SPRING20", delivery_method="Parcel locker")
    page = ada.get(f"/owner/agents/{made['agentId']}/approvals/{answer['approval']['id']}")
    assert re.findall(r"<dt>(Coupon code|Delivery method)</dt><dd><bdi>(.*?)</bdi></dd>", page.text) == [
        ("Coupon code", "SPRING20"), ("Delivery method", "Parcel locker"),
    ]  # fmt: skip


def test_a_transaction_says_where_the_money_went_and_why_it_failed(world: World, app: Flask) -> None:
    made, other = world.register(name="Buyer"), world.register(name="Other")
    sent, failed = new_id(), new_id()
    world.add_transaction(made, id=sent, fee_units=21_000 * 10**9, amount_units=12_345_678)
    world.add_transaction(made, id=failed, status=MovementStatus.FAILED, error="insufficient_gas", tx_hash=None)
    ada, path = owned(app, made)
    assert "−12.35 USDC" in ada.get(path).text
    page = ada.get(f"{path}/{sent}").text
    for text in ("12.345678 USDC", "0.000021 ETH", "$12.50", "Base", made["wallet"]["addresses"]["base"]):
        assert text in page, text
    assert "enough of the chain&#39;s native token to pay the network fee" in ada.get(f"{path}/{failed}").text
    assert "enough of the chain&#39;s native token to pay the network fee" in ada.get(path).text
    eve, elsewhere = owned(app, other)
    assert eve.get(f"{elsewhere}/{sent}").status_code == 404


def test_the_activity_is_downloaded_without_formulas(world: World, app: Flask) -> None:
    made = world.register(name="Buyer")
    world.add_transaction(made, amount_units=12_345_678, created_at=START)
    world.charge_call(made, "=cmd", 10**7, START)
    ada, path = owned(app, made)
    with time_machine.travel(START + timedelta(hours=1)):
        answer = ada.get(f"{path}?format=csv")
    assert answer.content_type == "text/csv; charset=utf-8"
    rows = {row["what"]: row for row in csv.DictReader(io.StringIO(answer.text, newline=""))}
    assert (rows["Transfer"]["amount"], rows["Transfer"]["value_usd"]) == ("12.345678", "12.5")
    assert (rows["Calls"]["with"], rows["Calls"]["calls"], rows["Calls"]["value_usd"]) == ("'=cmd", "1", "0.01")
