"""What strangers send as a signed Solana payment: whatever it is, it is refused in the standard's words."""

from __future__ import annotations

import base64

import pytest
from solders.hash import Hash
from solders.instruction import CompiledInstruction
from solders.keypair import Keypair
from solders.message import MessageHeader, MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.adapters.solana import payments
from app.ports.errors import Rejected
from app.ports.till import Demand

OURS, PAYER, OTHER = Keypair().pubkey(), Keypair().pubkey(), Pubkey.new_unique()
DEMAND = Demand(10_000, str(OTHER), str(OURS))


def refused(keys: list[Pubkey], instructions: list[CompiledInstruction], *, signers: int = 2) -> str:
    message = MessageV0(MessageHeader(signers, 0, 1), keys, Hash.default(), instructions, [])
    made = VersionedTransaction.populate(message, [Signature.default()] * signers)
    payload = {"transaction": base64.b64encode(bytes(made)).decode()}
    with pytest.raises(Rejected) as refusal:
        payments.read(payload, DEMAND, mint=OTHER)
    return refusal.value.reason


@pytest.mark.parametrize(
    "instruction",
    [
        CompiledInstruction(9, b"\x02\x00\x00\x00\x00", b""),
        CompiledInstruction(2, b"\x02\x00\x00\x00\x00", bytes([7, 8, 9, 10])),
    ],
    ids=["a program that is not there", "accounts that are not there"],
)
def test_instructions_that_name_what_is_not_there_are_refused(instruction: CompiledInstruction) -> None:
    assert refused([OURS, PAYER, OTHER], [instruction] * 3) == "invalid_payload"


def test_our_own_account_under_a_second_number_is_refused() -> None:
    paying = CompiledInstruction(3, b"", bytes([2]))
    assert refused([OURS, PAYER, OURS, OTHER], [paying] * 3) == "invalid_payload"


@pytest.mark.parametrize("payload", [{}, {"transaction": 7}, {"transaction": "%"}, {"transaction": "AA=="}])
def test_what_is_no_transaction_is_refused(payload: dict[str, object]) -> None:
    with pytest.raises(Rejected) as refusal:
        payments.read(payload, DEMAND, mint=OTHER)
    assert refusal.value.reason == "invalid_payload"
