"""Key rotation during requests on two hosts: no request fails, and nothing remains encrypted with an old key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import text

from app.audit_log import actors
from app.db.unit_of_work import read_only_unit
from app.idempotency.service import Claim
from app.platform import keys, row_seals
from app.wallets.core import custody
from tests.support.applications import key_of
from tests.support.gateway import SEARCH, provider_settings
from tests.support.hosts import Host, Router, environment_of
from tests.support.upstreams import Exchange, MisbehavingUpstream, misbehaving_upstream
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.timeout(300)]
_PLACES = 2
_PAUSE_SECONDS = 0.5
OLD, NEW = "s" * 32, "n" * 32


@dataclass
class Load:
    """Clients that use both hosts continuously: one host decrypts what the other encrypted."""

    router: Router
    master_key: str
    stop: threading.Event = field(default_factory=threading.Event)
    failed: list[str] = field(default_factory=list)
    rounds: list[int] = field(default_factory=lambda: [0] * _PLACES)

    def ask(self, method: str, path: str, body: object = None, key: str = "", **headers: str) -> Any:
        """Send a request to the next host; anything but success is a failure."""
        status, answer = self.router.ask(method, path, body, key, **headers)
        if status >= HTTPStatus.BAD_REQUEST:
            raise AssertionError(f"{method} {path}: {status} {answer}")
        return answer

    def live(self, place: int) -> None:
        while not self.stop.is_set():
            try:
                self._round(place)
            except (AssertionError, OSError) as error:
                self.failed.append(repr(error))
            self.rounds[place] += 1
            # Leave processor time to the hosts, which start meanwhile.
            self.stop.wait(_PAUSE_SECONDS)

    def _round(self, place: int) -> None:
        master = {"X-Master-Key": self.master_key}
        made = self.ask("POST", "/v1/agents/register", {})
        old = made["apiKey"]
        # A code hashed by one host is found by the other.
        for _ in range(_PLACES):
            self.ask("GET", f"/v1/device/info?code={made['claimCode']}")
        again = {"Idempotency-Key": f"{place}-{self.rounds[place]}"}
        first = self.ask("POST", "/v1/wallets", {"name": "w"}, old, **again)
        assert self.ask("POST", "/v1/wallets", {"name": "w"}, old, **again)["id"] == first["id"]
        seen = self.ask("GET", f"/v1/platform/agents/{made['agentId']}", **master)
        assert old in str(seen)
        new = self.ask("POST", f"/v1/platform/agents/{made['agentId']}/rotate-key", {"grace_seconds": 600}, **master)
        for key in (old, new["apiKey"]):
            self.ask("GET", "/v1/balance", key=key)
        self.ask("GET", SEARCH, key=old)

    def all_continue(self) -> None:
        before = list(self.rounds)
        wait_until(
            lambda: all(now >= then + 2 for now, then in zip(self.rounds, before, strict=True)), 60,
            what="requests to continue",
        )  # fmt: skip


@pytest.fixture
def upstream() -> Iterator[MisbehavingUpstream]:
    with misbehaving_upstream() as server:

        def take_a_while(exchange: Exchange) -> None:
            # So that requests are always in progress on a host that ends.
            exchange.is_over(0.5)
            exchange.json({"results": []})

        server.behave = take_a_while
        yield server


def test_no_request_fails_while_keys_are_rotated_under_load_on_two_hosts(
    postgres_url: str, redis_url: str, upstream: MisbehavingUpstream, build_app: Callable[..., Flask], tmp_path: Path
) -> None:
    # It encrypts with the old key; the new one is for the audit at the end.
    before = build_app(postgres_url, settings={"encryption_keys": f"{key_of('k1')},{key_of('k2')}"})
    shell = build_app(postgres_url, settings={"encryption_keys": f"{key_of('k2')},{key_of('k1')}"})
    with before.app_context():
        first_master = keys.create_master_key(actors.shell_actor(), name="first", owner_email=None, claim=Claim.none())
        first_agent = before.test_client().post("/v1/agents/register", json={}).get_json()
    wallet = first_agent["wallet"]
    providers = {name.upper(): str(value) for name, value in provider_settings(upstream.url).items()}
    with ExitStack() as stack:
        only_old = {"ENCRYPTION_KEYS": key_of("k1"), "SECRET_KEY": OLD, "CODE_PEPPERS": key_of("p1")}
        host = Host(environment_of(postgres_url, redis_url, **providers) | only_old, tmp_path, stack)
        webs = host.webs(2)
        load = Load(Router(*webs), first_master.key)
        threads = [threading.Thread(target=load.live, args=[place]) for place in range(_PLACES)]
        for thread in threads:
            thread.start()

        def restart_one_after_the_other(**settings: str) -> None:
            host.environment |= settings
            for place, web in enumerate(host.webs(len(webs))):
                old, webs[place] = webs[place], web
                # Immediately, with requests in progress.
                assert load.router.leave(old, web).terminate() == 0
                load.all_continue()

        try:
            load.all_continue()
            restart_one_after_the_other(
                ENCRYPTION_KEYS=f"{key_of('k1')},{key_of('k2')}", SECRET_KEY_FALLBACKS=NEW,
                CODE_PEPPERS=f"{key_of('p1')},{key_of('p2')}",
            )  # fmt: skip
            restart_one_after_the_other(
                ENCRYPTION_KEYS=f"{key_of('k2')},{key_of('k1')}", SECRET_KEY=NEW, SECRET_KEY_FALLBACKS=OLD,
                CODE_PEPPERS=f"{key_of('p2')},{key_of('p1')}",
            )  # fmt: skip
            assert not _rotated(shell).startswith("0 ")
            assert _rotated(shell).startswith("0 ")

            made = load.ask("POST", "/v1/platform/master-keys", {"name": "second"}, **{"X-Master-Key": load.master_key})
            load.master_key = made["key"]
            load.all_continue()
            revoked = f"/v1/platform/master-keys/{first_master.id}"
            load.ask("DELETE", revoked, **{"X-Master-Key": load.master_key})
            # Finally without the old keys; one host suffices.
            assert load.router.leave(webs.pop()).terminate() == 0
            restart_one_after_the_other(
                ENCRYPTION_KEYS=key_of("k2"), SECRET_KEY_FALLBACKS="", BRAVE_API_KEY="operator-brave-2"
            )
            # An old pepper stays until codes of its time have expired.
            load.ask("GET", f"/v1/device/info?code={first_agent['claimCode']}")
            upstream.asked.clear()
            load.all_continue()
        finally:
            load.stop.set()
            for thread in threads:
                thread.join()
        assert load.failed == []
        assert {asked.header("x-subscription-token") for asked in upstream.asked} == {"operator-brave-2"}
    after = build_app(postgres_url, settings={"encryption_keys": key_of("k2")})
    with after.app_context():
        assert custody.signer_of(wallet["id"]).evm_address == wallet["addresses"]["base"]
        assert {sealed.split(".")[0] for sealed in _everything_sealed()} == {"k2"}


def _rotated(shell: Flask) -> str:
    done = shell.test_cli_runner().invoke(args=["keys", "rotate"])
    assert done.exit_code == 0, done.output
    return str(done.output).splitlines()[-1]


def _everything_sealed() -> list[str]:
    with read_only_unit() as session:
        return [
            sealed
            for table, column in row_seals.sealed_columns()
            for sealed in session.execute(text(f"SELECT {column.name} FROM {table.name}")).scalars()  # noqa: S608
            if sealed is not None
        ]
