"""A node: the chain with its HTTP and WebSocket servers, started and stopped together."""

import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from solders.account import Account
from solders.pubkey import Pubkey
from websockets.sync.server import Server

from sandbox.solana import rpc
from sandbox.solana.addresses import USDC_MINT
from sandbox.solana.chain import Chain
from sandbox.solana.faults import Faults
from sandbox.solana.http_server import RpcHttpServer
from sandbox.solana.websocket_server import open_websocket_server

_PORT_ATTEMPTS = 20
_SHUTDOWN_POLL_SECONDS = 0.02


class SolanaNode:
    """A local Solana cluster of one node that really executes transactions.

    HTTP listens on `port` (0 picks a free one), WebSocket on the port after it. With `slot_ms=0` time stands
    still until `advance`. With `state` everything is kept in that file, and the next node on it goes on.
    With another cluster's `genesis_hash` it passes for that one.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        slot_ms: int = 400,
        confirmed_lag: int = 1,
        finalized_lag: int = 32,
        usdc: str = USDC_MINT,
        genesis_hash: str | None = None,
        state: Path | str | None = None,
    ) -> None:
        self.chain = Chain(
            slot_ms=slot_ms,
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
        self.url = f"http://{host}:{self._http.server_port}"
        self.ws_url = f"ws://{host}:{self._http.server_port + 1}"
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Answer requests from now on."""
        http = threading.Thread(
            target=self._http.serve_forever, args=(_SHUTDOWN_POLL_SECONDS,), daemon=True, name="solana-http"
        )
        websocket = threading.Thread(
            target=self._websocket.serve_forever, daemon=True, name="solana-websocket"
        )
        self._threads = [http, websocket]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop answering, free the ports and release the state file."""
        if self._threads:
            self._http.shutdown()
            self._websocket.shutdown()
        self._http.server_close()
        self._websocket.socket.close()
        for thread in self._threads:
            thread.join()
        self.chain.close()

    def call(self, method: str, *params: object) -> Any:
        """Carry out an RPC method without the detour over HTTP; transport faults do not touch it.

        Raises:
            RpcError: as it would have gone over the wire.
        """
        return rpc.call(self.chain, method, params)

    def airdrop(self, address: Pubkey | str, lamports: int) -> str:
        """Pay SOL from the faucet in the present slot and tell the signature."""
        return str(self.call("requestAirdrop", str(address), lamports))

    def mint_usdc(self, owner: Pubkey | str, units: int) -> str:
        """Mint base units of USDC into the owner's associated token account and tell the signature."""
        return str(self.call("sandbox_mint", str(owner), units))

    def advance(self, slots: int) -> int:
        """Let slots pass at once and tell the new one."""
        return int(self.call("sandbox_advance", slots))

    def forget_before(self, slot: int) -> None:
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
        """Replace all faults with these (see `Faults`); without any the node is well again."""
        with self.chain.current():
            self.chain.faults = Faults(
                drop=drop,
                delay_slots=delay_slots,
                http={method: list(statuses) for method, statuses in (http or {}).items()},
                http_after={method: list(statuses) for method, statuses in (http_after or {}).items()},
                sleep_ms=dict(sleep_ms or {}),
            )

    def set_account(self, address: Pubkey | str, account: Account) -> None:
        """Write an account without a transaction."""
        with self.chain.current():
            self.chain.set_account(str(address), account)

    def add_program(self, address: Pubkey | str, elf: bytes) -> None:
        """Deploy an sBPF program. The state file does not keep it: deploy again after a restart."""
        with self.chain.current():
            self.chain.runtime.add_program(str(address), elf)


def _listen(host: str, port: int, chain: Chain) -> tuple[RpcHttpServer, Server]:
    """Bind two neighbouring ports.

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
