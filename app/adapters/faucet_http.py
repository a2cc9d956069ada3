"""The sandbox's faucet over HTTP, which pays each reference once."""

import json
from http import HTTPStatus

from app.adapters.http_client import HttpClient
from app.core.chains import ChainName
from app.core.foreign import ForeignModel
from app.core.money import TokenAmount
from app.ports.errors import Rejected, Unreachable


class _Payment(ForeignModel):
    tx_hash: str


class HttpFaucet:
    def __init__(self, url: str) -> None:
        self._url = f"{url.rstrip('/')}/pay"
        self._http = HttpClient(connect_seconds=1.0, total_seconds=20.0)

    def pay(self, reference: str, *, chain: ChainName, address: str, amount: TokenAmount) -> None:
        """Pay once per reference. Raises: Rejected("faucet_refused"); Unreachable, also if a response was lost."""
        order = {
            "reference": reference, "chain": chain.value, "address": address, "currency": amount.token.symbol,
            "amount": str(amount),
        }  # fmt: skip
        try:
            response = self._http.post(self._url, json.dumps(order).encode())
            payment = response.read(_Payment.read) if response.status == HTTPStatus.OK else None
        except Unreachable:
            raise Unreachable("faucet_unreachable") from None
        if response.status == HTTPStatus.BAD_REQUEST:
            raise Rejected("faucet_refused")
        if payment is None:
            raise Unreachable("faucet_unreachable")
