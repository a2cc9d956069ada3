"""The error that ends the sandbox."""


class SandboxError(Exception):
    """The environment prevents the sandbox from running; the message is one line with the solution."""
