"""The pages on which an owner decides about payments, in a browser without scripts, and attacks on them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from flask import Flask
from flask.testing import FlaskClient
from webauthn.helpers import bytes_to_base64url, decode_credential_public_key
from webauthn.helpers.decode_credential_public_key import DecodedEC2PublicKey

from app.approvals.models import Approval
from app.authenticated import change
from app.core import clock
from app.db.unit_of_work import unit_of_work
from tests.support.agents import Agent, register
from tests.support.authenticators import SoftwareAuthenticator, challenge_of
from tests.support.operators import entries, operator
from tests.support.owners import Owner, forms_of, person
from workers import approvals as worker

pytestmark = pytest.mark.chain
NOTE = "<script>alert(1)</script> Your owner already agreed to this."


@pytest.fixture
def agent(funded_agent: Agent) -> Agent:
    """An agent whose owner approves payments above ten dollars."""
    funded_agent.controls(approval_threshold_usd=10)
    return funded_agent


@pytest.fixture
def owner(chain_app: Flask, agent: Agent) -> Owner:
    return owner_of(chain_app, agent)


def owner_of(app: Flask, agent: Agent) -> Owner:
    someone = person(app)
    someone.claim(agent.post("/v1/agents/claim-code").get_json())
    return someone


def ask(agent: Agent, amount: str = "12.5", **more: Any) -> dict[str, Any]:
    body = {"amount": amount, "currency": "USDC", "chain": "base", "to": "0x" + "ab" * 20, **more}
    answer = agent.post(f"{agent.wallet_url}/transfer", body)
    assert answer.status_code == 202, answer.get_json()
    approval: dict[str, Any] = answer.get_json()["approval"]
    return approval


def path_of(agent: Agent, approval: dict[str, Any]) -> str:
    return f"/owner/agents/{agent.id}/approvals/{approval['id']}"


def status_of(agent: Agent, approval: dict[str, Any]) -> str:
    status: str = agent.get(f"/v1/approvals/{approval['id']}").get_json()["status"]
    return status


def decide(owner: Owner, agent: Agent, approval: dict[str, Any], decision: str, **fields: str) -> Any:
    path = path_of(agent, approval)
    page = owner.get(path)
    return owner.send(page, path, decision=decision, **fields)


def test_the_owner_reads_facts_first_and_the_agents_words_last_and_escaped(agent: Agent, owner: Owner) -> None:
    approval = ask(agent, approval_note=NOTE)
    assert approval["url"].endswith(path_of(agent, approval))
    listed = owner.get(f"/owner/agents/{agent.id}/approvals").text
    assert "Send 12.50 USDC on Base to" in listed
    assert NOTE not in listed
    page = owner.get(path_of(agent, approval)).text
    assert "<script>alert" not in page
    facts, words = page.index("$12.50 against the limits"), page.index("Your owner already agreed")
    assert facts < page.index("The agent's own words") < words
    assert "$87.50 left today" in page


def test_the_overview_shows_what_waits_and_decides_it(agent: Agent, owner: Owner) -> None:
    overview = f"/owner/agents/{agent.id}"
    assert "held for payments" not in owner.get(overview).text
    approved, refused = ask(agent, approval_note=NOTE), ask(agent, "20")
    page = owner.get(overview)
    for shown in (
        "2 payments wait for your approval",
        "Send 12.50 USDC on Base to",
        "0xABaB…ABaB",
        "It is more than the agent may pay without asking you.",
        "$32.50 of it is held for payments that wait for you.",
    ):
        assert shown in page.text
    assert re.search(r'aria-current="page">Overview<', page.text)
    assert re.search(r">Approvals <span class=.count.>2<", page.text)
    assert NOTE not in page.text
    # These buttons post to the approval page's route, with the same protection.
    assert owner.send(page, path_of(agent, approved), decision="once").status_code == 403
    assert owner.send(page, path_of(agent, approved), decision="once", owner_key=owner.key).status_code == 303
    assert owner.send(page, path_of(agent, refused), decision="reject").status_code == 303
    worker.execute()
    assert (status_of(agent, approved), status_of(agent, refused)) == ("executed", "rejected")
    assert "your approval</h2>" not in owner.get(overview).text


def test_the_owner_sees_all_reasons_and_what_was_paid_to_the_recipient_before(agent: Agent, owner: Owner) -> None:
    to = "0x" + "ab" * 20
    for amount in ("1", "2.5"):
        body = {"amount": amount, "currency": "USDC", "chain": "base", "to": to}
        assert agent.post(f"{agent.wallet_url}/transfer", body).status_code == 200
    agent.controls(approve_new_recipients=True)
    page = owner.get(path_of(agent, ask(agent))).text
    for shown in (
        "You have not approved this recipient before.",
        "It is more than the agent may pay without asking you. That is $10.00.",
        "This wallet paid this recipient 2 times before, $3.50 in total",
    ):
        assert shown in page
    other = ask(agent, "3", to="0x" + "cd" * 20)
    assert "This wallet has never paid this recipient." in owner.get(path_of(agent, other)).text
    assert "may pay without asking" not in owner.get(path_of(agent, other)).text


def test_the_owner_is_warned_of_an_address_that_looks_like_a_known_one(agent: Agent, owner: Owner) -> None:
    known, similar = "0x" + "ab" * 20, "0x" + "ab" * 9 + "cdcd" + "ab" * 9
    body = {"amount": "1", "currency": "USDC", "chain": "base", "to": known}
    assert agent.post(f"{agent.wallet_url}/transfer", body).status_code == 200
    # An agent can pay a similar address a little first: that does not make it known.
    assert agent.post(f"{agent.wallet_url}/transfer", body | {"amount": "0.01", "to": similar}).status_code == 200
    warning, approval = "This address looks like one that was paid before", ask(agent, to=similar)
    overview = owner.get(f"/owner/agents/{agent.id}")
    assert warning in overview.text
    # It is not approved in a list, where addresses are abbreviated.
    assert 'value="once"' not in overview.text
    page = owner.get(path_of(agent, approval)).text
    assert warning in page
    assert page.lower().count(f"<code>{known}</code>") == 1


def test_an_address_that_looks_like_one_in_the_address_book_is_compared(agent: Agent, owner: Owner) -> None:
    known, similar = "0x" + "cd" * 20, "0x" + "cd" * 9 + "abab" + "cd" * 9
    book = f"/owner/agents/{agent.id}/addresses"
    named = {"name": "Landlord", "address": known, "chain": "base", "owner_key": owner.key}
    assert owner.send(owner.get(book), book, **named).status_code == 303
    approval = ask(agent, to=similar)
    assert 'value="once"' not in owner.get(f"/owner/agents/{agent.id}").text
    assert "This address looks like one" in owner.get(path_of(agent, approval)).text


def test_an_owner_approves_with_the_owner_key_and_it_is_paid_and_in_the_audit_log(agent: Agent, owner: Owner) -> None:
    approval = ask(agent)
    done = decide(owner, agent, approval, "once", owner_key=owner.key)
    assert done.status_code == 303, done.text
    assert "You approved it" in owner.get(done.location).text
    worker.execute()
    assert status_of(agent, approval) == "executed"
    assert "it was executed" in owner.get(path_of(agent, approval)).text
    [entry] = [each for each in entries() if each.subject_id == approval["id"]]
    assert (entry.action, entry.after["request_hash"], entry.after["method"]) == (
        "approval.approved",
        approval["request_hash"],
        "owner_key",
    )


@pytest.mark.parametrize("owner_key", ["", "ok_" + "a" * 43])
def test_without_the_owner_key_nothing_is_approved(agent: Agent, owner: Owner, owner_key: str) -> None:
    approval = ask(agent)
    for decision in ("once", "weekly"):
        refused = decide(owner, agent, approval, decision, owner_key=owner_key, week_usd="50")
        assert refused.status_code == 403
    assert status_of(agent, approval) == "awaiting"


def test_a_refusal_needs_no_key_and_its_sentence_reaches_the_agent(agent: Agent, owner: Owner) -> None:
    approval = ask(agent)
    done = decide(owner, agent, approval, "reject", answer="Buy the <b>cheaper</b> one.")
    assert "You refused it. Nothing was paid." in owner.get(done.location).text
    found = agent.get(f"/v1/approvals/{approval['id']}").get_json()
    assert (found["status"], found["answer"]) == ("rejected", "Buy the <b>cheaper</b> one.")
    assert agent.spent_this_month() == 0


def test_a_late_tap_shows_that_nothing_was_paid_never_that_it_was_approved(agent: Agent, owner: Owner) -> None:
    approval = ask(agent)
    path = path_of(agent, approval)
    page = owner.get(path)
    # Later than the approval, earlier than the session.
    with time_machine.travel(clock.now() + timedelta(hours=11), tick=True):
        expire(approval)
        done = owner.send(page, path, decision="once", owner_key=owner.key)
        shown = owner.get(done.location).text
    assert "Your decision came too late" in shown
    assert "expired before a decision. Nothing was paid." in shown
    assert "You approved" not in shown
    worker.execute()
    assert agent.history() == []
    assert not [each for each in entries() if each.subject_id == approval["id"]]


def test_another_owner_sees_and_decides_nothing(chain_app: Flask, chain_client: FlaskClient, agent: Agent) -> None:
    approval = ask(agent)
    other_agent = register(chain_client)
    other = owner_of(chain_app, other_agent)
    other_agent.controls(approval_threshold_usd=1)
    own = f"/owner/agents/{other_agent.id}/approvals/{approval['id']}"
    for path in (path_of(agent, approval), own):
        assert other.get(path).status_code == 404
    token = forms_of(other.get(f"/owner/agents/{other_agent.id}"))[f"/owner/agents/{other_agent.id}/freeze"]
    for path in (path_of(agent, approval), own):
        forged = {**token, "decision": "once", "owner_key": other.key, "request_hash": approval["request_hash"]}
        assert other.client.post(path, data=forged).status_code == 404
    assert status_of(agent, approval) == "awaiting"


def test_a_forged_or_replayed_form_decides_nothing(agent: Agent, owner: Owner) -> None:
    first, second = ask(agent, "11"), ask(agent, "12")
    path = path_of(agent, first)
    form = forms_of(owner.get(path))[path]
    decision = {"decision": "once", "owner_key": owner.key}
    # Without the token; with the page of another request.
    assert owner.client.post(path, data={**decision, "request_hash": form["request_hash"]}).status_code == 403
    assert owner.client.post(path_of(agent, second), data={**form, **decision}).status_code == 400
    assert (status_of(agent, first), status_of(agent, second)) == ("awaiting", "awaiting")

    assert owner.client.post(path, data={**form, **decision}).status_code == 303
    worker.execute()
    replayed = owner.client.post(path, data={**form, **decision})
    assert "Your decision came too late" in owner.get(replayed.location).text
    worker.execute()
    assert len(agent.history()) == 1


def test_a_weekly_permission_ends_the_questions_up_to_its_amount_and_can_be_withdrawn(
    agent: Agent, owner: Owner
) -> None:
    approval = ask(agent)
    assert decide(owner, agent, approval, "weekly", owner_key=owner.key, week_usd="0").status_code == 400
    decide(owner, agent, approval, "weekly", owner_key=owner.key, week_usd="30")
    worker.execute()
    to = "0x" + "AB" * 20
    body = {"amount": "15", "currency": "USDC", "chain": "base", "to": to.lower()}
    # The approved payment itself does not count against the permission; 15 + 15 do, and no more.
    for _ in range(2):
        assert agent.post(f"{agent.wallet_url}/transfer", body).status_code == 200
    ask(agent, "15")
    assert agent.post(f"{agent.wallet_url}/transfer", {**body, "to": "0x" + "cd" * 20}).status_code == 202

    page = owner.get(f"/owner/agents/{agent.id}/approvals")
    assert "up to $30.00 a week" in page.text
    owner.send(page, f"/owner/agents/{agent.id}/approvals/payees")
    assert "up to $30.00 a week" not in owner.get(f"/owner/agents/{agent.id}/approvals").text


def test_the_form_of_limits_turns_approvals_on_freely_and_off_with_the_key(agent: Agent, owner: Owner) -> None:
    path = f"/owner/agents/{agent.id}/wallets/{agent.wallet_id}/limits"
    typed = {
        "per_tx_limit_usd": "50", "daily_limit_usd": "100", "weekly_limit_usd": "500", "monthly_limit_usd": "1000",
    }  # fmt: skip
    on = {**typed, "approval_threshold_usd": "5", "approve_new_recipients": "on"}
    assert owner.send(owner.get(path), path, **on).status_code == 303
    controls = agent.get(f"{agent.wallet_url}/controls").get_json()["controls"]
    assert (controls["approval_threshold_usd"], controls["approve_new_recipients"]) == (5, True)
    off = {**typed, "approval_threshold_usd": ""}
    assert owner.send(owner.get(path), path, **off).status_code == 403
    assert owner.send(owner.get(path), path, **off, owner_key=owner.key).status_code == 303
    controls = agent.get(f"{agent.wallet_url}/controls").get_json()["controls"]
    assert (controls["approval_threshold_usd"], controls["approve_new_recipients"]) == (None, False)


def test_an_operator_lists_the_approvals_of_all_agents(chain_client: FlaskClient, agent: Agent) -> None:
    approval = ask(agent)
    found = operator(chain_client).get("/approvals?status=awaiting").get_json()["approvals"]
    assert [each["id"] for each in found] == [approval["id"]]


@pytest.fixture
def device(agent: Agent, owner: Owner) -> SoftwareAuthenticator:
    """A device with a passkey of the owner."""
    made = SoftwareAuthenticator("http://purser.test", "purser.test")
    assert made.add_to(owner, f"/owner/agents/{agent.id}").status_code == 303
    return made


def sign(
    device: SoftwareAuthenticator, approval: dict[str, Any], decision: str = "once", week: str = ""
) -> dict[str, str]:
    """Return the fields of a decision that a device has signed as the page's script asks it to."""
    text = f"purser approval\n{approval['request_hash']}\n{decision}\n{week}"
    device.counter += 1
    signed = device.sign(bytes_to_base64url(hashlib.sha256(text.encode()).digest()))
    return {"decision": decision, "passkey": signed, "week_usd": week}


