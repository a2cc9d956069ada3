"""The owner's pages in a browser without scripts, and attacks on them."""

from __future__ import annotations

import io
import re
import tracemalloc
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import func, select
from werkzeug.test import TestResponse

from app.core import clock
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.events import feed
from app.owner.session.sessions import OwnerSession
from app.platform import personal_data
from app.spending import accounts as spending_accounts
from app.spending import holds as spending_holds
from app.spending.policy import SpendingRequest
from app.usage import service as usage
from app.usage.service import MeteredUsage, UsageCall
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import MovementStatus
from app.wallets.core.models import Transaction
from tests.support.applications import change_settings
from tests.support.movements import count_as
from tests.support.operators import entries, operator
from tests.support.owners import OWNER_KEY, Owner, forms_of, person

UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"
EVERYWHERE = "0x00000000000000000000000000000000C0FFEE00"


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Iterator[Flask]:
    """An application on SQLite, or on the databases that a test names."""
    # The database first: it must be dropped last.
    url = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")
    made: Flask = request.getfixturevalue("build_app")(url)
    with made.app_context():
        yield made


on_each_database = pytest.mark.parametrize(
    "app", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


def register(app: Flask, **body: Any) -> dict[str, Any]:
    answer = app.test_client().post("/v1/agents/register", json=body)
    assert answer.status_code == 201
    registered: dict[str, Any] = answer.get_json()
    return registered


def owner_of(app: Flask, made: dict[str, Any], email: str = "") -> Owner:
    someone = person(app)
    someone.claim(made, email)
    return someone


def page_of(made: dict[str, Any]) -> str:
    return f"/owner/agents/{made['agentId']}"


def limits_of(made: dict[str, Any]) -> str:
    return f"{page_of(made)}/wallets/{made['wallet']['id']}/limits"


def request_payment(app: Flask, made: dict[str, Any], dollars: int) -> tuple[int, str]:
    """Request a payment from the trading account, where the limits are checked first."""
    body = {
        "walletId": made["wallet"]["id"], "action": "withdraw", "amount": str(dollars), "destination": EVERYWHERE,
    }  # fmt: skip
    answer = app.test_client().post("/v1/trading/perpdex", json=body, headers={"X-API-Key": made["apiKey"]})
    return answer.status_code, answer.get_json()["code"]


def test_an_owner_signs_in_sees_the_agent_and_signs_out(app: Flask) -> None:
    made = register(app, name="Ada's agent")
    key = owner_of(app, made, "ada@example.org").key
    ada = person(app)
    assert ada.get("/owner").headers["Location"].startswith("/owner/sign-in")
    signed_in = ada.sign_in(key)
    assert (signed_in.status_code, signed_in.headers["Location"]) == (303, page_of(made))
    page = ada.get(page_of(made))
    assert page.status_code == 200
    for shown in ("Ada&#39;s agent", "ada@example.org", "$100.00", "$500.00", "$1,000.00", "$10.00"):
        assert shown in page.text
    assert made["apiKey"] not in page.text
    cookie = ada.client.get_cookie("purser_owner")
    assert cookie
    out = ada.send(page, "/owner/sign-out")
    assert out.status_code == 303
    assert ada.get(page_of(made)).status_code == 303
    # Also for a copy of the cookie.
    thief = app.test_client()
    thief.set_cookie("purser_owner", cookie.value)
    assert thief.get(page_of(made)).status_code == 303


def test_the_owner_sees_and_revokes_keys_with_a_budget_of_this_agent_only(app: Flask) -> None:
    made = register(app)
    ada, headers = owner_of(app, made), {"X-API-Key": made["apiKey"]}
    body = {"name": "<b>research</b>", "limit_usd": 5, "window": "week"}
    issued = app.test_client().post("/v1/keys", json=body, headers=headers).get_json()
    page = ada.get(f"{page_of(made)}/keys")
    assert "&lt;b&gt;research&lt;/b&gt;" in page.text
    assert "$0.00 of $5.00 spent this week" in page.text
    assert issued["api_key"] not in page.text
    stranger = register(app)
    bob = owner_of(app, stranger)
    app.test_client().post("/v1/keys", json=body, headers={"X-API-Key": stranger["apiKey"]})
    theirs = bob.get(f"{page_of(stranger)}/keys")
    bob.send(theirs, f"{page_of(stranger)}/keys/revoke", key_id=issued["id"])

    def works() -> int:
        return app.test_client().get("/v1/balance", headers={"X-API-Key": issued["api_key"]}).status_code

    assert works() == 200
    assert ada.send(page, f"{page_of(made)}/keys/revoke", key_id=issued["id"]).status_code == 303
    assert works() == 401
    assert "Keys with a budget" not in ada.get(f"{page_of(made)}/keys").text
    # The first entries are of the recovery codes that the claims made.
    acts = [entry.action for entry in entries() if entry.actor_kind == "owner"]
    assert acts == ["agent.owner_changed"] * 2 + ["agent.key_revoked"]


@on_each_database
def test_a_session_ends_after_twelve_hours_and_is_then_deleted(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    later = clock.now() + timedelta(hours=12, seconds=1)
    with time_machine.travel(later - timedelta(minutes=1), tick=False):
        assert ada.get(page_of(made)).status_code == 200
    with time_machine.travel(later, tick=False):
        # A browser would have deleted the expired cookie; the server must not depend on it.
        copied = ada.client.get_cookie("purser_owner")
        thief = app.test_client()
        thief.set_cookie("purser_owner", copied.value if copied else "", max_age=99999)
        assert thief.get(page_of(made)).status_code == 303
    assert personal_data.prune("owner_sessions", later) == 1
    with read_only_unit() as session:
        assert session.scalar(select(func.count(OwnerSession.id))) == 0


def test_the_json_api_accepts_no_session_cookie(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    for path in ("/v1/wallets", "/v1/balance", f"/v1/wallets/{made['wallet']['id']}/controls"):
        assert ada.get(path).status_code == 401
    assert ada.client.put(f"/v1/wallets/{made['wallet']['id']}/controls", json={}).status_code == 401
    assert ada.get("/v1/platform/agents").status_code == 401


@on_each_database
def test_wrong_owner_keys_lock_the_network_but_not_claims(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    change_settings(app, device_miss_limit="3 per hour")
    eve = person(app)
    for wrong in ("", "ok_" + "A" * 43, made["apiKey"]):
        refused = eve.sign_in(wrong)
        assert refused.status_code == 403
        assert 'role="alert"' in refused.text
        assert wrong not in refused.text or not wrong
    locked = eve.sign_in(ada.key)
    assert locked.status_code == 429
    assert int(locked.headers["Retry-After"]) > 0
    assert "Set-Cookie" not in locked.headers or "purser_owner" not in str(locked.headers.getlist("Set-Cookie"))
    # A signed-in owner can still freeze, but not guess the key.
    page = ada.get(page_of(made))
    assert ada.send(page, f"{page_of(made)}/freeze").status_code == 303
    frozen = ada.get(page_of(made))
    assert "Too many wrong keys" in ada.send(frozen, f"{page_of(made)}/unfreeze", owner_key=ada.key).text
    assert request_payment(app, made, 1) == (403, "WALLET_FROZEN")
    other = register(app)
    assert person(app).claim(other).status_code == 200


def test_signing_in_never_continues_a_planted_session(app: Flask) -> None:
    mallory, victim = register(app, name="trap"), register(app)
    trap = owner_of(app, mallory)
    laid = trap.client.get_cookie("purser_owner")
    assert laid
    ada = owner_of(app, victim)
    # Mallory plants a session in the victim's browser before the victim signs in, adds and claims.
    caught = person(app)
    caught.client.set_cookie("purser_owner", laid.value)
    page = caught.get("/owner/add")
    added = caught.send(page, "/owner/add", owner_key=ada.key)
    assert added.status_code == 303
    assert trap.get(page_of(victim)).status_code == 303
    caught = person(app)
    token = forms_of(caught.get("/owner/sign-in"))["/owner/sign-in"]
    caught.client.set_cookie("purser_owner", laid.value)
    assert caught.client.post("/owner/sign-in", data={**token, "owner_key": ada.key}).status_code == 303
    assert trap.get(page_of(victim)).status_code == 303
    assert caught.get(page_of(victim)).status_code == 200
    assert caught.get(page_of(mallory)).status_code == 404


def test_a_form_without_its_csrf_token_changes_nothing(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    eve = owner_of(app, register(app))
    page = ada.get(page_of(made))
    tokens = [
        "",
        forms_of(eve.get("/owner/add"))["/owner/add"]["csrf_token"],
        forms_of(ada.get("/device"))["/device"]["csrf_token"],
        "[]",
    ]
    good = forms_of(page)[f"{page_of(made)}/freeze"]["csrf_token"]
    for path in ("freeze", "lock", "keys/rotate", f"wallets/{made['wallet']['id']}/limits"):
        for token in tokens:
            answer = ada.client.post(f"{page_of(made)}/{path}", data={"csrf_token": token, "owner_key": ada.key})
            assert answer.status_code == 403
        answer = ada.client.post(
            f"{page_of(made)}/{path}",
            data={"csrf_token": good, "owner_key": ada.key},
            headers={"Sec-Fetch-Site": "same-site"},
        )
        assert answer.status_code == 403
    assert request_payment(app, made, 1)[0] == 501
    # A page opened before the session's token changed still belongs to the session.
    assert ada.client.post("/owner/sign-out", data={"csrf_token": "x"}).status_code == 403
    assert ada.get(page_of(made)).status_code == 200


def test_signing_in_never_redirects_to_another_site(app: Flask) -> None:
    made = register(app)
    key = owner_of(app, made).key
    for hostile in (
        "https://evil.example", "//evil.example", "/\\evil.example", "/owner/../evil", "/owner/agents/x",
        "javascript:alert(1)", "/v1/health", "\thttps://evil.example",
    ):  # fmt: skip
        someone = person(app)
        page = someone.get("/owner/sign-in", next=hostile)
        assert "evil" not in page.text
        assert "javascript" not in page.text
        answer = someone.sign_in(key, next=hostile)
        assert answer.headers["Location"] == page_of(made)
    someone = person(app)
    sent = someone.get(limits_of(made))
    assert sent.status_code == 303
    back = someone.send(someone.client.get(sent.headers["Location"]), "/owner/sign-in", owner_key=key)
    assert back.headers["Location"] == limits_of(made)


def test_pages_of_other_owners_are_not_found(app: Flask) -> None:
    mine, theirs = register(app), register(app)
    ada, bob = owner_of(app, mine), owner_of(app, theirs)
    wallet = theirs["wallet"]["id"]
    for path in (
        page_of(theirs), f"{page_of(theirs)}/keys", limits_of(theirs),
        f"{page_of(mine)}/wallets/{wallet}", f"{page_of(mine)}/wallets/{wallet}/limits",
        f"{page_of(theirs)}/activity", f"/owner/agents/{UNKNOWN_ID}", "/owner/agents/x/keys",
    ):  # fmt: skip
        answer = ada.get(path)
        assert answer.status_code == 404
        assert answer.mimetype == "text/html"
        assert theirs["agentId"] not in answer.text
    token = forms_of(ada.get(page_of(mine)))[f"{page_of(mine)}/freeze"]
    data = {**token, "owner_key": ada.key, "daily_limit_usd": "1"}
    for path in (
        f"{page_of(theirs)}/freeze", f"{page_of(theirs)}/lock", f"{page_of(theirs)}/keys/show",
        f"{page_of(theirs)}/keys/rotate", f"{page_of(mine)}/wallets/{wallet}/limits", limits_of(theirs),
    ):  # fmt: skip
        assert ada.client.post(path, data=data).status_code == 404
    assert request_payment(app, theirs, 1)[0] == 501
    assert bob.get(page_of(theirs)).status_code == 200


def test_an_email_address_gives_access_to_no_agent(app: Flask) -> None:
    victim, trap = register(app, email="ada@example.org"), register(app, email="ada@example.org")
    owner_of(app, victim, "ada@example.org")
    mallory = owner_of(app, trap, "ada@example.org")
    assert mallory.get(page_of(victim)).status_code == 404
    assert mallory.get("/owner").headers["Location"] == page_of(trap)


@on_each_database
def test_a_session_lists_claimed_and_added_agents(app: Flask) -> None:
    first, second, third = (register(app, name=f"agent {n}") for n in (1, 2, 3))
    elsewhere = owner_of(app, third)
    ada = owner_of(app, first, "ada@example.org")
    ada.claim(second, "ada@example.org")
    page = ada.get("/owner")
    assert page.status_code == 200
    assert "agent 1" in page.text
    assert "agent 2" in page.text
    assert "agent 3" not in page.text
    assert ada.send(ada.get("/owner/add"), "/owner/add", owner_key=elsewhere.key).status_code == 303
    assert "agent 3" in ada.get("/owner").text
    wrong = ada.send(ada.get("/owner/add"), "/owner/add", owner_key="ok_" + "B" * 43)
    assert wrong.status_code == 403


def test_the_list_of_agents_shows_what_each_spent_today_and_which_is_frozen(app: Flask) -> None:
    first, second = register(app, name="Quiet"), register(app, name="Busy")
    ada = owner_of(app, first)
    ada.claim(second)
    with unit_of_work() as session:
        spending_holds.hold(session, second["wallet"]["id"], SpendingRequest(12_345 * 10**6), reference="a movement")
    ada.send(ada.get(page_of(first)), f"{page_of(first)}/freeze")
    lines = re.findall(r"<li>(.*?)</li>", ada.get("/owner").text, re.DOTALL)
    [quiet, busy] = sorted(lines, key=lambda line: "Busy" in line)
    assert ("$0.00" in quiet, "Frozen" in quiet) == (True, True)
    assert ("$12.35" in busy, "Frozen" in busy) == (True, False)


@pytest.mark.parametrize(
    ("place", "tab"),
    [
        ("", "Overview"), ("/activity", "Activity"), ("/approvals", "Approvals"), ("/limits", "Limits"),
        ("/notices", "Notices"), ("/connections", "Connections"), ("/keys", "Keys"), ("/passkeys", "Keys"),
    ],
)  # fmt: skip
def test_each_page_of_an_agent_marks_its_tab_and_links_to_the_others(app: Flask, place: str, tab: str) -> None:
    made = register(app)
    ada = owner_of(app, made)
    page = ada.client.get(page_of(made) + place, follow_redirects=True)
    bar = re.findall(r'<nav class="agent-tabs".*?</nav>', page.text, re.DOTALL)[0]
    tabs = re.findall(r'<a href="([^"]+)"( aria-current="page")?>(\w+)', bar)
    assert [name for _, current, name in tabs if current] == [tab]
    for path, _, _ in tabs:
        assert ada.client.get(path, follow_redirects=True).status_code == 200
    assert "agent-tabs" not in ada.get("/owner/sessions").text


def test_the_overview_begins_with_what_is_unusual(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    assert "Needs your attention" not in ada.get(page_of(made)).text
    mine = {"X-API-Key": made["apiKey"]}
    controls = f"/v1/wallets/{made['wallet']['id']}/controls"
    for dollars in (400, 300):
        assert app.test_client().put(controls, json={"daily_limit_usd": dollars}, headers=mine).status_code == 200
    with unit_of_work() as session:
        failed = Transaction(
            id=UNKNOWN_ID, wallet_id=made["wallet"]["id"], type="transfer", chain="base", from_address=EVERYWHERE,
            to_address=EVERYWHERE, amount_units=12_500_000, currency="USDC", error="reverted", cost_nanos=0,
            created_at=clock.now(), checks=0,
        )  # fmt: skip
        spending_accounts.lock_account(session, failed.wallet_id)
        lifecycle.record(session, failed, status=MovementStatus.FAILED)
        count_as(session, failed.id, MovementStatus.FAILED)
        usage.charge(
            session, made["agentId"], UsageCall(UNKNOWN_ID, "openai", "m"), charge_id=UNKNOWN_ID,
            metered=MeteredUsage(9_500_000_000),
        )  # fmt: skip
    assert app.test_client().put(controls, json={"daily_limit_usd": 500}, headers=mine).status_code == 200
    feed.number_all()
    page = ada.get(page_of(made)).text
    attention = re.findall(r'<section class="card incidents".*?</section>', page, re.DOTALL)[0]
    for shown in (
        "A day: from $300.00 to $500.00.", "A day: from $100.00 to $400.00.", "Did not pay 12.50 USDC to",
        "The transaction was executed and reverted; only the network fee was spent.",
        "Credits run low.</strong> $0.50 are left",
    ):  # fmt: skip
        assert shown in attention
    # A tightened limit is no surprise.
    assert "to $300.00" not in attention
    assert page.index("Needs your attention") < page.index(">Balance")


@on_each_database
def test_loosening_limits_requires_the_owner_key_and_tightening_does_not(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    assert request_payment(app, made, 20)[0] == 501

    def save(**fields: str) -> tuple[int, str]:
        values = {"per_tx_limit_usd": "10", "daily_limit_usd": "100", "weekly_limit_usd": "500"}
        answer = ada.send(
            ada.get(limits_of(made)), limits_of(made), **{**values, "monthly_limit_usd": "1,000", **fields}
        )
        return answer.status_code, answer.text

    assert save()[0] == 303
    assert "The agent can still raise them itself" in ada.get(f"{page_of(made)}?done=limits").text
    assert request_payment(app, made, 20) == (403, "PER_TX_LIMIT_EXCEEDED")
    looser = {"per_tx_limit_usd": "30.5"}
    status, text = save(**looser)
    assert (status, 'value="30.5"' in text) == (403, True)
    assert save(**looser, owner_key="ok_" + "C" * 43)[0] == 403
    assert save(per_tx_limit_usd="")[0] == 403
    assert save(**looser, owner_key=made["apiKey"])[0] == 403
    assert request_payment(app, made, 20) == (403, "PER_TX_LIMIT_EXCEEDED")
    assert save(**looser, owner_key=ada.key)[0] == 303
    assert request_payment(app, made, 20)[0] == 501
    assert request_payment(app, made, 31) == (403, "PER_TX_LIMIT_EXCEEDED")
    elsewhere = "0x000000000000000000000000000000000000bEEF"
    assert save(**looser, allowed_addresses=f"{elsewhere}\n\n", allowed_domains="Shop.Example.com")[0] == 303
    assert request_payment(app, made, 20) == (403, "ADDRESS_NOT_ALLOWED")
    assert "shop.example.com" in ada.get(limits_of(made)).text
    # Clearing both lists is a loosening, too.
    assert save(**looser)[0] == 403
    noted = [entry for entry in entries() if entry.action == "agent.controls_set"]
    assert {entry.actor_kind for entry in noted} == {"owner"}
    assert len(noted) == 3


def test_the_longest_allowlists_are_saved_in_full(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    host = ".".join(["a" * 60] * 3)
    domains = [f"shop-{number}.{host}.example" for number in range(500)]
    path = f"/v1/wallets/{made['wallet']['id']}/controls"
    key = {"X-API-Key": made["apiKey"]}
    assert app.test_client().put(path, json={"allowed_domains": domains}, headers=key).status_code == 200
    answer = ada.send(
        ada.get(limits_of(made)), limits_of(made), per_tx_limit_usd="49", allowed_domains="\r\n".join(domains),
        daily_limit_usd="100", weekly_limit_usd="500", monthly_limit_usd="1000",
    )  # fmt: skip
    assert answer.status_code == 303
    saved = app.test_client().get(path, headers=key).get_json()
    assert saved["controls"]["allowed_domains"] == domains


def test_an_oversized_form_is_refused_before_it_is_decoded(app: Flask) -> None:
    hostile = {"content_type": "application/x-www-form-urlencoded"}
    anonymous = app.test_client()
    for path in ("/device", "/device/claim", "/owner/sign-in"):
        assert anonymous.post(path, data="a&" * 9_000, **hostile).status_code == 413
    made = register(app)
    ada = owner_of(app, made)
    assert ada.client.post(limits_of(made), data="a&" * 140_000, **hostile).status_code == 413


def test_invalid_values_are_reported_next_to_their_fields_and_nothing_is_saved(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    answer = ada.send(
        ada.get(limits_of(made)), limits_of(made), per_tx_limit_usd="ten", daily_limit_usd="-1",
        weekly_limit_usd="1e3", monthly_limit_usd="99999999999", allowed_addresses="0x12\n" + EVERYWHERE,
        allowed_domains="https://shop.example/x",
    )  # fmt: skip
    assert answer.status_code == 400
    assert answer.text.count('class="problem"') == 6
    assert 'value="ten"' in answer.text
    assert "$50.00" in ada.get(page_of(made)).text


@pytest.mark.parametrize("typed", ["12,50", "1,5", "1,2345", "1,234,5.00", ",500"])
def test_a_decimal_comma_never_raises_a_limit_a_hundredfold(app: Flask, typed: str) -> None:
    made = register(app)
    ada = owner_of(app, made)
    # With the owner key, so that only the invalid number can be the reason.
    answer = ada.send(ada.get(limits_of(made)), limits_of(made), daily_limit_usd=typed, owner_key=ada.key)
    assert answer.status_code == 400
    assert "Enter an amount in dollars" in answer.text


def test_lock_and_freeze_bind_the_agent_and_are_undone_only_with_the_owner_key(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    mine = {"X-API-Key": made["apiKey"]}
    controls = f"/v1/wallets/{made['wallet']['id']}/controls"
    page = ada.get(page_of(made))
    assert ada.send(page, f"{page_of(made)}/lock").headers["Location"] == f"{page_of(made)}?done=locked"
    raised = app.test_client().put(controls, json={"daily_limit_usd": 5000}, headers=mine)
    assert (raised.status_code, raised.get_json()["code"]) == (403, "CONTROLS_LOCKED")
    page = ada.get(page_of(made))
    assert ada.send(page, f"{page_of(made)}/freeze").status_code == 303
    assert request_payment(app, made, 1) == (403, "WALLET_FROZEN")
    frozen = ada.get(page_of(made))
    for deed, sentence in (("unfreeze", "Unfreeze agent"), ("unlock", "Unlock limits")):
        path = f"{page_of(made)}/{deed}"
        for wrong in ("", "ok_" + "D" * 43):
            refused = ada.send(frozen, path, owner_key=wrong)
            assert refused.status_code == 403
            assert sentence in refused.text
        if deed == "unfreeze":
            assert request_payment(app, made, 1) == (403, "WALLET_FROZEN")
        assert ada.send(refused, path, owner_key=f" {ada.key}\n").status_code == 303
    assert request_payment(app, made, 1)[0] == 501
    assert app.test_client().put(controls, json={"daily_limit_usd": 5000}, headers=mine).status_code == 200


def test_a_lock_sets_default_limits_and_the_page_announces_them(app: Flask) -> None:
    made = register(app)
    mine = {"X-API-Key": made["apiKey"]}
    client = app.test_client()
    bare = client.post("/v1/wallets", json={"name": "Bare"}, headers=mine).get_json()["id"]
    zero = client.post("/v1/wallets", json={"name": "Zero"}, headers=mine).get_json()["id"]
    client.put(f"/v1/wallets/{zero}/controls", json={"daily_limit_usd": 0}, headers=mine)
    ada = owner_of(app, made)
    page = ada.get(page_of(made))
    assert "No limits are set for <bdi>Bare</bdi>. The lock sets the default limits: $50.00 per" in page.text
    assert "No dollar limit is set for <bdi>Zero</bdi>" in page.text
    ada.send(page, f"{page_of(made)}/lock")
    locked = ada.get(page_of(made)).text
    assert "Bare</bdi>. The lock" not in locked
    assert "No dollar limit is set for <bdi>Zero</bdi>" in locked
    raised = client.put(f"/v1/wallets/{bare}/controls", json={"daily_limit_usd": 101}, headers=mine)
    assert (raised.status_code, raised.get_json()["code"]) == (403, "CONTROLS_LOCKED")


def test_an_owner_cannot_undo_an_operators_freeze(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    ops = operator(app.test_client())
    freeze = forms_of(ada.get(page_of(made)))[f"{page_of(made)}/freeze"]
    unfreeze = {**freeze, "owner_key": ada.key}
    assert ops.post(f"/agents/{made['agentId']}/freeze").status_code == 200
    assert "Only the operator can unfreeze it" in ada.get(page_of(made)).text
    # Freezing it again must not make the freeze the owner's.
    assert ada.client.post(f"{page_of(made)}/freeze", data=freeze).status_code == 303
    assert ada.client.post(f"{page_of(made)}/unfreeze", data=unfreeze).status_code == 403
    assert request_payment(app, made, 1) == (403, "WALLET_FROZEN")
    assert ops.post(f"/agents/{made['agentId']}/unfreeze").status_code == 200
    assert request_payment(app, made, 1)[0] == 501


def test_keys_are_shown_and_replaced_only_with_the_owner_key(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    keys = f"{page_of(made)}/keys"
    page = ada.get(keys)
    assert made["apiKey"] not in page.text
    other = owner_of(app, register(app)).key
    for deed in ("show", "rotate", "replace-owner-key"):
        for wrong in ("", other, made["apiKey"]):
            refused = ada.send(page, f"{keys}/{deed}", owner_key=wrong)
            assert refused.status_code == 403
            assert not re.search(r"ak_[A-Za-z0-9_-]{43}", refused.text)
    assert made["apiKey"] in ada.send(page, f"{keys}/show", owner_key=ada.key).text
    rotated = ada.send(page, f"{keys}/rotate", owner_key=ada.key, grace="now")
    new = re.search(r"ak_[A-Za-z0-9_-]{43}", rotated.text)
    assert new
    assert new[0] != made["apiKey"]

    def works(key: str) -> int:
        return app.test_client().get("/v1/balance", headers={"X-API-Key": key}).status_code

    assert (works(new[0]), works(made["apiKey"])) == (200, 401)
    kept = ada.send(page, f"{keys}/rotate", owner_key=ada.key, grace="hour")
    assert works(new[0]) == 200
    assert "works until" in kept.text
    actions = {entry.action for entry in entries() if entry.actor_kind == "owner"}
    assert actions == {"agent.owner_changed", "agent.shown", "agent.key_rotated"}
    assert not any("ak_" in str((entry.before, entry.after)) for entry in entries())


@on_each_database
def test_a_replaced_owner_key_is_invalid_in_sessions_and_repeated_claims(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made, "ada@example.org")
    old = ada.key
    thief = person(app)
    assert thief.sign_in(old).status_code == 303
    keys = f"{page_of(made)}/keys"
    answer = ada.send(ada.get(keys), f"{keys}/replace-owner-key", owner_key=old)
    new = OWNER_KEY.search(answer.text)
    assert new
    assert new[0] != old
    assert thief.get(page_of(made)).status_code == 303
    assert person(app).sign_in(old).status_code == 403
    repeated = app.test_client().post("/v1/device/claim", json={"code": made["claimCode"], "email": "ada@example.org"})
    assert repeated.status_code == 409
    # The page that responded still works, and so does the new key.
    assert ada.send(answer, f"{keys}/show", owner_key=new[0]).status_code == 200
    assert person(app).sign_in(new[0]).status_code == 303


@pytest.mark.parametrize(
    "act", ["lock", "unlock", "freeze", "unfreeze", "keys/show", "keys/rotate", "limits", "sign in", "add"]
)
def test_the_owners_first_action_ends_the_repetition_of_the_claim(app: Flask, act: str) -> None:
    made = register(app)
    ada = owner_of(app, made, "ada@example.org")
    receipt = ada.client.get_cookie("purser_claim")
    assert receipt

    def repeat() -> TestResponse:
        body = {"code": made["claimCode"], "email": "ada@example.org", "claimReceipt": receipt.value}
        return app.test_client().post("/v1/device/claim", json=body)

    page, path = ada.get(page_of(made)), f"{page_of(made)}/{act}"
    assert repeat().get_json()["ownerKey"] == ada.key
    if act == "sign in":
        person(app).sign_in(ada.key)
    elif act == "add":
        bob = owner_of(app, register(app))
        bob.send(bob.get("/owner/add"), "/owner/add", owner_key=ada.key)
    elif act == "limits":
        ada.send(ada.get(limits_of(made)), limits_of(made), daily_limit_usd="1", owner_key=ada.key)
    else:
        token = {"csrf_token": forms_of(page)[f"{page_of(made)}/freeze"]["csrf_token"]}
        answer = ada.client.post(path, data={**token, "owner_key": ada.key})
        assert answer.status_code == (200 if act.startswith("keys/") else 303)
    refused = repeat()
    assert (refused.status_code, refused.get_json()["code"]) == (409, "ALREADY_CLAIMED")


def test_a_wrong_owner_key_does_not_end_the_repetition_of_the_claim(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    ada.send(ada.get(f"{page_of(made)}/keys"), f"{page_of(made)}/keys/show", owner_key="ok_" + "A" * 43)
    assert person(app).sign_in("ok_" + "A" * 43).status_code == 403
    key = ada.key
    assert key in ada.claim(made).text


def test_the_page_shows_repetitions_of_the_claim_until_the_owner_key_is_replaced(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made, "ada@example.org")
    assert "agent's claim was repeated" not in ada.get(page_of(made)).text
    body = {"code": made["claimCode"], "email": "ada@example.org"}
    for address in ("203.0.113.77", "2001:db8:0:1::9"):
        answer = app.test_client().post("/v1/device/claim", json=body, environ_overrides={"REMOTE_ADDR": address})
        assert answer.status_code == 200
    page = ada.get(page_of(made))
    assert "This agent's claim was repeated." in page.text
    assert "203.0.113.77: from another browser" in page.text
    assert "2001:db8:0:1::/64: from another browser" in page.text
    assert "and your owner key" not in page.text
    keys = f"{page_of(made)}/keys"
    ada.send(ada.get(keys), f"{keys}/replace-owner-key", owner_key=ada.key)
    assert "agent's claim was repeated" not in ada.get(page_of(made)).text


def test_an_operator_can_replace_a_lost_owner_key(app: Flask) -> None:
    made, unclaimed = register(app), register(app)
    ada = owner_of(app, made, "ada@example.org")
    done = app.test_cli_runner().invoke(args=["owner-keys", "replace", made["agentId"]])
    new = OWNER_KEY.search(done.stdout)
    assert new
    assert new[0] != ada.key
    assert ada.get(page_of(made)).status_code == 303
    assert person(app).sign_in(ada.key).status_code == 403
    assert person(app).sign_in(new[0]).status_code == 303
    assert [entry.actor_kind for entry in entries(action="agent.owner_key_replaced")] == ["command"]
    for unknown_id in (unclaimed["agentId"], UNKNOWN_ID, "x"):
        assert app.test_cli_runner().invoke(args=["owner-keys", "replace", unknown_id]).exit_code == 1


@on_each_database
def test_other_sessions_of_an_agent_can_be_ended(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    other_owner = owner_of(app, register(app))
    elsewhere = person(app)
    elsewhere.sign_in(ada.key)
    page = ada.get("/owner/sessions")
    assert page.text.count("Another browser") == 1
    assert ada.send(page, "/owner/sessions/end-others").status_code == 303
    assert elsewhere.get("/owner").headers["Location"].startswith("/owner/sign-in")
    assert ada.get(page_of(made)).status_code == 200
    assert other_owner.get("/owner/sessions").status_code == 200


def test_deleting_an_agent_ends_its_owners_session(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    assert operator(app.test_client()).delete(f"/agents/{made['agentId']}").status_code == 200
    assert ada.get(page_of(made)).status_code == 303
    assert person(app).sign_in(ada.key).status_code == 403


def test_names_are_escaped_in_pages(app: Flask) -> None:
    hostile = "<img src=x onerror=alert(1)>\"'{{7*7}}"
    made = register(app, name=hostile)
    mine = {"X-API-Key": made["apiKey"]}
    wallet = app.test_client().post("/v1/wallets", json={"name": hostile}, headers=mine).get_json()
    with unit_of_work() as session:
        usage.charge(
            session,
            made["agentId"],
            UsageCall(UNKNOWN_ID, hostile, hostile),
            charge_id=UNKNOWN_ID,
            metered=MeteredUsage(10**9, 3, 4),
        )
    looked = person(app)
    form = looked.send(looked.get("/device"), "/device", code=made["claimCode"])
    ada = person(app)
    pages = [form, ada.claim(made)]
    path = page_of(made)
    pages += [
        ada.get(at)
        for at in (
            path, f"{path}/wallets/{wallet['id']}", f"{path}/activity", f"{path}/keys",
            f"{path}/wallets/{wallet['id']}/limits", "/owner/sessions", f"{path}?done={hostile}",
            f"{path}/activity?status={hostile}&text={hostile}&before=x",
        )
    ]  # fmt: skip
    pages.append(
        ada.send(ada.get(path), f"{path}/unlock" if f"{path}/unlock" in forms_of(ada.get(path)) else f"{path}/lock")
    )
    assert [page.status_code for page in pages] == [200] * (len(pages) - 1) + [303]
    for page in pages:
        assert "<img" not in page.text
        assert "onerror=alert(1)>" not in page.text
        assert "49" not in re.findall(r"<h1>(.*?)</h1>", page.text)


@on_each_database
def test_the_credits_chart_shows_usage_by_utc_day(app: Flask) -> None:
    made = register(app)
    with unit_of_work() as session:
        for number in range(3):
            usage.charge(
                session, made["agentId"], UsageCall(UNKNOWN_ID, "openai", "m"),
                charge_id=UNKNOWN_ID[:-1] + str(number), metered=MeteredUsage(500_000_000),
            )  # fmt: skip
    page = owner_of(app, made).get(page_of(made))
    assert "$8.50" in page.text
    assert "$1.50 used by 3 calls in 30 days" in page.text
    assert page.text.count('class="column"') == 30
    assert re.search(r'<tbody><tr><th scope="row">[^<]+</th><td class="number">\$1.50</td></tr></tbody>', page.text)
    assert "openai" in page.text


@pytest.mark.parametrize("path", ["/device", "/device/claim", "/owner/sign-in"])
@pytest.mark.parametrize("framing", [{}, {"Transfer-Encoding": "chunked"}], ids=["measured", "chunked"])
def test_a_form_with_too_many_fields_is_refused_from_an_anonymous_client(
    app: Flask, path: str, framing: dict[str, str]
) -> None:
    client = app.test_client()
    kind = "application/x-www-form-urlencoded"
    # Half a megabyte took 36 MiB and a quarter of a second, outside all limits.
    body = io.BytesIO(b"".join(b"%x=&" % number for number in range(80_000)))
    tracemalloc.start()
    answer = client.post(
        path, input_stream=body, content_type=kind, headers=framing,
        content_length=None if framing else body.getbuffer().nbytes,
        environ_overrides={"wsgi.input_terminated": bool(framing)},
    )  # fmt: skip
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.status_code == (400 if framing else 413)
    assert peak < 3 * 2**20
    assert body.tell() <= 64 * 1024


def test_a_signed_in_form_cannot_exceed_the_limit_of_keyless_bodies(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    page = ada.get(limits_of(made))
    allowed = "\n".join(f"0x{number:040x}" for number in range(1, 101))
    saved = ada.send(page, limits_of(made), allowed_addresses=allowed, owner_key=ada.key)
    assert saved.status_code == 303
    assert ada.send(page, limits_of(made), allowed_addresses="0x" * 140_000).status_code == 413
