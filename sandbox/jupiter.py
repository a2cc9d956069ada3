"""A stand-in for Jupiter's Swap API v2: `GET /swap/v2/build` in its formats, over the exchange of the local cluster.

Its instructions are executable on the cluster. It can be set to fail, to be slow, or to return wrong data.
"""

import base64
import json
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer

from sandbox.evm.rpc import NodeClient, NodeDown, NodeError
from solana_node.addresses import COMPUTE_BUDGET, TOKEN, USDC_MINT, WRAPPED_SOL_MINT, associated_token_address
from solana_node.exchange import JUPITER, POOL, ROUTE_V2, quote
from solana_node.loopback_server import LoopbackHandler, LoopbackServer
from solana_node.tokens import create_token_account

_EVENT_AUTHORITY = Pubkey.from_string("D8cy77BBepLMngZx6ZukaTff5hCt1HrWyKk3Hnd9oitf")
_PATH = "/swap/v2/build"
_CONFIRMED = {"commitment": "confirmed", "encoding": "base64"}
_AMOUNT = slice(64, 72)
_WHOLE_BPS = 10_000
_U64 = 2**64


class _InvalidRequest(ValueError):
    """The request is invalid; the message is returned to the client."""


@dataclass(slots=True)
class JupiterFaults:
    """Faults of the stand-in; `change` may alter any part of a response."""

    status: int | None = None
    seconds: float = 0
    body: bytes | None = None
    change: Callable[[dict[str, Any]], dict[str, Any]] | None = None


class JupiterServer(LoopbackServer):
    """The stand-in on a loopback port (0: a free one), for the cluster behind a JSON-RPC address."""

    def __init__(self, rpc_url: str, *, port: int = 0) -> None:
        super().__init__(_Handler, port=port)
        self.rpc_url = rpc_url
        self.faults = JupiterFaults()
        self.requests = 0


class _Handler(LoopbackHandler):
    timeout = 30
    server: JupiterServer

    def do_GET(self) -> None:
        """Answer GET /swap/v2/build, subject to the faults."""
        self.server.requests += 1
        faults = self.server.faults
        time.sleep(faults.seconds)
        if faults.status is not None or faults.body is not None:
            self.reply(faults.status or HTTPStatus.OK, faults.body or b"[API Gateway] Too many requests")
            return
        address = urlsplit(self.path)
        if address.path != _PATH:
            self._answer(HTTPStatus.NOT_FOUND, {"error": f"there is GET {_PATH}"})
            return
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        client = NodeClient(self.server.rpc_url)
        try:
            result = _build(client, query)
        except _InvalidRequest as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except (NodeDown, NodeError) as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"error": f"the cluster does not answer ({error})"})
        else:
            self._answer(HTTPStatus.OK, faults.change(result) if faults.change else result)
        finally:
            client.close()

    def _answer(self, status: HTTPStatus, document: Mapping[str, Any]) -> None:
        self.reply(status, json.dumps(document).encode())


