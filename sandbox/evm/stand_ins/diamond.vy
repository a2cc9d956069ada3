# pragma version ~=0.4.0
# A stand-in for LI.FI's contract, of which it has the one function that leads to Relay's depository.

interface Depository:
    def depositNative(depositor: address, id: bytes32): payable

struct BridgeData:
    transactionId: bytes32
    bridge: String[64]
    integrator: String[64]
    referrer: address
    sendingAssetId: address
    receiver: address
    minAmount: uint256
    destinationChainId: uint256
    hasSourceSwaps: bool
    hasDestinationCall: bool

struct RelayDepositoryData:
    orderId: bytes32
    depositorAddress: address

depository: public(immutable(address))

@deploy
def __init__(depository_: address):
    depository = depository_

@external
@payable
def startBridgeTokensViaRelayDepository(bridge_data: BridgeData, depository_data: RelayDepositoryData):
    assert bridge_data.sendingAssetId == empty(address), "native coins only"
    assert msg.value == bridge_data.minAmount, "another amount"
    extcall Depository(depository).depositNative(
        depository_data.depositorAddress, depository_data.orderId, value=msg.value
    )
