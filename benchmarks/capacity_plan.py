"""`python -m benchmarks.capacity_plan`: what a rate of traffic needs, by arithmetic and a simulation of its hot rows.

Nothing is measured here. Figures of `docs/performance.md` and stated assumptions are the defaults of the parameters;
the same parameters always print the same tables. `--write` puts those of the defaults into the document.
"""

import argparse
import dataclasses
import functools
import random
import sys
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from pathlib import Path
from types import MappingProxyType

from benchmarks.capacity_simulation import Commit, Outcome, account_shares, simulate_key, simulate_steps

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "operations" / "capacity.md"
_BEGIN, _END = "<!-- figures: capacity -->\n", "<!-- end -->"
_MONTH = 30 * 86_400
_HOT = -1
_Table = tuple[str, Sequence[str], list[Sequence[str]]]


def _given(default: float, text: str) -> float:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Plan:
    """The traffic, the figures that the arithmetic starts from, and unit prices."""

    agents: float = _given(1e6, "agents")
    calls: float = _given(10_000, "chats a second, at the peak")
    movements: float = _given(500, "movements a second, at the peak")
    mean_share: float = _given(0.5, "mean of the month, as a part of the peak")
    acts: float = _given(5, "acts a second that the audit log records, at the peak")
    settled_share: float = _given(0.5, "part of the movements that the settlement key submits")
    utilisation: float = _given(0.6, "planned use of processors and queues")
    # docs/performance.md, calls and requests, at 16 connections.
    web_ms_call: float = _given(1.03, "processor ms of the web processes for a chat")
    database_ms_call: float = _given(0.41, "processor ms of PostgreSQL for a chat")
    web_ms_transfer: float = _given(5.99, "... of the web processes for a transfer, until it is confirmed")
    database_ms_transfer: float = _given(2.47, "... of PostgreSQL for it")
    web_ms_settled: float = _given(9.71, "... of the web processes for a movement that the settlement key submits")
    database_ms_settled: float = _given(3.32, "... of PostgreSQL for it")
    worker_ms_movement: float = _given(3, "processor ms of the workers for a movement (assumed)")
    connections_web: float = _given(18, "connections of a web process: its pool, and one for each kind of step")
    connections_worker: float = _given(15, "connections of a worker process")
    statements_transfer: float = _given(22, "statements of a transfer, until it is confirmed")
    statements_locked: float = _given(10, "round trips of a transfer between the lock of its wallet and the commit")
    statements_audit: float = _given(2, "round trips between the lock of the audit log and the commit")
    round_trip_ms: float = _given(0.3, "ms of a round trip to the database on another host (assumed)")
    commit_ms: float = _given(2, "ms of a commit that a replica confirms (assumed)")
    step_ms: float = _given(0.2, "ms of one step in a batch: half of PostgreSQL's time for a chat")
    wal_kb_call: float = _given(4, "KB of WAL for a chat: 3.7 measured one at a time, and some page images")
    wal_kb_movement: float = _given(30, "KB of WAL for a movement (assumed)")
    stored_kb_call: float = _given(1.2, "KB stored for a call, with indexes")
    stored_kb_movement: float = _given(8, "KB stored for a movement that are never pruned (assumed)")
    kept_days: float = _given(62, "days of usage that are kept: the least RETENTION_DAYS")
    pruned_a_minute: float = _given(20_000, "calls that are pruned in a minute, at most")
    zipf: float = _given(1, "exponent of the distribution of calls over accounts")
    key_rate: float = _given(10, "calls a second of one account, at most (RATE_LIMIT_PER_KEY)")
    max_pending: float = _given(16, "unmined transactions that a node keeps for one sender (assumed; geth's default)")
    reserve: float = _given(3_000, "submissions for which a settlement key has gas")
    own_gas_share: float = _given(0.1, "part of the wallets that pay for their own gas (assumed)")
    own_gas: float = _given(20, "transfers for which such a wallet has gas (assumed)")
    ether_usd: float = _given(3_000, "USD of an ether (assumed)")
    sol_usd: float = _given(150, "USD of a SOL (assumed)")
    # Unit prices.
    processor_usd: float = _given(25, "USD a month of a processor with 4 GB")
    storage_usd: float = _given(100, "USD a month of a TB of SSD on each of two database nodes")
    archive_usd: float = _given(25, "USD a month of a TB of archived WAL, kept for a week")
    unit_usd: float = _given(0.45e-6, "USD of a compute unit of an RPC provider")
    credit_usd: float = _given(4.9e-6, "USD of a credit of Solana's provider")
    # Where a primary ends.
    primary_processors: float = _given(64, "processors of the largest primary")
    primary_wal: float = _given(200, "MB/s of WAL that a primary writes and its replicas replay (assumed)")
    primary_tb: float = _given(64, "TB of the largest volume")
    seed: float = _given(1, "of the simulation")

    @property
    def steps(self) -> Commit:
        """Return the times of a batch of steps of calls."""
        return Commit(self.commit_ms / 1e3, self.step_ms / 1e3)

    def unit(self, round_trips: float) -> Commit:
        """Return the time from a lock to the end of a unit that is not shared."""
        return Commit((round_trips * self.round_trip_ms + self.commit_ms) / 1e3, 0, max_batch=1)

    @property
    def web_busy(self) -> float:
        """Return the processors that web processes keep busy at the peak."""
        settled = self.movements * self.settled_share
        transfers = self.movements - settled
        own = self.calls * self.web_ms_call + transfers * self.web_ms_transfer + settled * self.web_ms_settled
        return own / 1e3

    @property
    def database_busy(self) -> float:
        """Return the processors that PostgreSQL keeps busy at the peak."""
        settled = self.movements * self.settled_share
        transfers = self.movements - settled
        return (
            self.calls * self.database_ms_call
            + transfers * self.database_ms_transfer
            + settled * self.database_ms_settled
        ) / 1e3

    @property
    def web_processes(self) -> int:
        """Return the web processes, each on one processor."""
        return ceil(self.web_busy / self.utilisation)

    @property
    def worker_processes(self) -> int:
        """Return the worker processes: one at a time serves a chain, and three are needed anyway."""
        return max(3, ceil(self.movements * self.worker_ms_movement / 1e3 / self.utilisation))

    @property
    def database_processors(self) -> int:
        """Return the processors of the primary."""
        return ceil(self.database_busy / self.utilisation)

    @property
    def wal(self) -> float:
        """Return MB of WAL a second, at the peak."""
        return (self.calls * self.wal_kb_call + self.movements * self.wal_kb_movement) / 1e3

    @property
    def stored(self) -> tuple[float, float]:
        """Return the TB that a month adds of calls, and of movements, which are never pruned."""
        mean = self.mean_share * _MONTH / 1e9
        return self.calls * self.stored_kb_call * mean, self.movements * self.stored_kb_movement * mean

    @property
    def database_tb(self) -> float:
        """Return the TB after a year, when calls of the kept days are there."""
        calls, movements = self.stored
        return calls * self.kept_days / 30 + 12 * movements


