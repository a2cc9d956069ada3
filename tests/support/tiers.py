"""The two tiers of the suite, and the option that chooses one.

The first tier, which `./test` runs, proves every promise of the README. The second has what is long and rarely fails:
the same dangers at more points, under more load, in a browser, with third-party programs. `.ci/run` runs both.
What would be the same on both databases runs on SQLite alone, in either tier.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from enum import StrEnum
from fnmatch import translate
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

FIRST_TIER_PROFILE = "first tier"
SECOND_TIER = {
    "tests/api/*[[]*postgres*": "twins on the other database",
    "tests/unit/*[[]*postgres*": "twins on the other database",
    "tests/signer/*[[]*postgres*": "twins on the other database",
    "tests/workers/*[[]*postgres*": "twins on the other database",
    "tests/concurrency/*[[]*sqlite*": "twins on the other database",
    "tests/concurrency/test_gateway.py::*": "crowds of calls",
    "tests/architecture/test_migrations.py::test_a_database_of_any_age_*": "migrations of full databases",
    "tests/architecture/test_migrations.py::test_rows_survive_*": "migrations of full databases",
    "tests/sandbox/test_command.py::*": "restarts of the sandbox",
    "tests/concurrency/test_x402_buying.py::*": "crowds of calls",
    "tests/concurrency/test_deposits.py::*[[][123]]": "more seeds",
    "tests/concurrency/test_payouts.py::test_payouts_race_*[[][123]]": "more seeds",
    "tests/concurrency/test_transfers.py::test_two_hundred_*": "crowds of calls",
    "tests/workers/test_many_pending.py::*": "a thousand open movements",
    "tests/workers/test_queue_loss.py::test_a_*": "killed workers",
    "tests/workers/test_queue_loss.py::test_without_redis_*[[]hanging]": "killed workers",
    "tests/launcher/test_environment.py::test_two_concurrent_*": "installations",
    "tests/launcher/test_environment.py::test_an_environment_is_created_*": "installations",
    "tests/unit/test_start_up.py::*": "starts of processes",
    "tests/unit/test_process_hardening.py::test_every_process_*": "starts of processes",
    "tests/unit/test_grouped_steps.py::test_a_batch_writes_*": "random inputs",
    "tests/unit/test_capacity_plan.py::test_the_arithmetic_*": "the simulation of a large operator",
    "tests/unit/gateway/test_unread_usage.py::test_no_large_part_*": "bodies of many megabytes",
    "tests/unit/gateway/test_unread_usage.py::test_a_huge_*": "bodies of many megabytes",
    "tests/unit/gateway/test_responses.py::test_a_gemini_array_of_many_*": "bodies of many megabytes",
    "tests/adapters/test_evm_rules.py::test_any_response_*": "random inputs",
    "tests/adapters/test_evm_outcomes.py::test_a_thousand_*": "a thousand open movements",
    "tests/api/test_any_request.py::*": "random inputs",
    "tests/crash/*": "kills at every point of each payment",
    "tests/host/*": "releases and key rotations under load",
    "tests/machines/*": "random walks of state machines",
    "tests/browser/*": "a real browser",
    "tests/clients/*": "third-party clients",
    "tests/docs/test_mcp_walk.py::*": "another start of the whole service",
    "tests/wire/test_process_limits.py::*": "limits of a process",
    "tests/wire/test_slow_clients.py::*": "crowds of slow clients",
}
"""Patterns of test ids, with what they prove."""

FIRST_TIER = (
    "tests/machines/*[[]script]",
    "tests/machines/*[[]sqlite-script]",
    # What the README promises of a crash, at the kills inside and after the unit that signs.
    "tests/crash/test_transfers.py::test_every_step_of_a_transfer_is_a_kill_point[[]base-sqlite]",
    "tests/crash/test_transfers.py::test_a_transfer_of_a_killed_process_pays_at_most_once[[]base-sqlite-*commit 3]",
    "tests/crash/test_transfers.py::test_a_transfer_of_a_killed_process_pays_at_most_once[[]base-sqlite-*commit 2]",
    "tests/crash/test_transfers.py::test_a_transfer_of_a_killed_process_pays_at_most_once[[]base-sqlite-*broadcast]",
    "tests/crash/test_x402_buying.py::test_a_killed_purchase_is_paid_once_*[[]sqlite-base-x402-before commit 3]",
)
"""Patterns of test ids in those folders that are in the first tier all the same."""

SAME_ON_BOTH = {
    "tests/api/test_catalog.py::test_a_search_that_is_*": "refused before a statement",
    "tests/api/test_catalog.py::test_an_unknown_service_*": "read by its key",
    "tests/api/test_catalog.py::test_the_detail_has_*": "read by its key",
    "tests/api/test_catalog.py::test_the_example_of_a_hostile_*": "read by its key",
    "tests/api/test_catalog.py::test_a_service_without_*": "read by its key",
    "tests/api/test_gateway_charges.py::test_calls_of_unknown_cost_*": "the upstream decides what is charged",
    "tests/api/test_gateway_charges.py::test_a_compressed_*": "nothing of it is stored",
    "tests/api/test_gateway_charges.py::test_a_cost_reported_*": "the upstream decides what is charged",
    "tests/api/test_gateway_charges.py::test_a_free_call_*": "the request decides what is charged",
    "tests/api/test_gateway_charges.py::test_a_call_without_a_model_*": "the request decides what is logged",
    "tests/api/test_gateway_charges.py::test_a_head_*": "the request decides what is held",
    "tests/api/test_gateway_charges.py::test_a_search_is_charged_*": "the upstream decides what is charged",
    "tests/api/test_gateway_charges.py::test_a_transcript_*": "the upstream decides what is charged",
    "tests/api/test_gateway_charges.py::test_no_call_costs_*": "the upstream decides what is charged",
    "tests/api/test_gateway_charges.py::test_rate_limit_headers_*": "nothing of it is stored",
    "tests/api/test_limited_keys.py::test_a_key_with_limits_reaches_*": "refused before a statement",
    "tests/api/test_limited_keys.py::test_another_agent_*": "read by its key",
    "tests/api/test_limited_keys.py::test_limits_that_are_none_*": "refused before a statement",
    "tests/api/test_limited_keys.py::test_models_that_a_request_names_*": "refused before a statement",
    "tests/api/test_limited_keys.py::test_only_the_models_*": "refused before a statement",
    "tests/api/test_limited_keys.py::test_the_idempotency_key_of_*": "nothing of it is stored",
    "tests/api/test_limited_keys.py::test_tokens_of_cache_*": "the upstream's response decides what is logged",
    "tests/api/test_shared_budgets.py::test_a_wrong_budget_*": "refused before a statement",
    "tests/api/test_subscriptions.py::test_a_foreign_wallet_*": "refused before a statement",
    "tests/api/test_subscriptions.py::test_a_missing_wallet_*": "refused before a statement",
    "tests/api/test_subscriptions.py::test_the_wallet_may_be_named_*": "the request decides which wallet is meant",
    "tests/api/test_webhooks.py::test_a_delivery_is_signed_*": "what is sent is made of the same row",
    "tests/api/test_webhooks.py::test_a_target_that_*": "the target's response decides what follows",
    "tests/api/test_webhooks.py::test_after_a_rotation_*": "what is sent is made of the same row",
    "tests/api/test_webhooks.py::test_the_secret_is_*": "read by its key",
    "tests/api/test_webhooks.py::test_unknown_types_*": "refused before a statement",
    "tests/machines/*[[]postgres-walks]": "one step after another shows no lock, and the script takes each on both",
}
"""Patterns of tests that run on SQLite alone, with why the other database could not change their outcome.

