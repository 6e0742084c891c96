"""The rows of ``job`` and ``job_attempt`` while events are applied to them.

Each class is a list in the order of the table's columns, so a row can be written without conversion. The columns are
also attributes. Code that runs for every event uses a column's index, which is faster than its name.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from sql_audit.store.schema.tables import ATTEMPT_COLUMNS, GONE, JOB_COLUMNS

ERROR_TYPE_MAX: Final = 200
ERROR_MESSAGE_MAX: Final = 2_000
"""Maximum number of characters of an error's message in ``job`` and ``job_attempt``; ERROR_TYPE_MAX is the maximum for
the error's type. The event has the whole error."""


class JobRow(list[Any]):
    """A row of ``job``, as a list of values in the order of the columns."""

    __slots__ = ()

    if TYPE_CHECKING:
        job_id: str
        queue: str
        state: str
        complete: int
        last_epoch: int
        last_seq: int

        # A field of the job.
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    @classmethod
    def new(cls, queue: str, job_id: str) -> JobRow:
        """Return the row of a job that has had no event yet."""
        job = cls([None] * len(JOB_COLUMNS))
        job.job_id, job.queue, job.state, job.complete = job_id, queue, GONE, 0
        job.claims = job.failures = job.losses = job.unknown = 0
        job.last_epoch = job.last_seq = 0
        return job


class Attempt(list[Any]):
    """A row of ``job_attempt`` (one claim), as a list of values in the order of the columns."""

    __slots__ = ()

    job_id: str
    queue: str
    fence: str
    claim: int | None
    task: str | None
    worker: str | None
    ready_at_ms: int | None
    claimed_at_ms: int | None
    ended_at_ms: int | None
    waited_ms: int | None
    ran_ms: int | None
    outcome: str | None
    error_type: str | None
    error_message: str | None
    scopes: str | None

    @classmethod
    def new(cls, job: JobRow, fence: str, claim: int | None) -> Attempt:
        """Return the row of a new claim of a job. Its times, its worker and its outcome have no value yet (None)."""
        attempt = cls([None] * len(ATTEMPT_COLUMNS))
        attempt.job_id, attempt.queue, attempt.task = job.job_id, job.queue, job.task
        attempt.fence, attempt.claim = fence, claim
        return attempt


def _column(place: int) -> property:
    def put(row: list[Any], value: Any) -> None:
        row[place] = value

    read: Callable[[Any], Any] = itemgetter(place)
    return property(read, put)


for _of, _names in ((JobRow, JOB_COLUMNS), (Attempt, ATTEMPT_COLUMNS)):
    for _place, _name in enumerate(_names):
        setattr(_of, _name, _column(_place))

# The places of the columns that most events change.
JOB_TASK: Final = JOB_COLUMNS.index("task")
JOB_STATE: Final = JOB_COLUMNS.index("state")
JOB_CLAIMS: Final = JOB_COLUMNS.index("claims")
JOB_DUE: Final = JOB_COLUMNS.index("due_ms")
JOB_READY_AT: Final = JOB_COLUMNS.index("ready_at_ms")
JOB_CLAIMED_AT: Final = JOB_COLUMNS.index("claimed_at_ms")
JOB_FINISHED_AT: Final = JOB_COLUMNS.index("finished_at_ms")
JOB_SINCE: Final = JOB_COLUMNS.index("since_ms")
JOB_WORKER: Final = JOB_COLUMNS.index("worker")
JOB_FENCE: Final = JOB_COLUMNS.index("fence")
JOB_REASON: Final = JOB_COLUMNS.index("reason")
JOB_LAST_EPOCH: Final = JOB_COLUMNS.index("last_epoch")
JOB_LAST_SEQ: Final = JOB_COLUMNS.index("last_seq")
CLAIM_QUEUE: Final = ATTEMPT_COLUMNS.index("queue")
CLAIM_NUMBER: Final = ATTEMPT_COLUMNS.index("claim")
CLAIM_TASK: Final = ATTEMPT_COLUMNS.index("task")
CLAIM_WORKER: Final = ATTEMPT_COLUMNS.index("worker")
CLAIM_CLAIMED_AT: Final = ATTEMPT_COLUMNS.index("claimed_at_ms")
CLAIM_ENDED_AT: Final = ATTEMPT_COLUMNS.index("ended_at_ms")
CLAIM_WAITED: Final = ATTEMPT_COLUMNS.index("waited_ms")
CLAIM_RAN: Final = ATTEMPT_COLUMNS.index("ran_ms")
CLAIM_OUTCOME: Final = ATTEMPT_COLUMNS.index("outcome")
CLAIM_ERROR_TYPE: Final = ATTEMPT_COLUMNS.index("error_type")
EventRow = tuple[Any, ...]
"""A row of ``job_event``, in the order of EVENT_COLUMNS."""
