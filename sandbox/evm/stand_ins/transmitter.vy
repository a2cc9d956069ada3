# pragma version ~=0.4.0
# A stand-in for CCTP V2's MessageTransmitterV2 with a single attester, in the wire format of the original.

interface Handler:
    def handleReceiveFinalizedMessage(
        remoteDomain: uint32, sender: bytes32, finalityThresholdExecuted: uint32, messageBody: Bytes[1172]
    ) -> bool: nonpayable
    def handleReceiveUnfinalizedMessage(
        remoteDomain: uint32, sender: bytes32, finalityThresholdExecuted: uint32, messageBody: Bytes[1172]
    ) -> bool: nonpayable

event MessageSent:
    message: Bytes[1172]

event MessageReceived:
    caller: indexed(address)
    sourceDomain: uint32
    nonce: indexed(bytes32)
    sender: bytes32
    finalityThresholdExecuted: indexed(uint32)
    messageBody: Bytes[1172]

localDomain: public(immutable(uint32))
version: public(constant(uint32)) = 1
attester: public(address)
usedNonces: public(HashMap[bytes32, uint256])

@deploy
def __init__(domain: uint32, attester_: address):
    localDomain = domain
    self.attester = attester_

@external
def sendMessage(
    destinationDomain: uint32, recipient: bytes32, destinationCaller: bytes32, minFinalityThreshold: uint32,
    messageBody: Bytes[1024],
):
    assert destinationDomain != localDomain, "Domain is local domain"
    log MessageSent(message=concat(
        convert(version, bytes4), convert(localDomain, bytes4), convert(destinationDomain, bytes4),
        empty(bytes32), convert(convert(msg.sender, uint256), bytes32), recipient, destinationCaller,
        convert(minFinalityThreshold, bytes4), convert(convert(0, uint32), bytes4), messageBody,
    ))

@external
def receiveMessage(message: Bytes[1172], attestation: Bytes[65]) -> bool:
    assert len(attestation) == 65, "Invalid attestation length"
    v: uint256 = convert(slice(attestation, 64, 1), uint256)
    r: uint256 = extract32(attestation, 0, output_type=uint256)
    s: uint256 = extract32(attestation, 32, output_type=uint256)
    who: address = ecrecover(keccak256(message), v, r, s)
    assert who == self.attester and who != empty(address), "Invalid signature: not attester"
    assert len(message) >= 148, "Invalid message: too short"
    assert convert(slice(message, 8, 4), uint32) == localDomain, "Invalid destination domain"
    caller: bytes32 = extract32(message, 108)
    is_caller: bool = caller == empty(bytes32) or caller == convert(convert(msg.sender, uint256), bytes32)
    assert is_caller, "Invalid caller for message"
    assert convert(slice(message, 0, 4), uint32) == version, "Invalid message version"
    nonce: bytes32 = extract32(message, 12)
    assert self.usedNonces[nonce] == 0, "Nonce already used"
    self.usedNonces[nonce] = 1
    source: uint32 = convert(slice(message, 4, 4), uint32)
    sender: bytes32 = extract32(message, 44)
    to: address = convert(convert(extract32(message, 76), uint256), address)
    finality: uint32 = convert(slice(message, 144, 4), uint32)
    body: Bytes[1172] = slice(message, 148, len(message) - 148)
    if finality >= 2000:
        assert extcall Handler(to).handleReceiveFinalizedMessage(source, sender, finality, body)
    else:
        assert extcall Handler(to).handleReceiveUnfinalizedMessage(source, sender, finality, body)
    log MessageReceived(
        caller=msg.sender, sourceDomain=source, nonce=nonce, sender=sender,
        finalityThresholdExecuted=finality, messageBody=body,
    )
    return True
