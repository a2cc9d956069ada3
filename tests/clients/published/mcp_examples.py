"""The official client, with the stateless version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
from examples import Gateway
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

PACKAGE = "mcp"


def run(gateway: Gateway, use: Callable[[Client], Awaitable[None]], *, key: bool = True, mode: str = "auto") -> None:
    async def connect() -> None:
        headers = {"Authorization": f"Bearer {gateway.key}"} if key else {}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            transport = streamable_http_client(f"{gateway.url}/mcp", http_client=http)
            async with Client(transport, mode=mode) as client:
                await use(client)

    asyncio.run(connect())


def example_discover_and_list_tools(gateway: Gateway) -> None:
    async def use(client: Client) -> None:
        assert client.protocol_version == "2026-07-28"
        tools: dict[str, Any] = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["get_balances"].annotations.read_only_hint is True
        assert tools["transfer"].annotations.destructive_hint is True

    run(gateway, use)


def example_call_a_tool(gateway: Gateway) -> None:
    async def use(client: Client) -> None:
        result = await client.call_tool("get_balances", {})
        assert not result.is_error
        [wallet] = result.structured_content["wallets"]
        found = await client.call_tool("get_controls", {"wallet_id": wallet["id"]})
        assert found.structured_content["wallet_id"] == wallet["id"]

    run(gateway, use)


def example_refusal(gateway: Gateway) -> None:
    async def use(client: Client) -> None:
        result = await client.call_tool("get_controls", {"wallet_id": "00000000-0000-4000-8000-000000000000"})
        assert result.is_error
        assert result.structured_content["code"] == "NOT_FOUND"

    run(gateway, use)


def example_register_without_a_key(gateway: Gateway) -> None:
    async def use(client: Client) -> None:
        result = await client.call_tool("register", {"name": "model"})
        assert result.structured_content["apiKey"].startswith("ak_")

    run(gateway, use, key=False)


def example_read_a_resource(gateway: Gateway) -> None:
    async def use(client: Client) -> None:
        resources = {each.name: each.uri for each in (await client.list_resources()).resources}
        found = await client.read_resource(resources["instructions"])
        assert found.contents[0].text.startswith("# Purser")

    run(gateway, use)


def example_handshake(gateway: Gateway) -> None:
    async def use(client: Client) -> None:
        assert client.protocol_version == "2025-11-25"
        assert not (await client.call_tool("get_balances", {})).is_error

    run(gateway, use, mode="legacy")
