"""Foreign tokens are no door for known ones: what a web process that was taken over asks the signer process to sign."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.token import ID as TOKEN
from solders.token.associated import get_associated_token_address
from spl.token import instructions, models
from spl.token.constants import TOKEN_2022_PROGRAM_ID as TOKEN_2022
from spl.token.constants import WRAPPED_SOL_MINT

from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.calls import Function
from app.adapters.evm.contracts.deployments import PERMIT2
from app.core import clock
from app.core.chains import ChainName, token_named
from app.core.money import TokenAmount
from sandbox.evm import EvmNode
from tests.api.test_foreign_tokens import approved, asked, named, received, settle
from tests.signer.conftest import BASE, Attacker
from tests.signer.test_attacks_on_solana import MINT, OTHER, PAYEE, message, owner
from tests.signer.test_deaths import LATER, Paying, held, open_intents, paying
from tests.signer.test_deaths import settle as settle_abandoned
from tests.support.chains import RECIPIENT
from tests.support.drivers import fresh_address
from workers import approvals

__all__ = ["paying"]
TOKEN_CONTRACT = "0x1111111111111111111111111111111111111111"
UNITS = 5 * 10**18


def record(attacker: Attacker, contract: str = TOKEN_CONTRACT, kind: str = "withdrawal", **changed: Any) -> str:
    amount = TokenAmount(UNITS, token_named(f"{contract}:18"))
    return attacker.record(kind=kind, amount=amount, held_nanos=0, **changed)


def fields(attacker: Attacker, contract: str = TOKEN_CONTRACT, to: str = RECIPIENT, **changed: Any) -> dict[str, Any]:
    data = contracts.TRANSFER.encode(to, UNITS)
    return attacker.fields() | {"to": bytes.fromhex(contract[2:]), "data": data} | changed


def test_a_recorded_withdrawal_of_a_foreign_token_is_signed_once(attacker: Attacker) -> None:
    record(attacker)
    assert attacker.signed_by(fields(attacker)) == attacker.agent.address
    assert attacker.refusal(fields(attacker, nonce=1)) == "signed_before"


@pytest.mark.parametrize(
    "changed",
    [
        {"contract": BASE.usdc}, {"contract": "0x2222222222222222222222222222222222222222"}, {"to": TOKEN_CONTRACT},
        {"data": contracts.TRANSFER.encode(RECIPIENT, UNITS + 1)}, {"value": 1}, {"data": b""},
        {"data": Function("fiat_token", "approve").encode(RECIPIENT, UNITS)},
    ],
    ids=str,
)  # fmt: skip
def test_nothing_but_the_recorded_transfer_of_it_is_signed(attacker: Attacker, changed: dict[str, Any]) -> None:
    record(attacker)
    assert attacker.refusal(fields(attacker, **changed)) == "not_as_recorded"


@pytest.mark.parametrize("contract", [BASE.usdc, BASE.uniswap_router, BASE.multicall3, PERMIT2], ids=str)
def test_no_known_contract_is_called_as_a_foreign_token(attacker: Attacker, contract: str) -> None:
    record(attacker, contract)
    assert attacker.refusal(fields(attacker, contract)) == "not_a_foreign_token"


def test_a_foreign_token_is_only_withdrawn(attacker: Attacker) -> None:
    for kind in ("transfer", "swap", "bridge_leg", "x402", "gas_sale", "settlement"):
        attacker.ids.clear()
        record(attacker, kind=kind, minimum_units=1, recipient=attacker.agent.address)
        ether = {"to": bytes.fromhex(BASE.uniswap_router[2:]), "value": UNITS, "data": b""}
        for content in (fields(attacker), fields(attacker) | ether):
            assert attacker.refusal(content) == "not_as_recorded", kind


def test_without_its_hold_it_is_not_signed(attacker: Attacker) -> None:
    attacker.record(kind="withdrawal", amount=TokenAmount(UNITS, token_named(f"{TOKEN_CONTRACT}:18")), held_nanos=None)
    assert attacker.refusal(fields(attacker)) == "hold_missing"


def transferring(
    attacker: Attacker,
    mint: Pubkey,
    *,
    to: Pubkey = PAYEE,
    units: int = UNITS,
    program: Pubkey = TOKEN,
    decimals: int = 6,
) -> Instruction:
    own = owner(attacker)
    source, target = (get_associated_token_address(each, mint, program) for each in (own, to))
    params = models.TransferCheckedParams(
        program_id=program, source=source, mint=mint, dest=target, owner=own, amount=units, decimals=decimals
    )
    return instructions.transfer_checked(params)


def record_spl(attacker: Attacker, mint: Pubkey, **changed: Any) -> str:
    amount = TokenAmount(UNITS, token_named(f"{mint}:6"))
    on_solana = {"chain": ChainName.SOLANA, "recipient": str(PAYEE), "amount": amount, "kind": "withdrawal"}
    return attacker.record(held_nanos=0, **on_solana | changed)


@pytest.mark.parametrize("program", [TOKEN, TOKEN_2022], ids=["classic", "Token-2022"])
def test_a_recorded_withdrawal_of_a_foreign_mint_is_signed(attacker: Attacker, program: Pubkey) -> None:
    mint = Pubkey.new_unique()
    record_spl(attacker, mint)
    own = owner(attacker)
    creating = instructions.create_idempotent_associated_token_account(own, PAYEE, mint, program)
    content = message(attacker, creating, transferring(attacker, mint, program=program))
    signature = Signature.from_bytes(bytes.fromhex(attacker.ask(content)))
    assert signature.verify(own, bytes.fromhex(content["message"]))


def test_no_other_step_is_signed_for_a_foreign_mint(attacker: Attacker) -> None:
    mint, own = Pubkey.new_unique(), owner(attacker)
    record_spl(attacker, mint)
    right = transferring(attacker, mint)
    create = instructions.create_idempotent_associated_token_account
    more = [AccountMeta(Pubkey.new_unique(), is_signer=False, is_writable=False) for _ in range(3)]
    for steps in (
        [transferring(attacker, MINT)], [transferring(attacker, WRAPPED_SOL_MINT)],
        [transferring(attacker, mint, to=OTHER)], [transferring(attacker, mint, units=UNITS + 1)],
        [transferring(attacker, mint, decimals=5)], [right, right], [right, transferring(attacker, MINT, units=1)],
        [Instruction(TOKEN, b"\x04" + UNITS.to_bytes(8, "little"), right.accounts)],
        [Instruction(OTHER, right.data, right.accounts)],
        [Instruction(TOKEN_2022, right.data, [*right.accounts, *more])],
        [create(own, OTHER, mint), right], [create(own, PAYEE, MINT, TOKEN_2022), right], [create(own, PAYEE, mint)],
    ):  # fmt: skip
        assert attacker.refusal(message(attacker, *steps)) in {"not_as_recorded", "not_a_foreign_token"}, steps
    attacker.ask(message(attacker, right))


def test_usdc_is_no_foreign_mint(attacker: Attacker) -> None:
    record_spl(attacker, MINT)
    assert attacker.refusal(message(attacker, transferring(attacker, MINT))) == "not_a_foreign_token"
    attacker.ids.clear()
    record_spl(attacker, mint := Pubkey.new_unique(), kind="transfer")
    assert attacker.refusal(message(attacker, transferring(attacker, mint))) == "not_as_recorded"


@pytest.mark.chain
def test_a_withdrawal_is_signed_by_the_signer_process_after_a_death_of_each_side(
    paying: Paying, base_node: EvmNode
) -> None:
    agent = paying.agent
    home, token = named(agent, fresh_address()), received(agent, base_node)
    answer = asked(agent, token, home)
    paying.server.dies = "before"
    assert approved(agent, answer)["status"] == "approved"
    settle_abandoned(LATER)
    assert (open_intents(), token.held_by(home), held()) == (0, 0, [0])
    paying.server.dies = ""
    with time_machine.travel(clock.now() + timedelta(seconds=11), tick=True):
        approvals.execute()
    assert (settle(agent)["status"], token.held_by(home)) == ("confirmed", 2 * 10**18)
