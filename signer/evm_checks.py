"""Checks of what is signed for EVM chains: transactions by their fields, EIP-712 messages by struct and values."""

import functools
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from eth_utils.address import to_checksum_address
from solders.pubkey import Pubkey

from app.adapters.bridges import deployments as bridges
from app.adapters.bridges.cctp import messages
from app.adapters.bridges.relay import orders
from app.adapters.evm import signatures
from app.adapters.evm.contracts.calls import Function
from app.adapters.evm.contracts.deployments import (
    DEPLOYMENTS,
    PERMIT2,
    X402_PERMIT2_PROXY,
    X402_UPTO_PROXY,
    EvmDeployment,
)
from app.adapters.evm.send import transactions
from app.adapters.evm.send.transactions import CallTarget
from app.adapters.evm.signatures import SigningDomain
from app.adapters.evm.x402 import payments
from app.adapters.solana.deployments import DEPLOYMENTS as SOLANA_DEPLOYMENTS
from app.adapters.solana.send import tokens
from app.adapters.swaps import uniswap
from app.core.chains import ETH, USDC, ChainName, Family
from app.ports.bridges import BridgeRequest
from app.ports.chain import TransferIntent
from app.ports.errors import Rejected
from app.ports.swaps import SwapRequest
from signer.intended import SERVICE_KINDS, Intended, Refused, Signable, require

MAX_FEE_WEI = 2 * 10**17
"""No network fee is higher: 0.2 ETH."""
_MAX_VALIDITY = 86_400 + 600
_FIELDS = {"type", "chainId", "nonce", "gas", "maxFeePerGas", "maxPriorityFeePerGas", "to", "value", "data"}
_APPROVE = Function("fiat_token", "approve")
_BURN, _BURN_WITH_HOOK = (Function("cctp_messenger", name) for name in ("depositForBurn", "depositForBurnWithHook"))
_RECEIVE = Function("cctp_transmitter", "receiveMessage")
_PORTAL = Function("optimism_portal", "depositTransaction")
_DEPOSIT = Function("relay_depository", "depositNative")
_LIFI = Function("lifi_diamond", "startBridgeTokensViaRelayDepository")
_NAME = "transferWithAuthorization(address,address,uint256,uint256,uint256,bytes32,"
_SUBMIT = tuple(Function("fiat_token", _NAME + rest).selector for rest in ("uint8,bytes32,bytes32)", "bytes)"))


def check_transaction(fields: Mapping[str, Any], candidates: Sequence[Intended], network: str) -> list[Signable]:
    """Return what a transaction is for each intent that it carries out. Raises: Refused if it is none."""
    require(set(fields) == _FIELDS and fields["type"] == 2, "malformed")  # noqa: PLR2004 - EIP-1559
    numbers = [fields[name] for name in ("chainId", "nonce", "gas", "maxFeePerGas", "maxPriorityFeePerGas", "value")]
    require(all(type(number) is int and number >= 0 for number in numbers), "malformed")
    require(fields["gas"] * fields["maxFeePerGas"] <= MAX_FEE_WEI, "network_fee_too_high")
    to, data = _bytes(fields["to"]), _bytes(fields["data"])
    require(len(to) == 20, "malformed")  # noqa: PLR2004 - an address; never a new contract
    target = CallTarget(_address(to), fields["value"], data)
    digest = transactions.digest_of({**fields, "to": to, "data": data})
    found: list[Signable] = []
    reason = "not_recorded"
    for intended in candidates:
        deployment = DEPLOYMENTS.get((network, intended.chain.value))
        if deployment is None or deployment.chain_id != fields["chainId"]:
            continue
        try:
            is_cancellation = target == CallTarget(intended.evm_address, 0, b"")
            if not is_cancellation:
                _check_call(intended, target, deployment, network)
        except (Rejected, ValueError):
            reason = "not_as_recorded"
            continue
        except Refused as refusal:
            reason = str(refusal)
            continue
        effect = hashlib.sha256(f"{target.to}{target.value_units}".encode() + data).hexdigest()
        kept = "" if is_cancellation else effect
        sent = Signable([intended], "transaction", intended.chain, intended.evm_address, digest, kept, fields["nonce"])
        found.append(sent)
    require(bool(found), reason)
    return found


