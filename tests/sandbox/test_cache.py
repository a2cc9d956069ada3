from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox import npm
from sandbox.cache import Cache, Package, default_cache_root
from sandbox.errors import SandboxError

_NPM = """#!/bin/sh
echo fetched >> {log}
sleep 0.2
for last; do :; done
case "$last" in *missing*) echo "npm error 404 Not Found" >&2; exit 1;; esac
cp {archive} "$5/package.tgz"
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "archive.tgz"
    with tarfile.open(path, "w:gz") as tar:
        for name, mode in (("package/bin/tool", 0o755), ("package/data.json", 0o644), ("package/junk", 0o644)):
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = mode, len(name)
            tar.addfile(entry, io.BytesIO(name.encode()))
    return path


@pytest.fixture
def npm_log(tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an npm with one package first on PATH, and return the file in which it logs calls."""
    log = tmp_path / "npm.log"
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "npm"
    program.write_text(_NPM.format(log=log, archive=archive))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return log


def package(archive: Path, name: str = "tool") -> Package:
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    return Package(name, "1.0.0", f"sha512-{digest}")


def test_only_the_wanted_files_are_kept_and_programs_stay_programs(
    tmp_path: Path, archive: Path, npm_log: Path
) -> None:
    lines: list[str] = []
    folder = Cache(tmp_path / "cache", log_line=lines.append).files(package(archive), ("bin/tool", "data.json"))
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "bin/tool",
        "data.json",
    ]
    assert os.access(folder / "bin/tool", os.X_OK)
    assert not os.access(folder / "data.json", os.X_OK)
    assert lines == ["fetching tool@1.0.0"]
    assert npm_log.read_text().count("fetched") == 1


def test_concurrent_processes_download_a_package_once(tmp_path: Path, archive: Path, npm_log: Path) -> None:
    together = threading.Barrier(2)

    def need(_number: int) -> Path:
        together.wait()
        return Cache(tmp_path / "cache").files(package(archive), ("data.json",))

    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(need, range(2)))
    assert all((folder / "data.json").read_text() == "package/data.json" for folder in folders)
    assert npm_log.read_text().count("fetched") == 1


def test_an_archive_that_is_not_the_pinned_one_is_not_unpacked(tmp_path: Path, archive: Path, npm_log: Path) -> None:
    right = package(archive).integrity or ""
    kind, digest = right.split("-", 1)
    wrong = Package("tool", "1.0.0", f"{kind}-{'A' if digest[0] != 'A' else 'B'}{digest[1:]}")
    with pytest.raises(SandboxError, match="has another digest than expected"):
        Cache(tmp_path / "cache").files(wrong, ("data.json",))
    assert npm_log.exists()
    assert not list((tmp_path / "cache").rglob("data.json"))


def test_an_error_of_npm_is_reported_in_one_line(tmp_path: Path, npm_log: Path) -> None:
    with pytest.raises(SandboxError, match="404 Not Found") as failure:
        Cache(tmp_path / "cache").files(Package("missing", "1.0.0", None), ("data.json",))
    assert "\n" not in str(failure.value)
    assert npm_log.exists()


def test_a_machine_without_npm_gets_one_from_the_package_index_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox runs on a machine with Python only; pip refuses a wrong hash."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("npm_config_offline", "true")
    (tmp_path / "package.json").write_text('{"name": "tool", "version": "1.0.0"}')
    (tmp_path / "data.json").write_text("{}")
    lines: list[str] = []
    cache = Cache()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        with cache.locked("packages"):
            made = npm.pack(str(tmp_path), tmp_path / name, kept_in=cache.root, log_line=lines.append)
        assert made.name == "tool-1.0.0.tgz"
    # None if an earlier run has downloaded it: the cache is kept.
    assert [line.partition(":")[0] for line in lines] in ([], ["npm was not found"])


def test_without_npm_and_without_an_index_the_error_names_the_solution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    cache = Cache(tmp_path / "cache")
    with pytest.raises(SandboxError, match=r"install Node\.js") as failure:
        cache.files(Package("tool", "1.0.0", None), ("data.json",))
    assert "\n" not in str(failure.value)
    assert {path.name for path in cache.root.iterdir()} == {".packages.lock"}


def test_a_warm_cache_needs_no_npm(
    tmp_path: Path, archive: Path, npm_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "cache")
    folder = cache.files(package(archive), ("data.json",))
    assert npm_log.exists()
    monkeypatch.setenv("PATH", "")
    assert cache.files(package(archive), ("data.json",)) == folder


def test_clones_share_one_cache_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_root() == Path("/somewhere/purser-sandbox")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_root() == Path.home() / ".cache/purser-sandbox"
