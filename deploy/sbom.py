"""`python deploy/sbom.py OUTPUT [PYTHON]`: writes what the service is made of, as CycloneDX (make sbom).

It lists the locked requirements with their hashes. PYTHON is an interpreter that has `deploy/sbom.txt` installed;
without one, an environment is made for this run.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PROJECT = '[project]\nname = "purser"\nversion = "{version}"\nlicense = "MIT"\ndescription = "Wallets for AI agents"\n'


def write(output: Path, python: Path) -> None:
    """Write the list. Raises: subprocess.CalledProcessError, also when it does not fit the schema of CycloneDX."""
    [version] = re.findall('^VERSION = "(.+)"$', (ROOT / "app/version.py").read_text(), re.MULTILINE)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "pyproject.toml"
        project.write_text(_PROJECT.format(version=version))
        command: list[str | Path] = [
            python.with_name("cyclonedx-py"), "requirements", "--output-reproducible", "--validate",
            "--pyproject", project, "--output-file", output, ROOT / "requirements.txt",
        ]  # fmt: skip
        subprocess.run(command, check=True)  # noqa: S603 - the tool that was asked for


def _make_environment(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)  # noqa: S603 - this interpreter
    python = folder / "bin" / "python"
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    subprocess.run([python, *install, "-r", ROOT / "deploy/sbom.txt"], check=True)  # noqa: S603 - pinned by hashes
    return python


def main(output: str, python: str = "") -> None:
    """Write the list, in an environment of its own if none is given."""
    if python:
        write(Path(output), Path(python))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(output), _make_environment(Path(folder) / "environment"))


if __name__ == "__main__":
    main(*sys.argv[1:])
