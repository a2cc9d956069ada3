"""The tools of MCP in a call of Gemini."""

from __future__ import annotations

import asyncio

import httpx2
from examples import Gateway
from google import genai
from google.genai import types
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

PACKAGE = "google-genai"


def example_call_a_tool(gateway: Gateway) -> None:
    options = types.HttpOptions(base_url=gateway.base("gemini"))
    google = genai.Client(api_key=gateway.key, http_options=options)

    async def use() -> None:
        headers = {"Authorization": f"Bearer {gateway.key}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            streamable_http_client(f"{gateway.url}/mcp", http_client=http) as (read, write),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            # Not in a GenerateContentConfig: the package copies one with its session, which cannot be copied.
            answer = await google.aio.models.generate_content(
                model="gemini-2.5-flash", contents="Call get_usage", config={"tools": [session]}
            )
            parts = [part for each in answer.automatic_function_calling_history for part in each.parts]
            [found] = [part.function_response for part in parts if part.function_response]
            assert found.name == "get_usage"
            assert "by_provider" in str(found.response)

    asyncio.run(use())
