"""A key that a process still remembers spends nothing once it is invalid."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from app.agents import service as agents
from app.core import clock, identifiers
from app.core.identifiers import new_id
from app.credits import accounts
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import Unauthorized
from app.identity import api_keys, service
from app.identity.principal import KeyKind, Principal
from app.identity.service import KeyMemory
from app.payments.paid_call import PaidCall
from app.ports.upstream import RelayOutcome, UpstreamRequest
from app.state import Application, app_state
from app.usage.grouped import Hold
from app.usage.service import MeteredUsage, UsageCall


class _Call(PaidCall):
    def begin(self, outgoing: UpstreamRequest) -> UpstreamRequest:
        raise NotImplementedError

    def _on_no_response(self, *, is_upstream_failure: bool) -> None:
        raise NotImplementedError

    def _end(self, ending: RelayOutcome) -> None:
        raise NotImplementedError


def spend(caller: Principal, nanos: int) -> None:
    """Take a call's first step as its guard and its meter do."""
    call = UsageCall(caller.key_id, "openai", "m")
    step = Hold(new_id(), caller.account_id, call, nanos, MeteredUsage(nanos), timedelta(minutes=1))
    _Call(caller, call.provider, call.model)._run(step)


def _rotate(session: Session, caller: Principal, grace: timedelta) -> None:
    key = service.mint_api_key(KeyKind.AGENT)
    api_keys.rotate_api_key(session, caller.account_id, key, now=clock.now(), grace=grace)


def _delete(session: Session, caller: Principal) -> None:
    service.lock_agent(session, caller.account_id)
    service.delete_agent(session, caller.account_id)


def _revoke(session: Session, caller: Principal) -> None:
    assert api_keys.revoke_gateway_key(session, caller.key_id)


def _new_key(kind: KeyKind) -> str:
    """Return the key of a new account with credits."""
    if kind is KeyKind.AGENT:
        return agents.register(name=None, email=None).api_key
    return agents.issue_gateway_key(email=None).api_key


_ENDS: dict[str, tuple[KeyKind, Callable[[Session, Principal], None]]] = {
    "revoked": (KeyKind.GATEWAY, _revoke),
    "rotated": (KeyKind.AGENT, lambda session, caller: _rotate(session, caller, timedelta(0))),
    "expired": (KeyKind.AGENT, lambda session, caller: _rotate(session, caller, timedelta(microseconds=1))),
    "deleted with its agent": (KeyKind.AGENT, _delete),
}


@pytest.mark.parametrize("end", _ENDS)
def test_a_recalled_key_that_has_ended_is_refused_and_forgotten(
    each_database_url: str, build_app: Callable[..., Application], end: str
) -> None:
    here, elsewhere = build_app(each_database_url), build_app(each_database_url)
    key_kind, do_end = _ENDS[end]
    with here.app_context():
        key = _new_key(key_kind)
        caller = service.recall_principal(key)
        assert caller is not None
        for nanos in (7, 0):
            spend(caller, nanos)
        with read_only_unit() as session:
            before = accounts.balance(session, caller.account_id)
    with elsewhere.app_context(), unit_of_work() as session:
        do_end(session, caller)
    with here.app_context():
        for nanos in (7, 0):
            app_state().part(KeyMemory).add(identifiers.digest(key), caller)
            assert service.recall_principal(key) == caller
            with pytest.raises(Unauthorized):
                spend(caller, nanos)
            assert service.recall_principal(key) is None
        with read_only_unit() as session:
            assert accounts.balance(session, caller.account_id) == before


def test_a_key_spends_only_the_credits_of_its_account(app: Application) -> None:
    with app.app_context():
        one, other = (service.recall_principal(_new_key(KeyKind.GATEWAY)) for _ in range(2))
        assert one is not None
        assert other is not None
        mixed = Principal(KeyKind.GATEWAY, one.key_id, other.account_id, None)
        with pytest.raises(Unauthorized):
            spend(mixed, 1)


def test_only_valid_keys_are_remembered(app: Application) -> None:
    with app.app_context():
        unknown, key = service.mint_api_key(KeyKind.GATEWAY), _new_key(KeyKind.GATEWAY)
        for missing in (None, "", "gw_short", unknown.key):
            assert service.recall_principal(missing) is None
        assert app_state().part(KeyMemory).get(unknown.digest) is None
        caller = service.recall_principal(key)
        assert caller is not None
        with unit_of_work() as session:
            _revoke(session, caller)
        assert service.find_principal(key) is None
        assert service.recall_principal(key) == caller


def test_the_memory_of_keys_is_bounded_in_time_and_number() -> None:
    def principal(number: int) -> Principal:
        return Principal(KeyKind.GATEWAY, f"id {number}", "account", None)

    short, small = KeyMemory(lifetime=timedelta(0)), KeyMemory(max_keys=2)
    short.add("0", principal(0))
    assert short.get("0") is None
    for number in range(4):
        small.add(str(number), principal(number))
    assert [small.get(str(number)) for number in range(4)] == [None, None, principal(2), principal(3)]
    small.forget("id 2")
    assert [small.get("2"), small.get("3")] == [None, principal(3)]
