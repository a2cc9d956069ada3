"""The `SwapExchange` port for Ethereum and Base: quoted, encoded, simulated and signed here.

Calldata of Uniswap V3's SwapRouter02 and QuoterV2 (source: github.com/Uniswap/swap-router-contracts and v3-periphery)
contains nothing that others sent. By a permit (EIP-2612) the router may take exactly the amount of one swap.
"""

from dataclasses import dataclass, replace

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.calls import PERMIT_NONCE, Function
from app.adapters.evm.contracts.deployments import MULTICALL3, EvmDeployment
from app.adapters.evm.send import simulation
from app.adapters.evm.send.transactions import CallTarget
from app.adapters.evm.x402 import payments
from app.core import clock
from app.core.chains import TOKENS_BY_SYMBOL, USDC
from app.core.money import decimal_string
from app.ports.chain import SignedTransaction, TransactionDraft, TransferIntent
from app.ports.errors import Rejected, Unreachable
from app.ports.swaps import ConcurrentOutflows, SwapOffer, SwapRequest
from app.ports.vault import Signer

FEE_TIERS = (100, 500, 3000, 10_000)
"""In hundredths of a basis point; the quotes show which pools exist."""
PERMIT_REVERT = "EIP2612"
"""The start of USDC's refusals of a permit."""
TOO_LITTLE = "Too little received"
"""SwapRouter02's refusal of an output below the minimum."""

_QUOTE = Function("uniswap_quoter", "quoteExactInputSingle")
MULTICALL = Function("uniswap_router", "multicall")
EXACT_INPUT = Function("uniswap_router", "exactInputSingle")
_SELF_PERMIT = Function("uniswap_router", "selfPermitIfNecessary")
_UNWRAP = Function("uniswap_router", "unwrapWETH9")
_REFUND = Function("uniswap_router", "refundETH")
_ROUTER_ADDRESS_ALIAS = "0x0000000000000000000000000000000000000002"
"""SwapRouter02's `Constants.ADDRESS_THIS`."""


@dataclass(frozen=True, slots=True)
class UniswapSwap:
    request: SwapRequest
    fee_tier: int
    minimum_units: int
    deadline: int
    permit: tuple[int, bytes, bytes] | None = None
    """v, r and s of its signature."""


def encode_swap(deployment: EvmDeployment, swap: UniswapSwap) -> CallTarget:
    """Return the one call that executes a swap, with permit and unwrap inside it if they are needed."""
    request = swap.request
    pays_ether, amount = request.input_amount.token != USDC, request.input_amount.units
    recipient = request.owner if pays_ether else _ROUTER_ADDRESS_ALIAS
    input_address, output_address = _pair(deployment, request)
    swap_call = (input_address, output_address, swap.fee_tier, recipient, amount, swap.minimum_units, 0)
    steps = [EXACT_INPUT.encode(swap_call)]
    if pays_ether:
        # What a pool leaves over must not stay with the router, where anyone could take it.
        steps.append(_REFUND.encode())
    else:
        if swap.permit is not None:
            steps.insert(0, _SELF_PERMIT.encode(input_address, amount, swap.deadline, *swap.permit))
        steps.append(_UNWRAP.encode(swap.minimum_units, request.owner))
    data = MULTICALL.encode(swap.deadline, steps)
    return CallTarget(deployment.uniswap_router, amount if pays_ether else 0, data, swap.deadline)


def assert_encodes(deployment: EvmDeployment, target: CallTarget, swap: UniswapSwap) -> None:
    """Check that a call is this swap, by any permit, to the byte. Raises: Rejected("unsafe_instructions")."""
    try:
        if swap.request.input_amount.token == USDC:
            _deadline, (permit, *_steps) = MULTICALL.decode(target.data)
            _token, _units, _until, v, r, s = _SELF_PERMIT.decode(permit)
            swap = replace(swap, permit=(v, r, s))
        is_right = encode_swap(deployment, swap) == target
    except ValueError:
        is_right = False
    if not is_right:
        raise Rejected("unsafe_instructions")


def _pair(deployment: EvmDeployment, request: SwapRequest) -> tuple[str, str]:
    """Return the contracts of the input and the output token; either is USDC."""
    usdc, weth = deployment.usdc, deployment.weth
    return (usdc, weth) if request.input_amount.token == USDC else (weth, usdc)


_VALID_SECONDS = 600
"""Long enough to replace a stuck transaction several times, short enough for its price to be meaningful."""
_MAX_CLOCK_AHEAD_SECONDS = 900
_TYPICAL_GAS = 300_000
"""The gas limit of a swap with permit and unwrapping if it cannot be simulated: half more than measured."""
_ATTEMPTS = 2


