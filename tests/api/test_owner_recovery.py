"""Recovery codes, an operator's recovery, and handing an agent over: how each works, and attacks on each."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import select, update
from werkzeug.test import TestResponse

from app.agents.claims import CodeKind, OwnerCode, create_owner_codes
from app.audit_log import actors
from app.core import clock
from app.core.identifiers import digest
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import Unauthorized
from app.events import targets
from app.events.targets import Audience, Subscriber
from app.identity import owner_keys
from app.identity.principal import MasterKeyRole
from app.owner.notices import NOTICE_TYPES
from app.owner.session.sessions import open_claimed_agent
from tests.support.agents import Agent, register
from tests.support.notices import Browser, Mailbox, notices_app
from tests.support.operators import entries, operator
from tests.support.owners import CODE, OWNER_KEY, Owner, forms_of, person
from tests.support.webhooks import deliver

ADDRESS = "ada@home.example.org"


@pytest.fixture
def app(build_app: Callable[..., Flask], sqlite_url: str, mailbox: Mailbox) -> Flask:
    return notices_app(build_app, sqlite_url, mailbox)


class OwnerWithCodes:
    """A person who has claimed an agent and kept the recovery codes."""

    def __init__(self, app: Flask, agent: Agent) -> None:
        self.app, self.agent, self.browser = app, agent, person(app)
        claimed = self.browser.claim(agent.post("/v1/agents/claim-code").get_json())
        self.page, self.codes = f"/owner/agents/{agent.id}", CODE.findall(claimed.text)

    def make_codes(self, kind: str, browser: Owner | None = None) -> list[str]:
        made = self.ask_for(kind, browser or self.browser, owner_key=self.browser.key)
        assert made.status_code == 200, made.text
        return CODE.findall(made.text)

    def ask_for(self, kind: str, browser: Owner, **fields: str) -> TestResponse:
        keys, path = browser.get(f"{self.page}/keys"), f"{self.page}/keys/codes"
        return browser.client.post(path, data={**forms_of(keys)[path], "kind": kind, **fields})

    def cancel(self) -> TestResponse:
        path = f"{self.page}/keys/cancel"
        return self.browser.send(self.browser.get(self.page), path)

    def opens(self, browser: Owner) -> bool:
        return browser.get(self.page).status_code == 200


@pytest.fixture
def ada(app: Flask, agent: Agent) -> OwnerWithCodes:
    return OwnerWithCodes(app, agent)


def look_up(browser: Owner, code: str) -> TestResponse:
    return browser.send(browser.get("/owner/recover"), "/owner/recover", code=code)


def use(browser: Owner, code: str) -> TestResponse:
    """Use a code form by form; the owner key that was shown is kept."""
    shown = look_up(browser, code)
    assert shown.status_code == 200, shown.text
    return confirm(browser, shown)


def confirm(browser: Owner, shown: TestResponse) -> TestResponse:
    found = OWNER_KEY.search(shown.text)
    assert found
    browser.key = found[0]
    return browser.send(shown, "/owner/recover/use")


def changes() -> list[str]:
    """Return what the audit log has of owners after the codes of the claim."""
    first, *others = (each.after["change"] for each in entries(action="agent.owner_changed"))
    assert first == "recovery_code_created"
    return others


def rows() -> list[OwnerCode]:
    with read_only_unit() as session:
        return list(session.scalars(select(OwnerCode)))


def recover(ops: Any, agent: Agent) -> dict[str, Any]:
    answer = ops.post(f"/agents/{agent.id}/owner-recovery")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.get_json()
    return found


def notify(agent: Agent) -> None:
    subscriber = Subscriber(Audience.OWNER, agent.id)
    targets.add_email(subscriber, ADDRESS, types=["credits.low"])
    targets.add_browser(subscriber, **Browser().subscription("https://push.example.com/x"), types=NOTICE_TYPES)


def test_a_recovery_code_gives_a_new_owner_key_and_ends_the_old_one_its_sessions_and_itself(
    app: Flask, ada: OwnerWithCodes, mailbox: Mailbox
) -> None:
    assert len(set(ada.codes)) == 8
    notify(ada.agent)
    elsewhere, lost = person(app), ada.browser.key
    done = use(elsewhere, ada.codes[0].lower().replace("-", " "))
    assert (done.status_code, CODE.search(done.text)) == (200, None)
    assert ada.opens(elsewhere)
    assert not ada.opens(ada.browser)
    assert person(app).sign_in(lost).status_code == 403
    assert person(app).sign_in(elsewhere.key).status_code == 303
    assert look_up(person(app), ada.codes[0]).status_code == 403
    assert use(person(app), ada.codes[1]).status_code == 200
    assert changes() == ["recovery_code_used"] * 2
    deliver()
    # Whatever they asked for, all targets of the owner are told.
    assert "recovery_code_used" in str([text for _, text in mailbox.received])
    found = ada.agent.get("/v1/events", types="owner.changed").get_json()["events"]
    assert [each["data"]["change"] for each in found] == ["recovery_code_used"] * 2


def test_codes_are_stored_as_digests_and_are_in_no_entry_or_event(ada: OwnerWithCodes) -> None:
    [handover] = ada.make_codes("handover")
    stored = {row.digest for row in rows()}
    assert stored == {digest(each.replace("-", "")) for each in (*ada.codes, handover)}
    told = str([(each.before, each.after) for each in entries()]) + ada.agent.get("/v1/events").text
    for code in (*ada.codes, handover):
        assert code not in told
        assert code.replace("-", "") not in told


def test_looking_a_code_up_changes_nothing_and_the_shown_key_is_no_key_yet(app: Flask, ada: OwnerWithCodes) -> None:
    shown = look_up(person(app), ada.codes[0])
    key = OWNER_KEY.search(shown.text)
    assert key
    assert person(app).sign_in(key[0]).status_code == 403
    assert ada.opens(ada.browser)
    assert changes() == []


def test_a_lost_response_locks_nobody_out_and_the_code_is_used_once(app: Flask, ada: OwnerWithCodes) -> None:
    browser = person(app)
    shown = look_up(browser, ada.codes[0])
    again = {"path": "/owner/recover/use", "data": forms_of(shown)["/owner/recover/use"]}
    assert confirm(browser, shown).status_code == 200
    assert browser.client.post(**again).status_code == 403
    assert person(app).sign_in(browser.key).status_code == 303


def test_guesses_of_a_code_lock_the_network_and_not_the_owner(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    app = build_app(sqlite_url, settings={"device_miss_limit": "3 per hour"})
    with app.app_context():
        made = app.test_client().post("/v1/agents/register", json={}).get_json()
        ada = person(app)
        codes = CODE.findall(ada.claim(made).text)
        thief = person(app)
        thief.client.environ_base["REMOTE_ADDR"] = "203.0.113.7"
        guesses = [look_up(thief, f"{number:028}").status_code for number in range(4)]
        assert guesses == [403, 403, 403, 429]
        assert look_up(thief, codes[0]).status_code == 429
        assert use(person(app), codes[0]).status_code == 200


@pytest.mark.parametrize("wrong", ["", "x" * 64, "0" * 28, "é" * 28, "A" * 16_000])
def test_what_is_not_a_code_is_refused(app: Flask, wrong: str) -> None:
    assert look_up(person(app), wrong).status_code in (403, 413)


def test_a_form_for_another_code_of_another_browser_or_without_its_token_changes_nothing(
    app: Flask, ada: OwnerWithCodes
) -> None:
    browser = person(app)
    shown, path = look_up(browser, ada.codes[0]), "/owner/recover/use"
    form = forms_of(shown)[path]
    for changed in ({"code": ada.codes[1]}, {"token": "x"}, {"csrf_token": "x"}, {"token": ""}):
        assert browser.client.post(path, data={**form, **changed}).status_code == 400
    assert person(app).client.post(path, data=form).status_code == 400
    with time_machine.travel(clock.now() + timedelta(hours=2)):
        assert browser.client.post(path, data=form).status_code == 400
    assert (changes(), ada.opens(ada.browser)) == ([], True)


def test_replaced_codes_and_codes_of_a_replaced_owner_key_are_not_valid(app: Flask, ada: OwnerWithCodes) -> None:
    second = ada.make_codes("recovery_code")
    assert look_up(person(app), ada.codes[0]).status_code == 403
    keys = f"{ada.page}/keys"
    ada.browser.send(ada.browser.get(keys), f"{keys}/replace-owner-key", owner_key=ada.browser.key)
    assert [look_up(person(app), each).status_code for each in second] == [403] * 8


def test_a_used_code_that_is_put_back_by_sql_opens_nothing(app: Flask, ada: OwnerWithCodes) -> None:
    kept = next(row for row in rows() if row.digest == digest(ada.codes[0].replace("-", "")))
    values = {each.key: getattr(kept, each.key) for each in OwnerCode.__table__.columns}
    use(person(app), ada.codes[0])
    with unit_of_work() as session:
        session.execute(OwnerCode.__table__.insert().values(values))
    assert look_up(person(app), ada.codes[0]).status_code == 403


def test_a_code_is_of_one_agent_only(app: Flask, ada: OwnerWithCodes) -> None:
    eve = OwnerWithCodes(app, register(app.test_client()))
    use(eve.browser, eve.codes[0])
    assert ada.opens(ada.browser)
    assert not ada.opens(eve.browser)


def test_a_stolen_session_makes_no_code_and_sees_none(ada: OwnerWithCodes) -> None:
    ada.make_codes("handover")
    for kind in ("handover", "recovery_code"):
        for key in ("", "ok_" + "A" * 43):
            refused = ada.ask_for(kind, ada.browser, owner_key=key)
            assert (refused.status_code, CODE.search(refused.text)) == (403, None)
    for page in ("", "/keys", "/passkeys", "/notices"):
        assert not CODE.search(ada.browser.get(ada.page + page).text)


def test_a_repeated_claim_shows_the_owner_key_and_no_other_codes(app: Flask, agent: Agent) -> None:
    code, browser = agent.post("/v1/agents/claim-code").get_json(), person(app)
    first = CODE.findall(browser.claim(code).text)
    again = browser.claim(code)
    assert browser.key in again.text
    assert not CODE.search(again.text)
    assert use(person(app), first[0]).status_code == 200


def test_an_operator_recovers_an_owner_after_a_waiting_time_of_which_all_targets_are_told(
    app: Flask, ada: OwnerWithCodes, mailbox: Mailbox
) -> None:
    ops = operator(ada.agent.client)
    notify(ada.agent)
    begun = recover(ops, ada.agent)
    assert begun["code"] is None
    assert recover(ops, ada.agent) == begun
    deliver()
    assert "recovery_created" in str([text for _, text in mailbox.received])
    assert "has begun to give this agent to another person" in ada.browser.get(ada.page).text
    with time_machine.travel(clock.now() + timedelta(hours=71, minutes=59)):
        assert recover(ops, ada.agent)["code"] is None
    with time_machine.travel(clock.now() + timedelta(hours=73), tick=False):
        earlier, code = recover(ops, ada.agent)["code"], recover(ops, ada.agent)["code"]
        assert look_up(person(app), earlier).status_code == 403
        someone, lost = person(app), ada.codes
        done = use(someone, code)
        assert len(CODE.findall(done.text)) == 8
        assert ada.opens(someone)
        assert [look_up(person(app), each).status_code for each in (code, lost[0])] == [403, 403]
    acts = [(each.actor_kind, each.after["change"]) for each in entries(action="agent.owner_changed")][1:]
    assert acts == [
        ("master_key", "recovery_created"), ("master_key", "recovery_created"), ("master_key", "recovery_created"),
        ("owner", "recovery_used"), ("owner", "recovery_code_created"),
    ]  # fmt: skip


def test_a_recovery_that_is_cancelled_at_the_last_moment_gives_nobody_anything(app: Flask, ada: OwnerWithCodes) -> None:
    ops = operator(ada.agent.client)
    recover(ops, ada.agent)
    with time_machine.travel(clock.now() + timedelta(hours=73), tick=False):
        ada.browser.sign_in()
        code, someone = recover(ops, ada.agent)["code"], person(app)
        shown = look_up(someone, code)
        assert ada.cancel().status_code == 303
        assert confirm(someone, shown).status_code == 403
        assert ada.opens(ada.browser)
        # The waiting time begins again.
        assert recover(ops, ada.agent)["code"] is None
    assert changes()[-2:] == ["cancelled", "recovery_created"]


def test_a_recovery_ends_with_its_time_and_with_the_owner_key(app: Flask, ada: OwnerWithCodes) -> None:
    ops = operator(ada.agent.client)
    recover(ops, ada.agent)
    with time_machine.travel(clock.now() + timedelta(hours=73), tick=False):
        code = recover(ops, ada.agent)["code"]
    with time_machine.travel(clock.now() + timedelta(days=11), tick=False):
        assert look_up(person(app), code).status_code == 403
    with time_machine.travel(clock.now() + timedelta(hours=74), tick=False):
        assert use(person(app), ada.codes[0]).status_code == 200
        assert look_up(person(app), code).status_code == 403
        assert recover(ops, ada.agent)["code"] is None


def test_the_command_and_the_api_are_one_recovery(app: Flask, ada: OwnerWithCodes) -> None:
    run = app.test_cli_runner().invoke
    begin = ["platform", "recover_owner", f"agent_id={ada.agent.id}"]
    assert json.loads(run(args=begin).stdout)["code"] is None
    with time_machine.travel(clock.now() + timedelta(hours=73), tick=False):
        code = recover(operator(ada.agent.client), ada.agent)["code"]
        assert len(code) == 28
        printed = json.loads(run(args=begin).stdout)["code"]
        assert look_up(person(app), code).status_code == 403
        assert use(person(app), printed).status_code == 200
    for unknown in (register(app.test_client()).id, "x"):
        assert run(args=[*begin[:2], f"agent_id={unknown}"]).exit_code == 1


@pytest.mark.parametrize("role", [MasterKeyRole.VIEWER, MasterKeyRole.OPERATOR])
def test_only_an_admin_recovers_an_owner(ada: OwnerWithCodes, role: MasterKeyRole) -> None:
    answer = operator(ada.agent.client, role=role).post(f"/agents/{ada.agent.id}/owner-recovery")
    assert (answer.status_code, answer.get_json()["code"]) == (403, "INSUFFICIENT_SCOPE")


def test_a_waiting_time_that_is_shortened_by_sql_is_refused(ada: OwnerWithCodes) -> None:
    ops = operator(ada.agent.client)
    recover(ops, ada.agent)
    with unit_of_work() as session:
        meant = OwnerCode.kind == "recovery"
        session.execute(update(OwnerCode.__table__).where(meant).values(valid_from=clock.now() - timedelta(hours=1)))
    assert recover(ops, ada.agent)["code"] is None


def test_another_person_takes_an_agent_over_and_all_rights_of_the_former_owner_end(
    app: Flask, ada: OwnerWithCodes, mailbox: Mailbox
) -> None:
    notify(ada.agent)
    wallet_id = ada.agent.post("/v1/wallets", {}).get_json()["id"]
    before = ada.agent.get(f"/v1/wallets/{wallet_id}/controls").get_json()
    [code] = ada.make_codes("handover")
    assert "is offered to another person" in ada.browser.get(ada.page).text
    bob = person(app)
    bob_agent = OwnerWithCodes(app, register(app.test_client()))
    mailbox.received.clear()
    done = use(bob_agent.browser, code)
    assert len(CODE.findall(done.text)) == 8
    # Bob keeps his other agent in the session.
    assert ada.opens(bob_agent.browser)
    assert bob_agent.opens(bob_agent.browser)
    assert not ada.opens(ada.browser)
    assert person(app).sign_in(ada.browser.key).status_code == 403
    assert [look_up(bob, each).status_code for each in (code, ada.codes[0])] == [403, 403]
    subscriber = Subscriber(Audience.OWNER, ada.agent.id)
    with read_only_unit() as session:
        left = session.scalars(select(targets.EventTarget).where(*targets._of(subscriber))).all()
    assert left == []
    [(recipients, text)] = mailbox.received
    assert (recipients, "No more notices to this address" in text) == ([ADDRESS], True)
    shown = operator(ada.agent.client).get(f"/agents/{ada.agent.id}").get_json()
    assert shown["claimed_email"] is None
    assert ada.agent.get(f"/v1/wallets/{wallet_id}/controls").get_json() == before
    # The others are of another agent, and of the new owner.
    assert [each for each in changes() if each.startswith("handover")] == ["handover_created", "handover_used"]


def test_an_offer_is_cancelled_expires_and_is_replaced(app: Flask, ada: OwnerWithCodes) -> None:
    [first] = ada.make_codes("handover")
    [second] = ada.make_codes("handover")
    assert look_up(person(app), first).status_code == 403
    with time_machine.travel(clock.now() + timedelta(days=3, seconds=1)):
        assert look_up(person(app), second).status_code == 403
    someone = person(app)
    shown = look_up(someone, second)
    ada.cancel()
    assert confirm(someone, shown).status_code == 403
    assert "is offered to another person" not in ada.browser.get(ada.page).text
    assert ada.opens(ada.browser)


def test_a_frozen_agent_stays_frozen_when_it_is_handed_over(app: Flask, ada: OwnerWithCodes) -> None:
    operator(ada.agent.client).post(f"/agents/{ada.agent.id}/freeze", {})
    [code] = ada.make_codes("handover")
    bob = person(app)
    use(bob, code)
    assert "This agent is frozen." in bob.get(ada.page).text


def test_a_handover_ends_an_open_recovery_and_a_recovery_an_open_offer(app: Flask, ada: OwnerWithCodes) -> None:
    ops = operator(ada.agent.client)
    recover(ops, ada.agent)
    with time_machine.travel(clock.now() + timedelta(hours=73), tick=False):
        recovery = recover(ops, ada.agent)["code"]
        ada.browser.sign_in()
        [handover] = ada.make_codes("handover")
        late, bob = person(app), person(app)
        prepared = look_up(late, recovery)
        assert use(bob, handover).status_code == 200
        assert confirm(late, prepared).status_code == 403
        ada.browser, ada.codes = bob, []
        [handover] = ada.make_codes("handover")
        prepared = look_up(late, handover)
        codes = ada.make_codes("recovery_code")
        assert use(person(app), codes[0]).status_code == 200
        assert confirm(late, prepared).status_code == 403


def test_the_operators_command_for_a_stolen_key_tells_the_owner(app: Flask, ada: OwnerWithCodes) -> None:
    stolen = ada.browser.key
    assert app.test_cli_runner().invoke(args=["owner-keys", "replace", ada.agent.id]).exit_code == 0
    assert changes() == ["owner_key_replaced"]
    assert look_up(person(app), ada.codes[0]).status_code == 403
    assert person(app).sign_in(stolen).status_code == 403


def test_a_replaced_owner_gets_no_codes_of_the_next_one(app: Flask, ada: OwnerWithCodes) -> None:
    with read_only_unit() as session:
        former = owner_keys.find(session, ada.browser.key)
    assert former is not None
    app.test_cli_runner().invoke(args=["owner-keys", "replace", ada.agent.id])
    before = [row.id for row in rows()]
    with app.test_request_context():
        actor = actors.owner_actor(former.id)
    # As when the key is replaced while a claim, or a form with the former key, is being answered.
    for only_first in (True, False):
        for kind in (CodeKind.RECOVERY_CODE, CodeKind.HANDOVER):
            with pytest.raises(Unauthorized):
                create_owner_codes(actor, ada.agent.id, kind, only_first=only_first)
    with pytest.raises(Unauthorized):
        open_claimed_agent(ada.browser.key, current=None)
    assert [row.id for row in rows()] == before


def test_all_targets_are_told_when_the_owner_key_is_replaced_on_the_page(ada: OwnerWithCodes, mailbox: Mailbox) -> None:
    notify(ada.agent)
    keys = f"{ada.page}/keys"
    ada.browser.send(ada.browser.get(keys), f"{keys}/replace-owner-key", owner_key=ada.browser.key)
    deliver()
    assert changes() == ["owner_key_replaced"]
    assert "owner_key_replaced" in str([text for _, text in mailbox.received])


def test_the_owner_of_a_deleted_agent_cannot_be_replaced(app: Flask, ada: OwnerWithCodes) -> None:
    prepared, ops = person(app), operator(ada.agent.client)
    shown = look_up(prepared, ada.codes[0])
    assert ops.delete(f"/agents/{ada.agent.id}").status_code < 300
    assert confirm(prepared, shown).status_code == 403
    assert look_up(person(app), ada.codes[1]).status_code == 403
    assert ops.post(f"/agents/{ada.agent.id}/owner-recovery").status_code == 404


def test_a_new_owner_cannot_end_the_freeze_of_an_operator(app: Flask, ada: OwnerWithCodes) -> None:
    operator(ada.agent.client).post(f"/agents/{ada.agent.id}/freeze", {})
    thief = person(app)
    assert use(thief, ada.codes[0]).status_code == 200
    # The page has no form for it.
    form = forms_of(thief.get(f"{ada.page}/keys"))[f"{ada.page}/keys/codes"]
    thief.client.post(f"{ada.page}/unfreeze", data={**form, "owner_key": thief.key})
    assert "Only the operator can unfreeze it." in thief.get(ada.page).text
