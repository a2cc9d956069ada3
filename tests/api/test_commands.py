"""The commands that are listed without the application are those of the application, and run in it."""

from __future__ import annotations

import subprocess
import sys
from contextvars import copy_context
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from flask import Flask, current_app
from flask.cli import FlaskGroup

import commands
from app.state import Application
from launcher.sandbox_secrets import GENERATORS

ROOT = Path(__file__).resolve().parents[2]
_REFUSED = "The settings are invalid:\nset SECRET_KEY"


def _invoke(app: Flask, *arguments: str) -> Result:
    # The help of a group ends the process, and leaves the application's context behind.
    group = FlaskGroup(create_app=lambda: app)
    return copy_context().run(CliRunner().invoke, group, list(arguments), prog_name="flask")


def _refuse() -> Flask:
    raise AssertionError("the application was loaded")


def test_every_listed_text_is_that_of_the_command(app: Application) -> None:
    listed = commands.listing(_refuse)
    groups = {name for name, each in app.cli.commands.items() if isinstance(each, click.Group)} | {"db"}
    assert len(groups) > 10
    for arguments in ([], ["--help"], *([name] for name in groups), *([name, "--help"] for name in groups)):
        shown, real = _invoke(listed, *arguments), _invoke(app, *arguments)
        assert (shown.exit_code, shown.output) == (real.exit_code, real.output)


def test_a_command_runs_in_the_application_with_what_its_group_adds(
    app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Flask] = []

    def load() -> Flask:
        loaded.append(app)
        return app

    def show() -> None:
        click.echo(current_app._get_current_object() is app)  # type: ignore[attr-defined]

    monkeypatch.setitem(app.cli.commands, "restored", click.Command("restored", callback=show))
    assert _invoke(commands.listing(load), "restored").output == "True\n"
    # The group shows a refusal as a message.
    for arguments in (["owner-keys", "replace", "nobody"], ["keys", "rotate", "--batch", "x"], ["doctor", "--help"]):
        shown, real = _invoke(commands.listing(load), *arguments), _invoke(app, *arguments)
        assert (shown.exit_code, shown.output) == (real.exit_code, real.output)
        assert not isinstance(shown.exception, AssertionError)
    assert len(loaded) == 4


def test_an_unknown_command_is_refused_without_loading_the_application() -> None:
    refused = _invoke(commands.listing(_refuse), "nothing")
    assert (refused.exit_code, "No such command 'nothing'" in refused.output) == (2, True)


def _run(*arguments: str, settings: dict[str, str], entered: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flask", "--app", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=settings, input=entered, capture_output=True, text=True, check=False, timeout=200
    )


def test_the_list_needs_no_settings_and_a_command_says_which_are_missing() -> None:
    listed = _run("wsgi", "--help", settings={})
    assert "documents  " in listed.stdout
    assert (listed.returncode, listed.stderr) == (0, "")
    refused = _run("wsgi", "doctor", settings={})
    assert refused.returncode == 1
    assert refused.stderr.startswith(_REFUSED)


@pytest.mark.parametrize("name", ["wsgi", "wsgi:app"])
def test_flasks_own_commands_get_the_application_itself(tmp_path: Path, name: str) -> None:
    settings = {key: generate() for key, generate in GENERATORS.items()}
    settings["DATABASE_URL"] = f"sqlite:///{tmp_path / 'test.sqlite'}"
    entered = "import wsgi; print(wsgi.app is app, len(app.blueprints) > 30)\n"
    assert "True True" in _run(name, "shell", settings=settings, entered=entered).stdout
