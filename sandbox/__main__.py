"""Command line of the sandbox: `python -m sandbox`."""

import argparse
import json
import signal
import sys
from pathlib import Path

from sandbox.errors import SandboxError
from sandbox.evm.rpc import NodeDown, NodeError
from sandbox.supervision import Options, Sandbox


def main() -> int:
    """Run the local chains until Ctrl-C, SIGTERM or SIGHUP."""
    options = _read_arguments()
    sandbox = Sandbox(options, log_line=_print_line)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        urls = sandbox.start()
        print("sandbox ready", flush=True)
        print(json.dumps({**urls, "network_ids": options.network_ids}), flush=True)
        sandbox.supervise()
    except KeyboardInterrupt:
        return 0
    except (SandboxError, NodeDown, NodeError, OSError) as error:
        print(f"sandbox: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        sandbox.stop()
    return 0


def _interrupt(_number: int, _frame: object) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # further signals must not interrupt the shutdown
    raise KeyboardInterrupt


def _print_line(line: str) -> None:
    print(f"sandbox: {line}", flush=True)


def _read_arguments() -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m sandbox",
        description="Local Ethereum, Base and Solana with the real contracts at their mainnet addresses, and "
        "a faucet, and stand-ins for the trading exchange and for language models. "
        "Prints 'sandbox ready' and one line of JSON with the URLs, then runs until Ctrl-C or "
        "SIGTERM. The chains are kept between starts.",
        epilog="The first start downloads nodes and contracts with npm (Node.js); later ones need neither npm "
        "nor a network. ANVIL names another anvil program. See sandbox/README.md.",
    )
    add = parser.add_argument
    add("--state", type=Path, default=Path("var/sandbox"), metavar="DIR", help="the chains (%(default)s)")
    add("--cache", type=Path, metavar="DIR", help="folder of downloads ($XDG_CACHE_HOME/purser-sandbox)")
    add("--ethereum-port", type=int, default=18545, metavar="N", help="JSON-RPC (%(default)s)")
    add("--base-port", type=int, default=18546, metavar="N", help="JSON-RPC (%(default)s)")
    add("--faucet-port", type=int, default=18547, metavar="N", help="POST /pay (%(default)s)")
    add("--perpdex-port", type=int, default=18548, metavar="N", help="the exchange's stand-in (%(default)s)")
    add("--solana-port", type=int, default=18899, metavar="N", help="JSON-RPC; N+1: WebSocket (%(default)s)")
    add("--jupiter-port", type=int, default=18549, metavar="N", help="GET /swap/v2/build (%(default)s)")
    add("--cctp-port", type=int, default=18550, metavar="N", help="CCTP's attester, Relay and LI.FI (%(default)s)")
    add("--openai-port", type=int, default=18551, metavar="N", help="a stand-in for language models (%(default)s)")
    add("--no-solana", action="store_true", help="leave Solana out")
    add("--block-time", type=float, metavar="S", help="seconds between blocks (Ethereum 2, Base 1)")
    add(
        "--network-ids",
        choices=("sandbox", "mainnet"),
        default="sandbox",
        help="chain ids: private ones, or the real ones for clients that accept no others. What is signed for "
        "those is valid on the real chains: never use a key that holds funds (%(default)s)",
    )
    arguments = parser.parse_args()
    if arguments.block_time is not None and arguments.block_time <= 0:
        parser.error("--block-time: more than 0 seconds")
    return Options(
        state=arguments.state,
        cache=arguments.cache,
        ethereum_port=arguments.ethereum_port,
        base_port=arguments.base_port,
        solana_port=None if arguments.no_solana else arguments.solana_port,
        faucet_port=arguments.faucet_port,
        perpdex_port=arguments.perpdex_port,
        jupiter_port=arguments.jupiter_port,
        cctp_port=arguments.cctp_port,
        openai_port=arguments.openai_port,
        block_time=arguments.block_time,
        network_ids=arguments.network_ids,
    )


if __name__ == "__main__":
    sys.exit(main())