class UniswapExchange:
    def __init__(self, chain: EvmChain) -> None:
        self._chain = chain
        self._deployment = chain.deployment

    def quote(self, request: SwapRequest) -> SwapOffer:
        """Return the best of the pools of all fee tiers at one block. Raises: Rejected("no_liquidity"), Unreachable."""
        quoter, pair = self._deployment.uniswap_quoter, _pair(self._deployment, request)
        # A call fails without a pool or enough liquidity.
        inner = [_QUOTE.at(quoter, (*pair, request.input_amount.units, tier, 0), may_fail=True) for tier in FEE_TIERS]
        answers = self._chain.rpc.ask(contracts.multicall(inner))
        quotes = zip(answers, FEE_TIERS, strict=True)
        offered = [(quoted[0], tier) for quoted, tier in quotes if quoted is not None]
        if not offered:
            raise Rejected("no_liquidity")
        output_units, tier = max(offered)
        return SwapOffer(request, output_units, f"Uniswap V3, {decimal_string(tier, 4)} %", tier)

    def draft(self, offer: SwapOffer, *, minimum_units: int, signer: Signer | None) -> TransactionDraft:
        """Build and simulate the call; without a signer, not one with a permit. Raises: Rejected, Unreachable."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._draft(offer, minimum_units, signer)
            except Rejected as refusal:
                revert = refusal.details.get("revert", "")
                if TOO_LITTLE in revert:
                    raise Rejected("price_moved") from None
                # Another swap of this wallet was mined between two reads, and used the permit's nonce.
                if attempt == _ATTEMPTS or not revert.startswith(PERMIT_REVERT):
                    raise
        raise AssertionError("the loop returns or raises")

    def sign(
        self, draft: TransactionDraft, signer: Signer, *, sequence: int | None, concurrent: ConcurrentOutflows
    ) -> SignedTransaction:
        """Sign a draft with a nonce; its permit's nonce follows those of the earlier swaps. No I/O."""
        terms, intent = draft.terms, draft.intent
        request = SwapRequest(
            intent.sender, intent.amount, TOKENS_BY_SYMBOL[str(terms["wanted"])], int(terms["slippage_bps"] or 0)
        )
        swap = UniswapSwap(
            request, int(terms["fee_tier"] or 0), int(str(terms["minimum"])), deadline=int(terms["valid_until"] or 0)
        )
        if "permit_nonce" in terms:
            swap = self._with_permit(swap, int(terms["permit_nonce"] or 0) + concurrent.earlier_swaps, signer)
        terms = {**terms, **encode_swap(self._deployment, swap).as_terms()}
        return self._chain.sign(replace(draft, terms=terms), signer, sequence=sequence)

    def _draft(self, offer: SwapOffer, minimum_units: int, signer: Signer | None) -> TransactionDraft:
        request, fee_tier = offer.request, offer.adapter_data
        if not isinstance(fee_tier, int):
            raise TypeError("this is not an offer of Uniswap's")
        inner = [contracts.BLOCK_TIMESTAMP.at(MULTICALL3)]
        needs_permit = request.input_amount.token == USDC
        if needs_permit:
            inner.append(PERMIT_NONCE.at(self._deployment.usdc, request.owner))
        block_time, *permit_nonces = self._chain.rpc.ask(contracts.multicall(inner))
        now = int(clock.now().timestamp())
        if block_time > now + _MAX_CLOCK_AHEAD_SECONDS:
            # A deadline that far in the future would be ineffective.
            raise Unreachable("chain_unreachable")
        deadline = max(now, block_time) + _VALID_SECONDS
        swap = UniswapSwap(request, fee_tier, minimum_units, deadline)
        if needs_permit and signer is not None:
            swap = self._with_permit(swap, permit_nonces[0], signer)
        is_whole = not needs_permit or signer is not None
        # Without a permit the call is not what would be signed, but has its length except for the permit.
        target = encode_swap(self._deployment, swap)
        intent = TransferIntent(request.owner, request.owner, request.input_amount)
        draft = self._chain.draft_call(intent, target, gas=_TYPICAL_GAS, simulates=is_whole)
        if is_whole:
            self._assert_exact_effects(draft, target, swap)
        terms = {
            **draft.terms, "fee_tier": swap.fee_tier, "wanted": request.output_token.symbol,
            "minimum": str(minimum_units), "slippage_bps": request.slippage_bps,
            **({"permit_nonce": permit_nonces[0]} if needs_permit else {}),
        }  # fmt: skip
        return replace(draft, terms=terms)

    def _assert_exact_effects(self, draft: TransactionDraft, target: CallTarget, swap: UniswapSwap) -> None:
        """Simulate a swap: exact input, enough output, nothing else. Raises: Rejected, Unreachable.

        Where a node cannot simulate, the gas estimate has shown that it does not revert.
        """
        owner = swap.request.owner
        effects = simulation.simulate(self._chain, owner, [target], spender=self._deployment.uniswap_router)
        if effects is None:
            return
        amount, minimum = swap.request.input_amount.units, swap.minimum_units
        if swap.request.input_amount.token == USDC:
            is_right = effects.usdc_units == -amount and effects.native_units + draft.fee_units >= minimum
        else:
            # The refund includes whatever others have left with the router.
            maximum = effects.spender_native_units_before - amount
            is_right = -amount - draft.fee_units <= effects.native_units <= maximum
            is_right = is_right and effects.usdc_units >= minimum
        if not is_right or effects.added_allowance_units > 0:
            raise simulation.unsafe(effects, amount_units=amount, minimum_units=minimum, max_fee_units=draft.fee_units)

    def _with_permit(self, swap: UniswapSwap, nonce: int, signer: Signer) -> UniswapSwap:
        """Sign a permit for the router to take the amount of this swap until its deadline."""
        signature = payments.sign_permit(
            self._deployment, signer, spender=self._deployment.uniswap_router,
            units=swap.request.input_amount.units, nonce=nonce, deadline=swap.deadline,
        )  # fmt: skip
        return replace(swap, permit=payments.vrs(signature))
