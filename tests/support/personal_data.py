"""An agent whose owner has left personal data in every place that there is, and another one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from flask import Flask

from app.audit_log.actors import shell_actor
from app.events import feed, targets
from app.events.targets import Audience, Subscriber
from app.extensions import db
from app.owner import address_book
from tests.support.authenticators import SoftwareAuthenticator
from tests.support.filled import held
from tests.support.notices import Browser, Mailbox
from tests.support.operators import Operator, operator
from tests.support.owner_world import World
from tests.support.owners import Owner, person

EMAIL, CANARY = "ada.lovelace@home.example.org", "Canary of "
OTHER = "charles.babbage@home.example.org"
WORDS = tuple(CANARY + each for each in ("agent", "aunt", "note", "answer", "key", "tag", "phone", "wallet", "browser"))
PLACES = (EMAIL, *WORDS, "shop.example", "A-1", "hooks.example.com/canary")


@dataclass(slots=True)
class Scene:
    """A service with an agent whose owner has left data everywhere, and another one."""

    app: Flask
    world: World
    mailbox: Mailbox
    ops: Operator
    made: dict[str, Any]
    owner: Owner
    other: dict[str, Any]
    cookies: dict[Any, Any] = field(default_factory=dict)
    """The owner's, when all was filled."""

    @property
    def id(self) -> str:
        return str(self.made["agentId"])

    @property
    def page(self) -> str:
        return f"/owner/agents/{self.id}"

    @property
    def path(self) -> str:
        return f"/agents/{self.id}/personal-data"

    def found(self, *texts: str) -> set[str]:
        """Return the texts that are in the database, wherever."""
        with db.engine.connect() as connection:
            content = repr(held(connection)).lower()
        return {text for text in texts if text.lower() in content}

    def export(self, agent_id: str | None = None) -> dict[str, Any]:
        tables: dict[str, Any] = self.ops.get(f"/agents/{agent_id or self.id}/personal-data").get_json()["tables"]
        return tables


def copied(scene: Scene, app: Flask, mailbox: Mailbox) -> Scene:
    """Return the scene in another application, whose database has the same rows."""
    browser = app.test_client()
    browser._cookies = dict(scene.cookies)
    return replace(
        scene,
        app=app,
        world=World(app, "", {}),
        mailbox=mailbox,
        ops=replace(scene.ops, client=app.test_client()),
        owner=replace(scene.owner, client=browser),
    )


def fill(app: Flask, mailbox: Mailbox) -> Scene:
    world, ops = World(app, "", {}), operator(app.test_client())
    made, other = world.register(name=WORDS[0], email=EMAIL), world.register(name="Engine", email=OTHER)
    owner = person(app)
    owner.claim(made, email=EMAIL)
    scene = Scene(app, world, mailbox, ops, made, owner, other)
    leave_data(scene)
    person(app).claim(other, email=OTHER)
    world.buy(other, max_total_usd=41)
    address_book.set_name(shell_actor(), other["agentId"], "base", "0x" + "cd" * 20, "Analytical")
    feed.number_all()
    scene.cookies = dict(owner.client._cookies or {})
    return scene


def leave_data(scene: Scene) -> None:
    """Leave personal data of the owner in every place that there is."""
    world, made, owner = scene.world, scene.made, scene.owner
    assert scene.ops.patch(f"/agents/{scene.id}", {"email": EMAIL, "name": WORDS[0]}).status_code == 200
    address_book.set_name(shell_actor(), scene.id, "base", "0x" + "ab" * 20, WORDS[1])
    approval_id = world.ask(made, 12, note=WORDS[2])
    path = f"{scene.page}/approvals/{approval_id}"
    assert owner.send(owner.get(path), path, decision="reject", answer=WORDS[3]).status_code == 303
    key = {"name": WORDS[4], "tags": [WORDS[5]], "limit_usd": 1}
    assert scene.ops.post(f"/agents/{scene.id}/keys", key).status_code == 201
    device = SoftwareAuthenticator("http://purser.test", "purser.test")
    assert device.add_to(owner, scene.page, name=WORDS[6]).status_code in {200, 303}
    assert world.call(made, "POST", "/v1/wallets", {"name": WORDS[7]})[0] == 201
    subscriber = Subscriber(Audience.OWNER, scene.id, shell_actor())
    targets.add_email(subscriber, EMAIL, types=["*"])
    keys = Browser().subscription("https://push.example.com/x")
    targets.add_browser(subscriber, **keys, types=["*"], description=WORDS[8])
    hook = {"url": "https://hooks.example.com/canary", "types": ["*"]}
    assert world.call(made, "POST", "/v1/webhooks", hook)[0] == 201
    world.buy(made)
    feed.number_all()
