"""The sandbox's faucet over HTTP. It is told a reference, and pays each reference once."""

from __future__ import annotations

import json
from http import HTTPStatus

from app.adapters.http_client import HttpClient
from app.core.chains import ChainName
from app.core.money import TokenAmount
from app.ports.errors import Rejected, Unreachable

_CONNECT_SECONDS = 1.0
_TOTAL_SECONDS = 20.0
"""The faucet waits for the transaction that pays."""


class HttpFaucet:
    """Asks `POST {url}/pay`; the sandbox serves it."""

    def __init__(self, url: str) -> None:
        """Take the faucet's base address."""
        self._url = f"{url.rstrip('/')}/pay"
        self._http = HttpClient(connect_seconds=_CONNECT_SECONDS, total_seconds=_TOTAL_SECONDS)

    def pay(self, reference: str, *, chain: ChainName, address: str, amount: TokenAmount) -> None:
        """Pay once per reference, however often it is asked.

        Raises: Rejected("faucet_refused"); Unreachable("faucet_unreachable"), also when the answer was lost,
        for asking again never pays twice.
        """
        order = {
            "reference": reference,
            "chain": chain.value,
            "address": address,
            "currency": amount.token.symbol,
            "amount": str(amount),
        }
        try:
            answer = self._http.post(self._url, json.dumps(order).encode())
            paid = answer.json() if answer.status == HTTPStatus.OK else None
        except Unreachable:
            raise Unreachable("faucet_unreachable") from None
        if answer.status == HTTPStatus.BAD_REQUEST:
            raise Rejected("faucet_refused")
        if not isinstance(paid, dict) or not isinstance(paid.get("tx_hash"), str):
            raise Unreachable("faucet_unreachable")
