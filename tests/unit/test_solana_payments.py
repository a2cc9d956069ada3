"""Untrusted signed Solana payments: invalid ones are refused with the standard's error tokens."""

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

from app.adapters.solana.x402 import payments
from app.ports.errors import Rejected
from app.ports.facilitator import ExpectedPayment

OURS, PAYER, OTHER = Keypair().pubkey(), Keypair().pubkey(), Pubkey.new_unique()
DEMAND = ExpectedPayment(10_000, str(OTHER), str(OURS))


def refused(keys: list[Pubkey], instructions: list[CompiledInstruction], *, signers: int = 2) -> str:
    message = MessageV0(MessageHeader(signers, 0, 1), keys, Hash.default(), instructions, [])
    made = VersionedTransaction.populate(message, [Signature.default()] * signers)
    payload = {"transaction": base64.b64encode(bytes(made)).decode()}
    with pytest.raises(Rejected) as refusal:
        payments.verify(payload, DEMAND, mint=OTHER)
    return refusal.value.reason


@pytest.mark.parametrize(
    "instruction",
    [
        CompiledInstruction(9, b"\x02\x00\x00\x00\x00", b""),
        CompiledInstruction(2, b"\x02\x00\x00\x00\x00", bytes([7, 8, 9, 10])),
    ],
    ids=["a missing program", "missing accounts"],
)
def test_instructions_with_missing_accounts_are_refused(instruction: CompiledInstruction) -> None:
    assert refused([OURS, PAYER, OTHER], [instruction] * 3) == "invalid_payload"


def test_our_own_account_at_a_second_index_is_refused() -> None:
    paying = CompiledInstruction(3, b"", bytes([2]))
    assert refused([OURS, PAYER, OURS, OTHER], [paying] * 3) == "invalid_payload"


@pytest.mark.parametrize("payload", [{}, {"transaction": 7}, {"transaction": "%"}, {"transaction": "AA=="}])
def test_a_payload_without_a_transaction_is_refused(payload: dict[str, object]) -> None:
    with pytest.raises(Rejected) as refusal:
        payments.verify(payload, DEMAND, mint=OTHER)
    assert refusal.value.reason == "invalid_payload"
