"""The process of one EVM chain: start, contracts, mining, saving, faults and restart."""

import contextlib
import random
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from app.adapters.evm.contracts.deployments import DEPLOYMENTS, EvmDeployment
from sandbox import processes
from sandbox.cache import Cache, LineLogger
from sandbox.errors import SandboxError
from sandbox.evm import binary, price_feeds, roles, state
from sandbox.evm.abi import call_data
from sandbox.evm.artifacts import Artifacts
from sandbox.evm.block_producer import SETTLING_BLOCKS, BlockProducer
from sandbox.evm.builder import Builder
from sandbox.evm.contracts import place_missing
from sandbox.evm.l1_fee_proxy import L1FeeProxy
from sandbox.evm.rpc import NodeClient, NodeDown
from sandbox.evm.snapshot import snapshot_file

_START_SECONDS = 45
_PORT_ATTEMPTS = 20
_OWN_PORTS = range(20_000, 32_000)
"""Below the ephemeral ports, so that a restarted node finds its port free."""
_MINED_SECONDS = 60
_ROLLUP_BASE_FEE_WEI = 5_000_000
"""A typical base fee of Base; with anvil's default, settling a payment would cost more than most calls."""
_STATES_KEPT = 128  # like public nodes; more would cost memory and disk


class _NodeExited(SandboxError):
    """The node ended before its first response."""


class _NodeHangs(SandboxError):
    """The node runs and does not answer, which is no fault of the chain that it was to load."""


