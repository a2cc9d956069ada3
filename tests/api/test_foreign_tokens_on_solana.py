"""SPL tokens of both programs that the service does not know, on a real node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from solders.keypair import Keypair

from app.core import clock
from app.core.chains import ChainName
from solana_node import SolanaNode
from solana_node.addresses import USDC_MINT
from tests.api.test_foreign_tokens import approved, named, tokens_of
from tests.support import foreign_tokens as code
from tests.support.drivers import SolanaDriver, Stage, stage_on
from tests.support.foreign_tokens import ForeignSplToken
from tests.support.solana import solana_address
from tests.support.solana_people import chain_at
from tests.support.waiting import wait_until
from workers import confirmations

pytestmark = pytest.mark.chain


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str, solana_node: SolanaNode) -> Iterator[Stage]:
    driver = SolanaDriver(node=solana_node, real=chain_at(solana_node.url))
    with stage_on(build_app, sqlite_url, driver, dollars=20) as made:
        yield made


@pytest.fixture
def home(stage: Stage) -> str:
    return named(stage.agent, solana_address(), ChainName.SOLANA)


def asked(stage: Stage, token: ForeignSplToken, to: str, amount: str = "2", decimals: int = 6) -> Any:
    return stage.agent.move(amount, f"{token.mint}:{decimals}", how="withdraw", chain="solana", to=to)


def settled(stage: Stage) -> dict[str, Any]:
    def ended() -> dict[str, Any] | None:
        with time_machine.travel(clock.now() + timedelta(minutes=1), tick=True):
            confirmations.confirm("solana")
        [row] = stage.agent.history(type="withdrawal")
        return None if row["status"] == "pending" else dict(row)

    return wait_until(ended, what="the withdrawal to be settled") or {}


@pytest.mark.parametrize(
    ("is_2022", "of_mint", "of_account", "arrives"),
    [
        pytest.param(False, (), (), 2_000_000, id="classic"),
        pytest.param(True, (), (code.extension(code.IMMUTABLE_OWNER),), 2_000_000, id="Token-2022"),
        pytest.param(
            True, (code.fee_of(1_000),), (code.extension(2, bytes(8)), code.extension(code.IMMUTABLE_OWNER)), 1_800_000,
            id="takes a fee",
        ),
    ],
)  # fmt: skip
def test_a_token_is_listed_and_withdrawn_once_the_owner_approves(
    stage: Stage, home: str, *, is_2022: bool, of_mint: tuple[bytes, ...], of_account: tuple[bytes, ...], arrives: int
) -> None:
    token = ForeignSplToken.create(stage.driver.node, *of_mint, is_2022=is_2022)
    token.claim("GOOD\0\0", "\u202eA good token")
    token.place(stage.address, 5_000_000, *of_account)
    assert tokens_of(stage.agent) == [{
        "chain": "solana", "currency": f"{token.mint}:6", "contract": str(token.mint), "decimals": 6, "balance": "5",
        "claimed_symbol": "GOOD", "claimed_name": "A good token", "withdrawal_refusal": None,
    }]  # fmt: skip
    done = approved(stage.agent, asked(stage, token, home))
    assert done["status"] == "executed", done
    row = settled(stage)
    assert (row["status"], row["amount"], row["currency"]) == ("confirmed", "2", f"{token.mint}:6"), row
    assert (token.held_by(stage.address), token.held_by(home)) == (3_000_000, arrives)
    # The rent of the account that was created for the owner.
    assert stage.agent.spent_this_month() > 0


def test_what_cannot_be_moved_is_listed_with_the_reason_and_refused(stage: Stage, home: str) -> None:
    node, own = stage.driver.node, stage.address
    fixed = ForeignSplToken.create(node, code.extension(code.NON_TRANSFERABLE), is_2022=True)
    fixed.place(own, 1, code.extension(code.NON_TRANSFERABLE_ACCOUNT), code.extension(code.IMMUTABLE_OWNER))
    hooked = ForeignSplToken.create(node, code.extension(code.TRANSFER_HOOK, bytes(32) + b"\1" * 32), is_2022=True)
    hooked.place(own, 1, code.extension(code.TRANSFER_HOOK_ACCOUNT, b"\0"))
    frozen, elsewhere, many = (ForeignSplToken.create(node, decimals=each) for each in (6, 6, 200))
    frozen.place(own, 1, frozen=True)
    elsewhere.place(own, 1, at=Keypair().pubkey())
    many.place(own, 1)
    lost = ForeignSplToken(node, Keypair().pubkey(), many.program)
    lost.place(own, 1)
    claims = ForeignSplToken.create(node, is_2022=True, own_name=("OWN", "In the mint"))
    claims.place(own, 1)
    found = {each["contract"]: each for each in tokens_of(stage.agent)}
    refusals = {contract: each["withdrawal_refusal"] for contract, each in found.items()}
    assert refusals == {
        **dict.fromkeys([str(each.mint) for each in (fixed, hooked, claims)]),
        str(frozen.mint): "its issuer has frozen the account", str(many.mint): "it has too many decimals",
        str(elsewhere.mint): "it is not in the associated token account",
    }  # fmt: skip
    assert (found[str(claims.mint)]["claimed_symbol"], found[str(claims.mint)]["claimed_name"]) == (
        "OWN",
        "In the mint",
    )
    for token in (fixed, hooked):
        refused = asked(stage, token, home, "0.000001")
        assert refused.status_code == 400, refused.text
        assert "a token that refuses" in refused.get_json()["details"]["fields"]["currency"][0]
    for token, decimals in ((elsewhere, 6), (frozen, 6), (many, 0), (lost, 0)):
        refused = asked(stage, token, home, "0.000001" if decimals else "1", decimals)
        assert refused.get_json()["details"]["reason"] == "insufficient_funds"
    assert asked(stage, claims, home, "0.00001", 5).status_code == 400


def test_usdc_is_no_foreign_token_and_is_not_listed(stage: Stage, home: str) -> None:
    assert tokens_of(stage.agent) == []
    refused = stage.agent.move("1", f"{USDC_MINT}:6", how="withdraw", chain="solana", to=home)
    assert (refused.status_code, refused.get_json()["details"]["fields"]["currency"]) == (
        400, ["is USDC"],
    )  # fmt: skip
