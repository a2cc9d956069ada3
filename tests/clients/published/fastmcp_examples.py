"""Examples of FastMCP's client: with a key, and with its login in the owner's browser."""

from __future__ import annotations

import asyncio
from typing import Any

from examples import Gateway
from fastmcp import Client
from fastmcp.client.auth import BearerAuth, OAuth
from owner_browser import DefaultBrowser

PACKAGE = "fastmcp"


async def _balances(url: str, auth: Any) -> Any:
    async with Client(f"{url}/mcp", auth=auth) as client:
        assert "transfer" in {tool.name for tool in await client.list_tools()}
        found = await client.call_tool("get_balances")
        [wallet] = found.structured_content["wallets"]
        again = await client.call_tool("get_controls", {"wallet_id": wallet["id"]})
        assert again.structured_content["wallet_id"] == wallet["id"]


def example_call_a_tool(gateway: Gateway) -> None:
    asyncio.run(_balances(gateway.url, BearerAuth(gateway.key)))


def example_log_in_and_call_a_tool(gateway: Gateway) -> None:
    browser = DefaultBrowser(gateway.url)
    asyncio.run(_balances(gateway.url, OAuth(client_name="Example")))
    assert browser.opened == 1