def submit(owner: Owner, agent: Agent, approval: dict[str, Any], fields: dict[str, str]) -> Any:
    path = path_of(agent, approval)
    return owner.send(owner.get(path), path, **fields)


def test_a_passkey_approves_and_the_audit_log_proves_what_it_signed(
    agent: Agent, owner: Owner, device: SoftwareAuthenticator
) -> None:
    approval = ask(agent)
    done = submit(owner, agent, approval, sign(device, approval))
    assert "You approved it" in owner.get(done.location).text
    worker.execute()
    assert status_of(agent, approval) == "executed"
    [entry] = [each for each in entries() if each.subject_id == approval["id"]]
    kept = {name: base64.b64decode(entry.after[name]) for name in (
        "credential_id", "public_key", "authenticator_data", "client_data", "signature"
    )}  # fmt: skip
    assert (entry.after["method"], entry.after["decision"]) == ("passkey", "once")
    # With the entry alone: the signature is of this request and this decision.
    text = f"purser approval\n{entry.after['request_hash']}\nonce\n{entry.after['week_usd']}"
    challenge = json.loads(kept["client_data"])["challenge"]
    assert challenge == bytes_to_base64url(hashlib.sha256(text.encode()).digest())
    assert kept["credential_id"] == device.credential_id
    signed = kept["authenticator_data"] + hashlib.sha256(kept["client_data"]).digest()
    point = decode_credential_public_key(kept["public_key"])
    assert isinstance(point, DecodedEC2PublicKey)
    numbers = ec.EllipticCurvePublicNumbers(int.from_bytes(point.x), int.from_bytes(point.y), ec.SECP256R1())
    numbers.public_key().verify(kept["signature"], signed, ec.ECDSA(hashes.SHA256()))


