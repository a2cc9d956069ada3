"""Writes the converters of llama.cpp and `llama-cpp-python` to a folder, from the package's source without a build."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

_LOCKED = Path(__file__).with_name("llama-cpp-source.txt")
_FILES = ("llama_cpp/llama_grammar.py", "vendor/llama.cpp/examples/json_schema_to_grammar.py")
_DOWNLOAD = "-m pip download --quiet --no-deps --no-build-isolation --no-binary :all: --require-hashes"


def main(folder: Path) -> None:
    subprocess.run([sys.executable, *_DOWNLOAD.split(), "-r", _LOCKED, "-d", folder], check=True)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        for member in source:
            for name in _FILES:
                if member.name.partition("/")[2] == name:
                    found = source.extractfile(member)
                    assert found is not None
                    (folder / Path(name).name).write_bytes(found.read())
    archive.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
