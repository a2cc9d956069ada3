"""What a web process that was taken over asks the signer process to sign for Solana."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from solders.compute_budget import set_compute_unit_price
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.message import Message, MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import TransferParams, transfer

from app.adapters.bridges.cctp import instructions
from app.adapters.bridges.cctp.messages import STANDARD, CctpBurn
from app.adapters.solana.deployments import DEPLOYMENTS
from app.adapters.solana.send import tokens, transactions
from app.adapters.swaps.jupiter.exchange import JUPITER
from app.core.chains import SOL, USDC, ChainName
from app.core.money import TokenAmount
from tests.signer.conftest import Attacker

MINT = Pubkey.from_string(DEPLOYMENTS["sandbox"].usdc_mint)
PAYEE, OTHER = Pubkey.new_unique(), Pubkey.new_unique()


def record(
    attacker: Attacker, kind: str = "transfer", *, amount: TokenAmount | None = None, recipient: str = ""
) -> str:
    return attacker.record(
        chain=ChainName.SOLANA, kind=kind, recipient=recipient or str(PAYEE),
        amount=amount or TokenAmount(5_000_000, USDC), minimum_units=1,
    )  # fmt: skip


def owner(attacker: Attacker) -> Pubkey:
    return Pubkey.from_string(attacker.agent.solana_address)


def paying(attacker: Attacker, to: Pubkey = PAYEE, units: int = 5_000_000) -> Instruction:
    return tokens.transfer_checked(owner(attacker), to, MINT, units=units, decimals=6)


def message(attacker: Attacker, *steps: Instruction, payer: Pubkey | None = None) -> dict[str, str]:
    compiled = transactions.compiled(payer or owner(attacker), steps, str(Hash.new_unique()))
    return {"message": to_bytes_versioned(compiled).hex()}


def test_a_recorded_payment_is_signed_and_another_message_of_it_is_not(attacker: Attacker) -> None:
    record(attacker)
    content = message(attacker, tokens.create_account(owner(attacker), PAYEE, MINT), paying(attacker))
    signature = Signature.from_bytes(bytes.fromhex(attacker.ask(content)))
    assert signature.verify(owner(attacker), bytes.fromhex(content["message"]))
    assert attacker.ask(content) == str(bytes(signature).hex())
    assert attacker.refusal(message(attacker, paying(attacker))) == "signed_before"


def test_lamports_are_paid_as_recorded(attacker: Attacker) -> None:
    record(attacker, amount=TokenAmount(10**9, SOL))
    for to, units in ((OTHER, 10**9), (PAYEE, 10**9 + 1)):
        sent = transfer(TransferParams(from_pubkey=owner(attacker), to_pubkey=to, lamports=units))
        assert attacker.refusal(message(attacker, sent)) == "not_as_recorded"
    sent = transfer(TransferParams(from_pubkey=owner(attacker), to_pubkey=PAYEE, lamports=10**9))
    assert attacker.refusal(message(attacker, sent, sent)) == "not_as_recorded"
    attacker.ask(message(attacker, sent))


def _wrong_steps(attacker: Attacker) -> Sequence[Sequence[Instruction]]:
    own, right = owner(attacker), paying(attacker)
    approve = Instruction(right.program_id, b"\x04" + (2**60).to_bytes(8, "little"), right.accounts)
    nonce = Instruction(Pubkey.from_string("11111111111111111111111111111111"), b"\x04\0\0\0", right.accounts)
    stranger = Instruction(OTHER, b"", [AccountMeta(own, is_signer=True, is_writable=True)])
    return (
        [paying(attacker, OTHER)],
        [paying(attacker, units=5_000_001)],
        [right, right],
        [right, paying(attacker, OTHER, 1)],
        [right, transfer(TransferParams(from_pubkey=own, to_pubkey=OTHER, lamports=1))],
        [right, tokens.create_account(own, OTHER, MINT)],
        [right, approve],
        [nonce, right],
        [right, stranger],
        [tokens.close_account(tokens.account_of(own, MINT), own)],
        [],
    )


def test_no_other_payment_and_nothing_besides_it_is_signed(attacker: Attacker) -> None:
    record(attacker)
    for steps in _wrong_steps(attacker):
        assert attacker.refusal(message(attacker, *steps)) == "not_as_recorded", steps


def test_a_network_fee_that_would_empty_the_wallet_is_refused(attacker: Attacker) -> None:
    record(attacker)
    dear = message(attacker, set_compute_unit_price(10**9), paying(attacker))
    assert attacker.refusal(dear) == "network_fee_too_high"


@pytest.mark.parametrize("raw", [b"", b"\x80", b"\x80" + bytes(400), b"{}"])
def test_what_is_not_a_message_is_refused(attacker: Attacker, raw: bytes) -> None:
    record(attacker)
    assert attacker.refusal({"message": raw.hex()}) == "malformed"


def test_messages_of_the_old_form_and_of_other_signers_are_refused(attacker: Attacker) -> None:
    record(attacker)
    legacy = Message([paying(attacker)], owner(attacker))
    assert attacker.refusal({"message": to_bytes_versioned(legacy).hex()}) == "malformed"
    foreign = MessageV0.try_compile(OTHER, [], [], Hash.default())
    assert attacker.refusal({"message": to_bytes_versioned(foreign).hex()}) == "another_signer"


def test_swaps_and_bridges_pay_nobody_else(attacker: Attacker) -> None:
    for kind in ("swap", "bridge_leg"):
        attacker.ids.clear()
        record(attacker, kind, recipient=attacker.agent.address if kind == "bridge_leg" else "")
        for steps in ([paying(attacker)], *_wrong_steps(attacker)[:9]):
            assert attacker.refusal(message(attacker, *steps)) in {"not_as_recorded", "program_not_used"}, steps
        jupiter = Instruction(JUPITER, b"\0" * 60, paying(attacker).accounts)
        assert attacker.refusal(message(attacker, jupiter)) in {"not_as_recorded", "program_not_used"}


def burn(attacker: Attacker, recipient: bytes, units: int = 5_000_000) -> Instruction:
    key, event = owner(attacker), Pubkey.new_unique()
    content = CctpBurn(5, 6, bytes(MINT), bytes(key), recipient, units, max_fee_units=0)
    return instructions.burn(key, MINT, event, content, finality=STANDARD, is_forwarded=False)


def test_a_burn_is_for_the_wallet_itself_and_happens_once(attacker: Attacker) -> None:
    record(attacker, "bridge_leg", recipient=attacker.agent.address)
    own = bytes(12) + bytes.fromhex(attacker.agent.address[2:])
    for steps in (
        [burn(attacker, bytes(32))], [burn(attacker, own, 5_000_001)], [burn(attacker, own), burn(attacker, own)],
    ):  # fmt: skip
        assert attacker.refusal(message(attacker, *steps)) == "not_as_recorded"
    attacker.ask(message(attacker, burn(attacker, own)))


def test_a_fee_payer_of_the_service_pays_only_the_fee(attacker: Attacker) -> None:
    record(attacker, "settlement")
    foreign = tokens.transfer_checked(OTHER, PAYEE, MINT, units=1, decimals=6)
    assert attacker.refusal(message(attacker, foreign)) == "not_of_the_service"