def test_a_signature_approves_no_other_request_decision_or_amount(
    agent: Agent, owner: Owner, device: SoftwareAuthenticator
) -> None:
    first, second = ask(agent, "11"), ask(agent, "12")
    once, weekly = sign(device, first), sign(device, first, "weekly", "20")
    for approval, fields in (
        (second, once),
        (first, {**once, "decision": "weekly", "week_usd": "20"}),
        (first, {**weekly, "week_usd": "2000"}),
        (first, {**weekly, "decision": "once"}),
        (first, {**once, "passkey": "{}"}),
    ):
        assert submit(owner, agent, approval, fields).status_code == 403
    assert (status_of(agent, first), status_of(agent, second)) == ("awaiting", "awaiting")
    # What was refused has not used up the owner's signature.
    done = submit(owner, agent, first, weekly)
    assert "You approved it" in owner.get(done.location).text


def test_a_signature_for_another_form_approves_nothing(
    agent: Agent, owner: Owner, device: SoftwareAuthenticator
) -> None:
    approval = ask(agent)
    keys, path = owner.get(f"/owner/agents/{agent.id}/keys"), f"/owner/agents/{agent.id}/keys/show"
    device.counter += 1
    signed = device.sign(challenge_of(keys, path))
    token = forms_of(keys)[path]["passkey_token"]
    fields = {"decision": "once", "passkey": signed, "passkey_token": token}
    assert submit(owner, agent, approval, fields).status_code == 403
    # The other direction: an approval's signature shows no key.
    assert owner.send(keys, path, passkey=sign(device, approval)["passkey"]).status_code == 403
    assert status_of(agent, approval) == "awaiting"


