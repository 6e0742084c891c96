"""The command line, ``rq-core``.

`root` lists the commands and turns errors into lines; each other module holds the commands of one
subject and is imported only when one of them is used. What is slow to import (redis-py, pydantic,
rich) is imported in the command that needs it, so that ``--help`` stays quick.
"""

from __future__ import annotations

OWN_PROCESS = "own process"
"""The object in click's context when the process ends with the command; tests call commands in their own process."""


def main() -> None:
    """Run the command line and exit: 0 done, 1 not done, 2 called wrongly, 130 interrupted."""
    from rq_core.cli.root import root

    root.main(prog_name="rq-core", obj=OWN_PROCESS)
