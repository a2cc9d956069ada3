# pragma version ~=0.4.0
# A stand-in for x402's x402UptoPermit2Proxy: pays by Permit2 at most what the payer signed, to the recipient that it
# signed, and only when called by the facilitator that it signed.

struct TokenPermissions:
    token: address
    amount: uint256

struct PermitTransferFrom:
    permitted: TokenPermissions
    nonce: uint256
    deadline: uint256

struct TransferDetails:
    to: address
    requestedAmount: uint256

struct Witness:
    to: address
    facilitator: address
    validAfter: uint256

struct TokenPermit:
    value: uint256
    deadline: uint256
    r: bytes32
    s: bytes32
    v: uint8

interface Permit2:
    def permitWitnessTransferFrom(
        permit: PermitTransferFrom,
        details: TransferDetails,
        owner: address,
        witness: bytes32,
        witness_type: String[160],
        signature: Bytes[65],
    ): nonpayable

event Settled:
    pass

event SettledWithPermit:
    pass

WITNESS_TYPE: constant(String[160]) = (
    "Witness witness)TokenPermissions(address token,uint256 amount)"
    "Witness(address to,address facilitator,uint256 validAfter)"
)
WITNESS_HASH: constant(bytes32) = keccak256("Witness(address to,address facilitator,uint256 validAfter)")

permit2: public(immutable(address))

@deploy
def __init__(permit2_: address):
    permit2 = permit2_

@external
def settle(permit: PermitTransferFrom, amount: uint256, owner: address, witness: Witness, signature: Bytes[65]):
    self._settle(permit, amount, owner, witness, signature)
    log Settled()

@external
def settleWithPermit(
    permit2612: TokenPermit,
    permit: PermitTransferFrom,
    amount: uint256,
    owner: address,
    witness: Witness,
    signature: Bytes[65],
):
    assert permit2612.value == permit.permitted.amount, "another amount"
    # A permit that another transaction used before does not matter if the allowance is there.
    _is_permitted: bool = raw_call(
        permit.permitted.token,
        abi_encode(
            owner, permit2, permit2612.value, permit2612.deadline, permit2612.v, permit2612.r, permit2612.s,
            method_id=method_id("permit(address,address,uint256,uint256,uint8,bytes32,bytes32)"),
        ),
        revert_on_failure=False,
    )
    self._settle(permit, amount, owner, witness, signature)
    log SettledWithPermit()

@internal
def _settle(permit: PermitTransferFrom, amount: uint256, owner: address, witness: Witness, signature: Bytes[65]):
    assert owner != empty(address), "no owner"
    assert witness.to != empty(address), "no recipient"
    assert msg.sender == witness.facilitator, "another facilitator"
    assert amount > 0 and amount <= permit.permitted.amount, "another amount"
    assert block.timestamp >= witness.validAfter, "too early"
    extcall Permit2(permit2).permitWitnessTransferFrom(
        permit,
        TransferDetails(to=witness.to, requestedAmount=amount),
        owner,
        keccak256(abi_encode(WITNESS_HASH, witness.to, witness.facilitator, witness.validAfter)),
        WITNESS_TYPE,
        signature,
    )