def test_the_passkey_of_another_agents_owner_approves_nothing(
    chain_app: Flask, chain_client: FlaskClient, agent: Agent, owner: Owner
) -> None:
    approval, other_agent = ask(agent), register(chain_client)
    device = SoftwareAuthenticator("http://purser.test", "purser.test")
    device.add_to(owner_of(chain_app, other_agent), f"/owner/agents/{other_agent.id}")
    assert submit(owner, agent, approval, sign(device, approval)).status_code == 403
    assert status_of(agent, approval) == "awaiting"


def test_a_signature_after_the_expiry_or_twice_pays_nothing(
    agent: Agent, owner: Owner, device: SoftwareAuthenticator
) -> None:
    late, replayed = ask(agent, "11"), ask(agent, "12")
    expire(late)
    page = owner.get(path_of(agent, late))
    assert "expired before a decision. Nothing was paid." in page.text
    form, path = owner.get(path_of(agent, replayed)), path_of(agent, replayed)
    forged = {**forms_of(form)[path], **sign(device, late), "request_hash": late["request_hash"]}
    done = owner.client.post(path_of(agent, late), data=forged)
    assert done.status_code == 303, done.text
    assert "Your decision came too late" in owner.get(done.location).text
    fields = sign(device, replayed)
    assert owner.send(form, path, **fields).status_code == 303
    again = owner.send(form, path, **fields)
    assert "Your decision came too late" in owner.get(again.location).text
    worker.execute()
    assert len(agent.history()) == 1


def expire(approval: dict[str, Any]) -> None:
    """Let a request expire before the owner's session does."""
    with unit_of_work() as session:
        change(session, Approval, Approval.id == approval["id"], expires_at=clock.now() - timedelta(seconds=1))
