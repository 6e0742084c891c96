"""The command line, ``rq-core``.

`root` lists the commands and prints each error as one line. Each module in `commands` has the commands of one subject,
and is imported only when one of its commands is used. Slow imports (redis-py, pydantic, rich) are inside the commands
that need them, so that ``--help`` stays quick.
"""

from __future__ import annotations

OWN_PROCESS = "own process"
"""The object in click's context that says that the process runs only this command. (Tests run commands in their own
process, without this object.)"""


def main() -> None:
    """Run the command line, and exit with its status.

    The status is 0 (done), 1 (not done), 2 (wrong command line) or 130 (interrupted). The help of a command may give 2
    another meaning.
    """
    from rq_core.cli.root import root

    root.main(prog_name="rq-core", obj=OWN_PROCESS)
