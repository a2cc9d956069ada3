"""Races of owners who take keys out or bring a phrase in, on PostgreSQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread
from types import SimpleNamespace

import pytest
from flask import Flask
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.core import hpke
from app.db.unit_of_work import read_only_unit
from app.identity import service as identity
from app.identity.service import AgentSnapshot
from app.owner import wallet_keys as service
from app.wallets.core.models import KeyTransfer, Wallet, WalletKey
from tests.support.agents import register
from tests.support.operators import entries
from tests.support.owners import forms_of
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.wallet_keys import KeyOwner, key_owner, sealed_for

pytestmark = pytest.mark.postgres
_CONCURRENT = 4
_WORDS = "abandon " * 11 + "about"


@pytest.fixture
def app(postgres_url: str, build_app: Callable[..., Flask]) -> Flask:
    return build_app(postgres_url, settings={"database_pool_size": 2 * _CONCURRENT})


def at_once(acts: list[Callable[[], int]]) -> Counter[int]:
    start = Barrier(len(acts))

    def run(act: Callable[[], int]) -> int:
        start.wait(PATIENCE_SECONDS)
        return act()

    with ThreadPoolExecutor(len(acts)) as threads:
        return Counter(threads.map(run, acts))


def posted(owner: KeyOwner, path: str, form: dict[str, str]) -> Callable[[], int]:
    client = owner.app.test_client()
    for name in ("purser_owner", "purser_form"):
        cookie = owner.browser.client.get_cookie(name)
        assert cookie
        client.set_cookie(name, cookie.value)
    return lambda: client.post(path, data=form).status_code


def form_of(owner: KeyOwner, path: str, **fields: str) -> dict[str, str]:
    page = owner.browser.get(owner.keys)
    return {**forms_of(page)[path], **fields, "passkey": owner.sign(page, path, **fields)}


def acts() -> Counter[str]:
    return Counter(each.action for each in entries() if each.action.startswith("wallet."))


def test_of_many_that_ask_at_once_one_begins_the_waiting_time(app: Flask) -> None:
    with app.app_context():
        ada = key_owner(app)
        asked = [posted(ada, ada.keys, form_of(ada, ada.keys)) for _ in range(_CONCURRENT)]
        # Passkeys count up, so of forms that arrive in another order some are refused.
        assert set(at_once(asked)) <= {303, 403}
        assert acts() == {"wallet.export_requested": 1}


def test_a_wallet_that_its_agent_deletes_while_its_keys_are_asked_for_is_an_error_that_is_clear(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    with app.app_context():
        ada = key_owner(app)
        other = ada.agent.post("/v1/wallets", {}).get_json()["id"]
        keys = ada.keys.replace(ada.agent.wallet_id, other)
        page = ada.browser.get(keys)
        ask = posted(ada, keys, {**forms_of(page)[keys], "passkey": ada.sign(page, keys)})
        frozen, deleted = identity.get_agent, list[int]()

        def delete_meanwhile(session: Session, agent_id: str) -> AgentSnapshot:
            if not deleting.is_alive():
                deleting.start()
                deleting.join(1)
            return frozen(session, agent_id)

        deleting = Thread(target=lambda: deleted.append(ada.agent.delete(f"/v1/wallets/{other}").status_code))
        with monkeypatch.context() as patched:
            patched.setattr(service, "identity", SimpleNamespace(get_agent=delete_meanwhile))
            assert ask() in (303, 404)
        deleting.join(PATIENCE_SECONDS)
        assert deleted == [200]
        with read_only_unit() as session:
            assert session.scalar(select(func.count(KeyTransfer.id))) == 0


def test_a_cancellation_and_a_taking_at_once_are_one_after_the_other(app: Flask) -> None:
    with app.app_context():
        ada = key_owner(app)
        ada.ask()
        with ada.later():
            take = f"{ada.keys}/take"
            taken = posted(ada, take, form_of(ada, take, public_key=hpke.new_key()[1]))
            cancel = f"{ada.keys}/cancel"
            cancelled = posted(ada, cancel, forms_of(ada.browser.get(ada.keys))[cancel])
            answers = at_once([taken, cancelled])
        assert answers in ({200: 1, 303: 1}, {404: 1, 303: 1})
        assert acts()["wallet.exported"] == answers[200]
        with read_only_unit() as session:
            assert session.scalar(select(func.count(KeyTransfer.id))) == 0
            assert session.scalar(select(func.count(Wallet.exported_at))) == answers[200]


def test_of_many_owners_who_import_one_phrase_at_once_one_gets_the_wallet(app: Flask) -> None:
    with app.app_context():
        sent = []
        for _ in range(_CONCURRENT):
            owner = key_owner(app, register(app.test_client()))
            begun = owner.begin_import()
            [path] = [each for each in forms_of(begun) if "/import/" in each]
            fields = {"sealed": sealed_for(begun, _WORDS)}
            sent.append(
                posted(owner, path, {**forms_of(begun)[path], **fields, "passkey": owner.sign(begun, path, **fields)})
            )
        assert at_once(sent) == {303: 1, 409: _CONCURRENT - 1}
        with read_only_unit() as session:
            assert session.scalar(select(func.count(WalletKey.wallet_id))) == _CONCURRENT + 1
            assert session.scalar(select(func.count(KeyTransfer.id))) == 0
        assert acts() == {"wallet.imported": 1}
