"""The gateways under test: this service, LiteLLM with two kinds of budgets, and any other at a URL."""

import contextlib
import hashlib
import http.client
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg
import redis

from benchmarks import competitors, stack
from benchmarks.crash.calls import Client
from benchmarks.crash.programs import Program, restart_all, start_all
from benchmarks.crash.scenarios import Gateway, Sizes
from benchmarks.crash.upstream import CountingUpstream
from benchmarks.stack import Infrastructure
from tests.support.servers import free_port, redis_server

MODEL = "gpt-4o-mini"
_LOCAL = "127.0.0.1"
_READ_TIMEOUT_SECONDS = 2
_SETTLING_SECONDS = 150.0
_LITELLM_FLUSH_SECONDS = 15.0
_KEYS_MODULE = """
from litellm.proxy._types import UserAPIKeyAuth, hash_token

async def user_api_key_auth(request, api_key):
    return UserAPIKeyAuth(api_key=api_key, token=hash_token(api_key), max_budget={budget!r}, spend=0.0)
"""
_LITELLM_SETTINGS = """
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: "{upstream}", api_key: sk-crash-test, max_retries: 0}}
litellm_settings:
  num_retries: 0
  cache: true
  cache_params: {{type: redis, host: 127.0.0.1, port: {redis_port}, supported_call_types: []}}
router_settings:
  redis_host: 127.0.0.1
  redis_port: {redis_port}
  disable_cooldowns: true
{budgets}
"""
_KEY_BUDGETS = """
general_settings:
  custom_auth: keys.user_api_key_auth
  custom_auth_run_common_checks: true
"""
_PROVIDER_BUDGETS = """
  provider_budget_config:
    openai: {{budget_limit: {budget}, time_period: 1d}}
"""


@dataclass
class PurserDeployment:
    """Replicas of this service, and its scheduler, on one database."""

    webs: Sequence[Program]
    scheduler: Program

    def client(self) -> Client:
        key = str(self._ask("POST", "/v1/keys", b"{}")["api_key"])
        urls = [f"http://{_LOCAL}:{web.port}/v1/gateway/openai" for web in self.webs]
        return Client(urls, key, MODEL)

    def kill_and_restart(self) -> None:
        restart_all([*self.webs, self.scheduler])

    def settle(self) -> None:
        """Wait until the leases of killed calls have ended and they are charged."""
        database = self.scheduler.settings["DATABASE_URL"]
        deadline = time.monotonic() + _SETTLING_SECONDS
        while _open_holds(database) and time.monotonic() < deadline:
            time.sleep(0.5)

    def recorded_usd(self, client: Client) -> float | None:
        return float(self._ask("GET", "/v1/balance", key=client.key)["total_spent"])

    def _ask(self, method: str, path: str, body: bytes | None = None, *, key: str = "") -> Mapping[str, str]:
        headers = {"Content-Type": "application/json", **({"X-API-Key": key} if key else {})}
        with contextlib.closing(http.client.HTTPConnection(_LOCAL, self.webs[0].port, timeout=60)) as connection:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        if response.status >= http.HTTPStatus.BAD_REQUEST:
            raise RuntimeError(f"{path}: {response.status} {content!r}")
        return dict(json.loads(content))


def purser(infrastructure: Infrastructure) -> Gateway:
    """Return this service on PostgreSQL, as the Procfile runs it."""

    @contextlib.contextmanager
    def run(upstream: CountingUpstream, replicas: int, sizes: Sizes) -> Iterator[PurserDeployment]:
        environment = infrastructure.migrated(
            f"crash_{secrets.token_hex(4)}", OPENAI_API_KEY="sk-crash-test", OPENAI_BASE_URL=upstream.url,
            ALLOW_PRIVATE_UPSTREAMS="1", INITIAL_CREDITS_USD=f"{sizes.budget_usd:.9f}",
            UPSTREAM_CONNECT_TIMEOUT_SECONDS="1", UPSTREAM_READ_TIMEOUT_SECONDS=str(_READ_TIMEOUT_SECONDS),
            WEB_CONCURRENCY="2" if replicas == 1 else "1", REDIS_URL="redis://127.0.0.1:9",
        )  # fmt: skip

        def program(name: str, port: int = 0) -> Program:
            bind = {"PORT": str(port)} if port else {}
            log = infrastructure.folder / f"crash-{name}-{port}.log"
            return Program(stack.procfile_command(name), {**environment, **bind}, log, port, str(stack.ROOT))

        made = PurserDeployment([program("web", free_port()) for _ in range(replicas)], program("scheduler"))
        with _running([*made.webs, made.scheduler]):
            yield made

    return Gateway(run)


