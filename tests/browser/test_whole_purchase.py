"""A complete purchase: API, Redis, the shopping worker, a browser, django-oscar; with workers killed midway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from redis import Redis
from sqlalchemy import text

from app.adapters.redis_stores import RqQueue
from app.core import clock
from app.db import leases
from app.db.leases import ProcessKind
from app.db.unit_of_work import read_only_unit
from app.extensions import db
from app.shopping import maintenance, purchase_runner
from launcher import processes
from tests.support.agents import Agent, register
from tests.support.applications import DEAD_REDIS, key_of, make_app, settings_for
from tests.support.servers import _tie_to_the_tests
from tests.support.shops.django_oscar import Oscar
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.redis, pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[2]
BUY = "/v1/gateway/shopping/buy"
SECRET = "canary-secret-key-of-the-service"


@dataclass(slots=True)
class Worker:
    """A shopping worker and its child processes, found by a mark in the environment or by descent."""

    process: subprocess.Popen[bytes]
    log: Path

    def family(self) -> set[int]:
        """Return the living processes that descend from the worker, itself included."""
        parents = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    stat = (folder / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if stat[0] not in "ZX":
                    parents[int(folder.name)] = int(stat[1])
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found & parents.keys()

    def kill(self) -> None:
        for pid in self.family():
            # They end each other, too.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The worker's temporary folder, with the browser's profile."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.fixture
def stage(sqlite_url: str, redis_url: str, browser: str) -> Iterator[tuple[Flask, Agent, dict[str, str]]]:
    """An application with a real queue, an agent without limits, and the worker's settings."""
    Redis.from_url(redis_url).flushdb()
    values = {"redis_url": redis_url, "secret_key": SECRET, "log_level": "DEBUG"}
    app = make_app(settings_for(sqlite_url, **{**values, "redis_url": DEAD_REDIS}), queue=RqQueue(redis_url))
    environment = {
        **{name.upper(): value for name, value in values.items()},
        "PATH": os.environ["PATH"], "NETWORK": "sandbox", "DATABASE_URL": sqlite_url, "BROWSER_EXECUTABLE": browser,
        "CODE_PEPPERS": key_of("p1"), "ENCRYPTION_KEYS": key_of("k1"), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    with app.app_context():
        leases.record(ProcessKind.SHOPPER)
        agent = register(app.test_client())
        agent.controls(per_tx_limit_usd=100)
        yield app, agent, environment
        db.engine.dispose()


@contextmanager
def working(environment: dict[str, str], profile: Path) -> Iterator[Worker]:
    """Run a shopping worker until the block ends; it listens when the block begins."""
    redis = Redis.from_url(environment["REDIS_URL"])
    before = redis.scard("rq:workers")
    log = profile.parent / "worker.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*_tie_to_the_tests(), sys.executable, "-m", "workers.purchases"],
            cwd=ROOT, env={**environment, "TMPDIR": str(profile)}, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    worker = Worker(process, log)
    try:
        wait_until(lambda: redis.scard("rq:workers") > before, 90, interval=0.2, what="the worker")  # type: ignore[operator]
        yield worker
    finally:
        if process.poll() is None:
            worker.kill()


def order(agent: Agent, oscar: Oscar, customer: str, *, key: str = "k") -> dict[str, Any]:
    body = {
        "url": oscar.mug,
        "credentials": {"username": customer, "password": oscar.password},
        "shippingAddress": {"name": "Ada Buyer", "zip": "94107"},
    }
    answer = agent.post(BUY, body, Idempotency_Key=key)
    assert answer.status_code == 202, answer.text
    accepted: dict[str, Any] = answer.get_json()
    return accepted


def seen(agent: Agent, purchase_id: str) -> dict[str, Any]:
    body: dict[str, Any] = agent.get(f"/v1/gateway/shopping/purchases/{purchase_id}").get_json()
    return body


def ended(agent: Agent, purchase_id: str, worker: Worker) -> dict[str, Any]:
    def done() -> dict[str, Any] | None:
        assert worker.process.poll() is None, worker.log.read_text()[-2000:]
        body = seen(agent, purchase_id)
        return body if body["status"] not in {"queued", "running", "submitting"} else None

    return wait_until(done, 150, interval=0.3, what="the purchase to end") or {}


def everything_written(redis_url: str, *folders: Path) -> bytes:
    """Return all that is in the database, in Redis and in files."""
    content = b""
    for folder in folders:
        content += b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    redis = Redis.from_url(redis_url)
    for name in redis.keys("*"):  # type: ignore[union-attr]
        content += redis.dump(name) or b""  # type: ignore[operator]
    return content


def test_a_worker_killed_before_the_order_orders_nothing_and_the_next_buys_once_without_storing_credentials(
    stage: tuple[Flask, Agent, dict[str, str]], oscar: Oscar, profile: Path, redis_url: str
) -> None:
    _app, agent, environment = stage
    customer = "stored6@example.com"
    with working(environment, profile) as worker:
        lost = order(agent, oscar, customer)
        wait_until(
            lambda: any(step["action"] == "sign_in" for step in seen(agent, lost["id"])["trail"]), 90, what="the log-in"
        )
        _assert_no_secret_of_ours(worker)
        family = worker.family()
        worker.kill()
    _assert_ended(family)
    maintenance.sweep(clock.now() + purchase_runner.LEASE * 2)
    body = seen(agent, lost["id"])
    assert (body["status"], body["error"]["code"]) == ("failed", "browser_error")
    assert (oscar.orders_of(customer), agent.spent_this_month()) == ([], 0)
    with working(environment, profile) as worker:
        accepted = order(agent, oscar, customer, key="again")
        assert order(agent, oscar, customer, key="again") == accepted
        body = ended(agent, accepted["id"], worker)
        assert body["status"] == "completed", body
        family = worker.family()
    [ordered] = oscar.orders_of(customer)
    assert (body["order"]["number"], body["order"]["total"]) == (ordered.number, ordered.total)
    assert [shot["name"] for shot in body["evidence"]] == ["product", "review", "confirmation"]
    assert agent.spent_this_month() == 12.5
    _assert_ended(family)
    # The profile of the killed browser is removed by the next purchase.
    assert list(profile.glob("purser-shopper-*")) == []
    written = everything_written(redis_url, profile.parent)
    assert oscar.password.encode() not in written
    assert customer.encode() not in written
    with read_only_unit() as session:
        pictures = session.execute(text("SELECT png FROM purchase_evidence")).scalars().all()
    assert all(oscar.password.encode() not in png for png in pictures)


def _assert_no_secret_of_ours(worker: Worker) -> None:
    """Check that the browser runs, and that neither it nor its driver received anything of the service."""
    checked = 0
    for pid in worker.family() - {worker.process.pid}:
        command = Path(f"/proc/{pid}/cmdline").read_bytes() if Path(f"/proc/{pid}").exists() else b""
        if b"-m\0shopper" in command or b"chrom" in command or b"playwright" in command:
            process_environment = Path(f"/proc/{pid}/environ").read_bytes()
            assert SECRET.encode() not in process_environment
            assert b"ENCRYPTION_KEYS" not in process_environment
            checked += 1
    assert checked > 2


def _assert_ended(family: set[int]) -> None:
    wait_until(lambda: not any(processes.start_time(pid) for pid in family), what="all processes to end")


def test_a_worker_killed_after_the_order_leaves_it_unknown_and_it_is_never_repeated(
    stage: tuple[Flask, Agent, dict[str, str]], oscar: Oscar, profile: Path
) -> None:
    _app, agent, environment = stage
    customer = "stored7@example.com"
    with oscar.holding_orders() as placed, working(environment, profile) as worker:
        accepted = order(agent, oscar, customer)
        wait_until(placed.exists, 120, what="the order to reach the shop")
        assert seen(agent, accepted["id"])["status"] == "submitting"
        worker.kill()
    maintenance.sweep(clock.now() + purchase_runner.LEASE * 2)
    # A later request with the same key, or a second job for it, finds a purchase that has ended.
    assert order(agent, oscar, customer)["id"] == accepted["id"]
    purchase_runner.run_purchase(accepted["id"])
    body = seen(agent, accepted["id"])
    assert (body["status"], body["error"]["code"]) == ("unknown", "outcome_unknown")
    assert {"product", "review"} <= {shot["name"] for shot in body["evidence"]}
    assert agent.spent_this_month() == 12.5
    assert len(oscar.orders_of(customer)) == 1
