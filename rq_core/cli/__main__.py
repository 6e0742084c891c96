"""Runs the command line as ``python -m rq_core.cli``."""

from rq_core.cli import main

main()
