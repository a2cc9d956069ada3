"""Methods no real node has: making money, time and trouble. All are named `sandbox_…`."""

import base64
from collections.abc import Callable
from typing import Final

from solders.account import Account

from sandbox.solana import faucet
from sandbox.solana.addresses import SYSTEM
from sandbox.solana.chain import Chain
from sandbox.solana.errors import JsonObject
from sandbox.solana.faults import Faults
from sandbox.solana.parameters import Config, read_address


def advance(chain: Chain, slots: int = 1) -> int:
    """Let slots pass at once and tell the new one; with `--slot-ms 0` nothing else moves the clock."""
    chain.advance(slots)
    return chain.slot


def mint(chain: Chain, owner: str, units: int, address: str | None = None) -> str:
    """Mint base units of USDC, or of another mint of the faucet's, to an owner and tell the signature."""
    other = read_address(address) if address else None
    return faucet.mint(chain, read_address(owner), units, mint=other)


def set_account(chain: Chain, address: str, lamports: int, owner: str = SYSTEM, data: str = "") -> bool:
    """Write an account without a transaction; the data is base64."""
    account = Account(lamports, base64.b64decode(data), read_address(owner))
    chain.set_account(str(read_address(address)), account)
    return True


def set_faults(chain: Chain, faults: Config = None) -> JsonObject:
    """Replace all faults; without a parameter the node is well again."""
    chain.faults = Faults.from_json(faults or {})
    return chain.faults.to_json()


def forget(chain: Chain, slot: int) -> int:
    """Drop the history before a slot and tell the first slot that is still known."""
    chain.forget_before(slot)
    return chain.first_available_slot


def info(chain: Chain) -> JsonObject:
    """Tell the settings and sizes of this chain."""
    return chain.summary()


METHODS: Final[dict[str, Callable[..., object]]] = {
    "sandbox_advance": advance,
    "sandbox_mint": mint,
    "sandbox_setAccount": set_account,
    "sandbox_faults": set_faults,
    "sandbox_forget": forget,
    "sandbox_info": info,
}