def _open_holds(database_url: str) -> int:
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT count(*) FROM credit_holds WHERE state = 'held'").fetchone()
    return int(row[0]) if row else 0


@dataclass
class LiteLlmDeployment:
    """Replicas of LiteLLM's proxy that share a Redis."""

    proxies: Sequence[Program]
    redis_url: str
    counter: Callable[[str], str]
    new_key: Callable[[], str]

    def client(self) -> Client:
        return Client([f"http://{_LOCAL}:{proxy.port}/v1" for proxy in self.proxies], self.new_key(), MODEL)

    def kill_and_restart(self) -> None:
        restart_all(self.proxies)

    def settle(self) -> None:
        """Wait until its spend, which it records after the response, is in Redis."""
        time.sleep(_LITELLM_FLUSH_SECONDS)

    def recorded_usd(self, client: Client) -> float | None:
        with redis.Redis.from_url(self.redis_url) as connection:
            return float(connection.get(self.counter(client.key)) or 0)


def litellm(*, of_keys: bool) -> Gateway:
    """Return LiteLLM with a budget of each key, or of the provider. Raises: FileNotFoundError if not installed."""
    command = competitors.installed("litellm/bin/litellm")

    @contextlib.contextmanager
    def run(upstream: CountingUpstream, replicas: int, sizes: Sizes) -> Iterator[LiteLlmDeployment]:
        with ExitStack() as stack_of_servers:
            # A fresh one, because the budget of a provider is one for the whole Redis.
            port = free_port()
            redis_url = stack_of_servers.enter_context(redis_server(port=port))
            folder = stack_of_servers.enter_context(stack.scratch_folder())
            budgets = _KEY_BUDGETS if of_keys else _PROVIDER_BUDGETS.format(budget=sizes.budget_usd)
            settings = _LITELLM_SETTINGS.format(model=MODEL, upstream=upstream.url, redis_port=port, budgets=budgets)
            (folder / "config.yaml").write_text(settings)
            (folder / "keys.py").write_text(_KEYS_MODULE.format(budget=sizes.budget_usd))
            master_key = _new_key()
            environment = {
                "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": master_key, "HOME": str(folder),
            }  # fmt: skip

            def program(port: int) -> Program:
                arguments = ["--config", str(folder / "config.yaml"), "--host", _LOCAL, "--port", str(port)]
                return Program([command, *arguments], environment, folder / f"{port}.log", port, str(folder))

            proxies = [program(free_port()) for _ in range(replicas)]
            with _running(proxies):
                if of_keys:
                    yield LiteLlmDeployment(proxies, redis_url, _key_counter, _new_key)
                else:
                    yield LiteLlmDeployment(proxies, redis_url, _provider_counter, lambda: master_key)

    return Gateway(run, is_shared_budget=not of_keys)


def _new_key() -> str:
    return f"sk-{secrets.token_hex(24)}"


def _key_counter(key: str) -> str:
    return f"spend:key:{hashlib.sha256(key.encode()).hexdigest()}"


def _provider_counter(_key: str) -> str:
    return "provider_spend:openai:1d"


@contextlib.contextmanager
def _running(programs: Sequence[Program]) -> Iterator[None]:
    try:
        start_all(programs)
        yield
    finally:
        for program in programs:
            program.kill()
