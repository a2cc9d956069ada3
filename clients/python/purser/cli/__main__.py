"""`python -m purser.cli`."""

from purser.cli import main

main(prog_name="purser")
