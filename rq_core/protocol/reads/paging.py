"""Reads all jobs of a queue in some states, page by page, for changes of many jobs.

A page begins at a *place*: a text that says how far the read has come. Other programs may change the queue between two
pages. Then a job may be on two pages, but a job that stays in its key is on at least one page.

A list is read from the tail to the head, because jobs leave at the head and are added at the tail. A page of a sorted
set begins after the last member of the page before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rq_core.model.keys import QueueKeys
from rq_core.model.table.machine import CLAIMED_STATES, PRIORITIES, State
from rq_core.protocol.engine.plan import pairs_of
from rq_core.protocol.reads.ranges import job_of
from rq_core.protocol.reads.steps import Steps
from rq_core.scripts.plain import plain_text

SKIPPED_MAX: Final = 1_000
"""Approximate maximum number of entries that one command of ``PagedKey.skipping`` removes from a list. These entries
belong to jobs that have left Redis."""
_SKIPPED_PAGE: Final = 64


class JobPage(NamedTuple):
    """A page of jobs of one key, and the place at which the next page begins."""

    ids: list[str]
    place: str | None
    """The place at which the next page of the key begins; None: this page is the last one of the key."""


@dataclass(frozen=True, slots=True)
class PagedKey:
    """A key that has the jobs in some states. It is read page by page."""

    key: str
    states: frozenset[State]

    @property
    def is_list(self) -> bool:
        """True for the lists of ready jobs. Such a list keeps the entries of jobs that have left Redis."""
        return self.key.startswith("ready:")

    def page(self, keys: QueueKeys, place: str, count: int) -> Steps[JobPage]:
        """Return the page of at most ``count`` jobs that begins at ``place``. An empty place is the beginning of the
        key."""
        if self.is_list:
            return _of_list(keys(self.key), place, count)
        if self.key == "waiting":
            return _by_member(keys(self.key), place, count)
        return _by_score(keys(self.key), place, count)

    def after_change(self, place: str | None, gone: int) -> str | None:
        """Return ``place`` after a correction: ``gone`` jobs before this place have left the key, so later jobs have
        lower ranks. If ``gone`` is wrong, the next page reads more members than needed, but skips no job.
        """
        if not place or self.is_list or self.key == "waiting":
            return place
        found = _Place.parse(place)
        return str(found._replace(rank=max(0, found.rank - gone)))

    def skipping(self, keys: QueueKeys) -> list[list[Any]]:
        """Return a list with one command, which removes entries from the head of a list of ready jobs if their jobs
        have left Redis. For other keys, the returned list is empty.
        """
        if not self.is_list:
            return []
        program = plain_text("skip", PAGE=_SKIPPED_PAGE)
        names = keys(self.key), keys("jobs"), keys("state"), keys("meta")
        return [["EVAL", program, len(names), *names, SKIPPED_MAX]]


SOURCES: Final = (
    PagedKey("parked", frozenset({State.PARKED})),
    PagedKey("scheduled", frozenset({State.SCHEDULED})),
    *(PagedKey(f"ready:{rank}", frozenset({State.READY})) for rank in range(len(PRIORITIES))),
    PagedKey("waiting", frozenset({State.READY})),
    PagedKey("leases", CLAIMED_STATES),
    PagedKey("dead", frozenset({State.DEAD})),
)
"""The keys that have a queue's jobs, in the order in which they are read. A job that becomes ready moves to a key that
is read later, so it is not missed."""


def sources_of(states: Collection[State]) -> list[PagedKey]:
    """Return the keys that have jobs in these states, in the order in which they are read."""
    return [source for source in SOURCES if not source.states.isdisjoint(states)]


def _of_list(key: str, place: str, count: int) -> Steps[JobPage]:
    """Return a page of a list. ``place`` is the number of entries that were read before, counted from the tail."""
    passed = int(place or 0)
    (ids,) = yield [["LRANGE", key, -passed - count, -passed - 1]]
    return JobPage(ids[::-1], str(passed + count) if len(ids) == count else None)


def _by_member(key: str, place: str, count: int) -> Steps[JobPage]:
    """Return a page of a sorted set whose members all have the same score. ``place`` is the last member of the page
    before."""
    (members,) = yield [["ZRANGEBYLEX", key, f"({place}" if place else "-", "+", "LIMIT", 0, count]]
    return JobPage(list(map(job_of, members)), members[-1] if len(members) == count else None)


# Sorted sets by score.


class _Place(NamedTuple):
    """A place in a sorted set: the last member that was read, this member's score, and an estimate of the next member's
    rank."""

    score: float
    member: str
    rank: int

    @classmethod
    def parse(cls, text: str) -> _Place:
        score, rank, member = text.split("|", 2)
        return cls(float(score), member, int(rank))

    def __str__(self) -> str:
        return f"{self.score:.17g}|{self.rank}|{self.member}"


def _by_score(key: str, place: str, count: int) -> Steps[JobPage]:
    """Return a page of a sorted set, ordered by score and then by member.

    Many members may have the same score, so the set is read by rank. To skip no member, the range must begin at the
    last member of the page before, or at a member before it. If members have left the set since then, the range may
    begin too late. Then a range with a lower rank is read.
    """
    last = _Place.parse(place) if place else None
    first, back = max(0, last.rank - 1) if last else 0, count
    while True:
        (found,) = yield [["ZRANGE", key, first, first + count, "WITHSCORES"]]
        members = [(float(score), member) for member, score in pairs_of(found).items()]
        if last is None or first == 0 or (members and members[0] <= last[:2]):
            fresh = [each for each in members if last is None or each > last[:2]][:count]
            whole = len(members) <= count
            if fresh or whole:
                end = None
                if fresh and not (whole and fresh[-1] == members[-1]):
                    end = str(_Place(*fresh[-1], first + members.index(fresh[-1]) + 1))
                return JobPage([_job_of(member) for _, member in fresh if _job_of(member)], end)
            first += len(members) - 1
        else:
            first, back = max(0, first - back), back * 2


def _job_of(member: str) -> str:
    """Return the job's id in a member of a set that is ordered by score; an empty text for a member without a job."""
    kind, found, rest = member.partition("|")
    if not found:
        return member
    return rest if kind == "job" else ""
