"""Jupiter's Swap API v2, `GET /swap/v2/build`: a quote with its instructions.

Source: Jupiter's documentation, openapi-spec/swap/v2/swap.yaml, and "Rate limits": of an account, over all APIs and in
a sliding window of a minute.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from app.adapters.rate_limited_http import KEYLESS, RateLimitedClient, ServiceAccess, read_quote
from app.capacity.single_flight_cache import SingleFlightCache

SERVICE = "jupiter"
KEY_HEADER = "x-api-key"
_CONNECT_SECONDS = 2.0
_TOTAL_SECONDS = 8.0
_SHARED_SECONDS = 5
"""The minimum output bounds what a price can move in this time, and the simulation shows it."""
_MAX_ACCOUNTS = 40
"""Accounts in a route, so that its transaction stays below the network's limit of 1232 bytes."""
_MAX_LABEL = 40
_MAX_STEPS = 40
"""Steps in a route, lookup tables and additional instructions: far more than one transaction holds."""
_U64 = 2**64
_NO_ROUTE = ("route", "not tradable", "liquidity")
"""Words of error messages about a pair without a route."""


@dataclass(frozen=True, slots=True)
class JupiterRoute:
    """Jupiter's offer: the output, and the instructions to sign for it."""

    output_units: int
    labels: tuple[str, ...]
    swap: Instruction
    auxiliary_instructions: tuple[Instruction, ...]
    """Its instructions before and after the swap, fees aside."""
    unexpected_instructions: int
    """How many further instructions it has, of kinds that we never accept."""
    tables: tuple[Pubkey, ...]


class JupiterApi:
    """One base address of the API. Opens no connection before the first request."""

    def __init__(self, base_url: str, access: ServiceAccess = KEYLESS) -> None:
        self._url = f"{base_url.rstrip('/')}/swap/v2/build"
        self._http = RateLimitedClient(
            SERVICE,
            connect_seconds=_CONNECT_SECONDS,
            total_seconds=_TOTAL_SECONDS,
            access=access,
            key_header=KEY_HEADER,
        )
        self._quotes = SingleFlightCache()

    def build(self, owner: str, input_mint: str, output_mint: str, *, units: int, slippage_bps: int) -> JupiterRoute:
        """Return the best route, requested now or seconds ago: a dry run and the swap after it are one request.

        Raises: Rejected("no_liquidity", "quote_unavailable", "quote_rate_limited").
        """
        query = {
            "inputMint": input_mint, "outputMint": output_mint, "amount": str(units), "taker": owner,
            "slippageBps": str(slippage_bps), "maxAccounts": str(_MAX_ACCOUNTS),
        }  # fmt: skip
        route: JupiterRoute = self._quotes.get(
            (owner, *query.values()), lambda: self._request(query), ttl_seconds=_SHARED_SECONDS, failure_ttl_seconds=0
        )
        return route

    def forget(self, owner: str) -> None:
        """Request quotes for an owner anew: they are unusable, or a swap has moved their price."""
        self._quotes.drop(lambda key: isinstance(key, tuple) and key[0] == owner)

    def _request(self, query: Mapping[str, str]) -> JupiterRoute:
        mints = query["inputMint"], query["outputMint"]
        return read_quote(
            SERVICE, partial(self._http.get, self._url, query=query), partial(_read, mints=mints), _rejection_reason
        )


def _rejection_reason(status: int, body: object) -> str:
    words = str(body).lower()
    is_no_route = status == HTTPStatus.BAD_REQUEST and any(part in words for part in _NO_ROUTE)
    return "no_liquidity" if is_no_route else "quote_unavailable"


def _read(body: Mapping[str, Any], mints: tuple[str, str]) -> JupiterRoute:
    """Parse a response. Raises: LookupError, TypeError, ValueError for another shape."""
    output_units = int(body["outAmount"])
    is_asked = (body["inputMint"], body["outputMint"]) == mints and body["swapMode"] == "ExactIn"
    if not is_asked or not 0 <= output_units < _U64:
        raise ValueError("another kind of quote")
    cleanup = body.get("cleanupInstruction")
    auxiliary_instructions = [*body["setupInstructions"], *([cleanup] if cleanup else [])]
    unexpected_instructions = len(body.get("otherInstructions") or []) + bool(body.get("tipInstruction"))
    tables = body.get("addressesByLookupTableAddress") or {}
    if max(len(tables), len(auxiliary_instructions), len(body["routePlan"])) > _MAX_STEPS:
        raise ValueError("too long a route")
    return JupiterRoute(
        output_units=output_units,
        labels=tuple(_label(step) for step in body["routePlan"]),
        swap=_instruction(body["swapInstruction"]),
        auxiliary_instructions=tuple(_instruction(entry) for entry in auxiliary_instructions),
        unexpected_instructions=unexpected_instructions,
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
    # The names of pools are untrusted.
    return "".join(letter for letter in label if letter.isascii() and (letter.isalnum() or letter in " .-"))[
        :_MAX_LABEL
    ]
