"""A model of rows that many units lock: the rate at which each one is saturated.

Requests arrive at random at several web processes. Their steps are committed in groups, as by `app.db.group_commit`:
each process has one group for each kind of step, and a group that is busy collects the next batch. A batch has all of
its rows from when the last is free until its commit is over, which is later than PostgreSQL gives them away. All times
are in seconds.
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

MAX_BATCH = 64
"""`_MAX_BATCH` of `app.db.group_commit`."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The mean time for which a unit has its rows: a part for each commit, and a part for each step of a batch."""

    fixed: float
    each: float
    max_batch: int = MAX_BATCH

    @property
    def full_rate(self) -> float:
        """Return the steps a second of full batches that follow each other at one row."""
        return self.max_batch / (self.fixed + self.max_batch * self.each)


@dataclass(slots=True)
class Outcome:
    """What a simulation counted in its second half, when its queues have the length that they will keep, or grow."""

    seconds: float
    steps: int = 0
    commits: int = 0
    busy: float = 0.0
    waits: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Return the steps that were committed in a second."""
        return self.steps / self.seconds

    def wait(self, share: float) -> float:
        """Return a quantile of the time from the arrival of a step to its commit."""
        return sorted(self.waits)[int(share * (len(self.waits) - 1))]


def account_shares(accounts: int, exponent: float, most: float) -> list[float]:
    """Return each account's part of the calls by Zipf's law, none above `most`, whose rest goes to the others."""
    weights = [rank**-exponent for rank in range(1, accounts + 1)]
    total, capped = sum(weights), 0
    # An account that is limited leaves more to the next, which may then be limited, too.
    while capped < accounts and weights[capped] / total * (1 - capped * most) > most:
        total -= weights[capped]
        capped += 1
    scale = (1 - capped * most) / total
    return [most] * capped + [weight * scale for weight in weights[capped:]]


def simulate_steps(
    rate: float,
    groups: int,
    seconds: float,
    commit: Commit,
    *,
    rows: Callable[[random.Random], Sequence[int]],
    seed: int,
) -> Outcome:
    """Simulate steps that arrive at a rate and lock the rows that `rows` returns. The first half is a warm-up."""
    chance = random.Random(seed)
    made = Outcome(seconds / 2)
    queues: list[deque[tuple[float, Sequence[int]]]] = [deque() for _ in range(groups)]
    is_busy = [False] * groups
    free_at: dict[int, float] = {}
    order = itertools.count()
    ends: list[tuple[float, int, int]] = []

    def lead(group: int, now: float) -> None:
        batch = [queues[group].popleft() for _ in range(min(commit.max_batch, len(queues[group])))]
        locked = {row for _, of_step in batch for row in of_step}
        began = max(now, *(free_at.get(row, 0.0) for row in locked))
        # The write of the log takes at least half of its mean time, and sometimes much longer.
        took = commit.fixed * (0.5 + chance.expovariate(2)) + len(batch) * commit.each
        for row in locked:
            free_at[row] = began + took
        is_busy[group] = True
        heapq.heappush(ends, (began + took, next(order), group))
        if seconds / 2 <= began + took < seconds:
            made.steps += len(batch)
            made.commits += 1
            made.busy += began + took - now
            made.waits += [began + took - arrived for arrived, _ in batch]

    def end_until(now: float) -> None:
        while ends and ends[0][0] <= now:
            ended, _, group = heapq.heappop(ends)
            is_busy[group] = False
            if queues[group]:
                lead(group, ended)

    for now in _arrivals(rate, seconds, chance):
        end_until(now)
        group = chance.randrange(groups)
        queues[group].append((now, rows(chance)))
        if not is_busy[group]:
            lead(group, now)
    end_until(seconds)
    return made


def simulate_key(
    rate: float, seconds: float, unit: Commit, *, block: float, missed: float, max_pending: int, seed: int
) -> float:
    """Return the transactions a second of one key that includes at most `max_pending` in a block.

    Each is recorded in a unit that locks the key's nonce. A part of the blocks, `missed`, does not come.
    """
    chance = random.Random(seed)
    next_block, nonce_free, waiting, landed = block, 0.0, deque[float](), 0
    pending: deque[float] = deque()
    for now in itertools.chain(_arrivals(rate, seconds, chance), [seconds]):
        while next_block <= now:
            # Those that were recorded before the block are in it, and make room for those that wait.
            if chance.random() >= missed:
                while pending and pending[0] <= next_block:
                    pending.popleft()
                    landed += 1
            while waiting and len(pending) < max_pending:
                waiting.popleft()
                nonce_free = max(nonce_free, next_block) + unit.fixed * (0.5 + chance.expovariate(2))
                pending.append(nonce_free)
            next_block += block
        if len(pending) < max_pending:
            nonce_free = max(nonce_free, now) + unit.fixed * (0.5 + chance.expovariate(2))
            pending.append(nonce_free)
        else:
            waiting.append(now)
    return landed / seconds


def _arrivals(rate: float, seconds: float, chance: random.Random) -> Iterator[float]:
    now = chance.expovariate(rate)
    while now < seconds:
        yield now
        now += chance.expovariate(rate)
