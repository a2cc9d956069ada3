"""An account as JSON: base58, base64, or parsed for token accounts, mints and durable nonces."""

import base64
from typing import Final

from solders.account import Account

from solana_node import base58, tokens
from solana_node.addresses import SYSTEM, TOKEN_2022
from solana_node.chain import NONCE_ACCOUNT_BYTES, Chain
from solana_node.errors import INVALID_REQUEST, InvalidParamsError, JsonObject, RpcError

RENT_EPOCH: Final = 2**64 - 1
"""Every account is rent-exempt; some parsers overflow on this number, so it must be the real one."""
MAX_BASE58_BYTES: Final = 128


def account_json(chain: Chain, account: Account, config: JsonObject | None) -> JsonObject:
    """Return an account in the encoding of the config.

    Raises:
        RpcError: the data is too long for base58, or the encoding is unknown.
    """
    return {
        "data": _data_json(chain, account, config or {}),
        "executable": account.executable,
        "lamports": account.lamports,
        "owner": str(account.owner),
        "rentEpoch": RENT_EPOCH,
        "space": len(account.data),
    }


def _data_json(chain: Chain, account: Account, config: JsonObject) -> JsonObject | list[str] | str:
    encoding = config.get("encoding")
    if encoding == "jsonParsed":
        parsed = _parse(chain, account)
        if parsed:
            return parsed
        encoding = "base64"
    data = bytes(account.data)
    cut = config.get("dataSlice")
    if cut:
        data = data[cut["offset"] : cut["offset"] + cut["length"]]
    if encoding == "base64":
        return [base64.b64encode(data).decode(), "base64"]
    if encoding not in (None, "base58"):
        raise InvalidParamsError(f"unsupported encoding {encoding}")
    if len(data) > MAX_BASE58_BYTES:
        raise RpcError(
            INVALID_REQUEST,
            f"Encoded binary (base 58) data should be less than {MAX_BASE58_BYTES} bytes, please use Base64 encoding.",
        )
    return [base58.encode(data), "base58"] if encoding else base58.encode(data)


def _parse(chain: Chain, account: Account) -> JsonObject | None:
    program = "spl-token-2022" if str(account.owner) == TOKEN_2022 else "spl-token"
    token_account = tokens.read_token_account(account)
    if token_account and tokens.read_mint(chain.account(token_account.mint)) is None:
        return None  # its decimals are unknown
    if token_account:
        kind, fields = "account", _token_account_fields(chain, token_account)
    elif mint := tokens.read_mint(account):
        kind = "mint"
        fields = {
            "decimals": mint.decimals,
            "freezeAuthority": mint.freeze_authority,
            "isInitialized": True,
            "mintAuthority": mint.mint_authority,
            "supply": str(mint.supply),
        }
    elif str(account.owner) == SYSTEM and len(account.data) == NONCE_ACCOUNT_BYTES:
        program, kind = "nonce", "initialized"
        data = bytes(account.data)
        fields = {
            "authority": base58.encode(data[8:40]),
            "blockhash": base58.encode(data[40:72]),
            "feeCalculator": {"lamportsPerSignature": str(int.from_bytes(data[72:], "little"))},
        }
    else:
        return None
    return {"program": program, "parsed": {"info": fields, "type": kind}, "space": len(account.data)}


def _token_account_fields(chain: Chain, token_account: tokens.TokenAccount) -> JsonObject:
    mint = tokens.read_mint(chain.account(token_account.mint))
    decimals = mint.decimals if mint else 0
    reserve = token_account.native_reserve_lamports
    fields: JsonObject = {
        "isNative": reserve is not None,
        "mint": token_account.mint,
        "owner": token_account.owner,
        "state": token_account.state,
        "tokenAmount": tokens.amount_json(token_account.amount, decimals=decimals),
    }
    if token_account.delegate:
        fields["delegate"] = token_account.delegate
        fields["delegatedAmount"] = tokens.amount_json(token_account.delegated_amount, decimals=decimals)
    if reserve is not None:
        fields["rentExemptReserve"] = tokens.amount_json(reserve, decimals=decimals)
    return fields
