"""Background processes. Jobs are hints; the database determines what is due."""

import gc
import sys

from app.core.host import harden

# Before the other imports, which take a second.
harden()

# What `python -m` has for a name while it imports this: a program that imports the package keeps its garbage collector.
if sys.argv[:1] == ["-m"]:
    # Loading leaves hardly any garbage, and looking for it takes a third of the processor time.
    gc.disable()