class EvmNode:
    """An anvil node with the real contracts.

    `name` is "ethereum" or "base"; `network_ids` "sandbox" (private chain ids) or "mainnet". Transactions are
    mined immediately; with `block_time` (seconds) blocks also follow the clock during activity. With `state`, the chain
    is kept in that file between starts; without, it ends with the process. `on_activity` is called after each activity
    of a node that has one of both.
    """

    def __init__(
        self,
        name: str,
        *,
        port: int = 0,
        state: Path | None = None,
        network_ids: str = "sandbox",
        block_time: float | None = None,
        slots_in_an_epoch: int = 4,
        state_interval: float = 2.0,
        cache: Cache | None = None,
        log_line: LineLogger = lambda _line: None,
        on_activity: Callable[[], None] | None = None,
    ) -> None:
        """`start()` or the context manager starts the node. Port 0 chooses a free one."""
        self.name = name
        self.deployment: EvmDeployment = DEPLOYMENTS[network_ids, name]
        self.chain_id = self.deployment.chain_id
        self._port = port
        self._chosen_port = port != 0
        self._store = None if state is None else _store(state, log_line)
        self._block_time = block_time
        self._slots_in_an_epoch = slots_in_an_epoch
        self._state_interval = state_interval
        self._cache = cache or Cache(log_line=log_line)
        self._log_line = log_line
        self._on_activity = on_activity
        self._process: subprocess.Popen[bytes] | None = None
        self._client: NodeClient | None = None
        self._proxy: L1FeeProxy | None = None
        self._upkeep: BlockProducer | None = None
        self._accounts: tuple[str, ...] = ()
        self._send_lock = threading.Lock()
        self.mining_lock = threading.Lock()

    def start(self) -> Self:
        """Start on the saved chain, or on a fresh one with all contracts. Raises: SandboxError."""
        try:
            self._start()
        except BaseException:
            self.kill()
            raise
        return self

    def _start(self) -> None:
        if self._store is None or not self._resume(self._store):
            self._launch(load=self._snapshot())
        self._accounts = tuple(self.rpc("eth_accounts"))
        # Old blocks are loaded without their states: a few new ones make reads at a small depth work again.
        self.mine(SETTLING_BLOCKS)
        self._upkeep = BlockProducer(
            self._connected(),
            block_time=self._block_time,
            mining_lock=self.mining_lock,
            store=self._store,
            state_interval=self._state_interval,
            on_activity=self._on_activity,
        )
        self._upkeep.start()

    def stop(self) -> None:
        """Save the chain, if it has a file, and stop the process, even if saving fails."""
        try:
            if self._upkeep is not None:
                self._upkeep.stop()
                if self.running:
                    self._upkeep.save()
                self._upkeep = None
        finally:
            self._stop_proxy()
            if self._process is not None:
                processes.stop(self._process)
            if self._client is not None:
                self._client.close()

    def kill(self) -> None:
        """Kill the process (SIGKILL): changes after the last save are lost."""
        if self._upkeep is not None:
            self._upkeep.stop()
            self._upkeep = None
        if self._process is not None:
            processes.kill(self._process)
        self._stop_proxy()

    def restart(self) -> None:
        """Restart at the same address on the saved chain, or without a file on a fresh one."""
        self.kill()
        self._chosen_port = True
        self.start()

    @property
    def running(self) -> bool:
        """Return whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Return the JSON-RPC address."""
        return f"http://127.0.0.1:{self._port}"

    def rpc(self, method: str, *params: Any) -> Any:
        """Call the node. Raises: NodeError, NodeDown."""
        return self._connected().call(method, *params)

    def fund_eth(self, address: str, wei: int) -> str:
        """Send ETH from the faucet's account, and return its hash once it is mined (or held in the pool)."""
        return self._transact({"to": address, "value": hex(wei)})

    def fund_usdc(self, address: str, units: int) -> str:
        """Send USDC from the faucet's account, and return the hash as `fund_eth` does."""
        data = call_data("transfer(address,uint256)", address, units)
        return self._transact({"to": self.deployment.usdc, "data": data})

    def mine(self, blocks: int) -> None:
        """Mine this many blocks."""
        with self.mining_lock:
            self.rpc("anvil_mine", hex(blocks))

    def set_automine(self, on: bool) -> None:  # noqa: FBT001 - a switch
        """Mine transactions immediately, or hold them in the pool."""
        self.rpc("evm_setAutomine", on)

    def reorg(self, depth: int) -> None:
        """Replace the last blocks by empty ones; their transactions vanish, including from the pool."""
        self.rpc("anvil_reorg", depth, [])

    def set_price(self, symbol: str, usd: Decimal) -> None:
        """Set the price that the feed of a symbol returns."""
        price_feeds.set_price(self._connected(), self.deployment, symbol=symbol, usd=usd)

    def _stop_proxy(self) -> None:
        if self._proxy is not None:
            self._proxy.stop()
            self._proxy = None

    def _connected(self) -> NodeClient:
        if self._client is None:
            raise SandboxError(f"the {self.name} node was not started")
        return self._client

    def _transact(self, transaction: dict[str, str]) -> str:
        with self._send_lock:  # the node reads the nonce before it queues: two concurrent sends would use the same
            sender = self._accounts[roles.FAUCET]
            tx_hash = str(self.rpc("eth_sendTransaction", {"from": sender, **transaction}))
        deadline = time.monotonic() + _MINED_SECONDS
        while self.rpc("eth_getTransactionReceipt", tx_hash) is None and self._is_automining():
            if time.monotonic() > deadline:
                raise SandboxError(f"the {self.name} node did not mine {tx_hash}")
            time.sleep(0.001)
        return tx_hash

    def _is_automining(self) -> bool:
        # Not while it is only paused.
        with self.mining_lock:
            return bool(self.rpc("anvil_getAutomine"))

    def _resume(self, store: state.StateStore) -> bool:
        if not store.exists():
            return False
        for content in store.candidates():
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                file.write(content)
                file.flush()
                try:
                    self._launch(load=Path(file.name))
                except _NodeExited:
                    self._log_line(f"the {self.name} node refuses a saved chain: using the previous one")
                    continue
            self._deploy_contracts()
            return True
        store.quarantine()
        return False

    def _snapshot(self) -> Path:
        return snapshot_file(
            self._cache,
            chain=self.name,
            chain_id=self.chain_id,
            binary=binary.find(self._cache),
            make=self._deployed_chain,
        )

    def _deployed_chain(self) -> bytes:
        self._log_line(f"placing the contracts on a fresh {self.name} chain")
        self._launch(load=None)
        try:
            self._deploy_contracts()
            return state.dump(self._connected(), self.mining_lock)
        finally:
            self.kill()

    def _deploy_contracts(self) -> None:
        client = self._connected()
        builder = Builder(
            client, Artifacts(self._cache), deployment=self.deployment, accounts=tuple(client.call("eth_accounts"))
        )
        place_missing(builder)

    def _launch(self, *, load: Path | None) -> None:
        program = str(binary.find(self._cache))
        failure: Exception = _NodeExited(f"the {self.name} node was not started")
        for _ in range(1 if self._chosen_port else _PORT_ATTEMPTS):
            self._port = usable_port(self._port if self._chosen_port else 0)
            try:
                self._launch_once(program, load)
            except (_NodeExited, _NodeHangs, OSError) as error:
                # Another program took the port meanwhile, or the node hangs, which it rarely does at its start.
                failure = error
                continue
            return
        raise failure

    def _launch_once(self, program: str, load: Path | None) -> None:
        oracle = self.deployment.gas_price_oracle
        port = self._port if oracle is None else usable_port(0)
        command = [program, "--quiet", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--chain-id", str(self.chain_id), "--accounts", str(roles.ACCOUNTS)]
        command += ["--network", "ethereum" if oracle is None else "optimism"]
        if oracle is not None:
            command += ["--base-fee", str(_ROLLUP_BASE_FEE_WEI)]
        command += ["--slots-in-an-epoch", str(self._slots_in_an_epoch), "--prune-history", str(_STATES_KEPT)]
        if load is not None:
            command += ["--load-state", str(load)]
        client = self._client = NodeClient(f"http://127.0.0.1:{port}")
        # Before the node, which takes a while to start, so that no other program takes the port meanwhile.
        proxy = L1FeeProxy(self._port, client, gas_price_oracle=oracle) if oracle is not None else None
        try:
            self._start_process(command, client)
        except BaseException:
            if proxy is not None:
                proxy.server_close()
            raise
        if proxy is not None:
            proxy.start()
            self._proxy = proxy

    def _start_process(self, command: Sequence[str], client: NodeClient) -> None:
        process = self._process = processes.start(command)
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None:
            try:
                answered = int(client.call("eth_chainId"), 16)
            except NodeDown:
                if time.monotonic() > deadline:
                    processes.kill(process)
                    raise _NodeHangs(f"the {self.name} node did not answer at {self.url}") from None
                time.sleep(0.005)
                continue
            if answered == self.chain_id and process.poll() is None:
                return
            processes.kill(process)
        raise _NodeExited(f"the {self.name} node ended as soon as it was started")


def _store(path: Path, log_line: LineLogger) -> state.StateStore:
    return state.StateStore(path, log_line=log_line)


def usable_port(port: int) -> int:
    """Return this loopback port, or a free one for 0. Raises: SandboxError when it is taken."""
    for _ in range(_PORT_ATTEMPTS if port == 0 else 1):
        candidate = port or random.choice(_OWN_PORTS)  # noqa: S311 - not a secret
        with socket.socket() as probe:
            # As the servers do: connections in TIME_WAIT do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", candidate))
                return candidate
    raise SandboxError(f"port {candidate} is taken: stop what uses it, or choose another")
