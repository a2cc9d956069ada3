"""A web process that was taken over: it has the database, the service's seals and the socket, but no wallet's key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account

from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.deployments import DEPLOYMENTS, EvmDeployment
from app.adapters.evm.send import transactions
from app.core.chains import USDC, ChainName
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.ports.errors import Rejected
from app.spending.policy import SpendingRequest
from app.state import Application
from app.wallets.core import intents
from app.wallets.core.intents import Intent
from tests.support.agents import Agent, register
from tests.support.chains import RECIPIENT
from tests.support.signers import SignerThread, signer_of

BASE: EvmDeployment = DEPLOYMENTS["sandbox", "base"]


class Died(BaseException):
    """The end of a process: nothing that follows an error is done."""


@dataclass
class Attacker:
    """Calls the signer as the web process does; `recorded` ids are all that it names."""

    app: Application
    agent: Agent
    signer: SignerThread
    ids: list[str] = field(default_factory=list)

    def record(self, *, units: int = 5_000_000, held_nanos: int | None = 5 * 10**9, **changed: Any) -> str:
        """Record an intent with its hold, as the web process does before it signs; then go on as its attacker."""
        request = None if held_nanos is None else SpendingRequest(held_nanos)
        intent = Intent(
            new_id(), self.agent.wallet_id, ChainName.BASE, "transfer", RECIPIENT, TokenAmount(units, USDC), request
        )
        with pytest.raises(Died), intents.recorded(replace(intent, **changed)):
            raise Died
        self.ids.append(intent.id)
        return intent.id

    def ask(self, content: dict[str, Any], *, ids: list[str] | None = None, wallet: str = "") -> Any:
        named = self.ids if ids is None else ids
        return self.signer.client.ask("sign", wallet=wallet or self.agent.wallet_id, intents=named, content=content)

    def refusal(self, content: dict[str, Any], **asked: Any) -> str:
        with pytest.raises(Rejected) as refused:
            self.ask(content, **asked)
        return refused.value.reason

    def fields(self, *, to: str = RECIPIENT, units: int = 5_000_000, nonce: int = 0, **changed: Any) -> dict[str, Any]:
        """Return the fields of a transfer of USDC."""
        return {
            "type": 2, "chainId": BASE.chain_id, "nonce": nonce, "gas": 80_000, "maxFeePerGas": 10**9,
            "maxPriorityFeePerGas": 1, "to": bytes.fromhex(BASE.usdc[2:]), "value": 0,
            "data": contracts.TRANSFER.encode(to, units), **changed,
        }  # fmt: skip

    def signed_by(self, fields: dict[str, Any]) -> str:
        return str(Account.recover_transaction(transactions.encode(fields, *self.ask(fields))))


@pytest.fixture
def attacker(build_app: Callable[..., Application], sqlite_url: str, tmp_path: Path) -> Iterator[Attacker]:
    app = build_app(sqlite_url)
    with app.app_context(), signer_of(app, tmp_path) as signer:
        yield Attacker(app, register(app.test_client()), signer)
