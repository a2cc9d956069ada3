"""The faults that are injected, one at a time, each until the cluster is whole again."""

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.cluster.running import DATA, WEB, WORKERS, Cluster

LEASE_SECONDS = 8
"""`ttl` of patroni.yml."""
_LONGER_THAN_LEASE = LEASE_SECONDS + 10
_HOST_AWAY_SECONDS = 8
_LONG_SECONDS = 30
_INTERVAL_SECONDS = 20.0
STEP_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that was injected."""

    name: str
    began: float
    ended: float
    """When the cluster was whole again, and the next could be injected."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault, with the seconds that a request may need to succeed during it, repeated by its client."""

    name: str
    limit_seconds: float
    inject: Callable[[Cluster, random.Random, threading.Event], None]


def _kill_database(cluster: Cluster, _draw: random.Random, _stop: threading.Event) -> None:
    cluster.kill_database(cluster.leader())


def _kill_leader_host(cluster: Cluster, _draw: random.Random, stop: threading.Event) -> None:
    host = cluster.leader()
    cluster.kill(host)
    stop.wait(_LONGER_THAN_LEASE)
    cluster.start(host)


def _freeze_leader_host(cluster: Cluster, _draw: random.Random, stop: threading.Event) -> None:
    host = cluster.leader()
    cluster.signal_all(host, signal.SIGSTOP)
    stop.wait(_LONGER_THAN_LEASE)
    cluster.signal_all(host, signal.SIGCONT)


def _unplug_leader_host(cluster: Cluster, _draw: random.Random, stop: threading.Event) -> None:
    with cluster.network.unplugged(cluster.leader()):
        stop.wait(_LONGER_THAN_LEASE)


def _separate_leader(cluster: Cluster, _draw: random.Random, stop: threading.Event) -> None:
    """Cut the leader off from the other data hosts, and so from etcd's majority, but not from clients."""
    leader = cluster.leader()
    with cluster.network.separated(leader, [host for host in DATA if host != leader]):
        stop.wait(_LONGER_THAN_LEASE)


def _kill_patroni(cluster: Cluster, _draw: random.Random, _stop: threading.Event) -> None:
    cluster.kill_part(cluster.leader(), "patroni")


def _kill_replica_host(cluster: Cluster, draw: random.Random, stop: threading.Event) -> None:
    leader = cluster.leader()
    host = draw.choice([host for host in DATA if host != leader])
    cluster.kill(host)
    stop.wait(_HOST_AWAY_SECONDS)
    cluster.start(host)


def _kill_etcd(cluster: Cluster, draw: random.Random, _stop: threading.Event) -> None:
    cluster.kill_part(draw.choice(DATA), "etcd")


def _kill_redis(cluster: Cluster, _draw: random.Random, stop: threading.Event) -> None:
    """Kill the master, each time that it starts, until Sentinel has chosen the other."""
    host = cluster.redis_master()
    until = time.monotonic() + 6
    while time.monotonic() < until and not stop.wait(0.3):
        cluster.kill_part(host, "redis")


def _kill_web_host(cluster: Cluster, draw: random.Random, stop: threading.Event) -> None:
    host = draw.choice(WEB)
    cluster.kill(host)
    stop.wait(_HOST_AWAY_SECONDS)
    cluster.start(host)


def _unplug_web_host(cluster: Cluster, draw: random.Random, stop: threading.Event) -> None:
    with cluster.network.unplugged(draw.choice(WEB)):
        stop.wait(_HOST_AWAY_SECONDS)


def _separate_web_host(cluster: Cluster, draw: random.Random, stop: threading.Event) -> None:
    """Cut a web host off from the database and Redis, but not from clients."""
    with cluster.network.separated(draw.choice(WEB), DATA):
        stop.wait(_HOST_AWAY_SECONDS)


def _kill_worker_host(cluster: Cluster, draw: random.Random, stop: threading.Event) -> None:
    host = draw.choice(WORKERS)
    cluster.kill(host)
    stop.wait(_HOST_AWAY_SECONDS)
    cluster.start(host)


def _fill_leader_disk(cluster: Cluster, _draw: random.Random, stop: threading.Event) -> None:
    with cluster.disks[cluster.leader()].full():
        stop.wait(_LONG_SECONDS)


def _slow_leader_disk(cluster: Cluster, _draw: random.Random, stop: threading.Event) -> None:
    with cluster.disks[cluster.leader()].slow():
        stop.wait(_LONGER_THAN_LEASE)


def _hang_leader_disk(cluster: Cluster, _draw: random.Random, stop: threading.Event) -> None:
    with cluster.disks[cluster.leader()].hanging():
        stop.wait(_HOST_AWAY_SECONDS)


