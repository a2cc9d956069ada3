"""JSON-RPC errors, and a validator's messages for transaction errors.

Codes: the `rpc-client-api` crate's `custom_error` and JSON-RPC 2.0. SDKs parse these messages: keep them.
"""

import json
from typing import Any, Final

JsonObject = dict[str, Any]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
PREFLIGHT_FAILURE: Final = -32002
SIGNATURE_VERIFICATION_FAILURE: Final = -32003
UNSUPPORTED_TRANSACTION_VERSION: Final = -32015
MIN_CONTEXT_SLOT_NOT_REACHED: Final = -32016
BLOCK_CLEANED_UP: Final = -32001
BLOCK_NOT_AVAILABLE: Final = -32004

_TRANSACTION_ERRORS: Final = {
    "BlockhashNotFound": "Blockhash not found",
    "AccountNotFound": "Attempt to debit an account but found no record of a prior credit.",
    "InsufficientFundsForFee": "Insufficient funds for fee",
    "AlreadyProcessed": "This transaction has already been processed",
    "SignatureFailure": "Transaction did not pass signature verification",
    "ProgramAccountNotFound": "Attempt to load a program that does not exist",
    "InvalidAccountForFee": "This account may not be used to pay transaction fees",
    "AddressLookupTableNotFound": "Transaction loads an address table account that doesn't exist",
}
_INSTRUCTION_ERRORS: Final = {
    "InvalidAccountData": "invalid account data for instruction",
    "InvalidInstructionData": "invalid instruction data",
    "InvalidArgument": "invalid program argument",
    "InsufficientFunds": "insufficient funds for instruction",
    "IncorrectProgramId": "incorrect program id for instruction",
    "MissingRequiredSignature": "missing required signature for instruction",
    "UninitializedAccount": "instruction requires an initialized account",
    "NotEnoughAccountKeys": "insufficient account keys for instruction",
    "AccountAlreadyInitialized": "instruction requires an uninitialized account",
    "ComputationalBudgetExceeded": "Computational budget exceeded",
    "UnsupportedProgramId": "Unsupported program id",
    "IllegalOwner": "Provided owner is not allowed",
    "InvalidAccountOwner": "Invalid account owner",
    "ProgramFailedToComplete": "Program failed to complete",
}

TransactionError = str | JsonObject
"""A validator's error as JSON: `"AlreadyProcessed"` or `{"InstructionError": [0, {"Custom": 1}]}`."""


class RpcError(Exception):
    """A JSON-RPC error response."""

    def __init__(self, code: int, message: str, *, data: JsonObject | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.body: JsonObject = {"code": code, "message": message}
        if data is not None:
            self.body["data"] = data


class InvalidParamsError(RpcError):
    """A parameter is invalid."""

    def __init__(self, message: str) -> None:
        super().__init__(INVALID_PARAMS, message)


def describe(error: TransactionError) -> str:
    """Return a validator's message for a transaction error."""
    if isinstance(error, str):
        return _TRANSACTION_ERRORS.get(error, error)
    if "InstructionError" in error:
        index, reason = error["InstructionError"]
        return f"Error processing Instruction {index}: {_describe_instruction(reason)}"
    if "InsufficientFundsForRent" in error:
        index = error["InsufficientFundsForRent"]["account_index"]
        return f"Transaction results in an account ({index}) with insufficient funds for rent"
    return json.dumps(error)


def _describe_instruction(reason: TransactionError) -> str:
    if isinstance(reason, str):
        return _INSTRUCTION_ERRORS.get(reason, reason)
    if "Custom" in reason:
        return f"custom program error: {reason['Custom']:#x}"
    return json.dumps(reason)
