"""The node: a chain with its HTTP and WebSocket servers."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from solders.account import Account
from solders.pubkey import Pubkey
from websockets.sync.server import Server

from solana_node import rpc
from solana_node.addresses import USDC_MINT
from solana_node.chain import Chain
from solana_node.faults import Faults
from solana_node.http_server import RpcHttpServer
from solana_node.websocket_server import open_websocket_server

_PORT_ATTEMPTS = 20


class SolanaNode:
    """A local Solana cluster of one node that executes transactions.

    HTTP listens on `port` (0 picks a free one), WebSocket on the next port. With `slot_ms=0` time advances only by
    `advance`. With `state` everything is kept in that file, and the next node continues from it. `genesis_hash` may be
    that of another cluster. `now` returns the seconds from which slots are computed.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        slot_ms: int = 400,
        now: Callable[[], float] = time.monotonic,
        confirmed_lag: int = 1,
        finalized_lag: int = 32,
        usdc: str = USDC_MINT,
        genesis_hash: str | None = None,
        state: Path | str | None = None,
    ) -> None:
        self.chain = Chain(
            slot_ms=slot_ms,
            now=now,
            confirmed_lag=confirmed_lag,
            finalized_lag=finalized_lag,
            usdc=usdc,
            genesis_hash=genesis_hash,
            state=Path(state) if state else None,
        )
        try:
            self._http, self._websocket = _listen(host, port, self.chain)
        except OSError:
            self.chain.close()
            raise
        self.url = self._http.url
        self.ws_url = f"ws://{host}:{self._http.server_port + 1}"
        self._websocket_thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the servers."""
        self._http.start()
        self._websocket_thread = threading.Thread(
            target=self._websocket.serve_forever, daemon=True, name="solana-websocket"
        )
        self._websocket_thread.start()

    def stop(self) -> None:
        """Stop the servers and release the state file."""
        if self._websocket_thread is None:
            self._http.server_close()
        else:
            self._http.stop()
            self._websocket.shutdown()
        self._websocket.socket.close()
        if self._websocket_thread is not None:
            self._websocket_thread.join()
        self.chain.close()

    def call(self, method: str, *params: object) -> Any:
        """Execute an RPC method without HTTP; transport faults do not apply.

        Raises:
            RpcError: as it would have gone over the wire.
        """
        return rpc.call(self.chain, method, params)

    def airdrop(self, address: Pubkey | str, lamports: int) -> str:
        """Pay SOL from the faucet in the current slot and return the signature."""
        return str(self.call("requestAirdrop", str(address), lamports))

    def mint_usdc(self, owner: Pubkey | str, units: int) -> str:
        """Mint base units of USDC into the owner's associated token account and return the signature."""
        return str(self.call("sandbox_mint", str(owner), units))

    def advance(self, slots: int) -> int:
        """Advance by a number of slots immediately; return the new slot."""
        return int(self.call("sandbox_advance", slots))

    def prune_before(self, slot: int) -> None:
        """Drop the history before a slot; a state file keeps it."""
        self.call("sandbox_forget", slot)

    def faults(
        self,
        *,
        drop: int = 0,
        delay_slots: int = 0,
        http: dict[str, list[int]] | None = None,
        http_after: dict[str, list[int]] | None = None,
        sleep_ms: dict[str, int] | None = None,
    ) -> None:
        """Replace all faults with these (see `Faults`); without arguments remove them."""
        with self.chain.locked():
            self.chain.faults = Faults(
                drop=drop,
                delay_slots=delay_slots,
                http={method: list(statuses) for method, statuses in (http or {}).items()},
                http_after={method: list(statuses) for method, statuses in (http_after or {}).items()},
                sleep_ms=dict(sleep_ms or {}),
            )

    def set_account(self, address: Pubkey | str, account: Account) -> None:
        """Write an account without a transaction."""
        with self.chain.locked():
            self.chain.set_account(str(address), account)

    def add_program(self, address: Pubkey | str, elf: bytes) -> None:
        """Deploy an sBPF program. The state file does not keep it: deploy again after a restart."""
        with self.chain.locked():
            self.chain.runtime.add_program(str(address), elf)


def _listen(host: str, port: int, chain: Chain) -> tuple[RpcHttpServer, Server]:
    """Bind two adjacent ports.

    Raises:
        OSError: one of them is taken.
    """
    for attempt in range(_PORT_ATTEMPTS):
        http = RpcHttpServer(host, port, chain)
        try:
            return http, open_websocket_server(host, http.server_port + 1, chain)
        except OSError:
            http.server_close()
            if port or attempt == _PORT_ATTEMPTS - 1:
                raise
    raise AssertionError("the loop returns or raises")
