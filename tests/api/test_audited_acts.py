"""Acts that change who may do what: each leaves an entry in the audit log, and a revoked key leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask

from app.audit_log import actors
from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.events import outbox, targets
from app.events.outbox import EventType
from app.events.targets import Audience, Subscriber
from app.idempotency.service import Claim
from app.owner.notices import NOTICE_TYPES
from app.platform import keys
from tests.support.agents import Agent, register
from tests.support.notices import Browser, Mailbox, notices_app
from tests.support.operators import entries, operator
from tests.support.owners import Owner, forms_of, person
from tests.support.webhooks import add_webhook, deliver, receiver

URL, ADDRESS = "https://hooks.example.com/secret/path?token=x", "ada@home.example.org"


@pytest.fixture
def app(build_app: Callable[..., Flask], sqlite_url: str, mailbox: Mailbox) -> Flask:
    return notices_app(build_app, sqlite_url, mailbox)


@pytest.fixture
def owner(app: Flask, agent: Agent) -> Owner:
    found = person(app)
    found.claim(agent.post("/v1/agents/claim-code").get_json())
    return found


def acts(*, since: int = 0) -> list[tuple[str, str, str | None]]:
    """Return the kind of actor, action and subject of the entries after a number."""
    return [(each.actor_kind, each.action, each.subject_id) for each in entries() if each.number > since]


def last_number() -> int:
    return max((each.number for each in entries()), default=0)


def recorded(act: Callable[[], Any]) -> list[tuple[str, str, str | None]]:
    before = last_number()
    act()
    return acts(since=before)


def frozen_event(agent: Agent) -> None:
    with unit_of_work() as session:
        outbox.record(session, EventType.WALLET_FROZEN, agent_id=agent.id, object_id=new_id(), data={"frozen": True})


def test_registration_leaves_no_entry(agent: Agent) -> None:
    assert recorded(lambda: register(agent.client)) == []


def test_the_first_claim_is_recorded(agent: Agent, app: Flask) -> None:
    code = agent.post("/v1/agents/claim-code").get_json()
    found = recorded(lambda: person(app).claim(code))
    assert ("anonymous", "agent.claimed", agent.id) in found


@pytest.mark.parametrize("by", ["agent", "operator"])
def test_every_act_on_a_webhook_is_recorded_without_its_secrets(agent: Agent, by: str) -> None:
    if by == "agent":
        kind, headers, prefix = "agent", agent.headers(), "/v1"
    else:
        kind, headers, prefix = ("master_key", operator(agent.client).headers(), "/v1/platform")
    client, body = agent.client, {"url": URL, "types": ["*"]}
    before = last_number()
    made = client.post(f"{prefix}/webhooks", json=body, headers=headers).get_json()
    path = f"{prefix}/webhooks/{made['id']}"
    client.patch(path, json={"enabled": False}, headers=headers)
    client.post(f"{path}/rotate-secret", headers=headers)
    client.post(f"{path}/test", headers=headers)
    client.post(f"{path}/replay", json={"failed_since": "2020-01-01T00:00:00Z"}, headers=headers)
    client.delete(path, headers=headers)
    done = ["created", "changed", "secret_rotated", "tested", "replayed", "deleted"]
    assert acts(since=before) == [(kind, f"webhook.{each}", made["id"]) for each in done]
    found = [each for each in entries() if each.number > before]
    assert (found[1].before["status"], found[1].after["status"]) == ("enabled", "disabled")
    assert found[0].after["created_by"] == found[0].actor_id == made["created_by"]
    assert found[5].before["address"] == "https://hooks.example.com"
    text = str([(each.before, each.after) for each in found])
    assert "whsec_" not in text
    assert "/secret/path" not in text


def test_a_refused_act_on_a_webhook_of_another_is_not_recorded(agent: Agent) -> None:
    webhook = add_webhook(register(agent.client), URL)
    path = f"/v1/webhooks/{webhook['id']}"
    assert recorded(lambda: agent.client.delete(path, headers=agent.headers())) == []


def test_a_revoked_master_key_ends_its_webhooks(agent: Agent) -> None:
    first, leaked = operator(agent.client, "first"), operator(agent.client, "leaked")
    with receiver() as target, receiver() as kept:
        made = leaked.post("/webhooks", {"url": target.url, "types": ["*"]}).get_json()
        first.post("/webhooks", {"url": kept.url, "types": ["*"]})
        answer = agent.client.delete(f"/v1/platform/master-keys/{leaked.id}", headers={"X-Master-Key": first.key})
        assert answer.get_json() == {"revoked": True, "id": leaked.id, "disabled_webhooks": [made["id"]]}
        frozen_event(agent)
        deliver()
        assert (target.types, kept.types) == ([], ["wallet.frozen"])
    assert entries(action="master_key.revoked")[-1].after["disabled_webhooks"] == [made["id"]]
    shown = first.get(f"/webhooks/{made['id']}").get_json()
    assert (shown["status"], shown["status_reason"]) == ("disabled", "its master key was revoked")


def test_sign_ins_and_wrong_owner_keys_are_recorded_within_bounds(agent: Agent, owner: Owner, app: Flask) -> None:
    assert recorded(lambda: person(app).sign_in(owner.key)) == [("owner", "agent.owner_sign_in", agent.id)]
    found = recorded(lambda: [person(app).sign_in(f"ok_{number:043}") for number in range(30)])
    assert found == [("anonymous", "agent.owner_key_refused", None)] * 20


def test_what_an_owner_is_notified_by_is_recorded_and_a_removed_address_gets_a_last_message(
    agent: Agent, owner: Owner, mailbox: Mailbox
) -> None:
    page = f"/owner/agents/{agent.id}/notices"
    before = last_number()
    owner.send(owner.get(page), f"{page}/email", email=ADDRESS)
    made = targets.add_email(owner_of(agent), ADDRESS, types=NOTICE_TYPES)
    browser = Browser().subscription("https://push.example.com/x")
    owner.send(owner.get(page), f"{page}/browser", **browser)
    owner.send(owner.get(page), f"{page}/webhook", url=URL)
    mailbox.received.clear()
    owner.client.post(f"{page}/test", data={**csrf(owner, page), "target_id": made.id})
    removed = owner.client.post(f"{page}/remove", data={**csrf(owner, page), "target_id": made.id})
    assert removed.status_code == 303
    found = acts(since=before)
    expected = ["notice_link_sent", "notice_added", "notice_added", "notice_tested", "notice_removed"]
    assert found == [("owner", f"agent.{each}", agent.id) for each in expected]
    assert entries()[-1].before["address"] == "a…@home.example.org"
    [(recipients, text)] = mailbox.received
    assert recipients == [ADDRESS]
    assert "No more notices to this address" in text


def owner_of(agent: Agent) -> Subscriber:
    return Subscriber(Audience.OWNER, agent.id)


def csrf(owner: Owner, page: str) -> dict[str, str]:
    return {"csrf_token": forms_of(owner.get(page))[f"{page}/email"]["csrf_token"]}


def test_a_replaced_owner_key_ends_webhooks_and_browsers_but_not_confirmed_mail(agent: Agent, owner: Owner) -> None:
    subscriber = owner_of(agent)
    mail = targets.add_email(subscriber, ADDRESS, types=NOTICE_TYPES)
    hook = targets.create_webhook(subscriber, url=URL, types=NOTICE_TYPES, description="", claim=Claim.none())
    own = add_webhook(agent, URL)
    keys.replace_owner_key(actors.shell_actor(), agent.id)
    assert targets.get(subscriber, hook.id).status == "disabled"
    assert targets.get(subscriber, mail.id).status == "enabled"
    assert agent.get(f"/v1/webhooks/{own['id']}").get_json()["status"] == "enabled"
    assert entries()[-1].after["disabled_targets"] == [hook.id]
    assert owner.get(f"/owner/agents/{agent.id}").status_code != 200


def test_limits_that_the_agent_loosens_are_recorded_and_its_owner_is_notified(agent: Agent, mailbox: Mailbox) -> None:
    targets.add_email(owner_of(agent), ADDRESS, types=NOTICE_TYPES)
    wallet_id = agent.post("/v1/wallets", {}).get_json()["id"]
    path = f"/v1/wallets/{wallet_id}/controls"

    def put(**body: Any) -> None:
        answer = agent.client.put(path, json=body, headers=agent.headers())
        assert answer.status_code == 200, answer.text

    assert recorded(lambda: put(daily_limit_usd=100)) == []
    assert recorded(lambda: put(daily_limit_usd=50)) == []
    deliver()
    assert mailbox.received == []
    assert recorded(lambda: put(daily_limit_usd=0)) == [("agent", "agent.controls_loosened", agent.id)]
    assert recorded(lambda: put(daily_limit_usd=0)) == []
    entry = entries()[-1]
    assert (entry.before, entry.after) == ({"daily_limit_usd": "50"}, {"daily_limit_usd": "0"})
    deliver()
    [(_, text)] = mailbox.received
    assert "controls.changed" in text
    found = agent.get("/v1/events", types="controls.changed").get_json()["events"]
    assert [each["data"]["loosens"] for each in found] == [False, False, True]
    assert found[2]["data"]["wallet_id"] == wallet_id


def test_long_allowlists_are_recorded_by_count_digest_and_a_few_different_entries(agent: Agent) -> None:
    wallet_id = agent.post("/v1/wallets", {}).get_json()["id"]
    path = f"/v1/wallets/{wallet_id}/controls"
    old = [f"{'a' * 60}.{number}.{'b' * 60}.example" for number in range(400)]
    added = [f"new{number}.example" for number in range(9)]
    for domains in (old, [*old[2:], *added]):
        answer = agent.client.put(path, json={"allowed_domains": domains}, headers=agent.headers())
        assert answer.status_code == 200, answer.text
    shown = [entries()[-1], *agent.get("/v1/events", types="controls.changed").get_json()["events"][1:]]
    found = [(shown[0].before, shown[0].after), (shown[1]["data"]["before"], shown[1]["data"]["after"])]
    for before, after in found:
        assert before["allowed_domains"] | {"sha256": ""} == {"count": 400, "sha256": "", "different": old[:2]}
        assert after["allowed_domains"] | {"sha256": ""} == {"count": 407, "sha256": "", "different": added[:3]}
        assert len(before["allowed_domains"]["sha256"]) == 64
        assert before["allowed_domains"]["sha256"] != after["allowed_domains"]["sha256"]


def test_a_wallets_controls_are_loosened_so_often_only_and_tightened_always(agent: Agent) -> None:
    wallet_id = agent.post("/v1/wallets", {}).get_json()["id"]
    path = f"/v1/wallets/{wallet_id}/controls"

    def put(limit: int) -> Any:
        return agent.client.put(path, json={"daily_limit_usd": limit}, headers=agent.headers())

    assert [put(limit).status_code for limit in range(100, 111)] == [200] * 11
    before = last_number()
    refused = put(111)
    assert (refused.status_code, refused.get_json()["code"]) == (429, "RATE_LIMITED")
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert "tightened" in refused.get_json()["error"]
    assert agent.get(path).get_json()["controls"]["daily_limit_usd"] == 110
    assert put(50).status_code == 200
    assert put(60).status_code == 429
    assert last_number() == before
    other = agent.post("/v1/wallets", {}).get_json()["id"]
    path = f"/v1/wallets/{other}/controls"
    assert [put(limit).status_code for limit in (1, 2)] == [200, 200]


def test_a_spending_session_is_recorded(agent: Agent) -> None:
    wallet_id = agent.post("/v1/wallets", {}).get_json()["id"]
    body = {"max_usd": 5, "expires_at": clock.isoformat(clock.now().replace(year=clock.now().year + 1))}
    found = recorded(lambda: agent.post(f"/v1/wallets/{wallet_id}/sessions", body))
    assert found == [("agent", "agent.session_opened", agent.id)]


def test_freezing_can_block_the_api_key_as_well(agent: Agent) -> None:
    ops = operator(agent.client)
    assert ops.post(f"/agents/{agent.id}/freeze", {}).get_json()["frozen"] is True
    # Frozen, the key still reads, and spends the credits.
    assert agent.get("/v1/wallets").status_code == 200
    assert ops.post(f"/agents/{agent.id}/freeze", {"block_keys": True}).status_code == 200
    assert agent.get("/v1/wallets").status_code == 401
    assert [each.action for each in entries()[-2:]] == ["agent.key_rotated", "agent.frozen"]
    assert entries()[-1].after == {"frozen": True, "keys_blocked": True}
    assert ops.post(f"/agents/{agent.id}/freeze", {"block_keys": "yes"}).status_code == 400


@pytest.mark.parametrize("block", ["", "on"])
def test_an_owner_reads_what_goes_on_while_frozen_and_can_block_the_key(agent: Agent, owner: Owner, block: str) -> None:
    page = owner.get(f"/owner/agents/{agent.id}")
    assert "go on spending the credits" in page.text
    answer = owner.send(page, f"/owner/agents/{agent.id}/freeze", **({"block_keys": block} if block else {}))
    assert answer.status_code == 303
    assert agent.get("/v1/wallets").status_code == (401 if block else 200)
    shown = owner.get(answer.headers["Location"]).text
    assert ("its API key no longer works" in shown) is bool(block)
    assert ("Its API key still works" in shown) is not bool(block)


def test_an_operators_freeze_does_not_become_the_owners_when_the_owner_blocks_the_key(
    agent: Agent, owner: Owner
) -> None:
    page = owner.get(f"/owner/agents/{agent.id}")
    operator(agent.client).post(f"/agents/{agent.id}/freeze", {})
    owner.send(page, f"/owner/agents/{agent.id}/freeze", block_keys="on")
    assert agent.get("/v1/wallets").status_code == 401
    assert "Only the operator can unfreeze it." in owner.get(f"/owner/agents/{agent.id}").text
