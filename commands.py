"""The operator's commands, by name and first sentence: `flask --app wsgi --help` prints them without the application.

Loading the application takes two seconds. It is loaded when a command runs, or when a command's own options are shown.
A test compares these texts with the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
from flask import Flask
from flask.cli import AppGroup, ScriptInfo

_MIGRATIONS = "db"
_COMMANDS = {
    _MIGRATIONS: "Perform database migrations.",
    "doctor": "Check settings, database, Redis, workers, chains, contracts, prices and proxies, and print fixes.",
    "platform": "Call an OPERATION of /v1/platform as an admin and print its response; without one, list their names.",
    "restored": "Reconcile a restored database with the chains; run it before any process of the service starts.",
}
_GROUPS = {
    "audit": ("The audit log of administrative acts.", {
        "verify": "Verify that no entry of the trail was changed or removed; fails with a list of problems.",
    }),
    "bridges": ("Bridges that were never paid out.", {
        "write-off": "Close a bridge that was never paid out to the wallet.",
    }),
    "documents": ("The OpenAPI document.", {
        "check": "Validate the OpenAPI document; fails with the first error.",
        "show": "Print the OpenAPI document as it is served.",
    }),
    "keys": ("Encryption keys.", {
        "accept-rows": "Accept authenticated rows as they are in the database now, after you have checked those that "
        "doctor names.",
        "rotate": "Reseal everything sealed with an older encryption key; may run while the service does.",
    }),
    "master-keys": ("Master keys for the administration of the platform.", {
        "create": "Create a master key and print it: the only output that shows it.",
    }),
    "openapi": ("OpenAPI commands.", {
        "list-config-prefixes": "List available API config prefixes.",
        "print": "Print OpenAPI JSON document.",
        "write": "Write OpenAPI JSON document to a file.",
    }),
    "owner-keys": ("Keys of the owners of agents.", {
        "replace": "Replace a stolen owner key at once and print the new one.",
    }),
    "providers": ("The providers of the gateway.", {
        "check": "Compare a provider's routes with FILE, its OpenAPI document in JSON or YAML.",
        "prices": "Show the list of prices in use.",
    }),
    "purchases": ("Purchases in web shops.", {
        "page": "Write the page on which a purchase failed, as HTML; `python -m shopper.replay` shows what is read in "
        "it.",
    }),
    "retired-keys": ("Keys of deleted wallets, kept for a time so that their funds can be recovered.", {
        "export": "Print the recovery phrase of a deleted wallet, which controls all its funds; recorded in the audit "
        "log.",
        "list": "List deleted wallets with kept keys, and the earliest time of their deletion.",
    }),
    "treasury": ("The recipients of payments, and the settlement keys.", {
        "show": "Show the recipients, the settlement keys' addresses, balances, and the budget of failed payments.",
        "withdraw": "Transfer from one of the service's wallets, which also pays the network fee.",
    }),
}  # fmt: skip


def are_looked_up() -> bool:
    """Return whether the `flask` command looks for a command now, or lists them.

    Flask's own commands (`run`, `shell`, `routes`) load the application later, in a context of their own.
    """
    context = click.get_current_context(silent=True)
    return context is not None and context.parent is None and isinstance(context.obj, ScriptInfo)


def listing(load: Callable[[], Flask]) -> Flask:
    """Return an application that has nothing but these commands; `load` returns the one in which they run."""
    listed = Flask("purser", static_folder=None)
    for name, text in _COMMANDS.items():
        listed.cli.add_command(_Unloaded(name, text, {}, load))
    for name, (text, commands) in _GROUPS.items():
        listed.cli.add_command(_Unloaded(name, text, commands, load))
    return listed


class _Unloaded(AppGroup):
    """Stands for a command, or for a group of commands, until more than the group's list of commands is needed."""

    def __init__(self, name: str, text: str, commands: Mapping[str, str], load: Callable[[], Flask]) -> None:
        super().__init__(name, help=text, commands=[click.Command(each, help=commands[each]) for each in commands])
        self._load = load

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments of this command, as the command itself unless they ask for the list of a group."""
        is_list = args in ([], ["--help"])
        if is_list and self.commands:
            return super().make_context(info_name, args, parent, **extra)
        if is_list and self.name == _MIGRATIONS:
            from flask_migrate.cli import db  # noqa: PLC0415 - imports Alembic

            migrations: click.Command = db
            return migrations.make_context(info_name, args, parent, **extra)
        return self._loaded(parent).make_context(info_name, args, parent, **extra)

    def _loaded(self, context: click.Context | None) -> click.Command:
        application = self._load()
        if context is not None:
            context.with_resource(application.app_context())
        return application.cli.commands[self.name or ""]
