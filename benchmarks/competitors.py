"""Other gateways in front of the same upstream: LiteLLM's proxy, Portkey's gateway, and nginx as the lower bound.

`python -m benchmarks.competitors install` installs them outside of the repository, in `BENCHMARK_COMPETITORS` (by
default `~/.cache/purser-competitors`). Nothing else needs them; what is not installed is not measured.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import stack, thresholds
from tests.support.servers import free_port

_LITELLM = "litellm[proxy]==1.106.2"
_PORTKEY = "@portkey-ai/gateway@1.15.2"
_LOCAL = "127.0.0.1"
_NGINX_SETTINGS = """
daemon off; worker_processes 2; error_log {folder}/error.log; pid {folder}/pid;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    upstream chats {{ server {local}:{upstream}; keepalive 256; }}
    server {{
        listen {local}:{port} reuseport;
        location / {{
            proxy_pass http://chats; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
        }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Competitor:
    """A running server of chat completions in front of the upstream."""

    name: str
    port: int
    pid: int
    path: str = "/v1/chat/completions"
    headers: Mapping[str, str] | None = None


@contextlib.contextmanager
def running_competitors(upstream: int, folder: Path) -> Iterator[list[Competitor]]:
    """Run all that are installed until the context ends; print which are missing."""
    with contextlib.ExitStack() as stack_of_servers:
        running = []
        for run in (_nginx, _portkey, _litellm):
            try:
                running.append(stack_of_servers.enter_context(run(upstream, folder)))
            except FileNotFoundError as error:
                thresholds.print_note(f"not measured: {error} (python -m benchmarks.competitors install)")
        yield running


@contextlib.contextmanager
def _nginx(upstream: int, folder: Path) -> Iterator[Competitor]:
    program = shutil.which("nginx") or installed("nginx/usr/sbin/nginx")
    port, home = free_port(), folder / "nginx"
    home.mkdir()
    file = home / "nginx.conf"
    file.write_text(_NGINX_SETTINGS.format(folder=home, local=_LOCAL, upstream=upstream, port=port))
    command = [program, "-p", str(home), "-c", str(file)]
    with stack.running_program(command, port, settings={}, log=home / "log") as pid:
        yield Competitor("nginx", port, pid)


@contextlib.contextmanager
def _portkey(upstream: int, folder: Path) -> Iterator[Competitor]:
    script = installed("portkey/node_modules/@portkey-ai/gateway/build/start-server.js")
    port = free_port()
    command = ["node", script, f"--port={port}", "--headless"]
    headers = {
        "x-portkey-provider": "openai", "x-portkey-custom-host": f"http://{_LOCAL}:{upstream}/v1",
        "Authorization": "Bearer sk-benchmark",
    }  # fmt: skip
    with stack.running_program(command, port, settings={}, log=folder / "portkey.log") as pid:
        yield Competitor("Portkey", port, pid, headers=headers)


@contextlib.contextmanager
def _litellm(upstream: int, folder: Path) -> Iterator[Competitor]:
    port = free_port()
    command = [
        installed("litellm/bin/litellm"), "--model", "openai/gpt-5-mini", "--alias", "gpt-5-mini",
        "--host", _LOCAL, "--port", str(port), "--num_workers", "2", "--api_base", f"http://{_LOCAL}:{upstream}/v1",
        # On a busy machine its workers need longer to start than its supervisor waits for them by default.
        "--timeout_worker_healthcheck", "240",
    ]  # fmt: skip
    settings = {
        "OPENAI_API_KEY": "sk-benchmark", "LITELLM_MASTER_KEY": "sk-master", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HOME": str(folder),
    }  # fmt: skip
    with stack.running_program(command, port, settings=settings, log=folder / "litellm.log") as pid:
        yield Competitor("LiteLLM", port, pid, headers={"Authorization": "Bearer sk-master"})


def _folder() -> Path:
    return Path(os.environ.get("BENCHMARK_COMPETITORS") or Path.home() / ".cache" / "purser-competitors")


def installed(path: str) -> str:
    """Return the path of a program of theirs. Raises: FileNotFoundError."""
    program = _folder() / path
    if not program.exists():
        raise FileNotFoundError(f"{program} is missing")
    return str(program)


def _install() -> int:
    """Install all of them, each with its registry's client; return how many failed."""
    folder = _folder()
    failed = 0
    for name, commands in _commands(folder).items():
        home = folder / name
        home.mkdir(parents=True, exist_ok=True)
        try:
            for command in commands:
                subprocess.run(command, cwd=home, check=True)  # noqa: S603 - registries' clients
        except (OSError, subprocess.CalledProcessError) as error:
            failed += 1
            thresholds.print_note(f"{name} was not installed: {error}")
    return failed


def _commands(folder: Path) -> dict[str, Sequence[Sequence[str]]]:
    environment = str(folder / "litellm")
    return {
        "litellm": [
            [sys.executable, "-m", "venv", environment],
            [f"{environment}/bin/pip", "install", "--quiet", "--only-binary", ":all:", _LITELLM],
        ],
        "portkey": [["npm", "install", "--prefix", ".", "--ignore-scripts", "--no-audit", "--no-fund", _PORTKEY]],
        # Unpacked, not installed: it needs no administrator and starts no service.
        "nginx": [["apt-get", "download", "nginx"], ["sh", "-c", "dpkg-deb -x nginx_*.deb ."]],
    }


if __name__ == "__main__":
    if sys.argv[1:] != ["install"]:
        sys.exit(__doc__)
    sys.exit(_install())
