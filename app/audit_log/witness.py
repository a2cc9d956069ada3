"""The witness of the audit log: heads that were appended to a file outside the database, each with a MAC.

Who can write to the database alone cannot undo entries without disagreeing with it. AUDIT_WITNESS_FILE names the file.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import structlog

from app.core import clock
from app.state import app_state

_log = structlog.get_logger(__name__)
_HEAD, _RESTORED = "head", "restored"
_OFF = "off"


@dataclass(frozen=True, slots=True)
class AuditHeadView:
    number: int
    hash: str


@dataclass(frozen=True, slots=True)
class WitnessedHeads:
    """What the file has since the last reported restore, and the lines that this service did not write."""

    heads: list[AuditHeadView]
    forged_lines: list[int]


def append(head: AuditHeadView, *, was_restored: bool = False) -> None:
    """Append a head and wait until it is on the disk; a file that cannot be written is logged.

    `was_restored` ends the claim of the lines before it: the database was restored from a backup, by an operator.
    """
    if app_state().settings.audit_witness_file == _OFF:
        return
    text = f"{_RESTORED if was_restored else _HEAD} {clock.isoformat(clock.now())} {head.number} {head.hash}"
    line = f"{text} {app_state().ports.vault.authenticate(_message(text))}\n"
    try:
        path = Path(app_state().settings.audit_witness_file)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        _log.error("audit_witness_failed", reason=error.strerror)


def read() -> WitnessedHeads | None:
    """Return what was recorded, None without a file. Raises: OSError."""
    path = Path(app_state().settings.audit_witness_file)
    if str(path) == _OFF or not path.is_file():
        return None
    lines = path.read_text(errors="replace").splitlines()
    vault = app_state().ports.vault
    found = WitnessedHeads([], [])
    for number, line in enumerate(lines, 1):
        text, _, mac = line.rpartition(" ")
        if not vault.is_authentic(mac, _message(text)):
            found.forged_lines.append(number)
            continue
        kind, _, count, hash_ = text.split(" ")
        if kind == _RESTORED:
            found.heads.clear()
        found.heads.append(AuditHeadView(int(count), hash_))
    return found


def _message(text: str) -> bytes:
    return f"audit-witness {app_state().settings.network.value} {text}".encode()
