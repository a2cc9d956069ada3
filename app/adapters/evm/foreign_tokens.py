"""Tokens that this service does not know: found by their logs, and read one by one.

Anybody can deploy such a contract and send its tokens to any address. Each call of one is separate, with bounded gas,
which also bounds what it returns, and nothing that it returns is an error.
"""

from collections.abc import Sequence
from datetime import timedelta

from web3.types import TxParams

from app.adapters.evm import calls
from app.adapters.evm.contracts.calls import BALANCE_OF, TRANSFER, TRANSFER_EVENT, EvmConnection
from app.adapters.jsonrpc.calls import RpcCall, accept_any_error
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.core.chains import MAX_DECIMALS, ZERO_EVM_ADDRESS, Token, foreign_token
from app.core.foreign import claimed_text
from app.core.money import TokenAmount
from app.ports.chain import ForeignToken, Shortage, Terms, TokenSearch, TransferIntent
from app.ports.errors import Rejected, Unreachable

_GAS, _TRANSFER_GAS = 150_000, 2_000_000
_MAX_RANGES, _MAX_CONTRACTS = 10, 100
_REWIND_BLOCKS = 64
_WORD = 32
_DECIMALS, _SYMBOL, _NAME = (bytes.fromhex(each) for each in ("313ce567", "95d89b41", "06fdde03"))


def terms_of(token: Token) -> Terms:
    """Return what the outcome of a transfer is judged by: a foreign token must have moved."""
    return {} if token.contract is None else {"token": token.contract}


class ForeignTokenReader(EvmConnection):
    def foreign_tokens(
        self, address: str, search: TokenSearch, *, age: timedelta | None
    ) -> tuple[TokenSearch, Sequence[ForeignToken]]:
        """Search a few ranges of blocks, and read the contracts found last; see `Chain.foreign_tokens`."""
        if age is not None:
            try:
                search = self.rpc.run_on_first(lambda endpoint: self._searched(endpoint, address, search, age))
            except Unreachable:  # logs alone, perhaps
                search = TokenSearch(search.contracts, search.block, is_complete=False)
        balances = {each: _read(each, BALANCE_OF.encode(address)) for each in search.contracts}
        self.rpc.run(*balances.values())
        held = {each: units for each, call in balances.items() if (units := _number(call))}
        claims = {each: [_read(each, data) for data in (_DECIMALS, _SYMBOL, _NAME)] for each in held}
        self.rpc.run(*(call for of_one in claims.values() for call in of_one))
        return search, [
            ForeignToken(TokenAmount(held[each], foreign_token(each, _decimals(decimals))), _text(symbol), _text(name))
            for each, (decimals, symbol, name) in claims.items()
        ]

    def _searched(self, endpoint: RpcEndpoint, address: str, search: TokenSearch, age: timedelta) -> TokenSearch:
        head, seconds = endpoint.ask(calls.head()), self.deployment.block_seconds
        made = head - int(age.total_seconds() / seconds) if seconds else 0
        first = max((made if search.block is None else search.block) - _REWIND_BLOCKS, 0)
        topics, until, found = TRANSFER_EVENT.topics(None, [address]), first - 1, list(search.contracts)
        ranges = calls.read_logs(endpoint, None, topics, first=first, last=head)
        for _, (until, logs) in zip(range(_MAX_RANGES), ranges, strict=False):  # noqa: B007 - used afterwards
            found += (log.contract for log in logs if TRANSFER_EVENT.decode(log) is not None)
        foreign = [each for each in dict.fromkeys(found) if self.deployment.known_contract(each) is None]
        return TokenSearch(tuple(foreign[-_MAX_CONTRACTS:]), until, until >= head)

    def movable_units(self, intent: TransferIntent) -> int:
        """Return the sender's units of a foreign token whose transfer works when it is tried. Raises: Rejected.

        A transfer may return nothing, as that of USDT does.
        """
        token, contract = intent.amount.token, intent.amount.token.contract or ""
        data = TRANSFER.encode(intent.recipient, intent.amount.units)
        held, decimals = (_read(contract, each) for each in (BALANCE_OF.encode(intent.sender), _DECIMALS))
        tried, exists = _read(contract, data, sender=intent.sender, gas=_TRANSFER_GAS), calls.has_code(contract)
        self.rpc.run(held, decimals, tried, exists)
        known = self.deployment.known_contract(contract)
        if known is not None or not exists.result:
            raise Rejected("invalid_token", details={"token_is": f"it is {known or 'no contract'}"})
        if _decimals(decimals) != token.decimals:
            raise Rejected("invalid_token", details={"token_is": f"it has {_decimals(decimals)} decimals"})
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
