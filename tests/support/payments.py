"""Support for tests of payments: the gateway in front of an upstream, facilitators on real nodes, and payers."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eth_account import Account
from eth_account.messages import SignableMessage, encode_typed_data
from flask import Flask
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from sqlalchemy import select
from web3 import Web3
from werkzeug.test import TestResponse
from x402.mechanisms.evm.constants import EIP2612_PERMIT_TYPES, UPTO_PERMIT2_WITNESS_TYPES

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.calls import PERMIT_NONCE
from app.adapters.evm.contracts.deployments import PERMIT2, X402_UPTO_PROXY
from app.adapters.evm.signatures import digest_of
from app.adapters.evm.x402.facilitator import EvmFacilitator
from app.adapters.prices import MarketPriceFeed
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.send import tokens
from app.adapters.solana.x402.facilitator import SolanaFacilitator
from app.core.chains import USDC, ChainName, Token
from app.db.unit_of_work import read_only_unit
from app.payments import treasury
from app.payments.models import Payment, PaymentClaim
from app.payments.settlement_capacity import SettlementCapacityCache
from app.ports.chain import Chain
from app.ports.facilitator import Facilitator
from app.state import app_state
from sandbox.evm import EvmNode
from solana_node import SolanaNode
from tests.support.chains import CONFIRMATIONS, fund
from tests.support.evm import Person
from tests.support.gateway import SEARCH, provider_settings
from tests.support.solana import fund_solana
from tests.support.solana_people import SolanaPerson
from tests.support.upstreams import MisbehavingUpstream, misbehaving_upstream

ABIS = Path(contracts.__file__).with_name("abis.json")
PRICE = 10_000
"""Units of USDC: the minimum price of a call, one cent."""


def facilitator_of(chain: Chain) -> Facilitator:
    """Return the facilitator of a chain's adapter."""
    real = getattr(chain, "real", chain)
    if isinstance(real, SolanaChain):
        return SolanaFacilitator(real)
    assert isinstance(real, EvmChain)
    return EvmFacilitator(real, confirmations=CONFIRMATIONS[real.name])


@dataclass(frozen=True, slots=True)
class Shop:
    """The service, used without a key: it sells searches of a scripted upstream."""

    app: Flask
    upstream: MisbehavingUpstream

    def ask(self, headers: Mapping[str, str] | None = None, *, path: str = SEARCH, **request: Any) -> TestResponse:
        return self.app.test_client().get(path, headers=dict(headers or {}), **request)

    def served(self) -> int:
        return len(self.upstream.asked)

    def recipient(self, chain: ChainName) -> str:
        return treasury.recipient(chain)

    def settler(self, chain: ChainName) -> str:
        return treasury.settler(chain)

    def expire_capacity(self) -> None:
        """Expire the cached settlement capacity of the chains."""
        app_state().part(SettlementCapacityCache).clear()

    def payments(self) -> list[Payment]:
        with read_only_unit() as session:
            return list(session.scalars(select(Payment).order_by(Payment.created_at)))

    def claims(self) -> set[str]:
        with read_only_unit() as session:
            return set(session.scalars(select(PaymentClaim.key)))


@contextmanager
def shop(
    build_app: Callable[..., Flask],
    database_url: str,
    chains: Mapping[ChainName, Chain],
    *,
    prices: Mapping[Token, int] | None = None,
    **settings: Any,
) -> Iterator[Shop]:
    """Open the shop, in its application's context; `prices` are in nano-dollars, fixed ones by default."""
    facilitators = {name: facilitator_of(chain) for name, chain in chains.items()}
    with misbehaving_upstream() as upstream:
        app = build_app(
            database_url,
            settings=provider_settings(upstream.url, **settings),
            chains=dict(chains),
            facilitators=facilitators,
            **({"prices": MarketPriceFeed([], [], overrides=prices)} if prices else {}),
        )
        with app.app_context():
            yield Shop(app, upstream)


def by_hash(tx_hash: str, chain: ChainName, **more: str) -> dict[str, str]:
    """Return the headers of a payment by hash."""
    return {"X-Payment": tx_hash, "X-Payment-Chain": chain.value, **more}


def decoded(header: str) -> dict[str, Any]:
    """Decode a header of x402."""
    document: dict[str, Any] = json.loads(base64.b64decode(header))
    return document


def encoded(document: Mapping[str, Any]) -> str:
    """Encode a header of x402."""
    return base64.b64encode(json.dumps(document).encode()).decode()