A test runs on PostgreSQL too where that one could fail alone: by its locks and its isolation of concurrent units, by a
statement that is written for it (an upsert, a search, a sum, a date), or by a type that takes other values.
"""

LONGEST = (
    "tests/api/test_access.py::*",
    "tests/api/test_any_request.py::*",
    # It waits for a limit of the service, of ten seconds, while the other processes have the processors.
    "tests/api/test_gateway_charges.py::test_a_stream_that_its_client_leaves_*",
    "tests/clients/*",
    "tests/concurrency/test_crash_test.py::*",
    "tests/docs/*",
    "tests/host/*",
    "tests/launcher/test_environment.py::*",
    "tests/machines/*",
    "tests/workers/test_job_worker.py::*",
)
"""Patterns of the tests that take longest. They begin first, so that at the end no process works alone."""


class Tier(StrEnum):
    """The value of `--tier`."""

    FIRST = "1"
    SECOND = "2"
    ALL = "all"


_WHOLE_PATHS = {
    path
    for path in (re.sub(r"(/|::)\*$", "", pattern) for pattern in SECOND_TIER)
    if "*" not in path and not any(name.startswith(path) for name in FIRST_TIER)
}
"""Folders and files without a test of the first tier, which need not be imported for it."""


def tier_of(test_id: str) -> Tier:
    """Return the tier of a test."""
    if _matches(test_id, FIRST_TIER):
        return Tier.FIRST
    return Tier.SECOND if _matches(test_id, SECOND_TIER) else Tier.FIRST


def _matches(test_id: str, patterns: Iterable[str]) -> bool:
    return _any_of(tuple(patterns)).match(test_id) is not None


@cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return one expression for all patterns: each process asks several times for each of ten thousand tests."""
    return re.compile("|".join(map(translate, patterns)))


def is_first_tier() -> bool:
    """Return whether the run is that of the first tier, in which fewer examples are generated."""
    return settings.get_current_profile_name() == FIRST_TIER_PROFILE


class Tiers:
    """The pytest plugin: leaves out the tests of the other tier, and reports that in the last line."""

    def __init__(self, config: pytest.Config) -> None:
        chosen = config.getoption("tier")
        # Tests that were named are run.
        is_named = config.args_source is pytest.Config.ArgsSource.ARGS
        self.chosen = Tier(chosen or (Tier.ALL if is_named else Tier.FIRST))

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        if self.chosen is not Tier.FIRST or not collection_path.is_relative_to(config.rootpath):
            return None
        return collection_path.relative_to(config.rootpath).as_posix() in _WHOLE_PATHS or None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if "HYPOTHESIS_HUNT" not in os.environ:
            items[:] = [
                item for item in items if not ("postgres" in item.nodeid and _matches(item.nodeid, SAME_ON_BOTH))
            ]
        items.sort(key=lambda item: not _matches(item.nodeid, LONGEST))
        if self.chosen is Tier.ALL:
            return
        others = [item for item in items if tier_of(item.nodeid) is not self.chosen]
        items[:] = [item for item in items if tier_of(item.nodeid) is self.chosen]
        config.hook.pytest_deselected(items=others)

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if self.chosen is not Tier.ALL and not hasattr(config, "workerinput"):
            print(summary(self.chosen))  # noqa: T201 - the last line, after pytest's own


def summary(chosen: Tier) -> str:
    """Return the last line of a run: what was left out, and how to run it."""
    other = Tier.SECOND if chosen is Tier.FIRST else Tier.FIRST
    dangers = f" ({'; '.join(dict.fromkeys(SECOND_TIER.values()))})" if other is Tier.SECOND else ""
    return (
        f"Left out: the tests of tier {other}{dangers}. "
        f"`./test --tier={other}` runs them, `./test --tier=all` runs every test."
    )