def _hang_replica_disk(cluster: Cluster, draw: random.Random, stop: threading.Event) -> None:
    leader = cluster.leader()
    with cluster.disks[draw.choice([host for host in DATA if host != leader])].hanging():
        stop.wait(_LONG_SECONDS)


def _step_clock(
    choose: Callable[[Cluster, random.Random], str],
) -> Callable[[Cluster, random.Random, threading.Event], None]:
    """Return a fault in which the clock of a host steps by five minutes, back, in the other direction, and back."""

    def inject(cluster: Cluster, draw: random.Random, stop: threading.Event) -> None:
        host = choose(cluster, draw)
        for seconds in draw.sample((-STEP_SECONDS, STEP_SECONDS), 2):
            with cluster.clock_off(host, seconds):
                stop.wait(_LONG_SECONDS / 2)

    return inject


def _part(part: str) -> Callable[[Cluster, random.Random, threading.Event], None]:
    def inject(cluster: Cluster, draw: random.Random, _stop: threading.Event) -> None:
        cluster.kill_part(draw.choice(WEB), part)

    return inject


_LEADER_SECONDS, _HOST_SECONDS = 15.0, 2.0
FAULTS = (
    Fault("database of the leader killed", _LEADER_SECONDS, _kill_database),
    Fault("leader's host killed", _LEADER_SECONDS, _kill_leader_host),
    Fault("leader's host frozen longer than its lease", _LEADER_SECONDS, _freeze_leader_host),
    Fault("leader's host unplugged", _LEADER_SECONDS, _unplug_leader_host),
    Fault("leader cut off from etcd and replicas", _LEADER_SECONDS, _separate_leader),
    Fault("Patroni of the leader killed", _LEADER_SECONDS, _kill_patroni),
    Fault("replica's host killed", _LEADER_SECONDS, _kill_replica_host),
    Fault("disk of the leader full", _LEADER_SECONDS, _fill_leader_disk),
    Fault("disk of the leader slow, 0.4 s for a write", _LEADER_SECONDS, _slow_leader_disk),
    Fault("disk of the leader hangs for 8 s", _LEADER_SECONDS, _hang_leader_disk),
    Fault("disk of a replica hangs for 30 s", _LEADER_SECONDS, _hang_replica_disk),
    Fault("clock of the leader steps by 5 minutes", _HOST_SECONDS, _step_clock(lambda cluster, _: cluster.leader())),
    Fault("clock of a web host steps by 5 minutes", _HOST_SECONDS, _step_clock(lambda _, draw: draw.choice(WEB))),
    Fault("clock of a worker steps by 5 minutes", _HOST_SECONDS, _step_clock(lambda _, draw: draw.choice(WORKERS))),
    Fault("etcd member killed", _HOST_SECONDS, _kill_etcd),
    Fault("Redis master killed", _HOST_SECONDS, _kill_redis),
    Fault("web host killed", _HOST_SECONDS, _kill_web_host),
    Fault("web host unplugged", _HOST_SECONDS, _unplug_web_host),
    Fault("web host cut off from database and Redis", _HOST_SECONDS, _separate_web_host),
    Fault("worker host killed", _HOST_SECONDS, _kill_worker_host),
    Fault("web process killed", _HOST_SECONDS, _part("web")),
    Fault("PgBouncer of a web host killed", _HOST_SECONDS, _part("pgbouncer")),
    Fault("HAProxy of a web host killed", _HOST_SECONDS, _part("haproxy")),
)


def order(seed: int) -> Iterator[Fault]:
    """Yield all faults in random order, again and again."""
    draw = random.Random(f"{seed} faults")
    while True:
        yield from draw.sample(FAULTS, len(FAULTS))


def inject_all(
    cluster: Cluster, *, seed: int, seconds: float, only: str, stop: threading.Event, log: Callable[[str], None]
) -> list[Injected]:
    """Inject one fault after another for some seconds; return what was injected. Raises: RuntimeError."""
    done: list[Injected] = []
    draw, end = random.Random(f"{seed} choices"), time.monotonic() + seconds
    for fault in order(seed):
        if time.monotonic() > end or stop.is_set():
            return done
        if not fault.name.startswith(tuple(only.split(","))):
            continue
        began = time.monotonic()
        fault.inject(cluster, draw, stop)
        whole = cluster.await_whole(180)
        log(f"{fault.name}: whole again {whole:.1f} s after its end")
        # Patroni may still report what was before the fault.
        stop.wait(max(3.0, began + _INTERVAL_SECONDS - time.monotonic()))
        cluster.await_whole(180)
        done.append(Injected(fault.name, began, time.monotonic()))
    return done
