"""Jupiter's Swap API v2, `GET /swap/v2/build`: a quote with its instructions. It needs no key.

Source: Jupiter's documentation, openapi-spec/swap/v2/swap.yaml; without a key it answers one request in two seconds.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import structlog
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from app.adapters.http_client import HttpClient
from app.ports.errors import Rejected, Unreachable

_CONNECT_SECONDS = 2.0
_TOTAL_SECONDS = 8.0
_MOST_ACCOUNTS = 40
"""Of a route, so that its transaction stays below the 1232 bytes that the network takes."""
_LONGEST_LABEL = 40
_MOST_STEPS = 40
"""Of a route, and of lookup tables, instructions before and after it: far more than one transaction holds."""
_U64 = 2**64
_NO_ROUTE = ("route", "not tradable", "liquidity")
"""Words of answers that say that there is no way from one token to the other."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Build:
    """What Jupiter offers: the output, and what it wants to be signed for it."""

    output_units: int
    labels: tuple[str, ...]
    swap: Instruction
    surroundings: tuple[Instruction, ...]
    """What it would put before and after the swap, fees aside."""
    strangers: int
    """How many instructions it wants besides, of kinds that we never take."""
    tables: tuple[Pubkey, ...]


class JupiterApi:
    """One base address of the API. Opens no connection before the first question."""

    def __init__(self, base_url: str) -> None:
        """Take the API's base."""
        self._url = f"{base_url.rstrip('/')}/swap/v2/build"
        self._http = HttpClient(connect_seconds=_CONNECT_SECONDS, total_seconds=_TOTAL_SECONDS)

    def build(self, taker: str, given_mint: str, wanted_mint: str, *, units: int, slippage_bps: int) -> Build:
        """Ask for the best way. Raises: Rejected("no_liquidity", "quote_unavailable")."""
        query = {
            "inputMint": given_mint, "outputMint": wanted_mint, "amount": str(units), "taker": taker,
            "slippageBps": str(slippage_bps), "maxAccounts": str(_MOST_ACCOUNTS),
        }  # fmt: skip
        try:
            answer = self._http.get(self._url, query=query)
            body = answer.json()
        except Unreachable as failure:
            _log.warning("jupiter_unreachable", reason=failure.reason)
            raise Rejected("quote_unavailable") from None
        if answer.status != HTTPStatus.OK:
            _log.warning("jupiter_refused", status=answer.status)
            raise Rejected(_refusal(answer.status, body))
        try:
            return _read(body, (given_mint, wanted_mint))
        except (LookupError, TypeError, ValueError, binascii.Error, AttributeError):
            _log.warning("jupiter_unreadable")
            raise Rejected("quote_unavailable") from None


def _refusal(status: int, body: object) -> str:
    words = str(body).lower()
    is_no_route = status < HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.TOO_MANY_REQUESTS
    return "no_liquidity" if is_no_route and any(part in words for part in _NO_ROUTE) else "quote_unavailable"


def _read(body: Mapping[str, Any], mints: tuple[str, str]) -> Build:
    """Read an answer. Raises: LookupError, TypeError, ValueError for another shape."""
    output_units = int(body["outAmount"])
    is_asked = (body["inputMint"], body["outputMint"]) == mints and body["swapMode"] == "ExactIn"
    if not is_asked or not 0 <= output_units < _U64:
        raise ValueError("another kind of quote")
    cleanup = body.get("cleanupInstruction")
    surroundings = [*body["setupInstructions"], *([cleanup] if cleanup else [])]
    strangers = len(body.get("otherInstructions") or []) + bool(body.get("tipInstruction"))
    tables = body.get("addressesByLookupTableAddress") or {}
    if max(len(tables), len(surroundings), len(body["routePlan"])) > _MOST_STEPS:
        raise ValueError("too long a route")
    return Build(
        output_units=output_units,
        labels=tuple(_label(step) for step in body["routePlan"]),
        swap=_instruction(body["swapInstruction"]),
        surroundings=tuple(_instruction(entry) for entry in surroundings),
        strangers=strangers,
        tables=tuple(Pubkey.from_string(table) for table in sorted(tables)),
    )


def _instruction(entry: Mapping[str, Any]) -> Instruction:
    metas: Sequence[Mapping[str, Any]] = entry["accounts"]
    return Instruction(
        Pubkey.from_string(entry["programId"]),
        base64.b64decode(entry["data"], validate=True),
        [
            AccountMeta(
                Pubkey.from_string(meta["pubkey"]),
                is_signer=meta["isSigner"] is True,
                is_writable=meta["isWritable"] is True,
            )
            for meta in metas
        ],
    )


def _label(step: Mapping[str, Any]) -> str:
    label = str(step["swapInfo"].get("label") or "unnamed")
    # Strangers name their pools.
    return "".join(letter for letter in label if letter.isascii() and (letter.isalnum() or letter in " .-"))[
        :_LONGEST_LABEL
    ]
