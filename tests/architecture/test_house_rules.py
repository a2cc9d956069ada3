"""The rules of the house, executed on the source itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.errors import STATUS, ErrorCode, ServiceError
from app.jobs import JobName, QueueName

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for folder in ("app", "workers") for path in (ROOT / folder).rglob("*.py"))
OURS = sorted(
    path for folder in ("app", "workers", "sandbox", "launcher") for path in (ROOT / folder).rglob("*.py")
)

# Seconds of waiting are floats in every library; money never is.
FLOATS_OF_TIME = (
    "app/adapters/",
    "app/wallets/waiting.py",
    "app/web/forwarding.py",
    "app/web/fields.py",
    "app/factory.py",
    "app/core/connections.py",
    "workers/schedule.py",
)

SPEC_TABLE = {
    "INVALID_INPUT": 400, "INVALID_SPEC": 400, "SELF_REVOKE": 400, "UNAUTHORIZED": 401,
    "INSUFFICIENT_CREDITS": 402, "PAYMENT_REQUIRED": 402, "PAYMENT_INVALID": 402, "PAYMENT_ALREADY_USED": 402,
    "DAILY_LIMIT_EXCEEDED": 403, "PER_TX_LIMIT_EXCEEDED": 403, "ADDRESS_NOT_ALLOWED": 403, "NOT_FOUND": 404,
    "ALREADY_SUBSCRIBED": 409, "TRANSFER_FAILED": 500, "WITHDRAWAL_FAILED": 500, "SWAP_FAILED": 500,
    "BRIDGE_FAILED": 500, "NOT_IMPLEMENTED": 501, "PERPDEX_ERROR": 502, "BALANCE_FETCH_ERROR": 502,
    "PROVIDER_NOT_CONFIGURED": 503,
}  # fmt: skip


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def calls(path: Path, attribute: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == attribute
        ):
            yield node.lineno


def test_only_the_unit_of_work_commits() -> None:
    found = [f"{name_of(path)}:{line}" for path in SOURCES for line in calls(path, "commit")]
    assert len(found) == 1
    assert found[0].startswith("app/core/unit_of_work.py:")


def test_only_a_lifecycle_writes_a_status() -> None:
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            found += [name_of(path) for t in targets if isinstance(t, ast.Attribute) and t.attr == "status"]
    assert set(found) <= {"app/wallets/lifecycle.py", "app/payments/claims.py"}


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if not name_of(path).startswith(FLOATS_OF_TIME)], ids=name_of
)
def test_no_float_comes_near_money(path: Path) -> None:
    tree = ast.parse(path.read_text())
    literals = [
        n.lineno for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, float)
    ]
    names = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == "float"]
    assert (literals, names) == ([], [])


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_no_file_has_two_reasons_to_change(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_nobody_but_the_settings_reads_the_environment() -> None:
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            read = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
            # A request has an "environ" of its own, which is not the process's.
            read = read and ast.unparse(node) != "request.environ"
            found += [name_of(path)] if read else []
    assert found == []


def test_the_words_that_hide_a_purpose_name_no_file() -> None:
    vague = {"utils", "helpers", "common", "manager", "data", "info"}
    assert [name_of(path) for path in OURS if path.stem in vague] == []


def test_the_error_table_holds_the_contract_s() -> None:
    assert {code: STATUS[ErrorCode(code)] for code in SPEC_TABLE} == SPEC_TABLE
    assert set(STATUS) == set(ErrorCode)


def test_every_failure_says_when_to_raise_it() -> None:
    def subclasses(cls: type[ServiceError]) -> Iterator[type[ServiceError]]:
        for child in cls.__subclasses__():
            yield child
            yield from subclasses(child)

    for failure in subclasses(ServiceError):
        assert failure.__doc__, failure
        assert failure("x").status >= 400


def test_every_job_is_where_its_name_says() -> None:
    for job in JobName:
        module, _, function = job.value.rpartition(".")
        source = (ROOT / Path(*module.split("."))).with_suffix(".py").read_text()
        assert f"def {function}(" in source
        assert job.queue in QueueName


def test_the_procfile_runs_what_serves_all_queues() -> None:
    lines = dict(line.split(": ", 1) for line in (ROOT / "Procfile").read_text().splitlines() if line)
    assert lines["worker"] == "python -m workers"
    assert lines["scheduler"] == "python -m workers.schedule"
    assert lines["shopper"] == "python -m workers.purchases"
    assert "QueueName.SHOPPING" in (ROOT / "workers" / "purchases.py").read_text()
    assert "for name in QueueName" in (ROOT / "workers" / "__main__.py").read_text()


def test_arrows_point_one_way() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_no_path_of_a_machine_is_in_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pattern = re.compile(r"/(?:home|Users|w" + r"ork|farm)/[a-z]")
    found = []
    for name in listed.splitlines():
        path = ROOT / name
        is_text = path.is_file() and path.suffix in (
            ".py",
            ".md",
            ".txt",
            ".toml",
            ".html",
            ".sh",
            ".ini",
            "",
        )
        found += [name] if is_text and pattern.search(path.read_text(errors="replace")) else []
    assert found == []
