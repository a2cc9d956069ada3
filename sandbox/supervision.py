"""Supervision of the processes of the sandbox: started in order, restarted when they end, stopped together."""

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sandbox import processes
from sandbox.bridges import BridgeServer, Derivation
from sandbox.cache import Cache, LineLogger
from sandbox.errors import SandboxError
from sandbox.evm import EvmNode
from sandbox.evm.node import usable_port
from sandbox.evm.rpc import NodeClient, NodeDown, NodeError
from sandbox.faucet import Faucet, FaucetServer, PaymentLedger
from sandbox.jupiter import JupiterServer
from sandbox.models import ModelServer
from sandbox.payers import EvmPayer, Payer, SolanaPayer
from sandbox.perpdex import ExchangeServer

_RETRY_SECONDS = 2.0
_WAKEUPS = 4096
_SOLANA_START_SECONDS = 60
_BLOCK_SECONDS = {"ethereum": 2.0, "base": 1.0}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line; `block_time` is in seconds, None for each chain's default."""

    state: Path
    cache: Path | None
    ethereum_port: int
    base_port: int
    solana_port: int | None
    faucet_port: int
    perpdex_port: int
    jupiter_port: int
    cctp_port: int
    openai_port: int
    block_time: float | None
    network_ids: str


class SolanaProcess:
    """The process of the Solana node."""

    def __init__(self, *, port: int, state: Path) -> None:
        self.name = "solana"
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "solana_node", "--port", str(port), "--state", str(state)]
        self._log = state.with_name("solana.log")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Return whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process without waiting until it answers."""
        self._process = processes.start(self._command, log=self._log)

    def restart(self) -> None:
        """Restart it on the same state, and wait until it answers."""
        self.start()
        self.wait()

    def wait(self) -> None:
        """Wait until it answers. Raises: SandboxError."""
        client = NodeClient(self.url)
        deadline = time.monotonic() + _SOLANA_START_SECONDS
        while time.monotonic() < deadline and self.running:
            try:
                client.call("getHealth")
            except (NodeDown, NodeError):
                time.sleep(0.02)
            else:
                client.close()
                return
        self.stop()
        raise SandboxError(f"the Solana node did not start: see {self._log}")

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            processes.stop(self._process)


class Sandbox:
    """The nodes, the faucet, and the stand-ins for third parties."""

    def __init__(self, options: Options, *, log_line: LineLogger) -> None:
        self._options = options
        self._log_line = log_line
        self._cache = Cache(options.cache, log_line=log_line)
        self._evm: dict[str, EvmNode] = {}
        self._solana: SolanaProcess | None = None
        self._server: FaucetServer | None = None
        self._jupiter: JupiterServer | None = None
        self._book: PaymentLedger | None = None
        self._exchange: ExchangeServer | None = None
        self._bridges: BridgeServer | None = None
        self._models: ModelServer | None = None
        self._derivation: Derivation | None = None
        self._lock: IO[bytes] | None = None

    def start(self) -> dict[str, str]:
        """Start everything, and return the URLs by name. Raises: SandboxError; then call `stop()`."""
        options = self._options
        self._lock_state()
        self._check_ports()
        if options.solana_port is not None:  # the slowest starts first, in parallel with the others
            self._solana = SolanaProcess(port=options.solana_port, state=options.state / "solana.sqlite")
            self._solana.start()
        for name, port in (("ethereum", options.ethereum_port), ("base", options.base_port)):
            self._evm[name] = self._start_evm(name, port)
        if self._solana is not None:
            self._solana.wait()
        urls = {node.name: node.url for node in self._nodes()}
        self._book = PaymentLedger(options.state / "faucet.sqlite")
        self._server = FaucetServer(Faucet(self._book, self._payers()), port=options.faucet_port)
        self._server.start()
        self._exchange = ExchangeServer(port=options.perpdex_port)
        self._exchange.start()
        self._models = ModelServer(port=options.openai_port)
        self._models.start()
        nodes = {node.name: node.url for node in self._nodes()}
        kept = options.state / f"relay-{options.network_ids}.json"
        self._bridges = BridgeServer(nodes, port=options.cctp_port, state=kept)
        self._bridges.start()
        self._derivation = Derivation(self._evm["ethereum"], self._evm["base"])
        self._derive()
        urls |= {"faucet": self._server.url, "perpdex": self._exchange.url, "bridges": self._bridges.url}
        urls["openai"] = f"{self._models.url}/v1"
        if self._solana is not None:
            self._jupiter = JupiterServer(self._solana.url, port=options.jupiter_port)
            self._jupiter.start()
            urls["jupiter"] = self._jupiter.url
        return urls

    def supervise(self) -> None:
        """Restart what ends, until an exception ends this. For the main thread: it handles SIGCHLD."""
        # Any thread may take the signal from the kernel: only a file wakes the main thread in every case.
        wakeup_read, wakeup_write = os.pipe()
        for end in (wakeup_read, wakeup_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            for node in self._nodes():
                if not node.running:
                    self._log_line(f"the {node.name} node ended; starting it on its last saved state")
                    try:
                        node.restart()
                    except (SandboxError, NodeDown, NodeError, OSError) as error:
                        self._log_line(f"the {node.name} node did not start ({error}); trying again")
            is_complete = all(node.running for node in self._nodes())
            if select.select([wakeup_read], [], [], None if is_complete else _RETRY_SECONDS)[0]:
                os.read(wakeup_read, _WAKEUPS)

    def stop(self) -> None:
        """Save and stop everything that was started."""
        for server in (self._bridges, self._server, self._exchange, self._models, self._jupiter):
            if server is not None:
                server.stop()
        for node in self._nodes():
            try:
                node.stop()
            except (NodeDown, NodeError, OSError) as error:
                self._log_line(f"the last seconds of the {node.name} chain could not be saved ({error})")
        if self._book is not None:
            self._book.close()
        if self._lock is not None:
            self._lock.close()

    def _nodes(self) -> list[EvmNode | SolanaProcess]:
        return [*self._evm.values(), *([self._solana] if self._solana is not None else [])]

    def _derive(self) -> None:
        # A node that is down calls this again when it was restarted.
        with contextlib.suppress(NodeDown, NodeError):
            if self._derivation is not None:
                self._derivation.derive()

    def _start_evm(self, name: str, port: int) -> EvmNode:
        options = self._options
        node = EvmNode(
            name,
            port=port,
            state=options.state / f"{name}-{options.network_ids}.chain.gz",
            network_ids=options.network_ids,
            block_time=options.block_time or _BLOCK_SECONDS[name],
            cache=self._cache,
            log_line=self._log_line,
            on_activity=self._derive,
        )
        return node.start()

    def _payers(self) -> dict[str, Payer]:
        payers: dict[str, Payer] = {name: EvmPayer(node.url, node.deployment) for name, node in self._evm.items()}
        if self._solana is not None:
            payers["solana"] = SolanaPayer(self._solana.url)
        return payers

    def _lock_state(self) -> None:
        self._options.state.mkdir(parents=True, exist_ok=True)
        self._lock = (self._options.state / ".lock").open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SandboxError(f"another sandbox runs on {self._options.state}: stop it first") from error

    def _check_ports(self) -> None:
        options = self._options
        wanted = [
            ("ethereum", options.ethereum_port),
            ("base", options.base_port),
            ("faucet", options.faucet_port),
            ("perpdex", options.perpdex_port),
            ("cctp", options.cctp_port),
            ("openai", options.openai_port),
        ]
        if options.solana_port is not None:
            wanted += [("solana", options.solana_port), ("solana", options.solana_port + 1)]  # its WebSocket
            wanted.append(("jupiter", options.jupiter_port))
        owners: dict[int, str] = {}
        for name, port in wanted:
            if port in owners:
                raise SandboxError(f"port {port} is used twice: change --{name}-port or --{owners[port]}-port")
            owners[port] = name
            try:
                usable_port(port)
            except SandboxError:
                message = f"port {port} is taken: stop what uses it, or choose another with --{name}-port"
                raise SandboxError(message) from None
