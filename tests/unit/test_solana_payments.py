"""Untrusted signed Solana payments: invalid ones are refused with the standard's error tokens."""

from __future__ import annotations

import base64

import pytest
from solders.hash import Hash
from solders.instruction import AccountMeta, CompiledInstruction, Instruction
from solders.keypair import Keypair
from solders.message import MessageHeader, MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.adapters.solana.send import tokens
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


MINT = Pubkey.new_unique()
COMPUTE = Pubkey.from_string("ComputeBudget111111111111111111111111111111")
TOKEN = Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")
TOKEN_2022 = Pubkey.from_string("TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb")
MEMO = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")
OLD_MEMO = Pubkey.from_string("Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo")
LIGHTHOUSE = Pubkey.from_string("L2TExMFKdjpN9kozasaurPirfHy9P8sbXoAN1qA3S95")
CREATE_ATA = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")
SYSTEM = Pubkey.from_string("11111111111111111111111111111111")
CLIENT = Keypair()
LIMIT = Instruction(COMPUTE, b"\x02" + (20_000).to_bytes(4, "little"), [])
PRICE = Instruction(COMPUTE, b"\x03" + (1).to_bytes(8, "little"), [])


def price_of(micro_lamports: int, units: int) -> list[Instruction]:
    return [
        Instruction(COMPUTE, b"\x02" + units.to_bytes(4, "little"), []),
        Instruction(COMPUTE, b"\x03" + micro_lamports.to_bytes(8, "little"), []),
    ]


def transfer(units: int = 10_000, *, program: Pubkey = TOKEN, authority: Pubkey | None = None) -> Instruction:
    paying = tokens.transfer_checked(CLIENT.pubkey(), OTHER, MINT, units=units, decimals=6)
    accounts = list(paying.accounts)
    if authority is not None:
        accounts[3] = AccountMeta(authority, is_signer=True, is_writable=False)
    return Instruction(program, bytes(paying.data), accounts)


def of(program: Pubkey, data: bytes = b"0123456789abcdef", account: Pubkey | None = None) -> Instruction:
    accounts = [] if account is None else [AccountMeta(account, is_signer=False, is_writable=True)]
    return Instruction(program, data, accounts)


def verified(*instructions: Instruction) -> str:
    """Return "accepted", or the reason of the refusal."""
    message = MessageV0.try_compile(OURS, list(instructions), [], Hash.default())
    signed = CLIENT.sign_message(to_bytes_versioned(message))
    made = VersionedTransaction.populate(message, [Signature.default(), signed])
    try:
        payments.verify({"transaction": base64.b64encode(bytes(made)).decode()}, DEMAND, mint=MINT)
    except Rejected as refusal:
        return refusal.reason
    return "accepted"


SIGNED_MEMO = Instruction(MEMO, b"0", [AccountMeta(CLIENT.pubkey(), is_signer=True, is_writable=False)])

