"""Requests to outside systems by `flask doctor --live`, each read by the adapter's own parser."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from app.core.chains import Family

ADDRESSES: Mapping[Family, str] = {
    Family.EVM: "0x000000000000000000000000000000000000dEaD",
    Family.SOLANA: "4zvwRjXUKGfvwnParsHAS3HuSVzV5cA4McphgmoCtajS",
}
"""Addresses that belong to no one: the usual burn address, and that of the key of 32 zero bytes."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A check of one capability. It reads, or simulates what is never sent, and costs nothing but requests.

    One with `max_nanos`, which returns the most that the provider may bill for it, costs money. `run` returns a remark
    about an answer of the expected form, and raises for any other one. `missing` is the setting without which it
    cannot run.
    """

    system: str
    capability: str
    run: Callable[[], str]
    missing: str | None = None
    max_nanos: Callable[[], int] | None = None


def probes_of(asked: object, system: str) -> Iterator[Probe]:
    """Yield a probe for each public method, in their order and named after them."""
    for name in vars(type(asked)):
        if not name.startswith("_"):
            yield Probe(system, name.replace("_", " "), getattr(asked, name))


class UnexpectedAnswer(Exception):
    """The system answered, with something else than the adapter relies on; the message describes it."""
