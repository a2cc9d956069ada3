"""`python -m benchmarks.crash`: what is overspent or lost when the limit of a budget is raced, retried and killed."""

import argparse
import itertools
import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks.crash.given import GivenDeployment
from benchmarks.crash.scenarios import SCENARIOS, Gateway, Row, Scenario, Sizes, measure
from benchmarks.crash.upstream import MAX_TOKENS_OUT, TOKENS_IN, TOKENS_OUT, CountingUpstream, counting_upstream

_GATEWAYS = ("purser", "litellm-keys", "litellm-provider")
_PRICE_USD = (TOKENS_IN * 0.15 + TOKENS_OUT * 0.6) / 10**6
_SHORT = {"times": 3, "kills": 1}
_EPILOG = f"""
Each scenario gets a key whose budget pays for exactly --affordable calls, sends more, spends what is left of the
budget, and compares the budget, what the upstream of this test generated (a provider would bill it) and what the
gateway recorded. Answers report {TOKENS_IN} tokens of input and {TOKENS_OUT} of output; calls permit {MAX_TOKENS_OUT}.

Your own deployment (needs only Python): start with --base-url, --upstream-port, and --price-usd, what your gateway
charges for such a call. Direct its provider to http://THIS-HOST:UPSTREAM-PORT/v1, and give keys a budget of affordable
times price. Each scenario needs a key of its own: repeat --api-key, or have --key-command print one. Without
--restart-command nothing is killed. Example:

  python -m benchmarks.crash --base-url http://127.0.0.1:4000/v1 --upstream-port 9100 --model gpt-4o-mini \\
    --key-command 'curl -s 127.0.0.1:4000/key/generate -H "Authorization: Bearer $MASTER" -H "Content-Type: \\
      application/json" -d "{{\\"max_budget\\": 0.0029664}}" | jq -r .key' \\
    --restart-command 'docker kill -s KILL litellm && docker start litellm && sleep 20'
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen scenarios and print the table; return 1 if this service overspent without being killed."""
    chosen = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    sizes = Sizes(chosen.price_usd, chosen.affordable, **(_SHORT if chosen.short else {}))
    host = "0.0.0.0" if chosen.base_url else "127.0.0.1"  # noqa: S104 - the gateway may be on another machine
    rows: list[Row] = []
    with counting_upstream(host=host, port=chosen.upstream_port, delay=chosen.delay) as upstream:
        print(f"Budget {sizes.budget_usd:.7f} USD = {sizes.affordable} calls; upstream at {upstream.url}", flush=True)
        with _gateways(chosen) as gateways:
            for name, gateway in gateways.items():
                rows += _measured(name, gateway, upstream, sizes, chosen)
    print("\n" + table(rows))
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return int(any(row.overspent for row in rows if row.gateway == "purser" and not row.kills))


def table(rows: Sequence[Row]) -> str:
    """Return the results as a table of Markdown, in calls of the same price."""
    lines = [
        "| Gateway | Scenario | Budget | Answered | Refused | No answer | Billed by the provider | Overspent | Not recorded |",  # noqa: E501
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        unrecorded = "not read" if row.unrecorded is None else f"{row.unrecorded:g}"
        figures = [row.budget, row.answered, row.refused, row.unknown, row.billed, row.overspent, unrecorded]
        lines.append(f"| {row.gateway} | {row.scenario} | {' | '.join(map(str, figures))} |")
    return "\n".join(lines)


def _measured(
    name: str, gateway: Gateway, upstream: CountingUpstream, sizes: Sizes, chosen: argparse.Namespace
) -> Iterator[Row]:
    # One deployment for all scenarios with as many replicas, unless all keys share one budget.
    for _, group in itertools.groupby(
        _scenarios(chosen), key=lambda each: each.name if gateway.is_shared_budget else each.replicas
    ):
        scenarios = list(group)
        with gateway.run(upstream, scenarios[0].replicas, sizes) as deployment:
            for scenario in scenarios:
                began = time.monotonic()
                row, client = measure(name, scenario, deployment, upstream, sizes)
                yield row
                print(f"\n{name}, {scenario.name} ({time.monotonic() - began:.0f} s): {row}", flush=True)
                for status, count in sorted(client.statuses.items()):
                    print(f"  {count:5} x {status}", flush=True)


def _scenarios(chosen: argparse.Namespace) -> list[Scenario]:
    named = [each for each in SCENARIOS if not chosen.scenario or each.name in chosen.scenario]
    if not chosen.base_url:
        return [each for each in named if each.replicas == 1 or not chosen.short]
    is_replicated = len(chosen.base_url) > 1
    return [
        each for each in named
        if (each.name != "kill -9" or chosen.restart_command) and (each.replicas == 1 or is_replicated)
    ]  # fmt: skip


@contextmanager
def _gateways(chosen: argparse.Namespace) -> Iterator[Mapping[str, Gateway]]:
    if chosen.base_url:
        given = GivenDeployment(
            chosen.base_url, chosen.model, chosen.api_key, chosen.key_command, chosen.restart_command,
            chosen.spend_command, chosen.settle_seconds,
        )  # fmt: skip
        yield {chosen.base_url[0]: Gateway(given.run)}
        return
    # Imported here: with a base URL, the standard library suffices.
    from benchmarks import stack  # noqa: PLC0415
    from benchmarks.crash import gateways  # noqa: PLC0415

    with ExitStack() as running:
        found: dict[str, Gateway] = {}
        names = chosen.only or (_GATEWAYS[:1] if chosen.short else _GATEWAYS)
        if "purser" in names:
            found["purser"] = gateways.purser(running.enter_context(stack.start_infrastructure(chains=False)))
        for name in names:
            if name.startswith("litellm"):
                found[name] = gateways.litellm(of_keys=name == "litellm-keys")
        yield found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.crash",
        description="Race, retry and kill a gateway at the limit of a budget; print what it overspent or lost.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_EPILOG,
    )
    parser.add_argument("--only", action="append", choices=_GATEWAYS, help="these gateways (may be repeated)")
    parser.add_argument(
        "--scenario", action="append", choices=[each.name for each in SCENARIOS], help="these (may be repeated)"
    )
    parser.add_argument("--short", action="store_true", help="this service, fewer calls and no replicas: two minutes")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--delay", type=float, default=0.2, help="seconds that the upstream needs (%(default)s)")
    parser.add_argument("--affordable", type=int, default=48, help="calls that a budget pays for (%(default)s)")
    given = parser.add_argument_group("another deployment")
    given.add_argument("--base-url", action="append", help="OpenAI-compatible; repeat it for each replica")
    given.add_argument("--api-key", action="append", default=[], help="a key with the whole budget; one per scenario")
    given.add_argument("--key-command", default="", help="prints such a key")
    given.add_argument("--restart-command", default="", help="kills the gateway, restarts it, and waits for it")
    given.add_argument("--spend-command", default="", help="prints the recorded USD of the key in $CRASH_TEST_KEY")
    given.add_argument("--settle-seconds", type=float, default=15.0, help="before the books are read (%(default)s)")
    given.add_argument("--upstream-port", type=int, default=0, help="where the gateway finds its provider")
    given.add_argument("--model", default="gpt-4o-mini", help="the model to call (%(default)s)")
    given.add_argument("--price-usd", type=float, default=_PRICE_USD, help="of a call (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
