"""The history of requests and answers, and the model that it is checked against: pure functions.

A request without an answer, or with 5xx, may have had its effect or not. Everything else is definite.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Write:
    """A value that the only writer of a register sent; each is higher than the one before."""

    value: int
    began: float
    ended: float
    is_acknowledged: bool


@dataclass(frozen=True, slots=True)
class Read:
    """A value that a reader of a register got."""

    value: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Payment:
    """A payment that was requested under an idempotency key, and the transactions that all answers to it named."""

    key: str
    wallet: str
    units: int
    transactions: frozenset[str]


def stale_reads(writes: Sequence[Write], reads: Sequence[Read]) -> Iterator[str]:
    """Yield a sentence for each read that no single copy of the register could have answered.

    With one writer of increasing values this is linearizability: a read returns at least what was acknowledged before
    it began, at most what was sent before it ended, and no less than a read that ended before it began. A write without
    an answer may have its effect at any later time.
    """
    uncertain = {each.value for each in writes if not each.is_acknowledged}
    for read in reads:
        lowest = max((each.value for each in writes if each.is_acknowledged and each.ended < read.began), default=0)
        highest = max((each.value for each in writes if each.began < read.ended), default=0)
        if read.value > highest or (read.value < lowest and read.value not in uncertain):
            yield f"read {read.value} at {read.began:.3f}, between {lowest} and {highest} was possible"
    newest, at = 0, 0.0
    ended = sorted(reads, key=lambda each: each.ended)
    position = 0
    for read in sorted(reads, key=lambda each: each.began):
        while position < len(ended) and ended[position].ended < read.began:
            if ended[position].value > newest:
                newest, at = ended[position].value, ended[position].ended
            position += 1
        if read.value < newest and read.value not in uncertain:
            yield f"read {read.value} at {read.began:.3f}, after {newest} was read until {at:.3f}"


def lost_writes(writes: Sequence[Write], final: int) -> Iterator[str]:
    """Yield a sentence if the register ends below what was acknowledged, or above what was sent."""
    acknowledged = max((each.value for each in writes if each.is_acknowledged), default=0)
    sent = max((each.value for each in writes), default=0)
    uncertain = {each.value for each in writes if not each.is_acknowledged}
    if final > sent or (final < acknowledged and final not in uncertain):
        yield f"{final} is stored; {acknowledged} was acknowledged and {sent} sent"


def wrong_payments(payments: Sequence[Payment], stored: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence for each payment with several effects, or whose answer is not true; `stored` has the amounts."""
    named = {identifier for payment in payments for identifier in payment.transactions}
    for payment in payments:
        if len(payment.transactions) > 1:
            yield f"{payment.key} was answered with {sorted(payment.transactions)}"
        for identifier in payment.transactions:
            if stored.get(identifier) != payment.units:
                yield f"{payment.key} of {payment.units} was answered with {identifier}, of {stored.get(identifier)}"
    by_amount: defaultdict[int, list[str]] = defaultdict(list)
    for identifier, units in stored.items():
        by_amount[units].append(identifier)
    # Each amount belongs to one key.
    for units, identifiers in by_amount.items():
        if len(identifiers) > 1:
            known = sorted(named & {*identifiers})
            yield f"{units} units were paid by {sorted(identifiers)}; answers named {known} of them"


def exceeded_limits(spent: Mapping[str, int], limit: int) -> Iterator[str]:
    """Yield a sentence for each wallet that spent more than its limit."""
    for wallet, nanos in spent.items():
        if nanos > limit:
            yield f"{wallet} spent {nanos} of {limit}"


def missing(answered: Collection[str], stored: Collection[str], what: str) -> Iterator[str]:
    """Yield a sentence for each answered id that is not stored."""
    for each in sorted({*answered} - {*stored}):
        yield f"{what} {each} was answered and is not stored"