@dataclass(frozen=True)
class Network:
    """A chain: its part of the movements, and what a movement costs there."""

    share: float
    block: float
    missed: float
    units: float
    """Compute units or credits until a transfer is final (docs/performance.md)."""
    gas: float
    block_gas: float
    coin_per_gas: float
    """Whole coins."""
    has_nonce: bool = True
    final: float = 120


NETWORKS = MappingProxyType(
    {
        "Base": Network(0.70, 2, 0, 366, 90_000, 150e6, 0.02e-9, final=120),
        "Solana": Network(0.29, 0.4, 0.05, 29, 30_000, 12e6, 60_000e-9 / 30_000, has_nonce=False, final=13),
        "Ethereum": Network(0.01, 12, 0.01, 366, 90_000, 60e6, 2e-9, final=900),
    }
)


@functools.cache
def tables(plan: Plan) -> list[_Table]:
    """Return all tables."""
    return [_hosts(plan), _networks(plan), _costs(plan), _hot_rows(plan), _traffic(plan), _ends(plan)]


def _hosts(plan: Plan) -> _Table:
    steps = _simulated(plan, plan.calls, capped=True)
    commits = steps.commits / steps.seconds
    # Steps have a connection for the whole of a batch, transfers for their statements and two commits.
    transfer = (plan.statements_transfer * plan.round_trip_ms + 2 * plan.commit_ms) / 1e3
    used = steps.busy / steps.seconds + plan.movements * transfer
    direct = plan.web_processes * plan.connections_web + plan.worker_processes * plan.connections_worker
    calls, movements = plan.stored
    return "What it takes", ("At the peak", "Busy", f"Planned at {plan.utilisation:.0%}"), [
        ("processors of web hosts = web processes", _figure(plan.web_busy), str(plan.web_processes)),
        ("processors of the primary", _figure(plan.database_busy), str(plan.database_processors)),
        ("worker processes", _figure(plan.movements * plan.worker_ms_movement / 1e3), str(plan.worker_processes)),
        ("connections of clients to the pools of PgBouncer", "", str(direct)),
        ("connections of PgBouncer to PostgreSQL", _figure(used), str(ceil(used / plan.utilisation))),
        ("commits a second of the steps of calls (simulated)", _figure(commits), ""),
        ("hours for 200 million transaction ids", _figure(200e6 / 3600 / (commits + 3 * plan.movements)), ""),
        ("WAL, MB/s", _figure(plan.wal), _figure(plan.wal / plan.utilisation)),
        ("stored a month by calls, TB", "", _figure(calls)),
        ("stored a month by movements, never pruned, TB", "", _figure(movements)),
        (f"database after a year, calls kept for {plan.kept_days:g} days, TB", "", _figure(plan.database_tb)),
    ]  # fmt: skip


