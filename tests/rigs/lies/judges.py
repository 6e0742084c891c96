"""The commands that search an audit database for false data. They are called judges here."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from rq_core.doctor import diagnose
from rq_core.errors import RqCoreError
from sql_audit.proof.compare.drift import compare, drift_of
from sql_audit.proof.result import LogVerdict, VerifyResult
from sql_audit.proof.verify import verify
from tests.rigs.lies.stage import COMPARED, Stage

JUDGES: Final = ("verify", "--redis", "--head", "doctor")
Found = dict[str, bool]
T = TypeVar("T")


def look(stage: Stage, *, at_redis: bool = True) -> tuple[Found, list[str]]:
    """Return whether each judge found something, and the judges' crashes.

    A judge has found something if it reports a violation or cannot answer. With ``at_redis=False``, judges that need
    Redis are left out.
    """
    found: Found = {}
    crashes: list[str] = []
    result = _answer(lambda: verify(stage.database, heads=stage.heads), crashes)
    found |= {
        "verify": result is None or _violated(result),
        "--head": result is None or _lacks_head(result),
    }
    if at_redis:
        url = stage.database.address.render_as_string(hide_password=False)

        def by_redis(queue: str) -> bool:
            return any(compare(stage.client, stage.database, queue))

        def by_doctor(queue: str) -> bool:
            return bool(
                diagnose(stage.client, queue, audit=partial(drift_of, url, stage.client, queue))
            )

        for judge, question in (("--redis", by_redis), ("doctor", by_doctor)):
            answers = [_answer(partial(question, queue), crashes) for queue in COMPARED]
            found[judge] = any(answer is None or answer for answer in answers)
    return found, crashes


def _answer(question: Callable[[], T], crashes: list[str]) -> T | None:
    """Return the answer of a judge, or None if the judge raises an error.

    An error that is no RqCoreError and no SQLAlchemyError is added to ``crashes``.
    """
    try:
        return question()
    except (SQLAlchemyError, RqCoreError):
        return None
    except Exception as error:  # no lie may make a judge fail
        where = traceback.extract_tb(error.__traceback__)[-1]
        crashes.append(f"{type(error).__name__}: {error} ({where.name})")
        return None


def _violated(result: VerifyResult) -> bool:
    problems = [says for says in result.problems if not says.startswith("head ")]
    return bool(problems) or any(q.verdict is LogVerdict.VIOLATED for q in result.queues.values())


def _lacks_head(result: VerifyResult) -> bool:
    notes = [note.says for q in result.queues.values() for note in q.notes]
    return any(says.startswith("head ") for says in (*result.problems, *notes))
