"""The tools of an agent of pydantic-ai, whose client opens the owner's browser."""

from __future__ import annotations

import asyncio

from examples import Gateway
from owner_browser import DefaultBrowser
from pydantic_ai.mcp import MCPToolset

PACKAGE = "pydantic-ai-slim"


def example_log_in_and_call_a_tool(gateway: Gateway) -> None:
    browser = DefaultBrowser(gateway.url)

    async def use() -> None:
        async with MCPToolset(f"{gateway.url}/mcp", auth="oauth") as purser:
            found = await purser.direct_call_tool("get_balances", {})
            assert len(found["wallets"]) == 1

    asyncio.run(use())
    assert browser.opened == 1
