"""The login of the previous major version of the official client."""

from __future__ import annotations

import asyncio

from examples import Gateway
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamablehttp_client
from mcp.shared.auth import OAuthClientMetadata, OAuthToken
from owner_browser import OwnerBrowser

PACKAGE = "mcp"


class _Storage:
    """Tokens in memory."""

    tokens = client = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> object:
        return self.client

    async def set_client_info(self, client_info: object) -> None:
        self.client = client_info


def example_log_in_and_call_a_tool(gateway: Gateway) -> None:
    owner, answers = OwnerBrowser(gateway.url), []

    async def redirect(address: str) -> None:
        answers.append(await asyncio.to_thread(owner.consent, address))

    async def callback() -> tuple[str, str | None]:
        return answers[-1]["code"], answers[-1]["state"]

    async def use() -> None:
        provider = OAuthClientProvider(
            server_url=f"{gateway.url}/mcp",
            client_metadata=OAuthClientMetadata(client_name="Example", redirect_uris=["http://127.0.0.1:1/callback"]),
            storage=_Storage(),
            redirect_handler=redirect,
            callback_handler=callback,
        )
        async with (
            streamablehttp_client(f"{gateway.url}/mcp", auth=provider) as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            result = await session.call_tool("get_balances", {})
            assert len(result.structuredContent["wallets"]) == 1

    asyncio.run(use())
    assert len(answers) == 1
