"""llama.cpp turns the schemas of tools into grammars; one that it refuses makes each request with the tools fail."""

from __future__ import annotations

import re

import pytest

from tests.clients.conftest import Scene
from tests.support import compatibility
from tests.support.published import PROGRAMS, make_data, run_python

# The packages are installed first where they are missing.
pytestmark = pytest.mark.timeout(1200)

_REQUIREMENTS = "llama-cpp.txt"
_BOUND = re.compile(r"\{(?:\d+,)?(\d+)\}")
# The parser of grammars refuses longer repetitions (`MAX_REPETITION_THRESHOLD` in llama-grammar.cpp).
_MAX_REPETITIONS = 2000


def test_the_converter_and_the_parser_of_llama_cpp_take_all_tools(scene: Scene) -> None:
    sources = make_data(PROGRAMS / "llama_cpp_sources.py", requirements=PROGRAMS / _REQUIREMENTS)
    made = run_python("llama_cpp_grammars.py", str(sources), scene.service.url, requirements=_REQUIREMENTS)
    assert made.keys() >= {"transfer", "fetch_and_pay", "call_service"}
    for tool, grammars in made.items():
        for grammar in grammars:
            assert grammar.startswith(("root ::=", "char ::=")) or "\nroot ::=" in grammar, tool
            assert max(map(int, _BOUND.findall(grammar)), default=0) < _MAX_REPETITIONS, tool
    compatibility.check("PyPI", "llama-cpp-python", "0.3.16", ["grammars of all tools, by two converters"])
