"""Names the case of a test that checks many cases in a loop.

pytest's subtests would open two files for each case to capture its output, and send a report of each to the process
that started the run.
"""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def case(**facts: object) -> Iterator[None]:
    """Add these facts to the report of an error that the block raises. The test ends with the error."""
    try:
        yield
    except Exception as error:
        told = ", ".join(f"{name}={value!r}" for name, value in facts.items())
        error.add_note(f"in the case {told}")
        raise
