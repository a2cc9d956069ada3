"""Command line of the Solana node: `python -m solana_node --port 18899`."""

import argparse
import signal
import sys
from pathlib import Path

from solana_node import USDC_MINT, SolanaNode

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    """Run the node until SIGTERM or Ctrl-C."""
    options = _parse_arguments()
    # Blocked before other threads start, so that the signal is left for `sigwait`.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        node = SolanaNode(
            host=options.host,
            port=options.port,
            slot_ms=options.slot_ms,
            finalized_lag=options.finalized_lag,
            usdc=options.usdc,
            genesis_hash=options.genesis_hash,
            state=options.state,
        )
    except (OSError, RuntimeError, ValueError) as error:
        print(f"cannot start the Solana node: {error}", file=sys.stderr)
        return 1
    with node:
        print(f"ready {node.url}", flush=True)
        signal.sigwait(_STOP_SIGNALS)
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m solana_node",
        description="A local Solana cluster: real execution by LiteSVM, Solana's JSON-RPC over HTTP, "
        "subscriptions over WebSocket on the next port. USDC is at its mainnet address.",
        epilog="Extra methods: sandbox_mint [owner, units], sandbox_advance [slots], sandbox_setAccount "
        "[address, lamports, owner, base64], sandbox_faults [{drop, delaySlots, http, httpAfter, sleepMs}], "
        "sandbox_forget [slot], "
        "sandbox_info []. requestAirdrop pays SOL. GET /health answers ok.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=18899, help="HTTP port; WebSocket takes the next one (default: %(default)s)"
    )
    parser.add_argument(
        "--slot-ms",
        type=int,
        default=400,
        help="milliseconds per slot; 0 stops the clock until sandbox_advance (default: %(default)s)",
    )
    parser.add_argument(
        "--finalized-lag", type=int, default=32, help="slots until a transaction is finalized (default: %(default)s)"
    )
    parser.add_argument("--state", type=Path, metavar="FILE", help="keep the chain in this SQLite file between starts")
    parser.add_argument(
        "--usdc", default=USDC_MINT, metavar="MINT", help="address of the USDC mint (default: %(default)s)"
    )
    parser.add_argument(
        "--genesis-hash",
        metavar="HASH",
        help="report this genesis hash, for a service that is configured for that cluster (default: its own)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
