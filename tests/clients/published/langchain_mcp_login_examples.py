"""The tools of LangChain for an owner who has signed in."""

from __future__ import annotations

import asyncio

from examples import Gateway
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp_login import Login

PACKAGE = "langchain-mcp-adapters"


def example_log_in_and_call_a_tool(gateway: Gateway) -> None:
    login = Login(gateway.url)

    async def use() -> None:
        server = {"transport": "http", "url": f"{gateway.url}/mcp", "auth": login.auth}
        tools = {tool.name: tool for tool in await MultiServerMCPClient({"purser": server}).get_tools()}
        assert "wallets" in str(await tools["get_balances"].ainvoke({}))

    asyncio.run(use())
    assert len(login.answers) == 1
