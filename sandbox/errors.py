"""Why the sandbox cannot go on."""

from __future__ import annotations


class SandboxError(Exception):
    """Something outside is missing or in the way; the message is one line for a person and names the mend."""
