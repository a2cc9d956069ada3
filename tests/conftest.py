"""The options of a run, and its plugins: the fixtures are in `tests/support/fixtures.py`."""

from __future__ import annotations

import os

import hypothesis
import pytest

from tests.support.collection import RareGarbageCollection, SharedCollection
from tests.support.tiers import FIRST_TIER_PROFILE, Tier, Tiers

# The durations of an example and of its making depend on the load of the machine.
# The same examples each time, for repeatable runs. `HYPOTHESIS_HUNT=1` generates others.
_DERANDOMIZE = "HYPOTHESIS_HUNT" not in os.environ
_NOT_TIMED = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("all", deadline=None, derandomize=_DERANDOMIZE, suppress_health_check=_NOT_TIMED)
hypothesis.settings.register_profile(FIRST_TIER_PROFILE, hypothesis.settings.get_profile("all"), max_examples=30)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=[str(tier) for tier in Tier], help="default: 1, or all tests that were named")


def pytest_configure(config: pytest.Config) -> None:
    tiers = Tiers(config)
    config.pluginmanager.register(tiers)
    if workerinput := getattr(config, "workerinput", None):
        config.pluginmanager.register(SharedCollection(workerinput))
    only_lists = config.option.collectonly or config.option.showfixtures or config.option.show_fixtures_per_test
    if workerinput or only_lists or not config.getoption("numprocesses"):
        config.pluginmanager.register(RareGarbageCollection())
        # They import the whole service, for seconds, which the process that distributes the tests does not need.
        config.pluginmanager.import_plugin("tests.support.fixtures")
    hypothesis.settings.load_profile(FIRST_TIER_PROFILE if tiers.chosen is Tier.FIRST else "all")
