"""Runs a function in a forked child process."""

import os
from collections.abc import Callable


def forked(work: Callable[[], str]) -> str:
    """Run ``work`` in a forked child process, and return the text that it returns."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, work().encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader, "rb") as pipe:  # noqa: PTH123 - a descriptor, not a path
        return pipe.read().decode()
