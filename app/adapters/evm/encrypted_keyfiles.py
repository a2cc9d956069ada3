"""eth-account without files of encrypted keys, which nothing here reads or writes.

Their library, eth-keyfile, loads the curves of py_ecc: a sixth of the processor time of a start, and a limit of
recursion of 100 000, far more than a thread's C stack holds: a deeply nested JSON text from anywhere would kill the
process instead of raising RecursionError.
"""

import sys
from types import ModuleType
from typing import Any


def leave_out() -> None:
    """Let eth-account import substitutes for eth-keyfile, unless it is loaded already."""
    if "eth_keyfile" in sys.modules:
        return
    package, keyfile = ModuleType("eth_keyfile"), ModuleType("eth_keyfile.keyfile")
    package.__path__ = []
    vars(keyfile)["KDFType"] = str
    for module in (package, keyfile):
        vars(module).update(create_keyfile_json=_refuse, decode_keyfile_json=_refuse)
        sys.modules[module.__name__] = module
    vars(package)["keyfile"] = keyfile


def _refuse(*_arguments: Any, **_options: Any) -> None:
    raise NotImplementedError("this service has no encrypted keyfiles")
