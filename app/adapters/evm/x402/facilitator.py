"""The `Facilitator` port for Ethereum and Base: reads payments from USDC's own logs, and submits EIP-3009 payments."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from eth_account.messages import encode_defunct
from web3.types import TxParams

from app.adapters.evm import calls, signatures
from app.adapters.evm.calls import EventLog, TransactionReceipt, read_logs
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.calls import Function
from app.adapters.evm.contracts.deployments import MULTICALL3
from app.adapters.evm.send import refusals
from app.adapters.evm.send.transactions import CallTarget, FeeTerms
from app.adapters.evm.x402 import known_wallets, payments
from app.adapters.evm.x402.payments import SignedAuthorization
from app.adapters.evm.x402.upto import UptoScheme
from app.adapters.jsonrpc.calls import RpcCall
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.ports.chain import Terms, TransactionDraft
from app.ports.errors import Rejected
from app.ports.facilitator import ExpectedPayment, IncomingPayment, PaymentAuthorization, SettlementCapacity

_HASH = re.compile(r"0x[0-9a-fA-F]{64}", re.ASCII)
# The most that a submission costs, to check in advance that it can be paid; measured: about 86 000.
_SUBMISSION_GAS = 130_000
# The gas limit of a usual submission: a quarter more than it uses.
_TYPICAL_GAS_LIMIT = 110_000
# The highest gas limits of a submission: enough for an account's code that checks a signature, and no more.
_MAX_GAS = 200_000
_MAX_CONTRACT_GAS = 400_000
_MAX_DEPLOYMENT_GAS = 1_000_000
# A third party's submission of a payment that we were just submitting is a few blocks old.
_SEARCH_BLOCKS = 1_500
# Far beyond any block's time, and a number that every JSON reader accepts.
_MAX_DEADLINE = 2**53 - 1
_INVALID_SIGNATURE = "invalid_exact_evm_payload_signature"
_IS_VALID_SIGNATURE = Function("contract_wallet", "isValidSignature")
_WORD = 32
_VALID = bytes.fromhex("1626ba7e").ljust(_WORD, b"\0")
"""What a wallet answers to a signature that it accepts (EIP-1271)."""


class EvmFacilitator:
    def __init__(self, chain: EvmChain, *, confirmations: int) -> None:
        deployment = chain.deployment
        self.name = chain.name
        self._rpc = chain.rpc
        self._usdc = deployment.usdc
        self._confirmations = confirmations
        self._chain = chain
        self._domain = payments.usdc_domain(deployment)
        self.asset = payments.usdc_asset(deployment)
        self.metered = UptoScheme(chain)

    def canonical_hash(self, text: str) -> str | None:
        return text.lower() if _HASH.fullmatch(text) else None

    def incoming_payment(self, tx_hash: str, recipient: str) -> IncomingPayment | None:
        """Read what a transaction paid, from the logs of USDC alone. Raises: Unreachable."""
        return self._rpc.run_on_first(lambda endpoint: self._incoming_payment(endpoint, tx_hash, recipient))

    def claim_of(self, payload: Mapping[str, Any]) -> str:
        signed = SignedAuthorization.of_payload(payload)
        if signed.is_signed_by_key(self._domain):
            return self._claim(signed.payer, signed.nonce)
        return self._unverified_claim(signed)

    def verify(self, payload: Mapping[str, Any], expected: ExpectedPayment, *, now: int) -> PaymentAuthorization:
        signed = SignedAuthorization.of_payload(payload)
        signed.check(expected, now=now)
        claim, terms = self._claim(signed.payer, signed.nonce), signed.as_terms()
        parties = signed.payer, signed.recipient, signed.units
        if signed.is_signed_by_key(self._domain):
            return PaymentAuthorization(claim, *parties, {**terms, "call": signed.call().hex()})
        call, deployment = signed.call_of_contract()
        terms = {**terms, **deployment, "call": call.hex(), "max_gas": _MAX_CONTRACT_GAS}
        return PaymentAuthorization(claim, *parties, terms, further_claims=(self._unverified_claim(signed),))

    def assert_signed(self, authorization: PaymentAuthorization) -> None:
        if "max_gas" not in authorization.terms:
            return
        account = self._payer_code(authorization.terms)
        self._rpc.run(*account)
        is_deployed = self._assert_known_wallet(authorization.terms, account)
        call = bytes.fromhex(str(authorization.terms["call"]))
        digest, signature = payments.signature_of_contract(call, self._domain)
        inner = [(authorization.payer, True, _IS_VALID_SIGNATURE.encode(digest, signature))]
        if not is_deployed:
            inner.insert(0, self._deployment_call(authorization.terms))
        sent: TxParams = {
            "to": MULTICALL3, "data": contracts.AGGREGATE.encode(inner), "gas": _MAX_DEPLOYMENT_GAS
        }  # fmt: skip
        asked = calls.contract_call(
            sent, lambda data: contracts.AGGREGATE.decode_result(data)[-1], tolerates=refusals.is_revert
        )
        self._rpc.run(asked)
        if asked.error is None:
            succeeded, answer = asked.result
            if succeeded and answer[:_WORD] == _VALID:
                return
        raise Rejected(_INVALID_SIGNATURE)

    def draft_settlement(self, authorization: PaymentAuthorization, *, settler: str) -> TransactionDraft:
        terms = authorization.terms
        inner = [
            contracts.AUTHORIZATION_STATE.at(self._usdc, terms["from"], _nonce(authorization)),
            contracts.BALANCE_OF.at(self._usdc, authorization.payer),
            contracts.BLOCK_TIMESTAMP.at(MULTICALL3),
        ]
        reading = contracts.multicall(inner)
        account = self._payer_code(terms)
        self._rpc.run(reading, *account)
        is_used, balance, block_time = reading.result
        if is_used:
            raise Rejected("invalid_exact_evm_nonce_already_used")
        if balance < authorization.units:
            raise Rejected("insufficient_funds")
        # The token accepts it in a block after that time.
        if block_time <= int(str(terms.get("valid_after", 0))):
            raise Rejected(payments.NOT_YET_VALID, details={"valid_after": str(terms["valid_after"])})
        is_contract = "max_gas" in terms
        is_deployed = self._assert_known_wallet(terms, account) if is_contract else True
        # A key's account may have code (EIP-7702), which the token calls for the signature: it would burn our gas.
        is_risky = is_contract or bool(account[0].result)
        target, max_gas = self._submission(terms, is_deployed=is_deployed)
        # The token accepts it while the block's time is below `validBefore`: a later one would only cost a fee.
        last = min(int(str(terms["valid_before"])) - 1, _MAX_DEADLINE)
        call = replace(target, valid_until=last)
        try:
            draft = self._chain.draft_submission(settler, call, most_gas=max_gas if is_risky else None)
        except Rejected as error:
            if is_contract and error.reason == "simulation_failed":
                raise Rejected(_INVALID_SIGNATURE) from None
            raise
        if FeeTerms.from_terms(draft.terms).gas > max_gas:
            raise Rejected("submission_too_costly")
        return replace(draft, payer_units=balance, is_risky=is_risky)

    def find_settlement(self, authorization: PaymentAuthorization) -> str | None:
        return self._rpc.run_on_first(lambda endpoint: self._find_settlement(endpoint, authorization))

    def settlement_capacity(self, settler: str, recipient: str) -> SettlementCapacity:
        """Read the settlement address's ether and a submission's cost with its L1 data fee. Raises: Unreachable."""
        submission = CallTarget(self._usdc, 0, payments.SAMPLE_CALL)
        readings = self._chain.read_costs(settler, submission, estimates=False)
        price, l1_fee_units = readings.price, readings.l1_fee_units
        most = FeeTerms(_TYPICAL_GAS_LIMIT, price, l1_fee_units).max_units
        # The market's price survives six full blocks; what is paid is about half of it.
        likely = _SUBMISSION_GAS * (price.max_fee + price.tip) // 2 + l1_fee_units
        return SettlementCapacity(readings.native_units, likely, max_fee_units=most, recipient_can_receive=True)

    def draft_recipient_account(self, settler: str, recipient: str) -> TransactionDraft | None:
        """Return None: any address receives USDC."""
        return None

    def is_signed_by(self, payer: str, text: str, signature: str) -> bool:
        return signatures.signer_of(encode_defunct(text=text), signature) == payer

    def _claim(self, payer: str, nonce: bytes) -> str:
        """Return the identifier of an authorization: its payer and its nonce, which the token accepts once."""
        return f"auth:{self.name.value}:{payer.lower()}:0x{nonce.hex()}"

    def _unverified_claim(self, signed: SignedAuthorization) -> str:
        """Return the identifier of a nonce with a signature that only the chain can verify."""
        return f"signature:{self.name.value}:{signed.digest()}"

    def _payer_code(self, terms: Terms) -> list[RpcCall[bytes]]:
        """Return the calls that read a payer's code, and of a contract the values that tell what is behind a proxy."""
        payer, slots = str(terms["from"]), known_wallets.SLOTS if "max_gas" in terms else ()
        return [calls.code(payer), *(calls.storage(payer, slot) for slot in slots)]

    def _assert_known_wallet(self, terms: Terms, account: Sequence[RpcCall[bytes]]) -> bool:
        """Refuse a contract that is no known wallet; return whether it is deployed. Raises: Rejected, Unreachable."""
        code, *slots = (each.result for each in account)
        call = bytes.fromhex(str(terms["call"]))
        _digest, signature = payments.signature_of_contract(call, self._domain)
        owner: int | bytes | None
        if code:
            owner = known_wallets.owner_by_code(code, slots, signature)
        elif "factory" in terms:
            _factory, _may_fail, deployment = self._deployment_call(terms)
            owner = known_wallets.owner_by_deployment(str(terms["factory"]), deployment, signature)
        else:
            raise Rejected(_INVALID_SIGNATURE)
        if isinstance(owner, int):
            reading = known_wallets.OWNER_AT_INDEX.at(str(terms["from"]), owner, may_fail=True)
            (at_index,) = self._rpc.ask(contracts.multicall([reading]))
            owner = bytes(at_index or b"")
        address = None if owner is None else known_wallets.contract_owner(owner)
        if address is not None and self._rpc.ask(calls.code(address)):
            raise Rejected(known_wallets.NOT_SUPPORTED)
        return bool(code)

    def _deployment_call(self, terms: Terms) -> tuple[str, bool, bytes]:
        """Return the inner call of Multicall3 that deploys a wallet and may not fail."""
        return str(terms["factory"]), False, bytes.fromhex(str(terms["deployment"]))

    def _submission(self, terms: Terms, *, is_deployed: bool) -> tuple[CallTarget, int]:
        """Return the call that submits a payment, after deploying its wallet if needed, and its highest gas limit."""
        submission = CallTarget(self._usdc, 0, bytes.fromhex(str(terms["call"])))
        if is_deployed:
            return submission, int(str(terms.get("max_gas", _MAX_GAS)))
        inner = [self._deployment_call(terms), (submission.to, False, submission.data)]
        return CallTarget(MULTICALL3, 0, contracts.AGGREGATE.encode(inner)), _MAX_DEPLOYMENT_GAS

    def _incoming_payment(self, endpoint: RpcEndpoint, tx_hash: str, recipient: str) -> IncomingPayment | None:
        found, head = calls.receipt(tx_hash), calls.head()
        endpoint.run([found, head])
        receipt = found.result
        if receipt is None:
            return None
        mined_in = endpoint.ask(calls.header_or_none(receipt.block_number))
        if mined_in is None or mined_in.hash != receipt.block_hash:
            return None
        units, payers, claims = 0, set(), []
        for log in self._token_logs(receipt):
            if transfer := contracts.TRANSFER_EVENT.decode(log):
                payer, receiver, moved = transfer
                units += moved * ((receiver == recipient) - (payer == recipient))
                if receiver == recipient and payer != recipient and moved:
                    payers.add(payer)
            elif used := contracts.AUTHORIZATION_USED_EVENT.decode(log):
                claims.append(self._claim(*used))
        return IncomingPayment(
            tx_hash=tx_hash, succeeded=receipt.succeeded, units=max(units, 0), payers=frozenset(payers),
            claims=tuple(dict.fromkeys(claims)), block_time=mined_in.time,
            is_final=head.result - receipt.block.number + 1 >= self._confirmations,
        )  # fmt: skip

    def _find_settlement(self, endpoint: RpcEndpoint, authorization: PaymentAuthorization) -> str | None:
        head = endpoint.ask(calls.head())
        topics = contracts.AUTHORIZATION_USED_EVENT.topics(authorization.terms["from"], _nonce(authorization))
        for _until, logs in read_logs(endpoint, self._usdc, topics, first=max(head - _SEARCH_BLOCKS, 0), last=head):
            for log in logs:
                found = endpoint.ask(calls.receipt(log.tx_hash))
                if found is not None and self._is_settled_by(found, authorization):
                    return log.tx_hash
        return None

    def _is_settled_by(self, receipt: TransactionReceipt, authorization: PaymentAuthorization) -> bool:
        """Return whether the use of an authorization in a transaction transferred its units to its recipient.

        The payer can sign one nonce for several recipients, and use many in one transaction: other transfers in it
        settle none of them. The token logs each use just before the transfer that it made.
        """
        for first, second in pairwise(self._token_logs(receipt)):
            used = contracts.AUTHORIZATION_USED_EVENT.decode(first)
            transfer = contracts.TRANSFER_EVENT.decode(second)
            if receipt.succeeded and used and transfer and self._claim(*used) == authorization.claim:
                *parties, units = transfer
                if parties == [authorization.payer, authorization.recipient] and units >= authorization.units:
                    return True
        return False

    def _token_logs(self, receipt: TransactionReceipt) -> Iterator[EventLog]:
        return (log for log in receipt.logs if log.contract == self._usdc)


def _nonce(authorization: PaymentAuthorization) -> bytes:
    return bytes.fromhex(str(authorization.terms["nonce"])[2:])
