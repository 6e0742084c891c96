"""The verdict on a run of :mod:`tests.rigs.parks.sharded`: both logs, the runs of the children, and the sums.

The log must explain each run of a child: the claim has succeeded, its lease has expired, or Redis forgot the claim or
its success in a loss that an epoch reports. In the history that survives, each child has one end, and each result is
saved once. Only queues whose shard lost its primary may have forgotten events, and only after a loss of the parent's
shard may there be children of a second family.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rq_core.model.durable.children import child_id
from rq_core.model.table.machine import Event
from sql_audit.proof.event_details import facts_in
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.processes import rq_core
from tests.rigs.chaos.stage import audit_verify
from tests.rigs.parks.wide import JOINS, PARTS, VERIFIED_S

if TYPE_CHECKING:
    from tests.rigs.parks.sharded import Sharded

SHOWN_MAX = 3
"""Number of problems of one kind that are shown."""


@dataclass
class Child:
    """The claims and ends of one child, by the log."""

    claims: dict[str, bool] = field(default_factory=dict)
    """Fence of a claim → True if Redis forgot the claim."""
    succeeded: dict[str, bool] = field(default_factory=dict)
    """Fence of a claim → True if Redis forgot its success."""
    expired: set[str] = field(default_factory=set)
    """The fences of the claims whose lease expired. (Redis may have forgotten that, too.)"""
    removed: int = 0
    """Number of times that a restore removed the child, because it had ended."""
    known: int = 0
    """Number of the child's events that survive."""

    def explains(self, fence: str) -> str | None:
        """Return why the log allows a run under this fence: ``succeeded``, ``expired`` or ``forgotten``; None: it
        does not."""
        if self.claims.get(fence) or self.succeeded.get(fence):
            return "forgotten"
        if fence in self.succeeded:
            return "succeeded"
        return "expired" if fence in self.expired else None


def judge(
    url: str,
    audit_url: str,
    database: Database,
    job_id: str,
    runs: Sequence[Sequence[str]],
    sums: Sequence[str],
    struck: Sequence[str],
    found: Sharded,
    on_step: Callable[[str], None],
) -> None:
    """Add the problems of a run to ``found``. Each of ``runs`` is a child's id, and the number and the fence of its
    claim. ``struck`` are the queues that may have forgotten events. ``on_step`` is called with a sentence about each
    step."""
    events = list(_events(database))
    for each in events:
        found.counts[each["type"]] += 1
        found.orphans[each["queue"]] += each["forgotten"]
    for queue in (JOINS, PARTS):
        if bool(found.orphans[queue]) is not (queue in struck):
            found.problems.append(f"Redis forgot {found.orphans[queue]} events of {queue}")
    children = children_in([each for each in events if each["queue"] == PARTS])
    found.families, found.runs = len(children), len(runs)
    found.problems += wrong_runs(children, runs, found)
    found.problems += wrong_ends(children, found.children, may_be_more=JOINS in struck)
    found.problems += strangers(children, [each for each in events if each["queue"] == JOINS])
    found.problems += wrong_saves(events)
    ended = [
        each for each in events
        if each["job_id"] == job_id and each["type"] == Event.SUCCEEDED and not each["forgotten"]
    ]  # fmt: skip
    if len(ended) != 1:
        found.problems.append(f"the job has succeeded {len(ended)} times")
    right = str(sum(range(found.children)))
    if set(sums) != {right}:
        found.problems.append(f"the job says {sums}, not {right}")
    del events, children
    on_step("the runs of the children are compared with the log")
    verified = audit_verify(url, audit_url, timeout=VERIFIED_S)
    for queue, said in verified["queues"].items():
        found.verified[queue] = said["verdict"]
    if verified["verdict"] != "holds" or verified["violations"]:
        found.problems.append(f"verify says {verified['verdict']}: {verified['violations'][:3]}")
    on_step("verified")
    ran = rq_core(
        "doctor", JOINS, PARTS, "--force", "--audit", audit_url, "--redis", url, timeout=VERIFIED_S
    )
    if ran.returncode:
        found.problems.append(
            f"the doctor ended with {ran.returncode}: {ran.stdout[-1_000:]}{ran.stderr[-500:]}"
        )


