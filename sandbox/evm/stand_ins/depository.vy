# pragma version ~=0.4.0
# A stand-in for Relay's depository: it takes native coins under an order's id, and its owner pays out.

event RelayNativeDeposit:
    depositor: address
    amount: uint256
    id: bytes32

@external
@payable
def depositNative(depositor: address, id: bytes32):
    who: address = depositor
    if who == empty(address):
        who = msg.sender
    log RelayNativeDeposit(depositor=who, amount=msg.value, id=id)
