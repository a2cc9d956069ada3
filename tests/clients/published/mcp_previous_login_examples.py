"""The login of the previous major version of the official client."""

from __future__ import annotations

import asyncio

from examples import Gateway
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from mcp_login import Login

PACKAGE = "mcp"


def example_log_in_and_call_a_tool(gateway: Gateway) -> None:
    login = Login(gateway.url)

    async def use() -> None:
        async with (
            streamablehttp_client(f"{gateway.url}/mcp", auth=login.auth) as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            result = await session.call_tool("get_balances", {})
            assert len(result.structuredContent["wallets"]) == 1

    asyncio.run(use())
    assert len(login.answers) == 1