def _check_call(intended: Intended, target: CallTarget, deployment: EvmDeployment, network: str) -> None:
    """Check that a call does what was recorded, and nothing else. Raises: Refused, Rejected, ValueError."""
    if intended.kind in SERVICE_KINDS:
        require(intended.is_service, "not_of_the_service")
        _check_submission(target, deployment)
    elif intended.kind == "bridge_leg":
        _check_leg(intended, target, deployment, network)
    elif intended.kind == "swap":
        require(intended.may_pay, "hold_missing")
        uniswap.assert_encodes(deployment, target, _swap_in(intended, target))
    else:
        require(intended.may_pay, "hold_missing")
        contract = intended.amount.token.contract
        # No call but a transfer, and of no contract that a wallet uses otherwise: USDC counts against the limits.
        require(contract is None or deployment.known_contract(contract) is None, "not_a_foreign_token")
        meant = TransferIntent(intended.evm_address, intended.recipient, intended.amount)
        require(target == transactions.target_of(meant, {}, usdc=deployment.usdc), "not_as_recorded")


def _swap_in(intended: Intended, target: CallTarget) -> uniswap.UniswapSwap:
    """Return the swap that a call may be: the recorded one, with the fee tier and deadline of the call."""
    deadline, steps = uniswap.MULTICALL.decode(target.data)
    ((_in, _out, tier, _recipient, _units, minimum, _limit),) = uniswap.EXACT_INPUT.decode(
        steps[0 if intended.amount.token == ETH else 1]
    )
    require(intended.minimum_units is not None and minimum >= intended.minimum_units > 0, "minimum_too_low")
    require(tier in uniswap.FEE_TIERS, "not_as_recorded")
    output = USDC if intended.amount.token == ETH else ETH
    request = SwapRequest(intended.evm_address, intended.amount, output, 0)
    return uniswap.UniswapSwap(request, tier, minimum, deadline)


def _check_submission(target: CallTarget, deployment: EvmDeployment) -> None:
    """Check that a call can take nothing from the service's wallet but the network fee."""
    calls_usdc = target.to == deployment.usdc and target.data[:4] in _SUBMIT
    # What these contracts do with a caller's tokens needs an allowance, which no kind of intent gives them.
    calls_relay = target.to in (deployment.multicall3, X402_UPTO_PROXY)
    require(target.value_units == 0 and (calls_usdc or calls_relay), "contract_not_used")


def _check_leg(intended: Intended, target: CallTarget, deployment: EvmDeployment, network: str) -> None:
    """Check a transaction of a bridge: it goes to a contract of a bridge, for the wallet's own address."""
    cctp, amount, own = bridges.DEPLOYMENTS[network], intended.amount, intended.recipient
    if target.to == cctp.transmitter:
        _RECEIVE.decode(target.data)
        require(target.value_units == 0, "not_as_recorded")
        return
    require(intended.may_pay, "hold_missing")
    require(own in (intended.evm_address, intended.solana_address), "not_as_recorded")
    require(target.value_units == (amount.units if amount.token == ETH else 0), "not_as_recorded")
    if target.to == deployment.usdc and amount.token == USDC:
        spender, units = _APPROVE.decode(target.data)
        require(spender == cctp.messenger and units <= amount.units, "allowance_too_high")
    elif target.to == cctp.messenger and amount.token == USDC:
        with_hook = target.data[:4] == _BURN_WITH_HOOK.selector
        units, domain, recipient, token, caller, _fee, _finality, *hook = (
            _BURN_WITH_HOOK if with_hook else _BURN
        ).decode(target.data)
        words = {number: _word(intended, chain, network) for chain, number in bridges.DOMAINS.items()}
        is_own = recipient == words.get(domain) and token == deployment.usdc and caller == bytes(32)
        require(is_own and units == amount.units and hook in ([], [messages.FORWARDING]), "not_as_recorded")
    elif target.to == bridges.PORTALS.get(network) and amount.token == ETH:
        recipient, units, _gas, creates, data = _PORTAL.decode(target.data)
        require((recipient, units, creates, data) == (own, amount.units, False, b""), "not_as_recorded")
    elif target.to == bridges.DEPOSITORY and amount.token == ETH:
        depositor, _order = _DEPOSIT.decode(target.data)
        require(depositor == intended.evm_address, "not_as_recorded")
    elif target.to == bridges.LIFI_DIAMOND and amount.token == ETH:
        ids = {DEPLOYMENTS[network, name].chain_id for name in ("ethereum", "base")} - {deployment.chain_id}
        request = BridgeRequest(intended.chain, intended.chain, intended.evm_address, own, amount)
        asked = orders.RequestedTransaction.model_construct(
            to=target.to, value=target.value_units, data=target.data, chain_id=deployment.chain_id
        )
        orders.lifi_deposit_call(asked, request, source_id=deployment.chain_id, destination_id=ids.pop())
    else:
        raise Refused("contract_not_used")


