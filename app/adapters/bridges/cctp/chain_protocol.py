"""Values and errors of CCTP on both families of chains."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from app.ports.bridges import BridgeArrival


@dataclass(frozen=True, slots=True)
class BurnParameters:
    """The parameters of a burn: recipient and domain, fee and finality, and who submits the mint."""

    domain: int
    recipient: bytes
    max_fee_units: int
    finality: int
    is_forwarded: bool


class MintNotFound(StrEnum):
    """Why a mint is not found although the message's nonce is used; the values are shown with the bridge."""

    NOT_FOUND = "mint_not_seen"
    """The node is behind, or another message used the nonce."""
    UNREADABLE = "mint_unreadable"
    """No node can show which transaction used it."""


def first_arrival(answers: Iterable[BridgeArrival | MintNotFound]) -> BridgeArrival | MintNotFound:
    """Return the arrival that one of the endpoints shows, or why none does: most keep some days only."""
    reason = MintNotFound.UNREADABLE
    for found in answers:
        if isinstance(found, BridgeArrival):
            return found
        reason = found if found is MintNotFound.NOT_FOUND else reason
    return reason
