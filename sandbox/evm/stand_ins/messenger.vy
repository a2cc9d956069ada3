# pragma version ~=0.4.0
# A stand-in for CCTP V2's TokenMessengerV2: it burns and mints the real USDC, in the wire format of the original.

interface FiatToken:
    def transferFrom(owner: address, to: address, units: uint256) -> bool: nonpayable
    def burn(units: uint256): nonpayable
    def mint(to: address, units: uint256) -> bool: nonpayable

interface Transmitter:
    def sendMessage(
        destinationDomain: uint32, recipient: bytes32, destinationCaller: bytes32,
        minFinalityThreshold: uint32, messageBody: Bytes[1024],
    ): nonpayable

event DepositForBurn:
    burnToken: indexed(address)
    amount: uint256
    depositor: indexed(address)
    mintRecipient: bytes32
    destinationDomain: uint32
    destinationTokenMessenger: bytes32
    destinationCaller: bytes32
    maxFee: uint256
    minFinalityThreshold: indexed(uint32)
    hookData: Bytes[512]

event MintAndWithdraw:
    mintRecipient: indexed(address)
    amount: uint256
    mintToken: indexed(address)
    feeCollected: uint256

token: public(immutable(address))
localMessageTransmitter: public(immutable(address))
feeRecipient: public(immutable(address))
remoteTokenMessengers: public(HashMap[uint32, bytes32])

@deploy
def __init__(
    token_: address, transmitter: address, fee_recipient: address,
    domains: DynArray[uint32, 8], remotes: DynArray[bytes32, 8],
):
    token = token_
    localMessageTransmitter = transmitter
    feeRecipient = fee_recipient
    for place: uint256 in range(len(domains), bound=8):
        self.remoteTokenMessengers[domains[place]] = remotes[place]

@internal
def _burn(
    amount: uint256, domain: uint32, recipient: bytes32, burn_token: address, caller: bytes32,
    max_fee: uint256, finality: uint32, hook: Bytes[512],
):
    assert amount > 0, "Amount must be nonzero"
    assert recipient != empty(bytes32), "Mint recipient must be nonzero"
    assert max_fee < amount, "Max fee must be less than amount"
    assert burn_token == token, "Burn token not supported"
    remote: bytes32 = self.remoteTokenMessengers[domain]
    assert remote != empty(bytes32), "No TokenMessenger for domain"
    assert extcall FiatToken(token).transferFrom(msg.sender, self, amount)
    extcall FiatToken(token).burn(amount)
    body: Bytes[740] = concat(
        convert(convert(1, uint32), bytes4), convert(convert(burn_token, uint256), bytes32), recipient,
        convert(amount, bytes32), convert(convert(msg.sender, uint256), bytes32), convert(max_fee, bytes32),
        empty(bytes32), empty(bytes32), hook,
    )
    extcall Transmitter(localMessageTransmitter).sendMessage(domain, remote, caller, finality, body)
    log DepositForBurn(
        burnToken=burn_token, amount=amount, depositor=msg.sender, mintRecipient=recipient,
        destinationDomain=domain, destinationTokenMessenger=remote, destinationCaller=caller,
        maxFee=max_fee, minFinalityThreshold=finality, hookData=hook,
    )

@external
def depositForBurn(
    amount: uint256, destinationDomain: uint32, mintRecipient: bytes32, burnToken: address,
    destinationCaller: bytes32, maxFee: uint256, minFinalityThreshold: uint32,
):
    self._burn(
        amount, destinationDomain, mintRecipient, burnToken, destinationCaller, maxFee, minFinalityThreshold, b""
    )

@external
def depositForBurnWithHook(
    amount: uint256, destinationDomain: uint32, mintRecipient: bytes32, burnToken: address,
    destinationCaller: bytes32, maxFee: uint256, minFinalityThreshold: uint32, hookData: Bytes[512],
):
    assert len(hookData) > 0, "Hook data is empty"
    self._burn(
        amount, destinationDomain, mintRecipient, burnToken, destinationCaller, maxFee, minFinalityThreshold,
        hookData,
    )

@internal
def _handle(source: uint32, sender: bytes32, body: Bytes[1172], fee: uint256) -> bool:
    assert msg.sender == localMessageTransmitter, "Invalid message transmitter"
    assert sender == self.remoteTokenMessengers[source], "Remote TokenMessenger unsupported"
    to: address = convert(convert(extract32(body, 36), uint256), address)
    amount: uint256 = convert(extract32(body, 68), uint256)
    assert extcall FiatToken(token).mint(to, amount - fee)
    if fee > 0:
        assert extcall FiatToken(token).mint(feeRecipient, fee)
    log MintAndWithdraw(mintRecipient=to, amount=amount - fee, mintToken=token, feeCollected=fee)
    return True

@external
def handleReceiveFinalizedMessage(
    remoteDomain: uint32, sender: bytes32, finalityThresholdExecuted: uint32, messageBody: Bytes[1172]
) -> bool:
    return self._handle(remoteDomain, sender, messageBody, convert(extract32(messageBody, 164), uint256))

@external
def handleReceiveUnfinalizedMessage(
    remoteDomain: uint32, sender: bytes32, finalityThresholdExecuted: uint32, messageBody: Bytes[1172]
) -> bool:
    expiry: uint256 = convert(extract32(messageBody, 196), uint256)
    assert expiry == 0 or expiry > block.number, "Message expired and must be re-signed"
    fee: uint256 = convert(extract32(messageBody, 164), uint256)
    assert fee <= convert(extract32(messageBody, 132), uint256), "Fee exceeds max fee"
    return self._handle(remoteDomain, sender, messageBody, fee)