def _events(database: Database) -> Iterator[dict[str, Any]]:
    """Yield the events of jobs in order, each with ``forgotten``: whether Redis forgot it."""
    at = "queue, epoch, seq, ordinal"
    forgotten = {
        tuple(row.values())
        for row in auditlog.rows(database, f"SELECT {at} FROM job_event_orphaned")
    }
    # The details of other events would fill the memory: some of them have the arguments of a job.
    read = "queue = :joins OR type IN ('succeeded', 'lease_expired')"
    statement = (
        f"SELECT {at}, type, job_id, CASE WHEN {read} THEN detail END AS detail FROM job_event "
        f"WHERE job_id IS NOT NULL ORDER BY {at}"
    )
    for row in auditlog.rows(database, statement, joins=JOINS):
        row["forgotten"] = (row["queue"], row["epoch"], row["seq"], row["ordinal"]) in forgotten
        yield row


def children_in(events: Sequence[Mapping[str, Any]]) -> dict[str, Child]:
    """Return what the log says of each child, by id."""
    children: dict[str, Child] = defaultdict(Child)
    for each in events:
        child, is_forgotten = children[each["job_id"]], each["forgotten"]
        child.known += not is_forgotten
        match each["type"]:
            case Event.CLAIMED:
                child.claims[f"{each['epoch']}-{each['seq']}"] = is_forgotten
            case Event.SUCCEEDED:
                child.succeeded[facts_in(each["detail"])["fence"]] = is_forgotten
            case Event.LEASE_EXPIRED:
                child.expired.add(facts_in(each["detail"])["fence"])
            case Event.REMOVED if not is_forgotten:
                child.removed += 1
            case _:
                pass
    return dict(children)


def wrong_runs(
    children: Mapping[str, Child], runs: Sequence[Sequence[str]], found: Sharded
) -> Iterator[str]:
    """Yield the runs that the log does not explain, and the successes without a run. Count the others in ``found``."""
    times = Counter((job_id, fence) for job_id, _, fence in runs)
    whys: Counter[str | None] = Counter()
    wrong: list[str] = []
    for (job_id, fence), count in times.items():
        why = children[job_id].explains(fence) if job_id in children else None
        whys[why] += 1
        if count != 1:
            wrong.append(f"claim {fence} of {job_id} ran {count} times")
        if why is None:
            wrong.append(f"the log does not explain the run of {job_id} in claim {fence}")
    for job_id, child in children.items():
        wrong += [
            f"claim {fence} of {job_id} succeeded and did not run"
            for fence in child.succeeded
            if (job_id, fence) not in times
        ]
    found.lost_runs, found.orphaned_runs = whys["expired"], whys["forgotten"]
    yield from _first(wrong)


def wrong_ends(children: Mapping[str, Child], count: int, *, may_be_more: bool) -> Iterator[str]:
    """Yield the children that have not ended once in the history that survives, and a wrong number of children.

    A child whose success Redis forgot has ended if a restore removed it, or did not put it back.
    """
    wrong: list[str] = []
    for job_id, child in children.items():
        surviving = [fence for fence, is_forgotten in child.succeeded.items() if not is_forgotten]
        forgotten = len(child.succeeded) - len(surviving)
        if len(surviving) > 1 or (not surviving and not forgotten):
            wrong.append(f"child {job_id} succeeded {len(surviving)} times, {forgotten} forgotten")
        if child.removed > forgotten:
            wrong.append(f"child {job_id} was removed, and had not ended")
    yield from _first(wrong)
    if len(children) < count or (len(children) > count and not may_be_more):
        yield f"there are {len(children):,} children, not {count:,}"


def strangers(children: Mapping[str, Child], events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the children that no box of a job in the log explains. ``events`` are those of the jobs' queue."""
    lives = {facts_in(each["detail"]).get("life") for each in events} - {None}
    left = set(children)
    for life in lives:
        for n in range(len(children)):
            job_id = child_id(str(life), "parts", n)
            if job_id not in children:
                break
            left.discard(job_id)
    yield from _first([f"child {job_id} belongs to no job" for job_id in sorted(left)])


def wrong_saves(events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the results that a surviving history has saved twice in one box."""
    saved: Counter[tuple[str, str, str]] = Counter()
    for each in events:
        if each["type"] == Event.STEP_SAVED and not each["forgotten"]:
            facts = facts_in(each["detail"])
            if "=" in facts["name"]:
                saved[each["job_id"], str(facts["life"]), facts["name"]] += 1
    yield from _first(
        [f"{key} was saved {times} times" for key, times in saved.items() if times > 1]
    )


def _first(wrong: Sequence[str]) -> Iterator[str]:
    """Yield the first of some problems, and how many more there are."""
    yield from wrong[:SHOWN_MAX]
    if len(wrong) > SHOWN_MAX:
        yield f"… and {len(wrong) - SHOWN_MAX:,} more"
