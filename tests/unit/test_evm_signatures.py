"""EIP-712 and EIP-191 as wallets and contracts compute them: fixed vectors, and signatures that prove nothing."""

from __future__ import annotations

from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import encode_defunct

from app.adapters.evm import signatures
from app.adapters.evm.contracts.deployments import DEPLOYMENTS
from app.adapters.evm.signatures import SigningDomain
from app.adapters.evm.x402 import payments
from app.adapters.evm.x402.payments import SignedAuthorization

USDC = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
DOMAIN = SigningDomain("USD Coin", "2", 8453, USDC)
OWNER = Account.from_key("0x59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d")
PAYLOAD = {
    "authorization": {
        "from": OWNER.address,
        "to": "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",
        "value": "1234567",
        "validAfter": "1700000000",
        "validBefore": "1700000600",
        "nonce": "0x" + "ab" * 32,
    }
}
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


class RecordingSigner:
    """Records the digests that it signs."""

    evm_address = OWNER.address
    solana_address = ""

    def __init__(self) -> None:
        self.digests: list[str] = []

    def sign_digest(self, digest: bytes, _of: Any) -> tuple[int, int, int]:
        self.digests.append(digest.hex())
        return 0, 1, 1

    def sign_message(self, message: bytes) -> bytes:
        raise NotImplementedError(message)


def authorized(signature: str) -> SignedAuthorization:
    return SignedAuthorization.of_payload({**PAYLOAD, "signature": signature})


def authorization_signature() -> tuple[int, int, int]:
    signed = OWNER.unsafe_sign_hash("0x31f9838f336dfcac8ef1d153270390a0ae20f7be39ff9c9cef484f610d6f425b")
    return signed.v, signed.r, signed.s


def joined(v: int, r: int, s: int) -> str:
    return f"0x{r:064x}{s:064x}{v:02x}"


def test_the_domain_is_usdc_s_own_separator_on_base() -> None:
    message = signatures.typed_message("Any(uint256 value)", [1], DOMAIN)
    assert message.header.hex() == "02fa7265e7c5d81118673727957699e4d68f74cd74b7db77da710fe8a2c7834f"


def test_a_permit_has_the_fixed_digest() -> None:
    signer = RecordingSigner()
    base = DEPLOYMENTS["mainnet", "base"]
    payments.sign_permit(base, signer, spender=base.uniswap_router, units=5_000_000, nonce=7, deadline=1_900_000_000)
    assert signer.digests == ["43e874321ccf0316fda3aabe57652e101fde9014ef809d676e68dd818ae8d507"]


def test_an_authorization_is_signed_over_the_fixed_digest_and_submitted_with_v_from_27() -> None:
    v, r, s = authorization_signature()
    for given in (v, v - 27):
        signed = authorized(joined(given, r, s))
        assert signed.is_signed_by_key(DOMAIN)
        assert signed.call().hex() == (
            "e3ee160e00000000000000000000000070997970c51812dc3a010c7d01b50e0d17dc79c8"
            "0000000000000000000000003c44cdddb6a900fa2b585dd299e03d12fa4293bc"
            f"{1234567:064x}{1700000000:064x}{1700000600:064x}{'ab' * 32}{v:064x}{r:064x}{s:064x}"
        )


def test_a_signature_that_the_token_refuses_is_refused() -> None:
    v, r, s = authorization_signature()
    other_half = joined(55 - v, r, ORDER - s)
    assert signatures.signer_of(encode_defunct(text=""), other_half) != OWNER.address
    for signature in (
        other_half,  # the same signature with a high s, which recovers the payer, too
        joined(55 - v, r, s),
        joined(v + 2, r, s),
        joined(v + 8, r, s),  # v of a transaction with a chain id
        joined(v, 0, s),
        joined(v, r, 0),
        joined(v, ORDER, s),
    ):
        assert not authorized(signature).is_signed_by_key(DOMAIN)


def test_a_signature_for_another_domain_is_refused() -> None:
    signed = authorized(joined(*authorization_signature()))
    for domain in (
        SigningDomain("USDC", "2", 8453, USDC),
        SigningDomain("USD Coin", "1", 8453, USDC),
        SigningDomain("USD Coin", "2", 1, USDC),
        SigningDomain("USD Coin", "2", 8453, OWNER.address),
    ):
        assert not signed.is_signed_by_key(domain)


def test_a_text_is_signed_as_by_personal_sign() -> None:
    # The text, key and signature of eth-account's documentation.
    signer = Account.from_key("0xb25c7db31feed9122727bf0939dc769a96564b2de4c4726d035b36ecf1e5b364")
    message = encode_defunct(text="I♥SF")
    signature = (
        "0xe6ca9bba58c88611fad66a6ce8f996908195593807c4b38bd528d2cff09d4eb33e5bfbbf4d3e39b1a2fd816a7680c19ebebaf3a1"
        "41b239934ad43cb33fcec8ce1c"
    )
    assert signatures.digest_of(message).hex() == "1476abb745d423bf09273f1afd887d951181d25adc66c4834a70491911b7f750"
    assert signatures.signer_of(message, signature) == signer.address
    assert signatures.signer_of(encode_defunct(text="I♥NY"), signature) != signer.address


@pytest.mark.parametrize(
    "signature",
    ["", "0x", "0x" + "00" * 65, "ab" * 65, "0x" + "11" * 64, "0x" + "11" * 66, "0x" + "zz" * 65, "0x" + "ff" * 65],
)
def test_what_is_not_a_signature_proves_nothing(signature: str) -> None:
    assert signatures.signer_of(encode_defunct(text="text"), signature) is None
