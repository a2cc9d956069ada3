"""The `TransferSponsor` port for Ethereum and Base: EIP-3009 authorizations, submitted together by Multicall3."""

from dataclasses import replace

from web3.types import StateOverride, TxParams, Wei

from app.adapters.evm import calls
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.deployments import MULTICALL3
from app.adapters.evm.send import refusals
from app.adapters.evm.send.transactions import CallTarget, FeeTerms
from app.adapters.evm.x402 import payments
from app.adapters.evm.x402.payments import EvmPaymentSigner, SignedAuthorization
from app.core.chains import USDC
from app.core.money import TokenAmount
from app.ports.chain import CONTRACT, AvailableFunds, Shortage, TransferIntent
from app.ports.errors import Rejected
from app.ports.facilitator import AuthorizedTransfer, PaymentIntent, SignedPart, SponsoredDraft, SponsoredTransfer
from app.ports.vault import Signer

# Far longer than a submission waits at any fee; then the amount is free again.
_VALIDITY_SECONDS = 600
# Two authorizations by Multicall3; measured: about 150 000 to a recipient without USDC.
_USUAL_GAS = 150_000
_GAS_LIMIT = 260_000


class EvmTransferSponsor:
    def __init__(self, chain: EvmChain) -> None:
        self._chain = chain
        self._usdc = chain.deployment.usdc
        self._signer = EvmPaymentSigner(chain)

    def draft(self, transfer: SponsoredTransfer) -> SponsoredDraft:
        submitter = transfer.sponsor.submitter
        # The nonce is read before the balance: what is signed in between counts as unmined.
        sequence, head = calls.nonce(transfer.sender), calls.head()
        balance = contracts.multicall([contracts.BALANCE_OF.at(self._usdc, transfer.sender)])
        paying = contracts.TRANSFER.encode(transfer.recipient, transfer.units)
        sent: TxParams = {"from": transfer.sender, "to": self._usdc, "data": paying}
        # Some nodes simulate no call of a sender without ether.
        with_ether: StateOverride = {transfer.sender: {"balance": Wei(10**18)}}
        simulated = calls.contract_call(sent, bytes, overrides=with_ether, tolerates=refusals.is_revert)
        code = calls.has_code(transfer.recipient)
        self._chain.rpc.run(sequence, head, balance, simulated, code)
        (token_units,) = balance.result
        Shortage.check(USDC, "insufficient_funds", token_units, transfer.units)
        if simulated.error is not None:
            raise Rejected("simulation_failed", details={"revert": refusals.revert_text(simulated.error) or ""})
        sample = self._target(payments.SAMPLE_CALL, payments.SAMPLE_CALL)
        readings = self._chain.read_costs(submitter, sample, estimates=False)
        fee_terms = FeeTerms(_GAS_LIMIT, readings.price, readings.l1_fee_units)
        if readings.native_units < fee_terms.max_units:
            raise Rejected("gas_unavailable")
        # The price of the draft survives six full blocks; what is paid is about half of it.
        cost = _USUAL_GAS * (readings.price.max_fee + readings.price.tip) // 2 + readings.l1_fee_units
        intent = TransferIntent(submitter, MULTICALL3, TokenAmount(0, self._chain.native))
        submission = self._chain.affordable(intent, readings, fee_terms, {})
        submission = replace(submission, recipient_is=CONTRACT if code.result else None)
        funds = AvailableFunds(token_units, sequence.result, head.result)
        return SponsoredDraft(transfer, TokenAmount(cost, self._chain.native), funds, submission)

    def authorize(self, draft: SponsoredDraft, *, fee_units: int, signer: Signer, now: int) -> AuthorizedTransfer:
        transfer = draft.transfer
        payments = [(transfer.recipient, transfer.units)]
        if fee_units:
            payments.append((transfer.sponsor.fee_recipient, fee_units))
        signed = []
        for recipient, units in payments:
            intent = PaymentIntent(transfer.sender, recipient, units, _VALIDITY_SECONDS, {}, (), draft.funds.block)
            signed.append(self._signer.authorize(intent, {}, signer, now=now))
        target = self._target(*(SignedAuthorization.of_payload(each.payload).call() for each in signed))
        # The token accepts it while the block's time is below `validBefore`.
        call = replace(target, valid_until=now + _VALIDITY_SECONDS - 1).as_terms()
        submission = replace(draft.submission, terms={**draft.submission.terms, **call})
        paid, *fee = (SignedPart(each.reference, each.terms) for each in signed)
        return AuthorizedTransfer(paid, fee[0] if fee else None, submission)

    def _target(self, paying: bytes, *fees: bytes) -> CallTarget:
        # A fee that someone else has submitted already must not prevent the transfer.
        inner = [(self._usdc, False, paying), *((self._usdc, True, fee) for fee in fees)]
        return CallTarget(MULTICALL3, 0, contracts.AGGREGATE.encode(inner))
