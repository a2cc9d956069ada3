"""The owner's pages, as a browser without scripts uses them, and as somebody does who should not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import func, select

from app.core import clock
from app.core.unit_of_work import reading, unit_of_work
from app.owner import sessions
from app.owner.models import OwnerSession
from app.usage import service as usage
from app.usage.service import Call, Metered
from tests.support.operators import entries, operator
from tests.support.owners import OWNER_KEY, Owner, forms_of, person

NOBODY = "00000000-0000-4000-8000-000000000000"
EVERYWHERE = "0x00000000000000000000000000000000C0FFEE00"


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Iterator[Flask]:
    """An application on SQLite, or on each database where a test says so."""
    # The database first, for it is dropped last.
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


def wants_to_pay(app: Flask, made: dict[str, Any], dollars: int) -> tuple[int, str]:
    """Have the agent ask for a payment out of the trading account, which the limits decide before anything else."""
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
    # Also for whoever copied the cookie before.
    thief = app.test_client()
    thief.set_cookie("purser_owner", cookie.value)
    assert thief.get(page_of(made)).status_code == 303


@on_each_database
def test_a_session_ends_after_twelve_hours_and_is_then_forgotten(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    later = clock.now() + timedelta(hours=12, seconds=1)
    with time_machine.travel(later - timedelta(minutes=1), tick=False):
        assert ada.get(page_of(made)).status_code == 200
    with time_machine.travel(later, tick=False):
        # A browser would have dropped the cookie by itself; the server must not depend on it.
        copied = ada.client.get_cookie("purser_owner")
        thief = app.test_client()
        thief.set_cookie("purser_owner", copied.value if copied else "", max_age=99999)
        assert thief.get(page_of(made)).status_code == 303
    with unit_of_work():
        assert sessions.prune(later) == 1
    with reading() as session:
        assert session.scalar(select(func.count(OwnerSession.id))) == 0


def test_no_cookie_opens_the_json_api(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    for path in ("/v1/wallets", "/v1/balance", f"/v1/wallets/{made['wallet']['id']}/controls"):
        assert ada.get(path).status_code == 401
    assert ada.client.put(f"/v1/wallets/{made['wallet']['id']}/controls", json={}).status_code == 401
    assert ada.get("/v1/platform/agents").status_code == 401


@on_each_database
def test_wrong_keys_lock_the_address_and_leave_claiming_to_others(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    app.extensions["settings"] = app.extensions["settings"].model_copy(
        update={"device_miss_limit": "3 per hour"}
    )
    eve = person(app)
    for wrong in ("", "ok_" + "A" * 43, made["apiKey"]):
        refused = eve.sign_in(wrong)
        assert refused.status_code == 403
        assert 'role="alert"' in refused.text
        assert wrong not in refused.text or not wrong
    locked = eve.sign_in(ada.key)
    assert locked.status_code == 429
    assert int(locked.headers["Retry-After"]) > 0
    assert "Set-Cookie" not in locked.headers or "purser_owner" not in str(
        locked.headers.getlist("Set-Cookie")
    )
    # Who is signed in already can still freeze, but not guess at the key.
    page = ada.get(page_of(made))
    assert ada.send(page, f"{page_of(made)}/freeze").status_code == 303
    frozen = ada.get(page_of(made))
    assert "Too many wrong keys" in ada.send(frozen, f"{page_of(made)}/unfreeze", owner_key=ada.key).text
    assert wants_to_pay(app, made, 1) == (403, "WALLET_FROZEN")
    other = register(app)
    assert person(app).claim(other).status_code == 200


def test_signing_in_never_takes_a_session_that_somebody_else_has_laid_out(app: Flask) -> None:
    mallory, victim = register(app, name="trap"), register(app)
    trap = owner_of(app, mallory)
    laid = trap.client.get_cookie("purser_owner")
    assert laid
    ada = owner_of(app, victim)
    # The victim's browser is made to have Mallory's session before the victim signs in, adds and claims.
    caught = person(app)
    caught.client.set_cookie("purser_owner", laid.value)
    page = caught.get("/owner/add")
    added = caught.send(page, "/owner/add", owner_key=ada.key)
    assert added.status_code == 303
    assert trap.get(page_of(victim)).status_code in (303, 404)
    caught = person(app)
    token = forms_of(caught.get("/owner/sign-in"))["/owner/sign-in"]
    caught.client.set_cookie("purser_owner", laid.value)
    assert caught.client.post("/owner/sign-in", data={**token, "owner_key": ada.key}).status_code == 303
    assert trap.get(page_of(victim)).status_code in (303, 404)
    assert caught.get(page_of(victim)).status_code == 200
    assert caught.get(page_of(mallory)).status_code == 404


def test_no_form_without_its_token_changes_anything(app: Flask) -> None:
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
            answer = ada.client.post(
                f"{page_of(made)}/{path}", data={"csrf_token": token, "owner_key": ada.key}
            )
            assert answer.status_code == 403
        answer = ada.client.post(
            f"{page_of(made)}/{path}",
            data={"csrf_token": good, "owner_key": ada.key},
            headers={"Sec-Fetch-Site": "same-site"},
        )
        assert answer.status_code == 403
    assert wants_to_pay(app, made, 1)[0] == 501
    # A page that was opened before the session changed its keys is of this session still.
    assert ada.client.post("/owner/sign-out", data={"csrf_token": "x"}).status_code == 403
    assert ada.get(page_of(made)).status_code == 200


def test_an_address_never_leads_away_after_signing_in(app: Flask) -> None:
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


def test_the_pages_of_others_are_not_there(app: Flask) -> None:
    mine, theirs = register(app), register(app)
    ada, bob = owner_of(app, mine), owner_of(app, theirs)
    wallet = theirs["wallet"]["id"]
    for path in (
        page_of(theirs), f"{page_of(theirs)}/keys", limits_of(theirs),
        f"{page_of(mine)}/wallets/{wallet}", f"{page_of(mine)}/wallets/{wallet}/limits",
        f"{page_of(mine)}/wallets/{wallet}/transactions", f"/owner/agents/{NOBODY}", "/owner/agents/x/keys",
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
    assert wants_to_pay(app, theirs, 1)[0] == 501
    assert bob.get(page_of(theirs)).status_code == 200


def test_the_same_email_opens_nobody_s_agent(app: Flask) -> None:
    victim, trap = register(app, email="ada@example.org"), register(app, email="ada@example.org")
    owner_of(app, victim, "ada@example.org")
    mallory = owner_of(app, trap, "ada@example.org")
    assert mallory.get(page_of(victim)).status_code == 404
    assert mallory.get("/owner").headers["Location"] == page_of(trap)


@on_each_database
def test_agents_claimed_in_one_browser_or_added_with_their_keys_stand_side_by_side(app: Flask) -> None:
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


@on_each_database
def test_tightening_is_done_at_once_and_loosening_needs_the_owner_key(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    assert wants_to_pay(app, made, 20)[0] == 501

    def save(**fields: str) -> tuple[int, str]:
        values = {"per_tx_limit_usd": "10", "daily_limit_usd": "100", "weekly_limit_usd": "500"}
        answer = ada.send(
            ada.get(limits_of(made)), limits_of(made), **{**values, "monthly_limit_usd": "1,000", **fields}
        )
        return answer.status_code, answer.text

    assert save()[0] == 303
    assert "The agent can still raise them itself" in ada.get(f"{page_of(made)}?done=limits").text
    assert wants_to_pay(app, made, 20) == (403, "PER_TX_LIMIT_EXCEEDED")
    looser = {"per_tx_limit_usd": "30.5"}
    status, text = save(**looser)
    assert (status, 'value="30.5"' in text) == (403, True)
    assert save(**looser, owner_key="ok_" + "C" * 43)[0] == 403
    assert save(per_tx_limit_usd="")[0] == 403
    assert save(**looser, owner_key=made["apiKey"])[0] == 403
    assert wants_to_pay(app, made, 20) == (403, "PER_TX_LIMIT_EXCEEDED")
    assert save(**looser, owner_key=ada.key)[0] == 303
    assert wants_to_pay(app, made, 20)[0] == 501
    assert wants_to_pay(app, made, 31) == (403, "PER_TX_LIMIT_EXCEEDED")
    elsewhere = "0x000000000000000000000000000000000000bEEF"
    assert save(**looser, allowed_addresses=f"{elsewhere}\n\n", allowed_domains="Shop.Example.com")[0] == 303
    assert wants_to_pay(app, made, 20) == (403, "ADDRESS_NOT_ALLOWED")
    assert "shop.example.com" in ada.get(limits_of(made)).text
    # Both lists given up again is a loosening, too.
    assert save(**looser)[0] == 403
    noted = [entry for entry in entries() if entry.action == "agent.controls_set"]
    assert {entry.actor_kind for entry in noted} == {"owner"}
    assert len(noted) == 3


def test_what_cannot_be_read_is_said_beside_its_field_and_nothing_is_saved(app: Flask) -> None:
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
def test_a_decimal_comma_never_makes_a_limit_a_hundred_times_what_was_meant(app: Flask, typed: str) -> None:
    made = register(app)
    ada = owner_of(app, made)
    # With the key, so that nothing but the reading of the number stands against it.
    answer = ada.send(ada.get(limits_of(made)), limits_of(made), daily_limit_usd=typed, owner_key=ada.key)
    assert answer.status_code == 400
    assert "Write a number of dollars" in answer.text


def test_lock_and_freeze_hold_against_the_agent_and_need_the_key_to_be_undone(app: Flask) -> None:
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
    assert wants_to_pay(app, made, 1) == (403, "WALLET_FROZEN")
    frozen = ada.get(page_of(made))
    for deed, sentence in (("unfreeze", "Unfreeze the agent"), ("unlock", "Unlock the limits")):
        path = f"{page_of(made)}/{deed}"
        for wrong in ("", "ok_" + "D" * 43):
            refused = ada.send(frozen, path, owner_key=wrong)
            assert refused.status_code == 403
            assert sentence in refused.text
        if deed == "unfreeze":
            assert wants_to_pay(app, made, 1) == (403, "WALLET_FROZEN")
        assert ada.send(refused, path, owner_key=f" {ada.key}\n").status_code == 303
    assert wants_to_pay(app, made, 1)[0] == 501
    assert app.test_client().put(controls, json={"daily_limit_usd": 5000}, headers=mine).status_code == 200


def test_what_an_operator_froze_stays_frozen_for_the_owner(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    ops = operator(app.test_client())
    freeze = forms_of(ada.get(page_of(made)))[f"{page_of(made)}/freeze"]
    unfreeze = {**freeze, "owner_key": ada.key}
    assert ops.post(f"/agents/{made['agentId']}/freeze").status_code == 200
    assert "alone can undo it" in ada.get(page_of(made)).text
    # Freezing it again must not make the freeze the owner's.
    assert ada.client.post(f"{page_of(made)}/freeze", data=freeze).status_code == 303
    assert ada.client.post(f"{page_of(made)}/unfreeze", data=unfreeze).status_code == 403
    assert wants_to_pay(app, made, 1) == (403, "WALLET_FROZEN")
    assert ops.post(f"/agents/{made['agentId']}/unfreeze").status_code == 200
    assert wants_to_pay(app, made, 1)[0] == 501


def test_keys_are_shown_and_replaced_for_the_owner_key_only(app: Flask) -> None:
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
    assert actions == {"agent.shown", "agent.key_rotated"}
    assert not any("ak_" in str((entry.before, entry.after)) for entry in entries())


@on_each_database
def test_a_replaced_owner_key_opens_nothing_in_no_session_and_by_no_repeated_claim(app: Flask) -> None:
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
    repeated = app.test_client().post(
        "/v1/device/claim", json={"code": made["claimCode"], "email": "ada@example.org"}
    )
    assert repeated.status_code == 409
    # The page that answered goes on working, and so does the new key.
    assert ada.send(answer, f"{keys}/show", owner_key=new[0]).status_code == 200
    assert person(app).sign_in(new[0]).status_code == 303


def test_an_operator_can_help_an_owner_who_lost_the_key(app: Flask) -> None:
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
    for nobody in (unclaimed["agentId"], NOBODY, "x"):
        assert app.test_cli_runner().invoke(args=["owner-keys", "replace", nobody]).exit_code == 1


@on_each_database
def test_other_sessions_of_an_agent_can_be_ended(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    stranger = owner_of(app, register(app))
    elsewhere = person(app)
    elsewhere.sign_in(ada.key)
    page = ada.get("/owner/sessions")
    assert page.text.count("Another browser") == 1
    assert ada.send(page, "/owner/sessions/end-others").status_code == 303
    assert elsewhere.get("/owner").headers["Location"].startswith("/owner/sign-in")
    assert ada.get(page_of(made)).status_code == 200
    assert stranger.get("/owner/sessions").status_code == 200


def test_a_deleted_agent_closes_its_owner_s_session(app: Flask) -> None:
    made = register(app)
    ada = owner_of(app, made)
    assert operator(app.test_client()).delete(f"/agents/{made['agentId']}").status_code == 200
    assert ada.get(page_of(made)).status_code == 303
    assert person(app).sign_in(ada.key).status_code == 403


def test_no_name_becomes_markup(app: Flask) -> None:
    hostile = "<img src=x onerror=alert(1)>\"'{{7*7}}"
    made = register(app, name=hostile)
    mine = {"X-API-Key": made["apiKey"]}
    wallet = app.test_client().post("/v1/wallets", json={"name": hostile}, headers=mine).get_json()
    with unit_of_work():
        usage.charge(
            made["agentId"], Call(NOBODY, hostile, hostile), charge_id=NOBODY, metered=Metered(10**9, 3, 4)
        )
    looked = person(app)
    form = looked.send(looked.get("/device"), "/device", code=made["claimCode"])
    ada = person(app)
    pages = [form, ada.claim(made)]
    path = page_of(made)
    pages += [
        ada.get(at)
        for at in (
            path, f"{path}/wallets/{wallet['id']}", f"{path}/wallets/{wallet['id']}/transactions", f"{path}/keys",
            f"{path}/wallets/{wallet['id']}/limits", "/owner/sessions", f"{path}?done={hostile}",
            f"{path}/wallets/{wallet['id']}/transactions?status={hostile}&page=x",
        )
    ]  # fmt: skip
    pages.append(
        ada.send(
            ada.get(path), f"{path}/unlock" if f"{path}/unlock" in forms_of(ada.get(path)) else f"{path}/lock"
        )
    )
    for page in pages:
        assert page.status_code in (200, 303)
        assert "<img" not in page.text
        assert "onerror=alert(1)>" not in page.text
        assert "49" not in re.findall(r"<h1>(.*?)</h1>", page.text)


@on_each_database
def test_credits_are_drawn_from_the_log_by_utc_day(app: Flask) -> None:
    made = register(app)
    with unit_of_work():
        for number in range(3):
            usage.charge(
                made["agentId"], Call(NOBODY, "openai", "m"),
                charge_id=NOBODY[:-1] + str(number), metered=Metered(500_000_000),
            )  # fmt: skip
    page = owner_of(app, made).get(page_of(made))
    assert "$8.50" in page.text
    assert "$1.50 used by 3 calls in 30 days" in page.text
    assert page.text.count('class="column"') == 30
    assert "openai" in page.text
