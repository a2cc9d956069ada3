"""Jupiter's Swap API v2, `GET /swap/v2/build`: a quote with its instructions.

Source: Jupiter's documentation, openapi-spec/swap/v2/swap.yaml, and "Rate limits": of an account, over all APIs and in
a sliding window of a minute.
"""

import base64
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import Field
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from app.adapters.rate_limited_http import KEYLESS, RateLimitedClient, ServiceAccess, read_quote
from app.adapters.solana.client.wire import PubkeyText
from app.capacity.single_flight_cache import SingleFlightCache
from app.core.foreign import ForeignModel, Items, MalformedResponseError, OptionalItems, U64Digits, parsed

SERVICE = "jupiter"
KEY_HEADER = "x-api-key"
_MAX_ACCOUNTS = 40
"""Accounts in a route, so that its transaction stays below the network's limit of 1232 bytes."""
_MAX_STEPS = 40
"""Steps in a route, lookup tables and additional instructions: far more than one transaction holds."""
_FEW = Field(max_length=_MAX_STEPS)
_NO_ROUTE = ("route", "not tradable", "liquidity")


def _label(step: Mapping[str, Any]) -> str:
    label = str(step["swapInfo"].get("label") or "unnamed")
    # The names of pools are untrusted.
    return "".join(letter for letter in label if letter.isascii() and (letter.isalnum() or letter in " .-"))[:40]


def _instruction(found: Mapping[str, Any]) -> Instruction:
    metas = [
        AccountMeta(Pubkey.from_string(each["pubkey"]), is_signer=each["isSigner"], is_writable=each["isWritable"])
        for each in found["accounts"]
    ]
    return Instruction(Pubkey.from_string(found["programId"]), base64.b64decode(found["data"], validate=True), metas)


_RouteInstruction = Annotated[Instruction, parsed(_instruction)]


class JupiterRoute(ForeignModel):
    """Jupiter's offer: the output, and the instructions to sign for it."""

    input_mint: str
    output_mint: str
    swap_mode: Literal["ExactIn"]
    output_units: U64Digits = Field(alias="outAmount")
    labels: Annotated[Items[Annotated[str, parsed(_label)]], _FEW] = Field(alias="routePlan")
    swap: _RouteInstruction = Field(alias="swapInstruction")
    setup_instructions: Annotated[Items[_RouteInstruction], _FEW]
    cleanup_instruction: _RouteInstruction | None = None
    other_instructions: OptionalItems[Any] = ()
    tip_instruction: Any = None
    tables: Annotated[Items[PubkeyText], _FEW, parsed(lambda found: sorted(found or ()))] = Field(
        (), alias="addressesByLookupTableAddress"
    )

    @property
    def auxiliary_instructions(self) -> list[Instruction]:
        """Its instructions before and after the swap, fees aside."""
        cleanup = [self.cleanup_instruction] if self.cleanup_instruction else []
        return [*self.setup_instructions, *cleanup]

    @property
    def unexpected_instructions(self) -> int:
        """The number of further instructions, of kinds that we never accept."""
        return len(self.other_instructions) + bool(self.tip_instruction)


class JupiterApi:
    def __init__(self, base_url: str, access: ServiceAccess = KEYLESS) -> None:
        self._url = f"{base_url.rstrip('/')}/swap/v2/build"
        self._http = RateLimitedClient(SERVICE, access, KEY_HEADER, total_seconds=8.0)
        self._quotes = SingleFlightCache()

    def build(self, owner: str, input_mint: str, output_mint: str, *, units: int, slippage_bps: int) -> JupiterRoute:
        """Return the best route, shared for seconds by dry run and swap. Raises: Rejected, as `read_quote` does."""
        query = {
            "inputMint": input_mint, "outputMint": output_mint, "amount": str(units), "taker": owner,
            "slippageBps": str(slippage_bps), "maxAccounts": str(_MAX_ACCOUNTS),
        }  # fmt: skip
        send, read = partial(self._http.get, self._url, query=query), partial(_read, mints=(input_mint, output_mint))
        request = partial(read_quote, SERVICE, send, read, _rejection_reason)
        # The minimum output bounds what a price can move in this time, and the simulation shows it.
        route: JupiterRoute = self._quotes.get((owner, *query.values()), request, ttl_seconds=5, failure_ttl_seconds=0)
        return route

    def forget(self, owner: str) -> None:
        """Request quotes for an owner anew: they are unusable, or a swap has moved their price."""
        self._quotes.drop(lambda key: isinstance(key, tuple) and key[0] == owner)


def _rejection_reason(status: int, body: object) -> str:
    words = str(body).lower()
    is_no_route = status == HTTPStatus.BAD_REQUEST and any(part in words for part in _NO_ROUTE)
    return "no_liquidity" if is_no_route else "quote_unavailable"


def _read(body: object, mints: tuple[str, str]) -> JupiterRoute:
    """Read a response. Raises: MalformedResponseError."""
    route = JupiterRoute.read(body)
    if (route.input_mint, route.output_mint) != mints:
        raise MalformedResponseError("expected a quote of these tokens")
    return route