def _word(intended: Intended, chain: ChainName, network: str) -> bytes:
    """Return the recipient of a burn that is the wallet itself on a chain."""
    if chain.family is Family.EVM:
        return messages.address_word(intended.evm_address, chain)
    mint = Pubkey.from_string(SOLANA_DEPLOYMENTS[network].usdc_mint)
    return bytes(tokens.account_of(Pubkey.from_string(intended.solana_address), mint))


def check_typed(content: Mapping[str, Any], candidates: Sequence[Intended], network: str) -> list[Signable]:
    """Return what a message is for each intent that it carries out. Raises: Refused if it is none."""
    struct, values, domain = content["struct"], content["values"], SigningDomain(**content["domain"])
    check = _STRUCTS.get(struct)
    require(check is not None, "struct_not_used")
    digest = signatures.digest_of(signatures.typed_message(struct, values, domain))
    found: list[Signable] = []
    reason = "not_recorded"
    for intended in candidates:
        deployment = DEPLOYMENTS.get((network, intended.chain.value))
        if deployment is None or deployment.chain_id != domain.chain_id:
            continue
        try:
            require(
                intended.kind not in SERVICE_KINDS | {"bridge_leg"} and intended.amount.token == USDC, "not_as_recorded"
            )
            # An allowance moves nothing without another signature.
            require(intended.may_pay or struct == payments.PERMIT_STRUCT, "hold_missing")
            part, until = check(intended, values, domain, deployment)  # type: ignore[misc]
            require(until <= time.time() + _MAX_VALIDITY, "valid_too_long")
        except Refused as refusal:
            reason = str(refusal)
            continue
        effect = hashlib.sha256(json.dumps([struct, values]).encode()).hexdigest()
        found.append(
            Signable([intended], part, intended.chain, intended.evm_address, digest, effect, valid_until=until)
        )
    require(bool(found), reason)
    return found


Checked = tuple[str, int]


def _transfer(intended: Intended, values: Sequence[Any], domain: SigningDomain, deployment: EvmDeployment) -> Checked:
    payer, recipient, units, _after, before, _nonce = values
    is_right = (payer, recipient, units) == (intended.evm_address, intended.recipient, intended.amount.units)
    require(is_right and intended.kind != "swap" and domain == payments.usdc_domain(deployment), "not_as_recorded")
    return "authorization", before


def _permit2_transfer(
    intended: Intended, values: Sequence[Any], domain: SigningDomain, deployment: EvmDeployment
) -> Checked:
    permitted, spender, _nonce, deadline, witness = values
    meant = {"token": deployment.usdc, "amount": intended.amount.units}, X402_PERMIT2_PROXY, intended.recipient
    is_right = (permitted, spender, witness["to"]) == meant
    own = SigningDomain("Permit2", None, deployment.chain_id, PERMIT2)
    require(is_right and intended.kind == "x402" and domain == own, "not_as_recorded")
    return "authorization", deadline


def _permit(intended: Intended, values: Sequence[Any], domain: SigningDomain, deployment: EvmDeployment) -> Checked:
    owner, spender, units, _nonce, deadline = values
    spenders = {"x402": PERMIT2, "swap": deployment.uniswap_router}
    require(domain == payments.usdc_domain(deployment) and owner == intended.evm_address, "not_as_recorded")
    require(spender == spenders.get(intended.kind), "contract_not_used")
    require(units <= intended.amount.units, "allowance_too_high")
    return "permit", deadline


_STRUCTS = {
    payments.TRANSFER_STRUCT: _transfer,
    payments.PERMIT2_TRANSFER_STRUCT: _permit2_transfer,
    payments.PERMIT_STRUCT: _permit,
}


@functools.lru_cache(4096)
def _address(raw: bytes) -> str:
    return str(to_checksum_address(raw))


def _bytes(text: str) -> bytes:
    require(text.startswith("0x"), "malformed")
    return bytes.fromhex(text[2:])