def _networks(plan: Plan) -> _Table:
    heads = (
        "Chain", "Movements/s", "HTTP requests/s", "Units/s", "Unfinal", "Settled/s", "Keys", "Part of the blocks",
        "Gas of keys, USD", "Gas of wallets, USD",
    )  # fmt: skip
    rows: list[Sequence[str]] = []
    for name, network in NETWORKS.items():
        rate = plan.movements * network.share
        settled = rate * plan.settled_share
        # Two requests to send, and 12 for each pass over 1000 unfinal ones, every 30 seconds.
        requests = rate * (2 + network.final * 12 / 1000 / 30) + (3.5 if name == "Solana" else 1)
        in_blocks = rate * network.gas * network.block / network.block_gas
        keys, wallets = _gas_usd(plan, name)
        rows.append(
            (name, _figure(rate), _figure(requests), _figure(rate * network.units), _figure(rate * network.final),
             _figure(settled), str(_keys(plan, name)), f"{in_blocks:.0%}", _figure(keys), _figure(wallets))
        )  # fmt: skip
    return "Chains", heads, rows


def _keys(plan: Plan, name: str) -> int:
    network = NETWORKS[name]
    settled = plan.movements * network.share * plan.settled_share
    return ceil(settled / _key_rate(plan, network) / plan.utilisation) if network.has_nonce else 1


def _key_rate(plan: Plan, network: Network) -> float:
    """Return the submissions of one key: its pending limit in each block, or the queue of its nonce."""
    return min(plan.max_pending / network.block * (1 - network.missed), plan.unit(plan.statements_locked).full_rate)


def _gas_usd(plan: Plan, name: str) -> tuple[float, float]:
    """Return the USD that settlement keys and wallets hold as gas; on Solana with the rent of their token accounts."""
    network = NETWORKS[name]
    coin = plan.sol_usd if name == "Solana" else plan.ether_usd
    each = network.gas * network.coin_per_gas * coin
    wallets = plan.agents * network.share * plan.own_gas_share
    rent = 0.00203928 * coin if name == "Solana" else 0
    return _keys(plan, name) * plan.reserve * each, wallets * (plan.own_gas * each + rent)


def _costs(plan: Plan) -> _Table:
    mean = plan.mean_share * _MONTH
    processors = plan.web_processes + plan.worker_processes + 3 * plan.database_processors + 8
    archived = plan.wal * plan.mean_share * 7 * 86_400 / 1e6
    units = {
        name: plan.movements * network.share * network.units * mean * _unit_usd(plan, name)
        for name, network in NETWORKS.items()
    }
    rows = {
        "processors: web, workers, three database nodes, 8 for Redis and the router": processors * plan.processor_usd,
        "storage of two database nodes": plan.database_tb * 2 * plan.storage_usd,
        "archived WAL of a week": archived * plan.archive_usd,
        **{f"RPC provider, {name}": usd for name, usd in units.items()},
    }
    rows["all"] = sum(rows.values())
    rows["for 1 000 calls and their part of the movements"] = rows["all"] / (plan.calls * mean / 1000)
    return (
        "Cost",
        ("USD a month, without network fees and upstreams", "USD"),
        [(k, _figure(v)) for k, v in rows.items()],
    )


def _unit_usd(plan: Plan, name: str) -> float:
    return plan.credit_usd if name == "Solana" else plan.unit_usd


def _hot_rows(plan: Plan) -> _Table:
    """Offer each row half more than it can do, and compare what is done; then four fifths, for the wait."""
    steps, wallet, audit = plan.steps, plan.unit(plan.statements_locked), plan.unit(plan.statements_audit)
    groups = plan.web_processes
    rows: list[Sequence[str]] = []
    for name, commit, per_request in (
        ("credit account or key limit, calls/s", steps, 2),
        ("shared budget, calls of its members/s", steps, 2),
        ("wallet, transfers/s", wallet, 1),
        ("nonce of a settlement key, submissions/s", wallet, 1),
        ("audit log, acts/s", audit, 1),
    ):
        expected = commit.full_rate
        of_step = _member_rows if "budget" in name else _one_row
        seconds = 40_000 / expected
        full = simulate_steps(1.5 * expected, groups, seconds, commit, rows=of_step, seed=int(plan.seed))
        calm = simulate_steps(0.8 * expected, groups, seconds, commit, rows=of_step, seed=int(plan.seed))
        rows.append(_compared(name, expected / per_request, full.rate / per_request, calm.wait(0.99)))
    for name, network in NETWORKS.items():
        if network.has_nonce:
            expected = _key_rate(plan, network)
            done = simulate_key(
                1.5 * expected, 1000 * network.block, wallet, block=network.block, missed=network.missed,
                max_pending=int(plan.max_pending), seed=int(plan.seed),
            )  # fmt: skip
            rows.append(_compared(f"one settlement key on {name}, blocks, submissions/s", expected, done, None))
    heads = ("Row", "Arithmetic", "Simulated", "Difference", "p99 at 80 %, ms")
    return "Hot rows", heads, rows


