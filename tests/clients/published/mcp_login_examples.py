"""The login of the official client: registration, consent, tokens, a call of a tool, and a refreshed token."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
from examples import Gateway
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata
from owner_browser import OwnerBrowser

PACKAGE = "mcp"


class _Storage:
    """Tokens in memory."""

    tokens: Any = None
    client: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


def example_log_in_and_call_a_tool(gateway: Gateway) -> None:
    owner, storage, answers = OwnerBrowser(gateway.url), _Storage(), []

    async def redirect(address: str) -> None:
        answers.append(await asyncio.to_thread(owner.consent, address))

    async def callback() -> AuthorizationCodeResult:
        found = answers[-1]
        return AuthorizationCodeResult(code=found["code"], state=found["state"], iss=found["iss"])

    provider = OAuthClientProvider(
        server_url=f"{gateway.url}/mcp",
        client_metadata=OAuthClientMetadata(
            client_name="Example", redirect_uris=["http://127.0.0.1:1/callback"], token_endpoint_auth_method="none"
        ),
        storage=storage,
        redirect_handler=redirect,
        callback_handler=callback,
    )

    async def use() -> None:
        async with httpx2.AsyncClient(auth=provider, timeout=60) as http:
            transport = streamable_http_client(f"{gateway.url}/mcp", http_client=http)
            async with Client(transport) as client:
                first = await client.call_tool("get_balances", {})
                [wallet] = first.structured_content["wallets"]
                assert storage.tokens.scope == "wallet:read wallet:pay gateway catalog"
                # An access token that has expired is refreshed, without the owner.
                before, provider.context.token_expiry_time = storage.tokens, 1
                found = await client.call_tool("get_controls", {"wallet_id": wallet["id"]})
                assert found.structured_content["wallet_id"] == wallet["id"]
                assert storage.tokens.access_token != before.access_token
                assert storage.tokens.refresh_token != before.refresh_token

    asyncio.run(use())
    assert len(answers) == 1
