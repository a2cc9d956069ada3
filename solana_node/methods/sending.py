"""Methods that simulate or send a transaction."""

from collections.abc import Callable
from typing import Final

from solana_node import faucet
from solana_node.account_json import account_json
from solana_node.chain import Chain
from solana_node.clock import Commitment
from solana_node.errors import (
    PREFLIGHT_FAILURE,
    SIGNATURE_VERIFICATION_FAILURE,
    InvalidParamsError,
    JsonObject,
    RpcError,
    describe,
)
from solana_node.methods.cluster import blockhash_json
from solana_node.parameters import (
    Config,
    read_address,
    read_commitment,
    read_transaction,
    require_context_slot,
    with_context,
)
from solana_node.runtime import Outcome
from solana_node.transaction_json import inner_instructions_json


def send_transaction(chain: Chain, blob: str, config: Config = None) -> str:
    """Accept a signed transaction and return its signature.

    The preflight simulates at `preflightCommitment`, by default `finalized`, where a newer blockhash is
    unknown.
    """
    options = config or {}
    transaction = read_transaction(blob, options)
    if not options.get("skipPreflight"):
        commitment = read_commitment(options, name="preflightCommitment")
        require_context_slot(options, chain.slot_at(commitment))
        if not all(transaction.verify_with_results()):
            raise RpcError(SIGNATURE_VERIFICATION_FAILURE, "Transaction signature verification failure")
        outcome = chain.simulate(transaction, commitment)
        if outcome.error is not None:
            raise RpcError(
                PREFLIGHT_FAILURE,
                f"Transaction simulation failed: {describe(outcome.error)}",
                data=_outcome_json(outcome),
            )
    return chain.submit(transaction)


def simulate_transaction(chain: Chain, blob: str, config: Config = None) -> JsonObject:
    """Simulate a transaction and return the outcome."""
    options = config or {}
    transaction = read_transaction(blob, options)
    replaces_blockhash = bool(options.get("replaceRecentBlockhash"))
    if options.get("sigVerify"):
        if replaces_blockhash:
            raise InvalidParamsError("sigVerify may not be used with replaceRecentBlockhash")
        if not all(transaction.verify_with_results()):
            raise RpcError(SIGNATURE_VERIFICATION_FAILURE, "Transaction signature verification failure")
    commitment = read_commitment(options)
    outcome = chain.simulate(transaction, commitment, check_age=not replaces_blockhash)
    body = _outcome_json(outcome)
    if options.get("accounts"):
        body["accounts"] = _accounts_after(chain, outcome, commitment, options["accounts"])
    if replaces_blockhash:
        body["replacementBlockhash"] = blockhash_json(chain, chain.slot_at(commitment))
    if options.get("innerInstructions"):
        # Without inner instructions no account is named, and the message's tables may not exist.
        keys = chain.runtime.keys_of(transaction.message).all if outcome.inner_instructions else []
        body["innerInstructions"] = inner_instructions_json(outcome.inner_instructions, keys, parsed=True)
    return with_context(chain, config, body)


def request_airdrop(chain: Chain, address: str, lamports: int, _config: Config = None) -> str:
    """Pay SOL from the faucet and return the signature."""
    return faucet.airdrop(chain, read_address(address), lamports)


def _outcome_json(outcome: Outcome) -> JsonObject:
    body: JsonObject = {
        "accounts": None,
        "err": outcome.error,
        "innerInstructions": None,
        "loadedAccountsDataSize": 0,
        "logs": outcome.logs,
        "replacementBlockhash": None,
        "returnData": outcome.return_data,
        "unitsConsumed": outcome.compute_units,
    }
    if outcome.fee_lamports is not None:
        body["fee"] = outcome.fee_lamports
    return body


def _accounts_after(
    chain: Chain, outcome: Outcome, commitment: Commitment, wanted: JsonObject
) -> list[JsonObject | None]:
    encoding = {"encoding": wanted.get("encoding") or "base64"}
    accounts = [
        outcome.post_accounts.get(address) or chain.account(address, commitment) for address in wanted["addresses"]
    ]
    return [account_json(chain, account, encoding) if account else None for account in accounts]


METHODS: Final[dict[str, Callable[..., object]]] = {
    "sendTransaction": send_transaction,
    "simulateTransaction": simulate_transaction,
    "requestAirdrop": request_airdrop,
}
