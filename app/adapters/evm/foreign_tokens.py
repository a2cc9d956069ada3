"""Tokens that this service does not know: found by their logs, and read one by one.

Anybody can deploy such a contract and send its tokens to any address. Each call of one is separate, with bounded gas,
and nothing that it returns is an error. Of that, only a beginning is kept: gas allows hundreds of kilobytes.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated

from eth_utils.address import to_checksum_address
from pydantic import Field

from app.adapters.evm import calls
from app.adapters.evm.contracts.calls import BALANCE_OF, TRANSFER, TRANSFER_EVENT, EvmConnection
from app.adapters.jsonrpc.calls import EndpointError, RpcCall, accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.core.chains import MAX_DECIMALS, ZERO_EVM_ADDRESS, token_named
from app.core.foreign import ForeignModel, Items, claimed_text, parsed, reader
from app.core.money import TokenAmount
from app.ports.chain import ForeignToken, Shortage, Terms, TransferIntent
from app.ports.errors import Rejected

CONTRACT_TERM, CONTRACTS_TERM = "token", "contracts"
"""Of a transfer, the contract that must have moved something; of an address, those that are read."""
MAX_CONTRACTS = 100
_GAS, _TRANSFER_GAS, _WORD, _TOPICS, _KEPT = 150_000, 2_000_000, 32, 3, 2_048
_DECIMALS, _SYMBOL, _NAME = (bytes.fromhex(each) for each in ("313ce567", "95d89b41", "06fdde03"))


class _Log(ForeignModel):
    contract: Annotated[str, parsed(to_checksum_address)] = Field(alias="address")
    topics: Items[str]


def find_contracts(endpoint: RpcEndpoint, addresses: Sequence[str], first: int, last: int) -> Mapping[str, list[str]]:
    """Return the contracts that log transfers to addresses in the last of these blocks, by address.

    Whoever floods the logs hides tokens, but no deposits: what an endpoint refuses is left out.
    """
    by_topic = {"0x" + each[2:].lower().rjust(64, "0"): each for each in addresses}
    first = max(first, last - endpoint.log_range.value + 1)
    topics = [TRANSFER_EVENT.topics()[0], None, list(by_topic)]
    query = {"topics": topics, "fromBlock": hex(first), "toBlock": hex(last)}
    read, found = reader(Items[_Log]), {each: list[str]() for each in addresses}
    logs = RpcCall("eth_getLogs", (query,), read=read, tolerates=accept_any_error, tolerates_malformed=True)
    with suppress(EndpointError):
        endpoint.run([logs] if first <= last else [])
    for log in logs.result_or_none or ():
        if len(log.topics) == _TOPICS and log.topics[2] in by_topic:
            found[by_topic[log.topics[2]]].append(log.contract)
    return found


class EvmTokenReader(EvmConnection):
    def foreign_tokens(self, address: str, scan_state: Terms) -> Sequence[ForeignToken]:
        contracts = str(scan_state.get(CONTRACTS_TERM) or "").split()
        balances = {each: _read(each, BALANCE_OF.encode(address)) for each in contracts}
        self.rpc.run(*balances.values())
        held = [(each, units) for each, call in balances.items() if (units := _number(call))]
        claims = [[_read(each, data) for data in (_DECIMALS, _SYMBOL, _NAME)] for each, _ in held]
        self.rpc.run(*(call for of_one in claims for call in of_one))
        return [
            ForeignToken(TokenAmount(units, token_named(f"{each}:{_decimals(decimals)}")), _text(symbol), _text(name))
            for (each, units), (decimals, symbol, name) in zip(held, claims, strict=True)
        ]

    def movable_units(self, intent: TransferIntent) -> int:
        """Return the sender's units of a foreign token, once its transfer was tried. Raises: Rejected."""
        amount, contract = intent.amount, intent.amount.token.contract or ""
        held, decimals = (_read(contract, each) for each in (BALANCE_OF.encode(intent.sender), _DECIMALS))
        moving = TRANSFER.encode(intent.recipient, amount.units)
        tried, exists = _read(contract, moving, intent.sender, _TRANSFER_GAS), calls.has_code(contract)
        self.rpc.run(held, decimals, tried, exists)
        # Some nodes try nothing for a sender without ether, which is a shortage of its own.
        has_failed = tried.error is not None and "insufficient funds" not in tried.error.message.lower()
        refusal = self.deployment.known_contract(contract) or (None if exists.result else "no contract")
        if refusal is None and _decimals(decimals) != amount.token.decimals:
            refusal = f"a token with {_decimals(decimals)} decimals"
        if refusal is None:
            Shortage.check(amount.token, "insufficient_funds", _number(held) or 0, amount.units)
            # USDT's transfer returns nothing.
            refuses = has_failed or (tried.result_or_none and _number(tried) != 1)
            refusal = "a token that refuses the transfer" if refuses else None
        if refusal is not None:
            raise Rejected("invalid_token", details={"token_is": refusal})
        return _number(held) or 0


def _read(contract: str, data: bytes, sender: str = ZERO_EVM_ADDRESS, gas: int = _GAS) -> RpcCall[bytes]:
    fields = {"from": sender, "to": contract, "data": data, "gas": gas}
    return calls.contract_call(fields, lambda data: data[:_KEPT], tolerates=accept_any_error)  # type: ignore[arg-type]


def _number(call: RpcCall[bytes]) -> int | None:
    found = call.result_or_none or b""
    return int.from_bytes(found[:_WORD]) if len(found) >= _WORD else None


def _decimals(call: RpcCall[bytes]) -> int:
    return found if (found := _number(call) or 0) <= MAX_DECIMALS else 0


def _text(call: RpcCall[bytes]) -> str | None:
    """Return a string that a token claims, or 32 bytes, as older tokens have it."""
    found = call.result_or_none or b""
    length = int.from_bytes(found[_WORD : 2 * _WORD])
    return claimed_text(found if len(found) == _WORD else found[2 * _WORD :][:length])
