"""The previous major version of the official client, which begins with a handshake, in two of its releases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from examples import Gateway
from mcp import ClientSession, types
from mcp.client.streamable_http import streamablehttp_client

PACKAGE = "mcp"


def run(gateway: Gateway, use: Callable[[ClientSession], Awaitable[None]]) -> None:
    async def connect() -> None:
        headers = {"Authorization": f"Bearer {gateway.key}"}
        async with (
            streamablehttp_client(f"{gateway.url}/mcp", headers=headers) as (read, write, session_id),
            ClientSession(read, write) as session,
        ):
            assert (await session.initialize()).protocolVersion == types.LATEST_PROTOCOL_VERSION
            assert session_id() is None
            await use(session)

    asyncio.run(connect())


def example_initialize_and_list_tools(gateway: Gateway) -> None:
    async def use(session: ClientSession) -> None:
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert tools["get_balances"].annotations.readOnlyHint is True

    run(gateway, use)


def example_call_a_tool(gateway: Gateway) -> None:
    async def use(session: ClientSession) -> None:
        result = await session.call_tool("get_balances", {})
        [wallet] = result.structuredContent["wallets"]
        found = await session.call_tool("get_controls", {"wallet_id": wallet["id"]})
        assert found.structuredContent["wallet_id"] == wallet["id"]

    run(gateway, use)


def example_refusal(gateway: Gateway) -> None:
    async def use(session: ClientSession) -> None:
        result = await session.call_tool("get_controls", {"wallet_id": "00000000-0000-4000-8000-000000000000"})
        assert result.isError
        assert result.structuredContent["code"] == "NOT_FOUND"

    run(gateway, use)


def example_read_a_resource(gateway: Gateway) -> None:
    async def use(session: ClientSession) -> None:
        resources = {each.name: each.uri for each in (await session.list_resources()).resources}
        found = await session.read_resource(resources["instructions"])
        assert found.contents[0].text.startswith("# Purser")

    run(gateway, use)