def offered(answer: TestResponse, network: str = "eip155:") -> dict[str, Any]:
    """Return what a 402 offers on a network."""
    accepts = decoded(answer.headers["PAYMENT-REQUIRED"])["accepts"]
    found: dict[str, Any] = next(each for each in accepts if each["network"].startswith(network))
    return found


class EvmPayer:
    """A payer with USDC and no account here, who signs x402 payments."""

    def __init__(self, node: EvmNode, *, dollars: float = 1, eth: float = 0) -> None:
        self.node = node
        self.account = Account.create()
        self.address: str = self.account.address
        fund(node, self.address, eth=eth, dollars=dollars)

    def authorize(self, terms: Mapping[str, Any], **changed: Any) -> dict[str, Any]:
        """Return the payload of version 2 for one of the terms; `changed` replaces fields before they are signed."""
        authorization = {
            "from": self.address,
            "to": terms["payTo"],
            "value": terms["amount"],
            "validAfter": "0",
            "validBefore": "4000000000",
            "nonce": "0x" + secrets.token_hex(32),
            **changed,
        }
        return {"signature": self.sign(authorization), "authorization": authorization}

    def sign(self, authorization: Mapping[str, Any]) -> str:
        return "0x" + bytes(self.account.sign_message(self.message(authorization)).signature).hex()

    def authorization_digest(self, authorization: Mapping[str, Any]) -> bytes:
        return digest_of(self.message(authorization))

    def message(self, authorization: Mapping[str, Any]) -> SignableMessage:
        """Return what is signed for an authorization."""
        message = {
            **authorization,
            "value": int(authorization["value"]),
            "validAfter": int(authorization["validAfter"]),
            "validBefore": int(authorization["validBefore"]),
            "nonce": bytes.fromhex(authorization["nonce"][2:]),
        }
        domain = {
            "name": "USD Coin",
            "version": "2",
            "chainId": self.node.chain_id,
            "verifyingContract": self.node.deployment.usdc,
        }
        types = {
            "TransferWithAuthorization": [
                {"name": "from", "type": "address"},
                {"name": "to", "type": "address"},
                {"name": "value", "type": "uint256"},
                {"name": "validAfter", "type": "uint256"},
                {"name": "validBefore", "type": "uint256"},
                {"name": "nonce", "type": "bytes32"},
            ]
        }
        return encode_typed_data(domain, types, message)

    def pays(self, answer: TestResponse, **changed: Any) -> dict[str, str]:
        """Return the headers that pay what a 402 asks for."""
        terms = offered(answer)
        return signed_headers(terms, self.authorize(terms, **changed))


def signed_headers(terms: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, str]:
    """Return the header of version 2."""
    return {"PAYMENT-SIGNATURE": encoded({"x402Version": 2, "accepted": terms, "payload": payload})}


