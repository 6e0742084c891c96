"""Makes lies in a true log, one at a time, and records which judges find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from tests.rigs.lies.judges import JUDGES, Found, look
from tests.rigs.lies.kinds import Lie, lies
from tests.rigs.lies.stage import Stage, rows_of

PART: Final = 5
"""One in PART lies in rows is also made on PostgreSQL. That is enough, since verify judges rows in Python and gets the
same rows from both databases."""


class Outcome(NamedTuple):
    """The judges that found one lie, and the crashes of judges."""

    dialect: str
    kind: str
    about: str
    chain: bool
    """True if the chain was computed again to match the lie."""
    refused: bool
    """True if the database itself refused the lie."""
    found: Found
    crashes: list[str]
    """The exceptions of judges that a command would not report in one line. There must be none."""

    @property
    def line(self) -> str:
        by = ", ".join(judge for judge in JUDGES if self.found.get(judge)) or "nothing"
        return f"{self.kind}{', and the chain fits' if self.chain else ''}: {self.about}: found by {by}"


def tell_all(stage: Stage, wanted: Callable[[Lie], bool] = lambda _lie: True) -> Iterator[Outcome]:
    """Make the lies that ``wanted`` selects, and yield the outcomes."""
    honest, crashes = look(stage)
    assert not crashes
    assert not any(honest.values()), honest
    for number, lie in enumerate(lies(stage.log)):
        if wanted(lie) and (stage.log.dialect == "sqlite" or not lie.in_rows or not number % PART):
            yield from outcomes(stage, lie)


def outcomes(stage: Stage, lie: Lie) -> Iterator[Outcome]:
    """Make one lie, yield its outcome, and undo the lie.

    A lie in rows is made twice. The second time, the chain of hashes is computed again to match it.
    """
    told: Found = {}
    for chain in (False, True) if lie.in_rows else (False,):
        try:
            stage.tell(lie, chain_again=chain)
        except SQLAlchemyError:
            yield Outcome(stage.database.dialect, lie.kind, lie.about, chain, True, {}, [])
            stage.restore(lie)
            continue
        if lie.in_rows and rows_of(stage.database) == stage.log.rows:
            continue  # The row said so already, or to make the chain again was to take the lie back.
        # The chain is nothing to those that compare with Redis.
        found, crashes = look(stage, at_redis=not chain)
        told = told | found
        yield Outcome(stage.database.dialect, lie.kind, lie.about, chain, False, told, crashes)
        stage.restore(lie)
