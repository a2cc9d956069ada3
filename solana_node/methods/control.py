"""Methods to control the sandbox, all named `sandbox_…`: minting, time and faults."""

import base64
from collections.abc import Callable
from typing import Final

from solders.account import Account

from solana_node import faucet
from solana_node.addresses import SYSTEM
from solana_node.chain import Chain
from solana_node.errors import JsonObject
from solana_node.faults import Faults
from solana_node.parameters import Config, read_address


def advance(chain: Chain, slots: int = 1) -> int:
    """Advance by a number of slots immediately; with `--slot-ms 0` nothing else moves the clock."""
    chain.advance(slots)
    return chain.slot


def mint(chain: Chain, owner: str, units: int, address: str | None = None) -> str:
    """Mint base units of USDC, or of another mint of the faucet, to an owner and return the signature."""
    other = read_address(address) if address else None
    return faucet.mint(chain, read_address(owner), units, mint=other)


def set_account(chain: Chain, address: str, lamports: int, owner: str = SYSTEM, data: str = "") -> bool:
    """Write an account without a transaction; the data is base64."""
    account = Account(lamports, base64.b64decode(data), read_address(owner))
    chain.set_account(str(read_address(address)), account)
    return True


def set_faults(chain: Chain, faults: Config = None) -> JsonObject:
    """Replace all faults; without a parameter remove them."""
    chain.faults = Faults.from_json(faults or {})
    return chain.faults.to_json()


def prune(chain: Chain, slot: int) -> int:
    """Drop the history before a slot; return the first available slot."""
    chain.prune_before(slot)
    return chain.first_available_slot


def info(chain: Chain) -> JsonObject:
    """Return the settings and sizes of this chain."""
    return chain.summary()


METHODS: Final[dict[str, Callable[..., object]]] = {
    "sandbox_advance": advance,
    "sandbox_mint": mint,
    "sandbox_setAccount": set_account,
    "sandbox_faults": set_faults,
    "sandbox_forget": prune,
    "sandbox_info": info,
}