class UptoPayer(EvmPayer):
    """A payer of the scheme `upto`: Permit2's allowance is signed with each payment, or given on the chain before."""

    def metered(
        self, answer: TestResponse, *, with_allowance: bool = True, units: int | None = None, **witness: Any
    ) -> dict[str, str]:
        """Return the headers with the maximum that a 402 asks for; `units` and fields of the witness replace its."""
        terms = metered_terms(answer)
        return self.maximum(terms, with_allowance=with_allowance, units=units or int(terms["amount"]), **witness)

    def maximum(
        self,
        terms: Mapping[str, Any],
        *,
        with_allowance: bool,
        units: int,
        deadline: int = 4_000_000_000,
        **fields: Any,
    ) -> dict[str, str]:
        nonce = fields.pop("nonce", secrets.randbits(256))
        spender, token = fields.pop("spender", X402_UPTO_PROXY), fields.pop("token", terms["asset"])
        witness = {"to": terms["payTo"], "facilitator": terms["extra"]["facilitatorAddress"], "validAfter": 0, **fields}
        message = {
            "permitted": {"token": token, "amount": units}, "spender": spender, "nonce": nonce, "deadline": deadline,
            "witness": witness,
        }  # fmt: skip
        domain = {"name": "Permit2", "chainId": self.node.chain_id, "verifyingContract": PERMIT2}
        signed = encode_typed_data(domain, UPTO_PERMIT2_WITNESS_TYPES, message)
        payload = {
            "signature": self._signature(signed),
            "permit2Authorization": {
                "from": self.address, "permitted": {"token": token, "amount": str(units)}, "spender": spender,
                "nonce": str(nonce), "deadline": str(deadline),
                "witness": {name: str(value) for name, value in witness.items()},
            },
        }  # fmt: skip
        extensions = {"eip2612GasSponsoring": {"info": self._allowance(units, deadline)}} if with_allowance else {}
        document = {"x402Version": 2, "accepted": terms, "payload": payload, "extensions": extensions}
        return {"PAYMENT-SIGNATURE": encoded(document)}

    def call_usdc(self, name: str, *arguments: object) -> None:
        """Call a function of USDC from the payer's account, which pays no gas."""
        contract = Web3().eth.contract(abi=json.loads(ABIS.read_text())["fiat_token"])
        self.node.rpc("anvil_impersonateAccount", self.address)
        self.node.fund_eth(self.address, 10**18)
        data = contract.encode_abi(name, list(arguments))
        self.node.rpc("eth_sendTransaction", {"from": self.address, "to": self.node.deployment.usdc, "data": data})
        self.node.mine(1)

    def _allowance(self, units: int, deadline: int) -> dict[str, Any]:
        data = PERMIT_NONCE.encode(self.address)
        found = self.node.rpc("eth_call", {"to": self.node.deployment.usdc, "data": "0x" + data.hex()}, "latest")
        message = {
            "owner": self.address, "spender": PERMIT2, "value": units, "nonce": int(found, 16), "deadline": deadline
        }  # fmt: skip
        usdc = self.node.deployment.usdc
        domain = {"name": "USD Coin", "version": "2", "chainId": self.node.chain_id, "verifyingContract": usdc}
        signed = encode_typed_data(domain, EIP2612_PERMIT_TYPES, message)
        return {
            "from": self.address, "asset": self.node.deployment.usdc, "spender": PERMIT2, "amount": str(units),
            "nonce": str(int(found, 16)), "deadline": str(deadline), "signature": self._signature(signed),
            "version": "1",
        }  # fmt: skip

    def _signature(self, message: SignableMessage) -> str:
        return "0x" + bytes(self.account.sign_message(message).signature).hex()


def metered_terms(answer: TestResponse) -> dict[str, Any]:
    """Return what a 402 offers with the scheme `upto`."""
    accepts = decoded(answer.headers["PAYMENT-REQUIRED"])["accepts"]
    [found] = [each for each in accepts if each["scheme"] == "upto"]
    return dict(found)


class SolanaPayer:
    """A payer with USDC on Solana and no lamports: the settlement key pays the fee."""

    def __init__(self, node: SolanaNode, *, dollars: float = 1, sol: float = 0) -> None:
        self.node = node
        self.keys = Keypair()
        self.address = str(self.keys.pubkey())
        fund_solana(node, self.address, sol=sol, dollars=dollars)

    def transfer(
        self, terms: Mapping[str, Any], *, units: int | None = None, more: tuple[Instruction, ...] = (), price: int = 1
    ) -> dict[str, str]:
        """Return the payload of version 2: a transaction without the fee payer's signature."""
        blockhash = self.node.call("getLatestBlockhash")["value"]["blockhash"]
        paying = tokens.transfer_checked(
            self.keys.pubkey(), Pubkey.from_string(terms["payTo"]), Pubkey.from_string(terms["asset"]),
            units=int(terms["amount"]) if units is None else units, decimals=USDC.decimals,
        )  # fmt: skip
        memo = Instruction(
            Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr"), secrets.token_hex(16).encode(), []
        )
        message = MessageV0.try_compile(
            Pubkey.from_string(terms["extra"]["feePayer"]),
            [set_compute_unit_limit(60_000), set_compute_unit_price(price), paying, memo, *more],
            [],
            Hash.from_string(blockhash),
        )
        mine = self.keys.sign_message(to_bytes_versioned(message))
        partial = VersionedTransaction.populate(message, [Signature.default(), mine])
        return {"transaction": base64.b64encode(bytes(partial)).decode()}


def person_with(node: EvmNode, *, dollars: float = 1) -> Person:
    """Return a payer who makes plain transfers."""
    person = Person()
    fund(node, person.address, eth=1, dollars=dollars)
    return person


def solana_person_with(node: SolanaNode, *, dollars: float = 1) -> SolanaPerson:
    """Return a payer who makes plain transfers on Solana."""
    person = SolanaPerson()
    fund_solana(node, person.address, sol=1, dollars=dollars)
    return person
