"""The login of the official client: registration, consent, tokens, a call of a tool, and a refreshed token."""

from __future__ import annotations

import asyncio

import httpx2
from examples import Gateway
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_login import Login

PACKAGE = "mcp"


def example_log_in_and_call_a_tool(gateway: Gateway) -> None:
    login = Login(gateway.url)

    async def use() -> None:
        async with httpx2.AsyncClient(auth=login.auth, timeout=60) as http:
            transport = streamable_http_client(f"{gateway.url}/mcp", http_client=http)
            async with Client(transport) as client:
                first = await client.call_tool("get_balances", {})
                [wallet] = first.structured_content["wallets"]
                assert login.tokens.scope == "wallet:read wallet:pay gateway catalog"
                # An access token that has expired is refreshed, without the owner.
                before, login.auth.context.token_expiry_time = login.tokens, 1
                found = await client.call_tool("get_controls", {"wallet_id": wallet["id"]})
                assert found.structured_content["wallet_id"] == wallet["id"]
                assert login.tokens.access_token != before.access_token
                assert login.tokens.refresh_token != before.refresh_token

    asyncio.run(use())
    assert len(login.answers) == 1
