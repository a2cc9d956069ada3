"""The `Till` port for Ethereum and Base: USDC's own logs say what was paid, and EIP-3009 lets us submit payments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from app.adapters.evm import contracts, eip3009, fees
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.drafts import Drafter
from app.adapters.evm.eip3009 import AUTHORIZATION_USED, Domain, Signed
from app.adapters.evm.endpoint import Call, Endpoint
from app.adapters.evm.fees import FeeTerms
from app.adapters.evm.transactions import ContractCall, Target
from app.adapters.evm.wire import (
    Receipt,
    address,
    count,
    fee,
    fee_history,
    hash32,
    octets,
    quantity,
    receipt_or_none,
)
from app.adapters.json_rpc import MalformedAnswerError
from app.core.chains import ChainName, native
from app.ports.chain import Draft
from app.ports.errors import Rejected
from app.ports.till import Arrival, Asset, Authorization, Demand, Readiness

_HASH = re.compile(r"0x[0-9a-fA-F]{64}", re.ASCII)
_DOMAIN_VERSION = "2"
# What a submission costs at most, for telling beforehand whether the settler can pay it; measured: about 86 000.
_SUBMISSION_GAS = 130_000
# What a submission may be given at most: room for an account's code that checks a signature, and not for more.
_MOST_GAS = 200_000
# Somebody else's submission of a payment that we were just submitting is a few blocks old.
_LOOK_BACK_BLOCKS = 1_500
_TRANSFER_TOPICS = 3
# Far beyond any block's time, and a number that every reader of JSON takes.
_LATEST_DEADLINE = 2**53 - 1


class EvmTill:
    """The till of one EVM chain."""

    def __init__(self, chain: EvmChain, *, confirmations: int) -> None:
        """Take the chain; a payment by hash is final at so many confirmations."""
        deployment = chain.deployment
        self._name = chain.name
        self._rpc = chain.rpc
        self._usdc = deployment.usdc
        self._multicall = deployment.multicall3
        self._confirmations = confirmations
        self._drafter = Drafter(chain.rpc, deployment, native(chain.name))
        self._domain = Domain(
            deployment.usdc_domain_name, _DOMAIN_VERSION, deployment.chain_id, deployment.usdc
        )
        self._asset = Asset(
            network=f"eip155:{deployment.chain_id}",
            legacy_network=deployment.legacy_network,
            address=deployment.usdc,
            extra={"name": deployment.usdc_domain_name, "version": _DOMAIN_VERSION},
        )

    @property
    def name(self) -> ChainName:
        """The chain's name on the wire."""
        return self._name

    @property
    def asset(self) -> Asset:
        """USDC on this chain."""
        return self._asset

    def canonical_hash(self, text: str) -> str | None:
        """Return a hash in lower case, None for anything else."""
        return text.lower() if _HASH.fullmatch(text) else None

    def arrival(self, tx_hash: str, recipient: str) -> Arrival | None:
        """Read what a transaction brought, from the logs of USDC alone. Raises: Unreachable."""
        return self._rpc.first(lambda endpoint: self._arrival(endpoint, tx_hash, recipient))

    def claim_of(self, payload: Mapping[str, Any]) -> str:
        """Return the claim of an authorization that its payer has signed. Raises: Rejected."""
        signed = Signed.read(payload)
        signed.check_signature(self._domain)
        return self._claim(signed.payer, signed.nonce)

    def read(self, payload: Mapping[str, Any], demand: Demand, *, now: int) -> Authorization:
        """Read and check a signed authorization. Raises: Rejected."""
        signed = Signed.read(payload)
        signed.check(demand, self._domain, now=now)
        return Authorization(
            self._claim(signed.payer, signed.nonce),
            signed.payer,
            signed.recipient,
            signed.units,
            signed.as_terms(),
        )

    def draft(self, authorization: Authorization, *, settler: str) -> Draft:
        """Simulate a submission and draft it. Raises: Rejected, Unreachable."""
        terms = authorization.terms
        state = Call("eth_call", (self._state(terms), "latest"), read=_flag)
        funds = contracts.numbers_call(
            self._multicall, [contracts.balance_of(self._usdc, authorization.payer)], "latest"
        )
        self._rpc.run(state, funds)
        if state.answer:
            raise Rejected("invalid_exact_evm_nonce_already_used")
        if funds.answer[0] < authorization.units:
            raise Rejected("insufficient_funds")
        # The token takes it while the block's time is below `validBefore`: a later one would only cost a fee.
        last = min(int(str(terms["valid_before"])) - 1, _LATEST_DEADLINE)
        call = ContractCall(Target(self._usdc, 0, bytes.fromhex(str(terms["call"]))), valid_until=last)
        draft = self._drafter.submission(settler, call)
        # A payer's account may have code (EIP-7702) that the token asks for its signature: it would burn our gas.
        if FeeTerms.from_terms(draft.terms).gas > _MOST_GAS:
            raise Rejected("submission_too_costly")
        return draft

    def carried_out(self, authorization: Authorization) -> str | None:
        """Find the transaction in which exactly this authorization was used. Raises: Unreachable."""
        return self._rpc.first(lambda endpoint: self._carried_out(endpoint, authorization))

    def readiness(self, settler: str, recipient: str) -> Readiness:  # noqa: ARG002 - any address receives USDC
        """Read the settler's ether and what a submission costs now. Raises: Unreachable."""
        held = Call("eth_getBalance", (settler, "latest"), read=quantity)
        history = Call("eth_feeHistory", (hex(5), "latest", [50]), read=fee_history)
        tip = Call("eth_maxPriorityFeePerGas", (), read=fee, tolerates=lambda _error: True)
        self._rpc.run(held, history, tip)
        price = fees.market(history.answer, suggested_tip=None if tip.error else tip.answer)
        # The market's price is made to survive six full blocks; what is paid is about half of it.
        return Readiness(
            held.answer, _SUBMISSION_GAS * (price.max_fee + price.tip) // 2, recipient_is_open=True
        )

    def opening(self, settler: str, recipient: str) -> Draft | None:  # noqa: ARG002 - nothing to open
        """Return None: any address receives USDC."""
        return None

    def is_signed_by(self, payer: str, text: str, signature: str) -> bool:
        """Tell whether an address signed a text, as EIP-191 has it."""
        return eip3009.text_signer(text, signature) == payer

    def _claim(self, payer: str, nonce: str) -> str:
        return f"auth:{self._name.value}:{eip3009.claim_of(payer, nonce)}"

    def _state(self, terms: Mapping[str, Any]) -> Mapping[str, str]:
        data = eip3009.state_call(str(terms["from"]), str(terms["nonce"]))
        return {"to": self._usdc, "data": "0x" + data.hex()}

    def _arrival(self, endpoint: Endpoint, tx_hash: str, recipient: str) -> Arrival | None:
        found = Call("eth_getTransactionReceipt", (tx_hash,), read=_receipt_with_logs)
        head = Call("eth_blockNumber", (), read=count)
        first: list[Call[Any]] = [found, head]
        endpoint.run(first)
        if found.answer is None:
            return None
        receipt, logs = found.answer
        if receipt.tx_hash != tx_hash:
            return None
        landed_at = Call("eth_getBlockByHash", (receipt.block.hash, False), read=_timestamp)
        endpoint.run([landed_at])
        if landed_at.answer is None:
            return None
        units, payers, claims = 0, set(), []
        for payer, receiver, moved in self._transfers(logs):
            units += moved * ((receiver == recipient) - (payer == recipient))
            if receiver == recipient and payer != recipient and moved:
                payers.add(payer)
        for payer, nonce in self._authorizations(logs):
            claims.append(self._claim(payer, nonce))
        return Arrival(
            tx_hash=tx_hash,
            succeeded=receipt.succeeded,
            units=max(units, 0),
            payers=frozenset(payers),
            claims=tuple(dict.fromkeys(claims)),
            landed_at=landed_at.answer,
            is_final=head.answer - receipt.block.number + 1 >= self._confirmations,
        )

    def _carried_out(self, endpoint: Endpoint, authorization: Authorization) -> str | None:
        terms = authorization.terms
        head = Call("eth_blockNumber", (), read=count)
        endpoint.run([head])
        payer = "0x" + contracts.word_of_address(str(terms["from"])).hex()
        query = {
            "address": self._usdc,
            "topics": [AUTHORIZATION_USED, payer, terms["nonce"]],
            "fromBlock": hex(max(head.answer - _LOOK_BACK_BLOCKS, 0)),
            "toBlock": "latest",
        }
        used = Call("eth_getLogs", (query,), read=_hashes_of_logs)
        endpoint.run([used])
        for tx_hash in used.answer:
            found = Call("eth_getTransactionReceipt", (tx_hash,), read=_receipt_with_logs)
            endpoint.run([found])
            if found.answer is not None and self._is_carried_out_in(*found.answer, authorization):
                return tx_hash
        return None

    def _is_carried_out_in(
        self, receipt: Receipt, logs: Sequence[Mapping[str, object]], authorization: Authorization
    ) -> bool:
        """Tell whether the use of an authorization in a transaction moved its units to its recipient.

        The payer can sign one nonce for several recipients, and use many in one transaction: what else that brings
        pays for none of them. The token logs each use just before the transfer that it made.
        """
        own = list(self._own(logs))
        for (used, _), (moved, data) in pairwise(own):
            if (
                receipt.succeeded
                and (used[0], len(used)) == (AUTHORIZATION_USED, _TRANSFER_TOPICS)
                and self._claim(_address(used[1]), used[2]) == authorization.claim
                and (moved[0], len(moved)) == (contracts.TRANSFER_TOPIC, _TRANSFER_TOPICS)
                and (_address(moved[1]), _address(moved[2])) == (authorization.payer, authorization.recipient)
                and int.from_bytes(data, "big") >= authorization.units
            ):
                return True
        return False

    def _transfers(self, logs: Sequence[Mapping[str, object]]) -> Iterator[tuple[str, str, int]]:
        for topics, data in self._own(logs):
            if topics[0] == contracts.TRANSFER_TOPIC and len(topics) == _TRANSFER_TOPICS:
                yield _address(topics[1]), _address(topics[2]), int.from_bytes(data, "big")

    def _authorizations(self, logs: Sequence[Mapping[str, object]]) -> Iterator[tuple[str, str]]:
        for topics, _data in self._own(logs):
            if topics[0] == AUTHORIZATION_USED and len(topics) == _TRANSFER_TOPICS:
                yield _address(topics[1]), topics[2]

    def _own(self, logs: Sequence[Mapping[str, object]]) -> Iterator[tuple[list[str], bytes]]:
        """Yield topics and data of what the token itself has logged."""
        for log in logs:
            topics = log.get("topics")
            if address(log.get("address")) == self._usdc and isinstance(topics, list) and topics:
                yield [hash32(topic) for topic in topics], octets(log.get("data"))


def _receipt_with_logs(answer: object) -> tuple[Receipt, Sequence[Mapping[str, object]]] | None:
    receipt = receipt_or_none(answer)
    if receipt is None:
        return None
    logs = answer.get("logs") if isinstance(answer, dict) else None
    if not isinstance(logs, list) or not all(isinstance(log, dict) for log in logs):
        raise MalformedAnswerError("expected logs")
    return receipt, logs


def _timestamp(answer: object) -> int | None:
    if answer is None:
        return None
    if not isinstance(answer, dict):
        raise MalformedAnswerError("expected a block")
    return count(answer.get("timestamp"))


def _hashes_of_logs(answer: object) -> tuple[str, ...]:
    if not isinstance(answer, list) or not all(isinstance(log, dict) for log in answer):
        raise MalformedAnswerError("expected logs")
    return tuple(hash32(log.get("transactionHash")) for log in answer if not log.get("removed"))


def _flag(answer: object) -> bool:
    return int.from_bytes(octets(answer), "big") != 0


def _address(topic: str) -> str:
    return address("0x" + topic[26:])
