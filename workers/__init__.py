"""Background processes. Jobs are hints; the database determines what is due."""

from app.core.host import harden

# Before the other imports, which take seconds.
harden()
