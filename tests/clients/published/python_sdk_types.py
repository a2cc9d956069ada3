"""A program as a user of `purser-sdk` writes it, for a type checker."""

from __future__ import annotations

from purser import AsyncPurser, LimitExceeded, Purser, types


def pay(client: Purser, to: str) -> str:
    funding: types.Funding = client.fund(chain="base", currency="USDC", amount="25")
    client.wait(funding)
    try:
        sent = client.transfer(chain="base", currency="USDC", amount="12.5", to=to)
    except LimitExceeded as error:
        return "" if error.remaining_usd is None else f"{error.remaining_usd:.2f}"
    return sent["status"]


async def pay_later(client: AsyncPurser) -> types.WalletBalances:
    return await client.get_balances()


async def next_event(client: AsyncPurser) -> str:
    async for event in client.follow_events():
        return event["type"]
    return ""


def mistakes(client: Purser) -> None:
    client.fund(chain="bitcoin", currency="USDC", amount="25")  # type: ignore[arg-type]
    client.get_balances()["balance"]  # type: ignore[typeddict-item]
