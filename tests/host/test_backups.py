"""The scripts of `deploy/backup` against PostgreSQL and a stand-in for S3: encrypted, complete, and restored."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from flask import Flask
from psycopg import sql

from tests.support.agents import register
from tests.support.applications import DEAD_REDIS
from tests.support.backups import POSTGRES_PROGRAMS, libpq_url
from tests.support.hosts import command_of, environment_of, key_of, start_program
from tests.support.object_store import BUCKET, ObjectStore, object_store
from tests.support.operators import operator
from tests.support.servers import Postgres

ROOT = Path(__file__).resolve().parents[2]
DRILL = "purser_drill"
EMAIL = "owner-in-the-dump@example.com"

pytestmark = pytest.mark.postgres


@dataclass(frozen=True)
class Job:
    """The container of the backups."""

    environment: dict[str, str]
    folder: Path

    def files(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()]

    def run(self, script: str, *arguments: str, **changed: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "deploy" / "backup" / script, *arguments], env={**self.environment, **changed},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip


def new_key() -> tuple[str, str]:
    """Return the secret and the public key of age."""
    for program in ("age-keygen", "rclone"):
        assert shutil.which(program), f"{program} is missing: apt-get install age rclone"
    made = subprocess.run(["age-keygen"], capture_output=True, text=True, check=True).stdout
    [(public, secret)] = re.findall(r"public key: (age1\w+)\n(AGE-SECRET-KEY-.+)\n", made)
    return secret, public


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store() as started:
        yield started


@pytest.fixture
def job(postgres: Postgres, postgres_url: str, store: ObjectStore, tmp_path: Path) -> Iterator[Job]:
    secret, public = new_key()
    folder = tmp_path / "backup"
    folder.mkdir()
    yield Job(
        {
            "PATH": f"{POSTGRES_PROGRAMS}:{os.environ['PATH']}", "HOME": str(tmp_path), "BACKUP_FOLDER": str(folder),
            "DATABASE_URL": libpq_url(postgres_url), "BACKUP_TARGET": f":s3:{BUCKET}/purser",
            "BACKUP_RECIPIENT": public, "BACKUP_IDENTITY": secret, **store.settings,
        },
        folder,
    )  # fmt: skip
    postgres.drop_database(DRILL)


def rows(url: str) -> dict[str, list[str]]:
    """Return the rows of every table."""
    with psycopg.connect(libpq_url(url)) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        query = sql.SQL("SELECT row::text FROM {} AS row ORDER BY 1")
        return {
            name: [row for (row,) in connection.execute(query.format(sql.Identifier(name))).fetchall()]
            for (name,) in names
        }


def verify_audit_log(url: str, log: Path, **changed: str) -> int:
    """Return the exit code of what the drill runs on the restored database."""
    environment = {**environment_of(url, DEAD_REDIS), "AUDIT_WITNESS_FILE": "off", **changed}
    command = [*command_of("release")[:-2], "audit", "verify"]
    return start_program(command, environment, log).wait(120)


def test_the_newest_backup_is_encrypted_and_restored_with_every_row(
    build_app: Callable[..., Flask], postgres: Postgres, postgres_url: str, job: Job, store: ObjectStore, tmp_path: Path
) -> None:
    app = build_app(postgres_url)
    client = app.test_client()
    with app.app_context():
        operator(client)  # the first entry of the audit log, whose key is sealed
    store.objects["purser/purser-20200101T000000Z.dump.age"] = b"of another year"
    store.objects["purser/notes.txt"] = b"of someone else"
    assert job.run("backup", "check").returncode != 0
    assert register(client, email=EMAIL).key
    (job.folder / "purser-20200101T000000Z.dump.age").write_bytes(b"of a killed run")
    sent = job.run("backup")
    assert sent.returncode == 0, sent.stderr
    assert job.run("backup", "check").returncode == 0
    newest = store.objects[max(store.objects)]
    assert newest.startswith(b"age-encryption.org/v1\n")
    assert EMAIL.encode() not in newest
    assert job.files() == ["sent"]
    backed_up = rows(postgres_url)
    register(client)
    # Twice: a drill replaces what the one before restored.
    for _ in range(2):
        done = job.run("restore-drill")
        assert done.returncode == 0, done.stderr
    restored = postgres.database_url(DRILL)
    assert rows(restored) == backed_up
    assert EMAIL in str(backed_up["agents"])
    assert verify_audit_log(restored, tmp_path / "log") == 0
    assert verify_audit_log(restored, tmp_path / "log", ENCRYPTION_KEYS=key_of("another")) != 0


def test_an_incomplete_dump_is_not_sent(job: Job, store: ObjectStore) -> None:
    failed = job.run("backup", DATABASE_URL=re.sub("/[^/]*$", "/nowhere", job.environment["DATABASE_URL"]))
    assert failed.returncode != 0
    assert (store.objects, job.files()) == ({}, [])
    assert job.run("backup", RCLONE_S3_ACCESS_KEY_ID="another", RCLONE_RETRIES="1").returncode != 0
    assert (store.objects, job.files()) == ({}, [])


@pytest.mark.parametrize("damage", ["cut", "changed", "another key"])
def test_a_damaged_backup_fails_the_drill_and_restores_nothing(
    postgres: Postgres, job: Job, store: ObjectStore, damage: str
) -> None:
    assert job.run("backup").returncode == 0
    [(name, content)] = store.objects.items()
    changed = {}
    if damage == "cut":
        store.objects[name] = content[:-100]
    elif damage == "changed":
        store.objects[name] = content[:-100] + bytes(100)
    else:
        changed["BACKUP_IDENTITY"] = new_key()[0]
    assert job.run("restore-drill", **changed).returncode != 0
    assert rows(postgres.database_url(DRILL)) == {}


def test_a_drill_without_a_backup_fails(job: Job) -> None:
    assert job.run("restore-drill").returncode != 0
