"""One EVM chain as a process: started, furnished, paced, saved, broken on purpose and brought back."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import tempfile
import threading
import time
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from app.adapters.evm.deployments import DEPLOYMENTS, Deployment
from sandbox import children
from sandbox.cache import Cache, Say
from sandbox.errors import SandboxError
from sandbox.evm import binary, feeds, roles, state
from sandbox.evm.abi import call_data
from sandbox.evm.artifacts import Artifacts
from sandbox.evm.builder import Builder
from sandbox.evm.contracts import place_missing
from sandbox.evm.rpc import NodeClient, NodeDown
from sandbox.evm.snapshot import snapshot_file
from sandbox.evm.upkeep import SETTLING_BLOCKS, Upkeep

_START_SECONDS = 20
_PORT_ATTEMPTS = 20
_OWN_PORTS = range(20_000, 32_000)
"""Below what systems give to outgoing connections, so that a killed node finds its port free again."""
_MINED_SECONDS = 10
_STATES_KEPT = 128  # as many blocks back as public nodes answer for; more would go to memory and disk


class _Refused(SandboxError):
    """The node ended before it answered."""


class EvmNode:
    """An anvil node that carries the real contracts.

    `name` is "ethereum" or "base"; `network_ids` "sandbox" (private chain ids) or "mainnet". Transactions are
    mined at once; with `block_time` (seconds) blocks also advance by themselves as long as something happens.
    With `state`, the chain lives in that file from start to start; without, it ends with the process.
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
        say: Say = lambda _line: None,
    ) -> None:
        """Describe a node; `start()` or the context manager starts it. Port 0 takes a free one."""
        self.name = name
        self.deployment: Deployment = DEPLOYMENTS[network_ids, name]
        self.chain_id = self.deployment.chain_id
        self._port = port
        self._chosen_port = port != 0
        self._store = None if state is None else _store(state, say)
        self._block_time = block_time
        self._slots_in_an_epoch = slots_in_an_epoch
        self._state_interval = state_interval
        self._cache = cache or Cache(say=say)
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self._client: NodeClient | None = None
        self._upkeep: Upkeep | None = None
        self._accounts: tuple[str, ...] = ()
        self._sending = threading.Lock()

    def start(self) -> Self:
        """Start where it left off, or on a fresh chain with everything in place. Raises: SandboxError."""
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
        # Old blocks come back without their states: a few new ones make reads at a little depth work again.
        self.mine(SETTLING_BLOCKS)
        self._upkeep = Upkeep(
            self._connected(),
            block_time=self._block_time,
            store=self._store,
            state_interval=self._state_interval,
        )
        self._upkeep.start()

    def stop(self) -> None:
        """Save the chain, if it has a file, and end the process, even if saving fails."""
        try:
            if self._upkeep is not None:
                self._upkeep.stop()
                if self.running:
                    self._upkeep.save()
                self._upkeep = None
        finally:
            if self._process is not None:
                children.stop(self._process)
            if self._client is not None:
                self._client.close()

    def kill(self) -> None:
        """End the process at once (SIGKILL): what came after the last save is lost."""
        if self._upkeep is not None:
            self._upkeep.stop()
            self._upkeep = None
        if self._process is not None:
            children.kill(self._process)

    def restart(self) -> None:
        """Start again at the same address: from the saved chain, or without a file on a fresh one."""
        self.kill()
        self._chosen_port = True
        self.start()

    @property
    def running(self) -> bool:
        """Tell whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
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
        """Send USDC from the faucet's stock, and return the hash as `fund_eth` does."""
        data = call_data("transfer(address,uint256)", address, units)
        return self._transact({"to": self.deployment.usdc, "data": data})

    def mine(self, blocks: int) -> None:
        """Mine this many blocks."""
        self.rpc("anvil_mine", hex(blocks))

    def set_automine(self, on: bool) -> None:  # noqa: FBT001 - a switch by name and nature
        """Mine transactions at once, or hold them in the pool."""
        self.rpc("evm_setAutomine", on)

    def reorg(self, depth: int) -> None:
        """Replace the last blocks by empty ones; their transactions vanish, from the pool too."""
        self.rpc("anvil_reorg", depth, [])

    def set_price(self, symbol: str, usd: Decimal) -> None:
        """Set what the price feed of a symbol answers from now on."""
        feeds.set_price(self._connected(), self.deployment, symbol=symbol, usd=usd)

    def _connected(self) -> NodeClient:
        if self._client is None:
            raise SandboxError(f"the {self.name} node was not started")
        return self._client

    def _transact(self, transaction: dict[str, str]) -> str:
        with self._sending:  # the node reads the nonce before it queues: two at once would take the same
            sender = self._accounts[roles.FAUCET]
            tx_hash = str(self.rpc("eth_sendTransaction", {"from": sender, **transaction}))
        deadline = time.monotonic() + _MINED_SECONDS
        while self.rpc("eth_getTransactionReceipt", tx_hash) is None and self.rpc("anvil_getAutomine"):
            if time.monotonic() > deadline:
                raise SandboxError(f"the {self.name} node did not mine {tx_hash}")
            time.sleep(0.001)
        return tx_hash

    def _resume(self, store: state.StateStore) -> bool:
        if not store.exists():
            return False
        for content in store.candidates():
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                file.write(content)
                file.flush()
                try:
                    self._launch(load=Path(file.name))
                except _Refused:
                    self._say(f"the {self.name} node refuses a saved chain: going back to the one before it")
                    continue
            self._furnish()
            return True
        store.set_aside()
        return False

    def _snapshot(self) -> Path:
        return snapshot_file(
            self._cache,
            chain=self.name,
            chain_id=self.chain_id,
            binary=binary.find(self._cache),
            make=self._furnished_chain,
        )

    def _furnished_chain(self) -> bytes:
        self._say(f"placing the contracts on a fresh {self.name} chain")
        self._launch(load=None)
        try:
            self._furnish()
            return state.dump(self._connected())
        finally:
            self.kill()

    def _furnish(self) -> None:
        client = self._connected()
        builder = Builder(
            client,
            Artifacts(self._cache),
            deployment=self.deployment,
            accounts=tuple(client.call("eth_accounts")),
        )
        place_missing(builder)

    def _launch(self, *, load: Path | None) -> None:
        program = str(binary.find(self._cache))
        for _ in range(1 if self._chosen_port else _PORT_ATTEMPTS):
            self._port = usable_port(self._port if self._chosen_port else 0)
            try:
                self._launch_once(program, load)
            except _Refused:
                continue
            return
        raise _Refused(f"the {self.name} node ended as soon as it was started")

    def _launch_once(self, program: str, load: Path | None) -> None:
        command = [program, "--quiet", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--chain-id", str(self.chain_id), "--accounts", str(roles.ACCOUNTS)]
        command += ["--network", "ethereum" if self.deployment.gas_price_oracle is None else "optimism"]
        command += ["--slots-in-an-epoch", str(self._slots_in_an_epoch), "--prune-history", str(_STATES_KEPT)]
        if load is not None:
            command += ["--load-state", str(load)]
        process = self._process = children.start(command)
        client = self._client = NodeClient(self.url)
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None:
            try:
                answered = int(client.call("eth_chainId"), 16)
            except NodeDown:
                if time.monotonic() > deadline:
                    children.kill(process)
                    raise SandboxError(f"the {self.name} node did not answer at {self.url}") from None
                time.sleep(0.005)
                continue
            if answered == self.chain_id and process.poll() is None:
                return
            children.kill(process)
        raise _Refused(f"the {self.name} node ended as soon as it was started")


def _store(path: Path, say: Say) -> state.StateStore:
    return state.StateStore(path, say=say)


def usable_port(port: int) -> int:
    """Return this loopback port, or a free one for 0. Raises: SandboxError when it is taken."""
    for _ in range(_PORT_ATTEMPTS if port == 0 else 1):
        candidate = port or random.choice(_OWN_PORTS)  # noqa: S311 - nobody guesses it
        with socket.socket() as probe:
            # As the servers do: connections that ended a moment ago do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", candidate))
                return candidate
    raise SandboxError(f"port {candidate} is taken: stop what uses it, or choose another")
