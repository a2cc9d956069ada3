"""Hostile payment headers: each is parsed or refused with a reason of x402; no other exception escapes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest
from flask import Flask
from hypothesis import example, given
from hypothesis import strategies as st
from werkzeug.test import EnvironBuilder

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts.deployments import DEPLOYMENTS
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS as SOLANA
from app.core.chains import ChainName
from app.payments import presented as presentation
from app.payments.presented import HashPayment, PaymentHeaders
from app.payments.x402 import gate
from app.ports.errors import Rejected
from app.ports.facilitator import ExpectedPayment
from tests.support.applications import make_app, settings_for
from tests.support.payments import facilitator_of

_NOWHERE = "http://127.0.0.1:1"
_ADDRESS = "0x" + "ab" * 20


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    """An application with unreachable chains."""
    base = EvmChain(
        ChainName.BASE, DEPLOYMENTS["sandbox", ChainName.BASE], rpc_urls=[_NOWHERE], deposit_confirmations=1
    )
    solana = SolanaChain(SOLANA["sandbox"], rpc_urls=[_NOWHERE])
    facilitators = MappingProxyType({ChainName.BASE: facilitator_of(base), ChainName.SOLANA: facilitator_of(solana)})
    database = tmp_path_factory.mktemp("hostile") / "nothing.sqlite"
    made = make_app(settings_for(f"sqlite:///{database}"), facilitators=facilitators)
    with made.app_context():
        yield made


def network_names() -> list[str | None]:
    return ["eip155:908453", "base-sandbox", "base", "solana:sandbox", "solana", None]


_WILD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**80, max_value=10**90)
    | st.floats()
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
_NUMBERS = st.integers(min_value=0, max_value=2**256).map(str) | st.sampled_from(["0", "00", "-1", "1e3", "٣", ""])
_HEX = st.binary(max_size=70).map(lambda raw: "0x" + raw.hex())
_AUTHORIZATION = st.fixed_dictionaries(
    {
        "from": st.just(_ADDRESS) | _HEX | _WILD,
        "to": st.just(_ADDRESS) | _HEX | _WILD,
        "value": _NUMBERS | _WILD,
        "validAfter": _NUMBERS | st.integers() | _WILD,
        "validBefore": _NUMBERS | st.integers() | _WILD,
        "nonce": st.binary(min_size=32, max_size=32).map(lambda raw: "0x" + raw.hex()) | _WILD,
    }
)
_MAXIMUM = st.fixed_dictionaries(
    {
        "from": st.just(_ADDRESS) | _WILD,
        "permitted": st.fixed_dictionaries({"token": st.just(_ADDRESS) | _WILD, "amount": _NUMBERS | _WILD}) | _WILD,
        "spender": st.just(_ADDRESS) | _WILD,
        "nonce": _NUMBERS | _WILD,
        "deadline": _NUMBERS | _WILD,
        "witness": st.fixed_dictionaries(
            {"to": st.just(_ADDRESS), "facilitator": st.just(_ADDRESS), "validAfter": _NUMBERS | _WILD}
        )
        | _WILD,
    }
)
_PAYLOADS = st.fixed_dictionaries(
    {
        "permit2Authorization": _MAXIMUM | _WILD,
        "signature": st.binary(min_size=65, max_size=65).map(lambda raw: "0x" + raw.hex()) | _WILD,
        "authorization": _AUTHORIZATION | _WILD,
        "transaction": st.binary(max_size=300).map(lambda raw: base64.b64encode(raw).decode()) | _WILD,
    }
)


def _credentials() -> st.SearchStrategy[Any]:
    details = st.fixed_dictionaries({"chainId": st.just(908453) | _WILD})
    request = st.fixed_dictionaries({"methodDetails": details | _WILD}).map(_encoded)
    named = {"method": st.just("evm") | _WILD, "intent": st.just("charge") | _WILD, "request": request | _WILD}
    payload = st.tuples(_AUTHORIZATION, st.just({"type": "authorization"})).map(lambda both: {**both[0], **both[1]})
    challenge = st.fixed_dictionaries({**named, "id": st.text(max_size=70) | _WILD, "expires": st.text() | _WILD})
    return st.fixed_dictionaries({"challenge": challenge | _WILD, "payload": payload | _WILD})


def _documents() -> st.SearchStrategy[Any]:
    terms = {"scheme": st.sampled_from(["exact", "upto"]) | _WILD, "network": st.sampled_from(network_names()) | _WILD}
    return st.fixed_dictionaries(
        {
            "x402Version": st.sampled_from([1, 2]) | _WILD,
            "payload": _PAYLOADS | _WILD,
            "accepted": st.fixed_dictionaries(terms) | _WILD,
            "extensions": st.fixed_dictionaries({"eip2612GasSponsoring": _WILD}) | _WILD,
            **terms,
        }
    )


def _encoded(document: Any) -> str:
    return base64.b64encode(json.dumps(document).encode(errors="surrogatepass")).decode()


_METERED = {
    "x402Version": 2, "accepted": {"scheme": "upto", "network": "eip155:908453"}, "payload": {}, "extensions": ["wild"],
}  # fmt: skip
HEADERS = (
    _documents().map(_encoded)
    | _credentials().map(_encoded)
    | _WILD.map(_encoded)
    | st.binary(max_size=200).map(lambda raw: base64.b64encode(raw).decode())
    | st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=200)
    | st.text("123456789ABCDEFGHJKLMNPQRSTUVWXYZabc", min_size=60, max_size=92)
    | st.text("0123456789abcdefABCDEF", min_size=62, max_size=66).map(lambda text: f"0x{text}")
)
_CHAINS = st.sampled_from(["", "base", "BASE ", "solana", "ethereum", "bitcoin", "b\xe4se"])


@given(HEADERS, st.sampled_from([presentation.PLAIN_HEADER, presentation.SIGNED_HEADER, "Authorization"]), _CHAINS)
@example(base64.b64encode(b"[" * 12_000).decode(), presentation.PLAIN_HEADER, "")
@example(base64.b64encode(b'{"x402Version":' * 800).decode(), presentation.SIGNED_HEADER, "")
@example(base64.b64encode(b'{"x402Version":' + b"1" * 6_000 + b"}").decode(), presentation.SIGNED_HEADER, "")
@example(base64.b64encode(b'{"x402Version": NaN}').decode(), presentation.PLAIN_HEADER, "")
@example(base64.b64encode(b'{"x402Version": 1e400}').decode(), presentation.PLAIN_HEADER, "")
@example(base64.b64encode(b'"\\ud800"').decode(), presentation.PLAIN_HEADER, "")
@example(_encoded(_METERED), presentation.SIGNED_HEADER, "")
@example("A" * 100_000, presentation.PLAIN_HEADER, "")
@example("A" * 100_000, "Authorization", "")
def test_a_payment_is_read_or_refused(app: Flask, header: str, name: str, chain: str) -> None:
    header = f"Payment {header}" if name == "Authorization" else header
    sent = EnvironBuilder(headers={name: header, presentation.CHAIN_HEADER: chain}).get_request().headers
    with app.app_context():
        try:
            presented = gate.read_payment(PaymentHeaders.read(sent.get))
        except Rejected:
            return
        if isinstance(presented, HashPayment):
            assert presented.facilitator.canonical_hash(presented.tx_hash) == presented.tx_hash
            return
        # Random payloads have no valid signature.
        expected = ExpectedPayment(10_000, _ADDRESS, _ADDRESS)
        scheme = presented.facilitator.metered if presented.is_metered else presented.facilitator
        assert scheme is not None
        with pytest.raises(Rejected):
            presented.claim_key()
        with pytest.raises(Rejected):
            scheme.verify(presented.payload, expected, now=1)


@given(st.text(max_size=140) | st.binary(min_size=64, max_size=65).map(lambda raw: "0x" + raw.hex()))
def test_no_random_proof_is_accepted_as_the_payers(app: Flask, proof: str) -> None:
    for facilitator in app.state.ports.facilitators.values():
        payer = "11111111111111111111111111111111" if facilitator.name is ChainName.SOLANA else _ADDRESS
        assert not facilitator.is_signed_by(payer, "0x00|fingerprint", proof)
