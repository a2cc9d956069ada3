"""Races of codes that make somebody an owner, on PostgreSQL: each is used once, and one owner is left."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Barrier

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from app.db.unit_of_work import read_only_unit
from app.identity import grants
from tests.support.oauth import Application, consent, consent_page
from tests.support.operators import entries
from tests.support.owners import OWNER_KEY, Owner, forms_of, person
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.postgres

_CONCURRENT = 8
_CODE = re.compile(r"\b(?:[0-9A-Z]{4}-){6}[0-9A-Z]{4}\b")
_PATH = "/owner/recover"


@pytest.fixture
def app(postgres_url: str, build_app: Callable[..., Flask]) -> Flask:
    """Build an application with a connection for each thread."""
    return build_app(postgres_url, settings={"database_pool_size": _CONCURRENT})


@pytest.fixture
def made(app: Flask) -> dict[str, str]:
    found: dict[str, str] = app.test_client().post("/v1/agents/register", json={}).get_json()
    return found


def _offer(ada: Owner, made: dict[str, str]) -> str:
    keys = f"/owner/agents/{made['agentId']}/keys"
    form = forms_of(ada.get(keys))[f"{keys}/codes"]
    shown = ada.client.post(f"{keys}/codes", data={**form, "kind": "handover", "owner_key": ada.key})
    return _CODE.findall(shown.text)[0]


@dataclass(slots=True)
class Prepared:
    """A person who has looked a code up, with the key that its use makes valid."""

    browser: Owner
    key: str
    form: dict[str, str]

    def use(self) -> int:
        return self.browser.client.post(f"{_PATH}/use", data=self.form).status_code


def _prepare(app: Flask, code: str) -> Prepared:
    browser = person(app)
    shown = browser.send(browser.get(_PATH), _PATH, code=code)
    key = OWNER_KEY.search(shown.text)
    assert key, shown.text
    return Prepared(browser, key[0], forms_of(shown)[f"{_PATH}/use"])


def _at_once(acts: list[Callable[[], int]]) -> list[int]:
    start = Barrier(len(acts))

    def run(act: Callable[[], int]) -> int:
        start.wait(PATIENCE_SECONDS)
        return act()

    with ThreadPoolExecutor(len(acts)) as threads:
        return list(threads.map(run, acts))


def _valid_keys(app: Flask, people: list[Prepared]) -> list[bool]:
    return [person(app).sign_in(each.key).status_code == 303 for each in people]


def _changes(app: Flask) -> Counter[str]:
    with app.app_context():
        found = Counter(each.after["change"] for each in entries(action="agent.owner_changed"))
        del found["recovery_code_created"]
        return found


def test_a_code_that_many_use_at_once_makes_one_of_them_the_owner(app: Flask, made: dict[str, str]) -> None:
    code = _CODE.findall(person(app).claim(made).text)[0]
    people = [_prepare(app, code) for _ in range(_CONCURRENT)]
    done = _at_once([each.use for each in people])
    assert Counter(done) == {200: 1, 403: _CONCURRENT - 1}
    assert _valid_keys(app, people) == [each == 200 for each in done]
    assert _changes(app) == {"recovery_code_used": 1}


def test_of_a_handover_and_recovery_codes_at_once_one_decides(app: Flask, made: dict[str, str]) -> None:
    ada = person(app)
    codes = _CODE.findall(ada.claim(made).text)
    people = [_prepare(app, each) for each in (_offer(ada, made), *codes[:3])]
    done = _at_once([each.use for each in people])
    # A recovery code that waited for another one is still valid; after the handover none is.
    assert done.count(200) >= 1
    assert Counter(done).keys() <= {200, 403}
    assert sum(_valid_keys(app, people)) == 1
    with app.app_context():
        assert [each for each in _changes(app) if each.endswith("_used")]


def test_a_use_and_a_cancellation_at_once_are_one_or_the_other(app: Flask, made: dict[str, str]) -> None:
    ada = person(app)
    ada.claim(made)
    page = f"/owner/agents/{made['agentId']}"
    bob = _prepare(app, _offer(ada, made))
    form = forms_of(ada.get(page))[f"{page}/keys/cancel"]
    used, _ = _at_once([bob.use, lambda: ada.client.post(f"{page}/keys/cancel", data=form).status_code])
    assert used in (200, 403)
    was_used = used == 200
    assert _valid_keys(app, [bob]) == [was_used]
    assert (person(app).sign_in(ada.key).status_code == 303) is not was_used
    assert set(_changes(app)) == {"handover_created", "handover_used" if was_used else "cancelled"}


def test_no_connection_that_the_former_owner_opens_during_a_handover_outlives_it(
    app: Flask, made: dict[str, str]
) -> None:
    ada, application = person(app), Application(app)
    ada.claim(made)
    application.register()
    acts: list[Callable[[], int]] = []
    for _ in range(_CONCURRENT - 1):
        browser = person(app)
        browser.sign_in(ada.key)
        form = consent_page(browser, application.authorization())
        acts.append(partial(_consent, browser, made, form))
    bob = _prepare(app, _offer(ada, made))
    used, *_ = _at_once([bob.use, *acts])
    assert used == 200
    with app.app_context(), read_only_unit() as session:
        assert grants.list_live(session, made["agentId"]) == []


def _consent(browser: Owner, made: dict[str, str], form: TestResponse) -> int:
    return consent(browser, "", made, form=form).status_code
