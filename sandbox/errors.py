"""The error that ends the sandbox."""

from __future__ import annotations


class SandboxError(Exception):
    """The environment prevents the sandbox from running; the message is one line with the solution."""
