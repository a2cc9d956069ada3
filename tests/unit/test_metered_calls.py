"""A metered call: its lease, which a live stream renews, and its headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import cast

import pytest
import time_machine
from sqlalchemy import text

from app.core.identifiers import new_id
from app.credits import accounts
from app.credits.models import CreditHold
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.gateway.call_charges import FixedCharge
from app.gateway.pricing.quotes import CallQuote
from app.identity.models import ApiKey
from app.identity.principal import KeyKind, Principal
from app.payments.paid_call import PaidCall
from app.ports.upstream import RelayOutcome, UpstreamRequest, UpstreamResponse
from app.state import Application
from app.usage import service
from app.usage.grouped import Hold
from app.usage.service import MeteredUsage

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
REQUEST = UpstreamRequest("GET", "http://127.0.0.1", "/", ())


class StreamedCall(PaidCall):
    """A call that holds 10 nano-dollars and renews its lease with each chunk, as gateway and proxy do."""

    def begin(self, outgoing: UpstreamRequest) -> UpstreamRequest:
        self._run(Hold(self.id, self._account_id, self._call, 10, MeteredUsage(7), self._lease))
        return outgoing

    def feed(self, piece: bytes) -> bytes:
        self._renew()
        return super().feed(piece)

    def _on_no_response(self, *, is_upstream_failure: bool) -> None:
        raise NotImplementedError

    def _end(self, ending: RelayOutcome) -> None:
        del ending
        self._settle(lambda session: service.settle(session, self.id, MeteredUsage(13)))

    def lease_until(self) -> datetime:
        with read_only_unit() as session:
            return session.get_one(CreditHold, self.id).lease_until


@pytest.fixture
def travel(app: Application) -> Iterator[time_machine.Traveller]:
    with app.app_context(), time_machine.travel(NOON, tick=False) as traveller:
        yield traveller


def begun_principal() -> Principal:
    account_id, key_id = new_id(), new_id()
    with unit_of_work() as session:
        accounts.open_account(session, account_id)
        accounts.grant(session, account_id, 12, reference=account_id)
        key = ApiKey(id=key_id, kind="gw", digest=key_id, sealed="", created_at=NOON, account_id=account_id)
        session.add(key)
    return Principal(KeyKind.GATEWAY, key_id, account_id, None)


def begun() -> StreamedCall:
    call = StreamedCall(begun_principal(), "exa", "m")
    call.begin(REQUEST)
    return call


@pytest.mark.parametrize(("read_seconds", "interval"), [(300, 60), (29, 30)])
def test_a_live_stream_renews_its_lease_in_time_and_at_most_once_a_minute(
    build_app: Callable[..., Application], sqlite_url: str, read_seconds: int, interval: int
) -> None:
    timeouts = {"upstream_connect_timeout_seconds": "1", "upstream_read_timeout_seconds": str(read_seconds)}
    # Longer than an upstream may be silent, by a minute.
    lease = timedelta(seconds=1 + read_seconds + 60)
    app = build_app(sqlite_url, settings=timeouts)
    with app.app_context(), time_machine.travel(NOON, tick=False) as travel:
        call = begun()
        assert call.lease_until() == NOON + lease
        for pause, renewed_at in ((interval - 1, 0), (1, interval), (interval - 1, interval), (1, 2 * interval)):
            travel.shift(pause)
            assert call.feed(b"chunk") == b"chunk"
            assert call.lease_until() == NOON + timedelta(seconds=renewed_at) + lease


def test_a_renewal_that_fails_does_not_end_the_stream(travel: time_machine.Traveller) -> None:
    call = begun()
    travel.shift(60)
    with unit_of_work() as session:
        session.execute(text("ALTER TABLE credit_holds RENAME TO elsewhere"))
    assert call.feed(b"chunk") == b"chunk"
    with unit_of_work() as session:
        session.execute(text("ALTER TABLE elsewhere RENAME TO credit_holds"))
    travel.shift(60)
    call.feed(b"chunk")
    assert call.lease_until() > NOON + timedelta(seconds=120)


@pytest.mark.usefixtures("travel")
def test_the_headers_have_what_was_charged_and_what_is_left() -> None:
    call = begun()
    assert call.headers() == []
    # A cost of 13, of which the account can pay 12.
    call.end(RelayOutcome.COMPLETE)
    assert call.headers() == [("X-Cost-Usd", "0.000000012"), ("X-Credits-Remaining", "0")]


@pytest.mark.parametrize("answers_late", [False, True])
def test_a_fixed_price_is_charged_once_if_the_lease_of_its_hold_ends_first(
    travel: time_machine.Traveller,
    answers_late: bool,  # noqa: FBT001 - from pytest
) -> None:
    price = MeteredUsage(10, price_version="fixed")
    principal = begun_principal()
    call = FixedCharge(principal, "brave", CallQuote("web", price, price, 10), None)
    call.begin(REQUEST)
    travel.shift(timedelta(hours=1))
    assert service.charge_lapsed() == 1
    if answers_late:
        call.on_response_head(cast("UpstreamResponse", SimpleNamespace(status=200)))
        call.end(RelayOutcome.COMPLETE)
    with read_only_unit() as session:
        assert accounts.balance(session, principal.account_id) == accounts.Balance(2, 0, 12, 10)
        assert service.by_provider(session, principal.account_id)["brave"].calls == 1


def test_a_fixed_price_of_a_failure_that_comes_after_its_lease_is_returned(travel: time_machine.Traveller) -> None:
    price = MeteredUsage(10, price_version="fixed")
    principal = begun_principal()
    call = FixedCharge(principal, "brave", CallQuote("web", price, price, 10), None)
    call.begin(REQUEST)
    travel.shift(timedelta(hours=1))
    assert service.charge_lapsed() == 1
    call.on_no_response(is_upstream_failure=True)
    with read_only_unit() as session:
        assert accounts.balance(session, principal.account_id) == accounts.Balance(12, 0, 12, 0)
        assert "brave" not in service.by_provider(session, principal.account_id)


@pytest.mark.parametrize("lapses", [False, True])
def test_a_stream_that_fails_empty_costs_nothing_although_its_price_was_not_settled(
    travel: time_machine.Traveller,
    lapses: bool,  # noqa: FBT001 - from pytest
) -> None:
    price = MeteredUsage(10, price_version="fixed")
    principal = begun_principal()
    call = FixedCharge(principal, "brave", CallQuote("web", price, price, 10), None)
    call.begin(REQUEST)
    call.on_response_head(cast("UpstreamResponse", SimpleNamespace(status=200)))
    # As if no attempt to settle it had succeeded.
    PaidCall.stream(call)
    if lapses:
        travel.shift(timedelta(hours=1))
        assert service.charge_lapsed() == 1
    for _ in range(2):
        call.end(RelayOutcome.TRUNCATED)
        with read_only_unit() as session:
            assert accounts.balance(session, principal.account_id) == accounts.Balance(12, 0, 12, 0)
            assert "brave" not in service.by_provider(session, principal.account_id)


@pytest.mark.parametrize("ending", [RelayOutcome.TRUNCATED, RelayOutcome.TIMEOUT, RelayOutcome.CLIENT_DISCONNECTED])
@pytest.mark.parametrize("content", [b"", b"data: 1"])
@pytest.mark.usefixtures("travel")
def test_a_stream_with_a_fixed_price_that_fails_before_any_content_costs_nothing(
    ending: RelayOutcome, content: bytes
) -> None:
    price = MeteredUsage(10, price_version="fixed")
    principal = begun_principal()
    call = FixedCharge(principal, "brave", CallQuote("web", price, price, 10), None)
    call.begin(REQUEST)
    call.on_response_head(cast("UpstreamResponse", SimpleNamespace(status=200)))
    call.stream()
    assert call.headers() == [("X-Cost-Usd", "0.00000001"), ("X-Credits-Remaining", "0.000000002")]
    if content:
        call.feed(content)
    call.end(ending)
    is_kept = content or ending is RelayOutcome.CLIENT_DISCONNECTED
    expected = accounts.Balance(2, 0, 12, 10) if is_kept else accounts.Balance(12, 0, 12, 0)
    with read_only_unit() as session:
        assert accounts.balance(session, principal.account_id) == expected
        assert ("brave" in service.by_provider(session, principal.account_id)) == bool(is_kept)
