"""Small services around the application: e-mail, the sandbox's faucet, the job queue, shared counters, prices.

Losing one of their calls loses no fact: a job is a hint to read the database now, and no decision depends on counters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from app.core.chains import ChainName, Token
from app.core.money import TokenAmount
from app.jobs import JobName, QueueName


class CounterStore(Protocol):
    """Adds counts up by series."""

    def add(self, counts: Mapping[str, float]) -> bool:
        """Add counts; return whether they were stored."""

    def totals(self) -> Mapping[str, float] | None:
        """Return all sums, or None while they cannot be read."""


class JobQueue(Protocol):
    """Takes jobs that carry identifiers only."""

    def enqueue(self, job: JobName, *arguments: str) -> bool:
        """Enqueue a job unless the same one is already queued; return whether the queue could be reached."""

    def depths(self) -> Mapping[QueueName, int]:
        """Return how many jobs wait in each queue; empty while it cannot be reached."""

    def ping(self) -> bool:
        """Return whether the queue can be reached."""

    def problem(self) -> str | None:
        """Return why the queue cannot be reached, in words for the operator."""

    def needs_password(self) -> bool:
        """Return whether a client without a password is refused; True when it cannot be reached."""


class Faucet(Protocol):
    def pay(self, reference: str, *, chain: ChainName, address: str, amount: TokenAmount) -> None:
        """Pay once per reference, however often it is called. Raises: Rejected, Unreachable."""


class Mailer(Protocol):
    def send(self, recipient: str, *, subject: str, text: str, message_id: str) -> None:
        """Send a message; a repeated one has the same `message_id`.

        Raises: Rejected when the server refuses it; Unreachable when nothing was sent; OutcomeUnknown.
        """


@dataclass(frozen=True, slots=True)
class PriceRange:
    """The lowest and the highest of current prices, in nano-dollars per whole token."""

    min_nanos: int
    max_nanos: int


class PriceFeed(Protocol):
    def nanos_per_token(self, token: Token) -> int | None:
        """Return the price, the higher of two current ones, or None when none is known (USDC is always 1 USD).

        May use the network: call it outside a unit of work. Never raises for an unreachable source.
        """

    def independent_range(self, token: Token) -> PriceRange | None:
        """Return prices of sources that do not trade, to check an exchange by; else as `nanos_per_token`."""
