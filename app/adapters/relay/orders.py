"""What services that promise ether on another chain have in common, whatever their wire shapes are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from app.adapters.evm.transactions import Target
from app.ports.bridges import Ask
from app.ports.chain import Terms


@dataclass(frozen=True, slots=True)
class Chains:
    """The ids of both chains, as services know them."""

    source: int
    destination: int


@dataclass(frozen=True, slots=True)
class Promise:
    """What a service promises for a deposit: the call was written anew from what could be decoded of theirs."""

    target: Target
    minimum_units: int
    seconds: int
    terms: Terms


class Fate(StrEnum):
    """What a service says of an order."""

    OPEN = "open"
    PAID = "paid"
    REFUNDED = "refunded"


@dataclass(frozen=True, slots=True)
class Standing:
    """How an order stands by the service's word; `tx_hash` names the payment that the chain has to show."""

    fate: Fate
    note: str | None = None
    tx_hash: str | None = None


class OrderService(Protocol):
    """A service that takes deposits and pays on another chain."""

    @property
    def name(self) -> str:
        """By this name a crossing finds its service again."""
        ...

    @property
    def route(self) -> str:
        """What people are told."""
        ...

    def promise(self, ask: Ask, chains: Chains) -> Promise:
        """Ask for an order. Raises: Rejected("quote_unavailable", "amount_too_small", "unsafe_instructions")."""
        ...

    def standing(self, terms: Terms, source_hash: str, chains: Chains) -> Standing:
        """Ask how an order stands. Raises: Unreachable."""
        ...
