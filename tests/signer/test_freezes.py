"""An owner who freezes an agent stops what is not signed yet, with a signer process as without one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.orm import Session

from app.db import prepared
from app.db.unit_of_work import unit_of_work
from app.spending import accounts
from app.wallets.core import intents
from tests.signer.test_deaths import Paying, held, open_intents, paying

pytestmark = pytest.mark.chain
__all__ = ["paying"]


def test_a_freeze_between_the_hold_and_the_signature_stops_the_payment(
    paying: Paying, monkeypatch: pytest.MonkeyPatch
) -> None:
    def freeze() -> None:
        with paying.app.app_context(), unit_of_work() as other:
            accounts.set_frozen(other, paying.agent.id, frozen=True)

    def commit_and_freeze(session: Session) -> None:
        prepared.commit_part(session)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(freeze).result(20)

    monkeypatch.setattr(intents, "commit_part", commit_and_freeze)
    answer = paying.agent.move("2", "USDC")
    assert (answer.status_code, answer.get_json()["code"]) == (403, "WALLET_FROZEN"), answer.get_json()
    assert (held(), open_intents(), paying.agent.history()) == ([], 0, [])
