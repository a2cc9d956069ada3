"""The bytes of EIP-1559 transactions, compared with those of the library."""

from __future__ import annotations

from eth_account.typed_transactions.typed_transaction import TypedTransaction
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from app.adapters.evm.send import transactions
from app.adapters.evm.send.transactions import CallTarget, UnsignedTransaction

_NUMBERS = st.integers(0, 300) | st.integers(0, 2**128)
_SIGNATURES = st.tuples(st.integers(0, 1), st.integers(1, 2**256 - 1), st.integers(1, 2**256 - 1))


@given(
    st.lists(_NUMBERS, min_size=6, max_size=6),
    st.binary(min_size=20, max_size=20),
    st.binary(max_size=60) | st.binary(min_size=250, max_size=300),
    _SIGNATURES,
)
def test_a_transaction_is_encoded_as_the_library_does(
    numbers: list[int], recipient: bytes, data: bytes, signature: tuple[int, int, int]
) -> None:
    chain_id, nonce, tip, max_fee, gas, value = numbers
    target = CallTarget("0x" + recipient.hex(), value, data)
    unsigned = UnsignedTransaction(chain_id, nonce, tip, max_fee, gas, target)
    names = ("chainId", "nonce", "maxPriorityFeePerGas", "maxFeePerGas", "gas", "value")
    expected = {"type": 2, **dict(zip(names, numbers, strict=True)), "to": recipient, "data": data}
    signed = TypedTransaction.from_dict({**expected, **dict(zip(("v", "r", "s"), signature, strict=True))})
    raw = transactions.encode_signed(unsigned, *signature)
    assert raw == signed.encode()
    assert TypedTransaction.from_dict(expected).hash() == keccak(unsigned.encoded())
