"""The login of the official client without a registration: its id is the address of a document that describes it."""

from __future__ import annotations

import asyncio
import os

import httpx2
from examples import Gateway
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_login import Login

PACKAGE = "mcp"


def example_log_in_and_call_a_tool(gateway: Gateway) -> None:
    document = os.environ["CLIENT_DOCUMENT"]
    login = Login(gateway.url, client_metadata_url=document)

    async def use() -> None:
        async with httpx2.AsyncClient(auth=login.auth, timeout=60) as http:
            transport = streamable_http_client(f"{gateway.url}/mcp", http_client=http)
            async with Client(transport) as client:
                first = await client.call_tool("get_balances", {})
                assert first.structured_content["wallets"]
                before, login.auth.context.token_expiry_time = login.tokens, 1
                assert not (await client.call_tool("get_usage", {})).is_error
                assert login.tokens.access_token != before.access_token

    asyncio.run(use())
    assert login.client.client_id == document