ACCEPTED = {
    "no memo": [LIMIT, PRICE, transfer()],
    "a memo, as SDKs send it": [LIMIT, PRICE, transfer(), of(MEMO)],
    "Phantom, one assertion": [LIMIT, PRICE, transfer(), of(MEMO), of(LIGHTHOUSE)],
    "Phantom, one assertion before the memo": [LIMIT, PRICE, transfer(), of(LIGHTHOUSE), of(MEMO)],
    "Solflare, two assertions": [LIMIT, PRICE, transfer(), of(LIGHTHOUSE), of(LIGHTHOUSE), of(MEMO)],
    "Solflare, two after the memo": [LIMIT, PRICE, transfer(), of(MEMO), of(LIGHTHOUSE), of(LIGHTHOUSE)],
    "Phantom, three assertions": [LIMIT, PRICE, transfer(), *[of(LIGHTHOUSE)] * 3, of(MEMO)],
    "four memos": [LIMIT, PRICE, transfer(), *[of(MEMO)] * 4],
    "an assertion of the payer's account": [LIMIT, PRICE, transfer(), of(LIGHTHOUSE, account=CLIENT.pubkey())],
    "the highest price": [*price_of(5_000_000, 10_000), transfer()],
    "the highest fee": [*price_of(50_000, 1_000_000), transfer()],
    "no priority fee": [*price_of(0, 1_400_000), transfer()],
}
LENGTH = "invalid_exact_solana_payload_transaction_instructions_length"
BUDGET = "invalid_exact_solana_payload_transaction_instructions_compute"
UNKNOWN = "invalid_exact_solana_payload_transaction_instructions"
NO_TRANSFER = "invalid_exact_solana_payload_no_transfer_instruction"
TOO_DEAR = "invalid_exact_solana_payload_transaction_instructions_compute_price_too_high"
OUR_ACCOUNT = "invalid_exact_solana_payload_transaction_fee_payer_included_in_instruction_accounts"
REFUSED = {
    "two instructions": ([PRICE, transfer()], LENGTH),
    "no transfer": ([LIMIT, PRICE, SIGNED_MEMO], NO_TRANSFER),
    "eight instructions": ([LIMIT, PRICE, transfer(), *[of(MEMO)] * 5], LENGTH),
    "an assertion in the seventh place": ([LIMIT, PRICE, transfer(), of(MEMO), *[of(LIGHTHOUSE)] * 3], UNKNOWN),
    "the former memo program": ([LIMIT, PRICE, transfer(), of(OLD_MEMO)], UNKNOWN),
    "another program": ([LIMIT, PRICE, transfer(), of(SYSTEM, account=CLIENT.pubkey())], UNKNOWN),
    "an account is created last": ([LIMIT, PRICE, transfer(), of(CREATE_ATA)], UNKNOWN),
    "an account is created before the transfer": ([LIMIT, PRICE, of(CREATE_ATA), transfer()], NO_TRANSFER),
    "a second transfer": ([LIMIT, PRICE, transfer(), transfer()], UNKNOWN),
    "the price before the limit": ([PRICE, LIMIT, transfer()], BUDGET),
    "no price": ([LIMIT, transfer(), of(MEMO)], BUDGET),
    "the limit twice": ([LIMIT, LIMIT, transfer()], BUDGET),
    "a heap frame": ([Instruction(COMPUTE, b"\x01\x00\x00\x01\x00", []), PRICE, transfer()], BUDGET),
    "a third budget instruction": ([LIMIT, PRICE, transfer(), PRICE], UNKNOWN),
    "above the highest price": ([*price_of(5_000_001, 1), transfer()], TOO_DEAR),
    "above the highest fee": ([*price_of(50_000, 1_000_001), transfer()], TOO_DEAR),
    "Token-2022 with a classic mint": ([LIMIT, PRICE, transfer(program=TOKEN_2022)], NO_TRANSFER),
    "one unit less": ([LIMIT, PRICE, transfer(9_999)], "invalid_exact_solana_payload_amount_mismatch"),
    "one unit more": ([LIMIT, PRICE, transfer(10_001)], "invalid_exact_solana_payload_amount_mismatch"),
    "our account in a memo": ([LIMIT, PRICE, transfer(), of(MEMO, account=OURS)], OUR_ACCOUNT),
    "our account in an assertion": ([LIMIT, PRICE, transfer(), of(LIGHTHOUSE, account=OURS)], OUR_ACCOUNT),
    "our funds": ([LIMIT, PRICE, transfer(authority=OURS), of(MEMO, account=CLIENT.pubkey())], OUR_ACCOUNT),
}


@pytest.mark.parametrize("instructions", ACCEPTED.values(), ids=ACCEPTED)
def test_what_the_specification_permits_is_accepted(instructions: list[Instruction]) -> None:
    assert verified(*instructions) == "accepted"


@pytest.mark.parametrize(("instructions", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_the_specification_does_not_permit_is_refused(instructions: list[Instruction], expected: str) -> None:
    found = verified(*instructions)
    # A transaction that needs a signature of ours alone is not even parsed.
    assert found in (expected, "invalid_payload") if expected == OUR_ACCOUNT else found == expected