def _compared(name: str, expected: float, found: float, wait: float | None) -> Sequence[str]:
    calm = "" if wait is None else _figure(wait * 1e3)
    return name, _figure(expected), _figure(found), f"{found / expected - 1:+.1%}", calm


def _member_rows(chance: random.Random) -> Sequence[int]:
    """Return the rows of a step that a shared budget counts: the budget, and the account of one of 1000 members."""
    return _HOT, chance.randrange(1000)


def _one_row(_: random.Random) -> Sequence[int]:
    return (_HOT,)


def _simulated(plan: Plan, calls: float, *, capped: bool) -> Outcome:
    """Simulate the steps of calls, two each, in two groups of each process, over all accounts."""
    most = plan.key_rate / calls if capped else 1
    ends = list(accumulate(account_shares(int(plan.agents), plan.zipf, most)))

    def of_step(chance: random.Random) -> tuple[int, ...]:
        return (min(bisect(ends, chance.random()), len(ends) - 1),)

    return simulate_steps(2 * calls, 2 * plan.web_processes, 3, plan.steps, rows=of_step, seed=int(plan.seed))


def _traffic(plan: Plan) -> _Table:
    rows: list[Sequence[str]] = []
    for name, capped in ((f"at most {plan.key_rate:g} calls/s of an account", True), ("no limit of an account", False)):
        shares = account_shares(int(plan.agents), plan.zipf, plan.key_rate / plan.calls if capped else 1)
        found = _simulated(plan, plan.calls, capped=capped)
        rows.append(
            (name, _figure(shares[0] * plan.calls), _figure(found.rate / 2), _figure(found.steps / found.commits),
             _figure(found.wait(0.5) * 1e3), _figure(found.wait(0.99) * 1e3))
        )  # fmt: skip
    heads = ("Calls, by Zipf's law", "of the first account/s", "done/s", "steps in a commit", "p50, ms", "p99, ms")
    return "All accounts", heads, rows


def _ends(plan: Plan) -> _Table:
    """Return the peak of calls, with the movements in proportion, at which each part of one primary ends."""
    used = {
        "pruning cannot follow (mean rate)": plan.calls * plan.mean_share * 60 / plan.pruned_a_minute,
        f"volume of {plan.primary_tb:g} TB after a year": plan.database_tb / plan.primary_tb,
        f"WAL of {plan.primary_wal:g} MB/s": plan.wal / plan.primary_wal,
        f"{plan.primary_processors:g} processors": plan.database_processors / plan.primary_processors,
    }
    rows = [
        (k, _figure(plan.calls / part), str(ceil(part))) for k, part in sorted(used.items(), key=lambda row: -row[1])
    ]
    return "Where one primary ends", ("Limit", "Calls/s at the peak", "Primaries for this plan"), list(rows)


def _figure(value: float) -> str:
    """Return three digits."""
    if value >= 1000:  # noqa: PLR2004 - four digits
        digits = len(str(int(value))) - 3
        return f"{round(value, -digits):,.0f}".replace(",", " ")
    return f"{value:.3g}"


def printed(plan: Plan) -> str:
    """Return the tables as Markdown."""
    return "\n".join(_markdown(*table) for table in tables(plan))


def _markdown(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return f"### {title}\n\n" + "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def with_tables(document: str) -> str:
    """Return a document with the tables of the defaults."""
    before, _, rest = document.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return before + _BEGIN + printed(Plan()) + _END + after


def main() -> int:
    """Print the tables, or write them into the document."""
    parser = argparse.ArgumentParser(description="What a rate of traffic needs, by arithmetic and simulation.")
    parser.add_argument("--write", action="store_true", help="replace the tables of docs/operations/capacity.md")
    for each in dataclasses.fields(Plan):
        text = each.metadata["help"].replace("%", "%%") + " (%(default)g)"
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=float, default=each.default, help=text)
    chosen = vars(parser.parse_args())
    if chosen.pop("write"):
        DOCUMENT.write_text(with_tables(DOCUMENT.read_text()))
    else:
        print(printed(Plan(**chosen)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
