"""Pays for a tool with PyPI's x402[mcp]. Arguments: the URL of the service, the payer's private key."""

import asyncio
import json
import sys
from importlib.metadata import version

from eth_account import Account
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from x402 import x402Client
from x402.mcp import x402MCPSession
from x402.mechanisms.evm import EthAccountSigner
from x402.mechanisms.evm.exact import register_exact_evm_client

_, url, key = sys.argv
SEARCH = {"service": "brave", "path": "web/search?q=agents"}


async def pay() -> None:
    client = x402Client()
    register_exact_evm_client(client, EthAccountSigner(Account.from_key(key)))
    async with streamablehttp_client(f"{url}/mcp") as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        paid = await x402MCPSession(session, client).call_tool("call_service", SEARCH)
    found = {
        "is_error": paid.is_error,
        "payment_made": paid.payment_made,
        "result": paid.raw_result.structuredContent,
        "settled": paid.payment_response.model_dump(by_alias=True),
        "version": version("x402"),
    }
    sys.stdout.write(json.dumps(found))


asyncio.run(pay())
