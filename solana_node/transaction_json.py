"""Landed transactions in the format of `getTransaction`: json, jsonParsed, base64 or base58."""

import base64
from typing import Any, Final

from solders.message import Message, MessageV0
from solders.transaction import VersionedTransaction

from solana_node import base58
from solana_node.errors import JsonObject
from solana_node.history import TransactionRecord
from solana_node.parsed_instructions import parse_instruction
from solana_node.runtime import AnyMessage

ENCODINGS: Final = ("json", "jsonParsed", "base64", "base58")


def transaction_json(record: TransactionRecord, encoding: str) -> JsonObject:
    """Return a landed transaction with its metadata in one of `ENCODINGS`."""
    transaction = VersionedTransaction.from_bytes(base64.b64decode(record.raw))
    return {
        "blockTime": record.block_time,
        "meta": _meta_json(record, parsed=encoding == "jsonParsed"),
        "slot": record.slot,
        "transaction": _body_json(record, transaction, encoding),
        "version": "legacy" if isinstance(transaction.message, Message) else 0,
    }


def inner_instructions_json(groups: list[JsonObject], keys: list[str], *, parsed: bool) -> list[JsonObject]:
    """Return the inner instructions, grouped by the instruction that caused them."""
    return [
        {
            "index": group["index"],
            "instructions": [
                _instruction_json(
                    keys,
                    inner["programIdIndex"],
                    inner["accounts"],
                    base58.decode(inner["data"]),
                    parsed=parsed,
                    stack_height=inner["stackHeight"],
                )
                for inner in group["instructions"]
            ],
        }
        for group in groups
    ]


def _instruction_json(
    keys: list[str], program_index: int, accounts: list[int], data: bytes, *, parsed: bool, stack_height: int | None
) -> JsonObject:
    if not parsed:
        return {
            "programIdIndex": program_index,
            "accounts": accounts,
            "data": base58.encode(data),
            "stackHeight": stack_height,
        }
    program = keys[program_index]
    names = [keys[index] for index in accounts]
    body = parse_instruction(program, names, data) or {"accounts": names, "data": base58.encode(data)}
    return {"programId": program, "stackHeight": stack_height, **body}


def _meta_json(record: TransactionRecord, *, parsed: bool) -> JsonObject:
    meta: JsonObject = {
        "err": record.error,
        "status": record.status_json,
        "fee": record.fee_lamports,
        "preBalances": record.pre_lamports,
        "postBalances": record.post_lamports,
        "innerInstructions": inner_instructions_json(record.inner_instructions, record.keys, parsed=parsed),
        "logMessages": record.logs,
        "preTokenBalances": record.pre_token_balances,
        "postTokenBalances": record.post_token_balances,
        "rewards": [],
        "computeUnitsConsumed": record.compute_units,
    }
    if not parsed:
        meta["loadedAddresses"] = {"writable": record.loaded_writable, "readonly": record.loaded_readonly}
    if record.return_data:
        meta["returnData"] = record.return_data
    return meta


def _body_json(record: TransactionRecord, transaction: VersionedTransaction, encoding: str) -> Any:
    if encoding == "base64":
        return [record.raw, "base64"]
    if encoding == "base58":
        return [base58.encode(base64.b64decode(record.raw)), "base58"]
    message = _message_json(record, transaction.message, parsed=encoding == "jsonParsed")
    return {"message": message, "signatures": [str(signature) for signature in transaction.signatures]}


def _message_json(record: TransactionRecord, message: AnyMessage, *, parsed: bool) -> JsonObject:
    header = message.header
    body: JsonObject = {
        "instructions": [
            _instruction_json(
                record.keys,
                instruction.program_id_index,
                list(bytes(instruction.accounts)),
                bytes(instruction.data),
                parsed=parsed,
                stack_height=1 if parsed else None,
            )
            for instruction in message.instructions
        ],
        "recentBlockhash": str(message.recent_blockhash),
    }
    if parsed:
        body["accountKeys"] = _parsed_keys(record, message)
    else:
        body["accountKeys"] = record.keys[: len(message.account_keys)]
        body["header"] = {
            "numRequiredSignatures": header.num_required_signatures,
            "numReadonlySignedAccounts": header.num_readonly_signed_accounts,
            "numReadonlyUnsignedAccounts": header.num_readonly_unsigned_accounts,
        }
    if isinstance(message, MessageV0):
        body["addressTableLookups"] = [
            {
                "accountKey": str(lookup.account_key),
                "writableIndexes": list(lookup.writable_indexes),
                "readonlyIndexes": list(lookup.readonly_indexes),
            }
            for lookup in message.address_table_lookups
        ]
    return body


def _parsed_keys(record: TransactionRecord, message: AnyMessage) -> list[JsonObject]:
    """Return the accounts with their permissions; those from lookup tables come last and never sign."""
    header = message.header
    signers = header.num_required_signatures
    writable_signers = signers - header.num_readonly_signed_accounts
    static = len(message.account_keys)
    writable_end = static - header.num_readonly_unsigned_accounts
    loaded_writable_end = static + len(record.loaded_writable)
    keys = []
    for index, key in enumerate(record.keys):
        if index < static:
            writable = index < writable_signers or signers <= index < writable_end
        else:
            writable = index < loaded_writable_end
        keys.append(
            {
                "pubkey": key,
                "signer": index < signers,
                "source": "transaction" if index < static else "lookupTable",
                "writable": writable,
            }
        )
    return keys
