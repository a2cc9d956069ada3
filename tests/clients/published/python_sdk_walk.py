"""Walks the tutorial with the package `purser-sdk`. Arguments: the service's address, and `sync` or `async`."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable
from typing import Any

from purser import AsyncPurser, LimitExceeded, NotFound, Purser, PurserError, UpstreamError, ValidationError

MESSAGES: Any = [{"role": "user", "content": "hello"}]


async def done(value: Any) -> Any:
    """Return a result of either client."""
    return await value if inspect.isawaitable(value) else value


async def refused(call: Callable[[], Any], kind: type[PurserError]) -> PurserError:
    try:
        await done(call())
    except kind as error:
        return error
    raise AssertionError(kind)


async def walk(client: Any, friend: Any) -> dict[str, Any]:
    made = await done(client.register(name="walker"))
    assert made["apiKey"] == client.api_key
    for currency, amount in (("ETH", "0.01"), ("USDC", "25")):
        request = await done(client.fund(chain="base", currency=currency, amount=amount))
        funded = await done(client.wait(request))
        assert (funded["status"], funded["type"], funded["amount"]) == ("confirmed", "funding", amount)
    await done(client.set_controls(daily_limit_usd=20))
    to = (await done(friend.register(name="friend")))["wallet"]["addresses"]["base"]
    payment = {"chain": "base", "currency": "USDC", "amount": "12.5", "to": to}
    quote = await done(client.transfer(**payment, dry_run=True))
    assert quote["dry_run"]
    assert "transaction_id" not in quote
    first = await done(client.transfer(**payment, idempotency_key="invoice-7"))
    again = await done(client.transfer(**payment, idempotency_key="invoice-7"))
    assert first["transaction_id"] == again["transaction_id"]
    sent = await done(client.wait(first))
    listed = await done(client.list_transactions(type="transfer"))
    assert [each["id"] for each in listed["transactions"]] == [sent["id"]]

    limit = await refused(lambda: client.transfer(**payment), LimitExceeded)
    assert isinstance(limit, LimitExceeded)
    invalid = await refused(lambda: client.transfer(**{**payment, "amount": "much"}), ValidationError)
    assert isinstance(invalid, ValidationError)
    assert list(invalid.fields or {}) == ["amount"]
    await refused(lambda: client.get_transaction("5f0f6c1e-3b9c-4f0e-9a55-0d6a6a3c8a10"), NotFound)

    swapped = await done(client.swap(chain="base", input_token="USDC", output_token="ETH", amount="10"))
    bridged = await done(client.bridge(source_chain="base", destination_chain="ethereum", token="USDC", amount="2"))
    arrived = await done(client.wait(bridged))
    ticker = await done(client.call_perpdex(action="ticker", symbol="ETH"))
    order = {"action": "order", "symbol": "ETH", "side": "sell", "price": "3000.55", "amount": "0.001"}
    preview = await refused(lambda: client.call_perpdex(**order, reduceOnly=True), PurserError)
    assert preview.body["payload"]["action"]["type"] == "order"

    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
    answer = await done(client.forward_post("alchemy", "base", body=call))
    openai = client.openai_client()
    completion = await done(openai.chat.completions.create(model="gpt-5", messages=MESSAGES))
    usage = await done(client.get_usage())
    paid = await refused(lambda: client.pay("http://127.0.0.1:9/none", max_amount_usd=0.1), UpstreamError)
    events = await done(client.list_events(types="transaction.confirmed"))
    hash_ = await done(client.faucet(chain="base", currency="USDC", amount="1"))
    return {
        "sent": [sent["status"], sent["amount"]], "code": limit.code, "status": limit.status,
        "limit_usd": limit.limit_usd, "requested_usd": limit.requested_usd, "swapped": swapped["status"],
        "arrived": arrived["status"], "received": bool(arrived["received_amount"]), "ticker": ticker["mid_price"],
        "preview": [preview.code, preview.status], "chain": answer["result"],
        "said": completion.choices[0].message.content, "providers": sorted(usage["summary"]["by_provider"]),
        "paid": paid.code, "events": len(events["events"]), "faucet": hash_[:2],
    }  # fmt: skip


async def main(url: str, kind: str) -> dict[str, Any]:
    if kind == "sync":
        with Purser(base_url=url) as client, Purser(base_url=url) as friend:
            return await walk(client, friend)
    async with AsyncPurser(base_url=url) as client, AsyncPurser(base_url=url) as friend:
        return await walk(client, friend)


json.dump(asyncio.run(main(*sys.argv[1:])), sys.stdout)
