"""Tokens that this service does not know: found by their logs, and read one by one.

Anybody can deploy such a contract and send its tokens to any address. Each call of one is separate, with bounded gas,
which also bounds what it returns, and nothing that it returns is an error.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from eth_utils.address import to_checksum_address
from web3.types import TxParams

from app.adapters.evm import calls
from app.adapters.evm.contracts.calls import BALANCE_OF, TRANSFER, TRANSFER_EVENT, EvmConnection
from app.adapters.jsonrpc.calls import EndpointError, RpcCall, accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.core.chains import MAX_DECIMALS, ZERO_EVM_ADDRESS, token_named
from app.core.foreign import MalformedResponseError, claimed_text
from app.core.money import TokenAmount
from app.ports.chain import ForeignToken, Shortage, Terms, TransferIntent
from app.ports.errors import Rejected

CONTRACT_TERM, CONTRACTS_TERM = "token", "contracts"
"""Of a transfer, the contract that must have moved something; of an address, those that are read."""
MAX_CONTRACTS = 100
ADDRESSES_PER_QUERY = 500
"""geth accepts a thousand values of a topic (`maxSubTopics`)."""
_GAS, _TRANSFER_GAS = 150_000, 2_000_000
_WORD, _TOPICS = 32, 3
_DECIMALS, _SYMBOL, _NAME = (bytes.fromhex(each) for each in ("313ce567", "95d89b41", "06fdde03"))


def find_contracts(
    endpoint: RpcEndpoint, addresses: Sequence[str], *, first: int, last: int
) -> Mapping[str, Sequence[str]]:
    """Return the contracts that log transfers to addresses in the last of these blocks, by address.

    Whoever floods the logs hides tokens, but delays no scan: an endpoint may refuse, and each log takes little work.
    """
    found: dict[str, list[str]] = {}
    first = max(first, last - endpoint.log_range.value + 1)
    for start in range(0, len(addresses) if first <= last else 0, ADDRESSES_PER_QUERY):
        by_topic = {"0x" + each[2:].lower().rjust(64, "0"): each for each in addresses[start:][:ADDRESSES_PER_QUERY]}
        topics = [TRANSFER_EVENT.topics()[0], None, list(by_topic)]
        query = {"topics": topics, "fromBlock": hex(first), "toBlock": hex(last)}
        logs = RpcCall("eth_getLogs", (query,), read=_pairs, tolerates=accept_any_error, tolerates_malformed=True)
        with suppress(EndpointError):
            endpoint.run([logs])
        for topic, contract in logs.result_or_none or ():
            found.setdefault(by_topic.get(topic, ""), []).append(contract)
    return found


def _pairs(result: Any) -> Sequence[tuple[str, str]]:
    """Return recipient and contract of each transfer of fungible tokens."""
    try:
        found = dict.fromkeys((log["topics"][2], log["address"]) for log in result if len(log["topics"]) == _TOPICS)
        return [(topic, str(to_checksum_address(contract))) for topic, contract in found]
    except (LookupError, TypeError, ValueError):
        raise MalformedResponseError("expected logs") from None


class ForeignTokenReader(EvmConnection):
    def foreign_tokens(self, address: str, scan_state: Terms) -> Sequence[ForeignToken]:
        contracts = str(scan_state.get(CONTRACTS_TERM) or "").split()
        balances = {each: _read(each, BALANCE_OF.encode(address)) for each in contracts}
        self.rpc.run(*balances.values())
        held = {each: units for each, call in balances.items() if (units := _number(call))}
        claims = {each: [_read(each, data) for data in (_DECIMALS, _SYMBOL, _NAME)] for each in held}
        self.rpc.run(*(call for of_one in claims.values() for call in of_one))
        return [
            ForeignToken(
                TokenAmount(held[each], token_named(f"{each}:{_decimals(decimals)}")), _text(symbol), _text(name)
            )
            for each, (decimals, symbol, name) in claims.items()
        ]

    def movable_units(self, intent: TransferIntent) -> int:
        """Return the sender's units of a foreign token whose transfer works when it is tried. Raises: Rejected.

        A transfer may return nothing, as that of USDT does.
        """
        token, contract = intent.amount.token, intent.amount.token.contract or ""
        data = TRANSFER.encode(intent.recipient, intent.amount.units)
        held, decimals = (_read(contract, each) for each in (BALANCE_OF.encode(intent.sender), _DECIMALS))
        tried, exists = _read(contract, data, sender=intent.sender, gas=_TRANSFER_GAS), calls.has_code(contract)
        self.rpc.run(held, decimals, tried, exists)
        known, claimed = self.deployment.known_contract(contract), _decimals(decimals)
        if known or not exists.result or claimed != token.decimals:
            what = f"it is {known or 'no contract'}" if known or not exists.result else f"it has {claimed} decimals"
            raise Rejected("invalid_token", details={"token_is": what})
        Shortage.check(token, "insufficient_funds", _number(held) or 0, intent.amount.units)
        # Some nodes try nothing for a sender without ether, which is a shortage of its own.
        has_failed = tried.error is not None and "insufficient funds" not in tried.error.message.lower()
        if has_failed or (tried.result_or_none and _number(tried) != 1):
            raise Rejected("invalid_token", details={"token_is": "it refuses the transfer"})
        return _number(held) or 0


def _read(contract: str, data: bytes, *, sender: str = ZERO_EVM_ADDRESS, gas: int = _GAS) -> RpcCall[bytes]:
    fields: TxParams = {"from": sender, "to": contract, "data": data, "gas": gas}
    return calls.contract_call(fields, bytes, tolerates=accept_any_error)


def _number(call: RpcCall[bytes]) -> int | None:
    found = call.result_or_none or b""
    return int.from_bytes(found[:_WORD]) if len(found) >= _WORD else None


def _decimals(call: RpcCall[bytes]) -> int:
    found = _number(call) or 0
    return found if found <= MAX_DECIMALS else 0


def _text(call: RpcCall[bytes]) -> str | None:
    """Return a string that a token claims, or 32 bytes, as older tokens have it."""
    found = call.result_or_none or b""
    length = int.from_bytes(found[_WORD : 2 * _WORD])
    return claimed_text(found if len(found) == _WORD else found[2 * _WORD :][:length])
