"""The client for `asyncio`; `clients/generate.py` makes the synchronous one from it."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import httpx

from purser import types as api
from purser._async_operations import AsyncOperations
from purser._responses import content_of, error_of, pause_before_retry
from purser.errors import ApprovalDenied, ConnectionFailed, PurserError, WaitTimeout
from purser.types import OMIT, Omit
from purser.version import USER_AGENT
from purser.webhooks import verify_webhook

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from typing_extensions import Self

_UNDECIDED = {"awaiting", "awaiting_approval", "approved"}


class AsyncPurser(AsyncOperations):
    """An asynchronous client of one service, with one key: `PURSER_BASE_URL` and `PURSER_API_KEY` by default."""

    verify_webhook = staticmethod(verify_webhook)

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        wallet_id: str | None = None,
        timeout: float = 60.0,
        max_retries: int = 5,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        """Accept the id of the wallet that is used where none is named; the first wallet by default."""
        self.base_url = (base_url or os.environ.get("PURSER_BASE_URL") or "http://127.0.0.1:8000").rstrip("/")
        self.api_key = api_key or os.environ.get("PURSER_API_KEY")
        self.wallet_id, self.max_retries = wallet_id, max_retries
        self._http = http_client or httpx.AsyncClient(timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def default_wallet(self) -> str:
        """Return the id of the wallet that is used where none is named."""
        if self.wallet_id is None:
            page = await self.list_wallets()
            if not page["wallets"]:
                raise PurserError("This agent has no wallet.", code="NO_WALLET")
            # The newest is listed first.
            self.wallet_id = min(page["wallets"], key=lambda each: each["created_at"])["id"]
        return self.wallet_id

    async def register(
        self, *, name: str | Omit | None = OMIT, email: str | Omit | None = OMIT
    ) -> api.RegisterResponse:
        """Register an agent. The client then acts as that agent, with its first wallet."""
        registered = await super().register(name=name, email=email)
        self.api_key, self.wallet_id = registered["apiKey"], registered["wallet"]["id"]
        return registered

    async def wait(
        self, pending: Mapping[str, Any] | str, *, wallet_id: str | None = None, timeout: float = 600.0
    ) -> api.TransactionDetail:
        """Wait until a transaction or funding request is no longer pending, and return it.

        `pending` is the response to the request, or an id. A payment that needs an approval is awaited as well.
        Raises: WaitTimeout, ApprovalDenied.
        """
        found: Mapping[str, Any] = {"transaction_id": pending} if isinstance(pending, str) else pending
        waited, pause = 0.0, 0.5
        while waited < timeout:
            if found.get("approval"):
                found = await self._decided(found["approval"]["id"])
            else:
                transaction_id = found.get("transaction_id") or found.get("funding_request_id") or found["id"]
                transaction = await self.get_transaction(transaction_id, wallet_id=wallet_id or found.get("wallet_id"))
                if transaction["status"] != "pending":
                    return transaction
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(pause * 1.5, 5.0)
        raise WaitTimeout(f"It is still pending after {timeout:g} seconds.", code="WAIT_TIMEOUT", body=dict(found))

    async def _decided(self, approval_id: str) -> Mapping[str, Any]:
        approval = await self.get_approval(approval_id)
        if approval["status"] in _UNDECIDED:
            return {"approval": approval}
        if approval["status"] != "executed":
            code, text = f"APPROVAL_{approval['status'].upper()}", approval.get("answer") or approval["status"]
            raise ApprovalDenied(f"The payment was not approved: {text}.", code=code, body=dict(approval))
        return approval

    async def follow_events(self, *, after: int = 0, types: str | Omit = OMIT) -> AsyncIterator[api.AccountEvent]:
        """Yield the agent's events, and wait for more without an end."""
        while True:
            page = await self.list_events(after=after, types=types, prefer="wait=25")
            for event in page["events"]:
                yield event
            after = page["next_after"]

    async def faucet(
        self, *, chain: str, currency: str, amount: str, address: str | None = None, faucet_url: str | None = None
    ) -> str:
        """Have the faucet of a local sandbox pay an address, the wallet's by default; return the transaction's hash."""
        if address is None:
            address = str((await self.get_wallet())["addresses"].get(chain))
        order = {"chain": chain, "currency": currency, "amount": amount, "address": address}
        url = faucet_url or os.environ.get("PURSER_FAUCET_URL") or "http://127.0.0.1:18547"
        try:
            answer = await self._http.post(f"{url}/pay", json={**order, "reference": str(uuid.uuid4())})
        except httpx.TransportError as failure:
            raise ConnectionFailed(f"There is no faucet at {url}.", code="CONNECTION_FAILED") from failure
        if not answer.is_success:
            raise PurserError(answer.text, code="FAUCET_REFUSED", status=answer.status_code)
        return str(answer.json()["tx_hash"])

    def openai_client(self, **options: Any) -> AsyncOpenAI:
        """Return OpenAI's client with this service as its provider; needs the package `openai`."""
        from openai import AsyncOpenAI  # noqa: PLC0415 - an optional requirement

        return AsyncOpenAI(base_url=f"{self.base_url}/v1/gateway/openai", api_key=self.api_key, **options)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = OMIT,
        headers: Mapping[str, Any] | None = None,
        is_keyed: bool = False,
        is_repeatable: bool = False,
    ) -> Any:
        """Send a request, and repeat it where that has no second effect: a keyed one under one idempotency key."""
        sent: dict[str, Any] = {"User-Agent": USER_AGENT, **_given(headers or {})}
        if self.api_key:
            sent["X-Master-Key" if self.api_key.startswith("mk_") else "X-API-Key"] = self.api_key
        key = str(sent.setdefault("Idempotency-Key", str(uuid.uuid4()))) if is_keyed else None
        is_raw = isinstance(body, (str, bytes))
        options: dict[str, Any] = {"content": body} if is_raw else {} if body is OMIT else {"json": _given(body)}
        attempt = 0
        while True:
            error: PurserError
            try:
                response = await self._http.request(
                    method, self.base_url + path, params=_given(query or {}), headers=sent, **options
                )
            except httpx.TransportError as failure:
                error = ConnectionFailed(str(failure) or type(failure).__name__, code="CONNECTION_FAILED")
                error.__cause__ = failure
            else:
                if response.is_success:
                    return content_of(response)
                error = error_of(response)
            error.idempotency_key = key
            pause = pause_before_retry(error, attempt, is_repeatable=is_repeatable)
            if pause is None or attempt >= self.max_retries:
                raise error
            await asyncio.sleep(pause)
            attempt += 1


def _given(values: Any) -> Any:
    is_map = isinstance(values, Mapping)
    return {name: value for name, value in values.items() if value is not OMIT} if is_map else values