def _build(client: NodeClient, query: Mapping[str, str]) -> dict[str, Any]:
    input_mint, output_mint, taker = (_key(query, name) for name in ("inputMint", "outputMint", "taker"))
    if {str(input_mint), str(output_mint)} != {WRAPPED_SOL_MINT, USDC_MINT}:
        raise _InvalidRequest("No routes found")
    units, slippage_bps = _count(query, "amount"), _count(query, "slippageBps", default=50)
    reserve_in, reserve_out = _reserves(client, input_mint, output_mint)
    out = quote(units, reserve_in=reserve_in, reserve_out=reserve_out)
    latest = client.call("getLatestBlockhash", _CONFIRMED)["value"]
    swap = _route(taker, input_mint, output_mint, units=units, out=out, slippage_bps=slippage_bps)
    setup, cleanup = _auxiliary_instructions(taker, input_mint, output_mint, units=units)
    step = {
        "ammKey": str(POOL), "label": "Sandbox", "inputMint": str(input_mint), "outputMint": str(output_mint),
        "inAmount": str(units), "outAmount": str(out),
    }  # fmt: skip
    price = Instruction(Pubkey.from_string(COMPUTE_BUDGET), b"\3" + struct.pack("<Q", 1000), [])
    return {
        "inputMint": str(input_mint),
        "outputMint": str(output_mint),
        "inAmount": str(units),
        "outAmount": str(out),
        "otherAmountThreshold": str(out * (_WHOLE_BPS - slippage_bps) // _WHOLE_BPS),
        "swapMode": "ExactIn",
        "slippageBps": slippage_bps,
        "priceImpactPct": "0",
        "routePlan": [{"percent": 100, "bps": _WHOLE_BPS, "swapInfo": step}],
        "computeBudgetInstructions": [_json(price)],
        "setupInstructions": [_json(each) for each in setup],
        "swapInstruction": _json(swap),
        "cleanupInstruction": _json(cleanup),
        "otherInstructions": [],
        "tipInstruction": None,
        "addressesByLookupTableAddress": None,
        "blockhashWithMetadata": {
            "blockhash": list(bytes(Pubkey.from_string(latest["blockhash"]))),
            "lastValidBlockHeight": latest["lastValidBlockHeight"],
            "fetchedAt": {"secs_since_epoch": int(time.time()), "nanos_since_epoch": 0},
        },
    }


def _reserves(client: NodeClient, input_mint: Pubkey, output_mint: Pubkey) -> tuple[int, int]:
    vaults = [str(associated_token_address(POOL, mint)) for mint in (input_mint, output_mint)]
    found = client.call("getMultipleAccounts", vaults, _CONFIRMED)["value"]
    reserve_in, reserve_out = (int.from_bytes(base64.b64decode(vault["data"][0])[_AMOUNT], "little") for vault in found)
    return reserve_in, reserve_out


def _route(
    taker: Pubkey, input_mint: Pubkey, output_mint: Pubkey, *, units: int, out: int, slippage_bps: int
) -> Instruction:
    """Encode Jupiter's `route_v2`; its plan of one step is one byte that the exchange does not read."""
    data = ROUTE_V2 + struct.pack("<QQHHHIB", units, out, slippage_bps, 0, 0, 1, 0)
    source, target = associated_token_address(taker, input_mint), associated_token_address(taker, output_mint)
    token = Pubkey.from_string(TOKEN)
    return Instruction(
        JUPITER,
        data,
        [
            AccountMeta(taker, is_signer=True, is_writable=False),
            *(AccountMeta(each, is_signer=False, is_writable=True) for each in (source, target)),
            *(
                AccountMeta(each, is_signer=False, is_writable=False)
                for each in (input_mint, output_mint, token, token, JUPITER, _EVENT_AUTHORITY, JUPITER)
            ),
            *(
                AccountMeta(associated_token_address(POOL, mint), is_signer=False, is_writable=True)
                for mint in (input_mint, output_mint)
            ),
            AccountMeta(POOL, is_signer=False, is_writable=False),
        ],
    )


def _auxiliary_instructions(
    taker: Pubkey, input_mint: Pubkey, output_mint: Pubkey, *, units: int
) -> tuple[list[Instruction], Instruction]:
    token, wrapped_mint = Pubkey.from_string(TOKEN), Pubkey.from_string(WRAPPED_SOL_MINT)
    wrapped = associated_token_address(taker, wrapped_mint)
    writable = AccountMeta(wrapped, is_signer=False, is_writable=True)
    setup = [create_token_account(taker, taker, input_mint)]
    if input_mint == wrapped_mint:
        setup += [
            transfer(TransferParams(from_pubkey=taker, to_pubkey=wrapped, lamports=units)),
            Instruction(token, b"\x11", [writable]),
        ]
    setup.append(create_token_account(taker, taker, output_mint))
    closing = [
        writable,
        AccountMeta(taker, is_signer=False, is_writable=True),
        AccountMeta(taker, is_signer=True, is_writable=False),
    ]
    return setup, Instruction(token, b"\x09", closing)


def _json(instruction: Instruction) -> dict[str, Any]:
    return {
        "programId": str(instruction.program_id),
        "accounts": [
            {"pubkey": str(meta.pubkey), "isSigner": meta.is_signer, "isWritable": meta.is_writable}
            for meta in instruction.accounts
        ],
        "data": base64.b64encode(bytes(instruction.data)).decode(),
    }


def _key(query: Mapping[str, str], name: str) -> Pubkey:
    try:
        return Pubkey.from_string(query[name])
    except (KeyError, ValueError):
        raise _InvalidRequest(f"{name} is required, a public key") from None


def _count(query: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    text = query.get(name, "" if default is None else str(default))
    if not (text.isascii() and text.isdigit()) or int(text) >= _U64:
        raise _InvalidRequest(f"{name} is required, a whole number")
    return int(text)
