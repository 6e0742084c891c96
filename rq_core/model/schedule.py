"""The form of a schedule in Redis, and the jobs that a schedule enqueues at its instants.

>>> tick_of("tick-night.1-1795312800000")
Tick(name='night.1', instant_ms=1795312800000)
>>> tick_of("order-42")
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

from rq_core.errors import InvalidOption
from rq_core.model.job import NewJob
from rq_core.model.lib.text import shorten
from rq_core.model.limits.scopes import TICK, lane_name, scope, scopes_of
from rq_core.model.recurrence import NAME_PATTERN, Overlap, Recurrence

TICK_MARK: Final = "tick|"
"""The member of the key ``scheduled`` that represents all schedules. Its score is the next time at which a schedule is
due."""
JOB_FIELD: Final = "|job"
"""The suffix of a field name in the key ``schedules``. The field NAME has the schedule of this name; the field
``NAME|job`` has the schedule's job."""
JOB_MAX: Final = 256 * 1024
"""Maximum number of bytes of a schedule's job."""
_LINE: Final = re.compile(
    r"(on|paused|undeclared|removed) v=(\d+) next=(\d+) due=(\d+) last=(\d+)"
    r" from=(code|live|released) seen=(\d+) was=(\S*)"
)
_TICK: Final = re.compile(rf"tick-({NAME_PATTERN})-(\d{{13}})")
_SHOWN: Final = 100


class Tick(NamedTuple):
    """A schedule and one of its instants, for which a job was enqueued."""

    name: str
    instant_ms: int


class Schedule(NamedTuple):
    """A schedule, parsed from its entry in the key ``schedules``."""

    state: str
    """on, paused, undeclared or removed."""
    version: int
    next_ms: int
    due_ms: int
    last_ms: int
    """The last instant that was fired or missed; 0 before the first."""
    source: str
    """The origin of the rule: ``code``; ``live`` (an operator set it); or ``released`` (an operator gave the schedule
    back to code; this rule holds until a worker declares another rule)."""
    seen_ms: int
    """Unix ms at which code last declared the schedule; 0: never."""
    was: tuple[str, ...]
    """Digests of the rules and jobs that code declared earlier. Code cannot declare them again."""
    rule: str
    """The rule, as :meth:`Recurrence.to_json` writes it."""

    @classmethod
    def parse(cls, entry: str) -> Self:
        """Parse an entry of the key ``schedules``. Raises ValueError if the entry cannot be read."""
        line, _, rule = entry.partition("\n")
        found = _LINE.fullmatch(line)
        if found is None or not rule:
            raise ValueError(f"the entry of a schedule reads {shorten(entry, _SHOWN)!r}")
        state, version, next_ms, due_ms, last_ms, source, seen_ms, was = found.groups()
        return cls(
            state, int(version), int(next_ms), int(due_ms), int(last_ms), source, int(seen_ms),
            tuple(was.split(",")) if was else (), rule,
        )  # fmt: skip

    def __str__(self) -> str:
        was = ",".join(self.was)
        line = f"{self.state} v={self.version} next={self.next_ms} due={self.due_ms} last={self.last_ms}"
        return f"{line} from={self.source} seen={self.seen_ms} was={was}\n{self.rule}"


def job_digest(packed: str) -> str:
    """Return the digest of a schedule's packed job, as the log stores it."""
    return hashlib.sha1(packed.encode(), usedforsecurity=False).hexdigest()[:32]


def tick_of(job_id: str) -> Tick | None:
    """Return the schedule and the instant of the job with this id; None if no schedule enqueued the job."""
    found = _TICK.fullmatch(job_id)
    return None if found is None else Tick(found[1], int(found[2]))


def job_of(job: NewJob, rule: Recurrence) -> NewJob:
    """Return the job that a schedule enqueues: ``job`` with the unique name and the scope that the rule for overlaps
    needs.

    Raises InvalidOption if the job cannot be enqueued more than once, or if the job has a unique name and the rule for
    overlaps needs another one.

    With ``skip``, the job holds a unique name of the schedule until the job ends. With ``queue`` and ``replace``, the
    job holds the name until it is claimed, and runs in a scope of the schedule that has a cap of 1.
    """
    if job.call:
        must = "must not say idempotency_key or remember: each instant has an id of its own"
        raise InvalidOption.of("job", job.profile.task, must)
    ties = _ties_under(rule.overlap, job.ties)
    if job.due_ms or ties is None:
        must = "must not name an instant (at, or expires as a datetime): say delay, or expires in seconds"
        raise InvalidOption.of("job", job.profile.task, must)
    if rule.overlap == "allow":
        return job
    if job.name:
        must = (
            f"does not go with {job.profile.task}, which is unique: its own rule says what overlaps"
        )
        raise InvalidOption.of("overlap", rule.overlap, must)
    lane = job.lane
    if rule.overlap != "skip":
        lane = lane_name(job.profile.rank, [*scopes_of(lane), scope(TICK, rule.name)])
    return job._replace(ties=ties, name=f"~/{rule.name}", lane=lane)


@lru_cache(maxsize=1024)
def _ties_under(overlap: Overlap, given: str) -> str | None:
    """Add the option that the rule for overlaps needs to a job's ``given`` options, and return them as JSON (see
    :func:`rq_core.model.job.ties_of`). Return None if the given options have a deadline at a fixed instant, which does
    not fit a job that is enqueued many times.

    The result is cached, because one task may have many schedules.
    """
    ties: dict[str, Any] = json.loads(given) if given else {}
    if "expires_at" in ties:
        return None
    if overlap == "skip":
        ties["unique"] = "keep"
    elif overlap != "allow":
        ties |= {"unique": "keep" if overlap == "queue" else "replace", "after": 0, "most": 0}
    return json.dumps(ties, separators=(",", ":"))
