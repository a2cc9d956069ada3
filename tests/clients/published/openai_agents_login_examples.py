"""The tools of an agent of openai-agents whose owner has signed in."""

from __future__ import annotations

import asyncio

from agents.mcp import MCPServerStreamableHttp
from examples import Gateway
from mcp_login import Login

PACKAGE = "openai-agents"


def example_log_in_and_call_a_tool(gateway: Gateway) -> None:
    login = Login(gateway.url)

    async def use() -> None:
        async with MCPServerStreamableHttp(params={"url": f"{gateway.url}/mcp", "auth": login.auth}) as purser:
            found = await purser.call_tool("get_balances", {})
            assert "wallets" in found.content[0].text

    asyncio.run(use())
    assert len(login.answers) == 1
