"""The verdict on a seed of families: the answers to producers, the runs of handlers, both logs and SQL."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rq_core.doctor import examine
from rq_core.model.durable.boxes import MAP_PREFIX
from rq_core.model.durable.children import child_id, item_name
from rq_core.model.events import Entry, JobEvent
from rq_core.model.table.machine import Event, State
from rq_core.model.unique_names import digest_of
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import agreement, auditlog
from tests.rigs.judge.witnessed import Runs
from tests.rigs.simulator.families import calls
from tests.rigs.simulator.families.handlers import Joined, Seen
from tests.rigs.simulator.families.shards import PARENTS, PARTS, QUEUES
from tests.rigs.simulator.watch import Violated

if TYPE_CHECKING:
    from tests.rigs.simulator.families.simulation import FamilySimulation

Pair = tuple[Entry, JobEvent]

AGREE_EVERY: Final = 4
"""Only for seeds that are multiples of this number, the rows of SQL are also computed again."""

ENDS: Final = {
    "Failed": (Event.DIED, Event.EXPIRED, Event.LEASE_EXPIRED, Event.PRUNED),
    "Cancelled": (Event.CANCELLED, Event.LEASE_EXPIRED),
    "Expired": (Event.EXPIRED,),
}
"""The events that may end a child with an outcome, by the outcome's class."""


class Cancel(NamedTuple):
    """The end of a job that was cancelled."""

    queue: str
    job_id: str
    entry: str
    """The id of the log's entry ``cancelled``."""


class Launch(NamedTuple):
    """A call of a parent that runs children, as the log shows it."""

    queue: str
    parent: str
    life: str
    """The id of the parent's box. Jobs that had the same id one after the other have different boxes."""
    name: str
    """The name under which the call is saved."""
    number: int
    """The position of the call among the parent's calls, from 0."""
    is_saved: bool
    """True if the log says that all children are enqueued."""
    children: tuple[str, ...]
    """The ids of the children."""


def judge(simulation: FamilySimulation) -> dict[str, int]:
    """Check all promises at the end of a simulation. Return the numbers of events by type.

    Raises Violated or AssertionError if a promise does not hold.
    """
    for queue, shard in simulation.shards.items():
        client = simulation.client_of(queue)
        simulation._note_entries(shard, shard.world.exchange([], shard.watch.last)[1])
        shard.watch.compare(client)
        snapshot = client.run(client.calls.reads.snapshot(queue))
        if found := [finding.says for finding in examine(snapshot)]:
            raise Violated(f"the doctor finds in {queue}: {found}")
    story = _Story(simulation)
    wrong = [
        *story.witness(), *story.parents(), *story.children(), *story.joins(), *story.cancelled(),
    ]  # fmt: skip
    if wrong:
        raise Violated("; ".join(wrong))
    _check_audit(simulation)
    counts = Counter(
        f"{entry.event} of {queue}"
        for queue, shard in simulation.shards.items()
        for entry in shard.watch.entries
    )
    counts["joins"] = len(simulation.joined)
    counts["joined items"] = sum(len(each.items) for each in simulation.joined)
    return dict(counts)


class _Story:
    """All that the two logs have ever said in one simulation, and the promises about it."""

    def __init__(self, simulation: FamilySimulation) -> None:
        self.of = simulation
        self.events: dict[str, dict[str, list[Pair]]] = {}
        """The events of each job, by queue and id; the forgotten ones come first."""
        for queue, shard in simulation.shards.items():
            found: dict[str, list[Pair]] = {}
            for entry in (*shard.watch.forgotten, *shard.watch.entries):
                for event in entry.jobs:
                    found.setdefault(event.job_id, []).append((entry, event))
            self.events[queue] = found
        self.moves = {
            (h.claim.queue, h.claim.id): calls.moves_of(h.claim)
            for h in simulation.handlers.values()
        }
        self.launches = list(self._launches())
        self.lost = {queue: bool(shard.lost) for queue, shard in simulation.shards.items()}

    def _launches(self) -> Iterator[Launch]:
        for queue, jobs in self.events.items():
            for job_id, pairs in jobs.items():
                begun: dict[tuple[str, str], bool] = {}
                for entry, event in pairs:
                    name = str(event.fields.get("name", ""))
                    if entry.event in (Event.STEP_BEGUN, Event.STEP_SAVED) and name.startswith(
                        MAP_PREFIX
                    ):
                        key = str(event.fields["life"]), name.removeprefix(MAP_PREFIX)
                        begun[key] = begun.get(key, False) or entry.event is Event.STEP_SAVED
                for (life, launch), is_saved in begun.items():
                    number, move = calls.launches_of(self.moves[queue, job_id])[launch]
                    ids = [child_id(life, launch, n) for n in range(calls.size_of(move))]
                    yield Launch(queue, job_id, life, launch, number, is_saved, tuple(ids))

    def _of(self, queue: str, job_id: str, *events: Event) -> list[Pair]:
        return [each for each in self.events[queue].get(job_id, ()) if each[0].event in events]

    # Handlers.

    def witness(self) -> Iterator[str]:
        """Compare the records of handlers and the answers to workers with the logs (I12)."""
        claimed, succeeded = set(), set()
        for jobs in self.events.values():
            for job_id, pairs in jobs.items():
                for entry, event in pairs:
                    if entry.event is Event.CLAIMED:
                        claimed.add((job_id, str(entry.id)))
                    elif entry.event is Event.SUCCEEDED:
                        succeeded.add((job_id, str(event.fields["fence"])))
        lines = self.of.lines
        runs = Runs(
            [(line.job_id, line.fence) for line in lines if line.kind == "began"],
            [(line.job_id, line.fence) for line in lines if line.kind == "ended"],
        )
        if twice := runs.begun_again():
            yield f"begun more than once in one claim: {twice}"
        if stray := runs.unlogged(claimed):
            yield f"I12: ran in claims that the log does not have: {stray}"
        if stray := runs.hollow(succeeded):
            yield f"I12: succeeded by the log, and no handler ended: {stray}"
        if unheard := sorted(set(self.of.completed) - succeeded):
            yield f"I12: workers were told of successes that the log does not have: {unheard}"

    # Parents.

    def parents(self) -> Iterator[str]:
        """Check that each acknowledged parent is in the log and has ended, and was enqueued no more often than its
        producers wanted (I1, I11)."""
        told, watch = self.of.told, self.of.watch_of(PARENTS)
        ever = {i for i in self.events[PARENTS] if self._of(PARENTS, i, Event.ENQUEUED)}
        if stray := told.strangers(ever):
            yield f"unexpected: nobody enqueued {stray}"
        if stray := sorted(ever & told.refused):
            yield f"unexpected: {stray} are in the log, and were refused"
        missing = told.missing(ever if self.lost[PARENTS] else set(watch.records) & ever)
        if missing:
            yield f"I1: {missing} were acknowledged, and are not in the log"
        for queue in QUEUES:
            for job_id, record in sorted(self.of.watch_of(queue).records.items()):
                if record.state not in (None, State.DEAD):
                    yield f"I11: {job_id} is {record.state} when all is worked off"
        for job_id in sorted(ever):
            times = len(self._of(PARENTS, job_id, Event.ENQUEUED))
            if times > self.of.sent[job_id] and not self.lost[PARENTS]:
                yield f"I10: {job_id} was enqueued {times} times, wanted {self.of.sent[job_id]}"
            if len(self._of(PARENTS, job_id, Event.SUCCEEDED)) > times and not self.lost[PARENTS]:
                yield f"{job_id} succeeded more often than it was enqueued"
        for (job_id, fence), handler in sorted(self.of.handlers.items()):
            if handler.outcome == "complete":
                moves = [
                    n for n, each in enumerate(calls.moves_of(handler.claim)) if calls.is_map(each)
                ]
                joined = [
                    e.number for e in self.of.joined if (e.job_id, e.fence) == (job_id, fence)
                ]
                if joined != moves:
                    yield f"{job_id} ({fence}) was completed after maps {joined}, and has {moves}"

    # Children.

    def children(self) -> Iterator[str]:
        """Check that each child is one of a parent, that none is lost, and that each succeeded at most once."""
        known = {child for launch in self.launches for child in launch.children}
        losses = len(self.of.shards[PARTS].lost)
        for child in sorted(self.events[PARTS]):
            begun = len(self._of(PARTS, child, Event.ENQUEUED))
            succeeded = len(self._of(PARTS, child, Event.SUCCEEDED))
            if child not in known:
                yield f"{child} is no child of any parent"
            if begun > 1 + losses + self._times_forgotten(child):
                yield f"child {child} was enqueued {begun} times"
            if succeeded > 1 + losses:
                yield f"child {child} succeeded {succeeded} times"
        for launch in self.launches:
            if launch.is_saved:
                lost = [i for i in launch.children if not self._of(PARTS, i, Event.ENQUEUED)]
                if lost:
                    yield f"{launch.parent} has enqueued {lost} by its log, and they are not in theirs"

    def _times_forgotten(self, child: str) -> int:
        """Return how often Redis may have forgotten the outcome of a child that no worker had run. It does so if
        results have no room; the parent's next run then enqueues the child again."""
        if not self.of.had_little_room:
            return 0
        times, last = 0, None
        for entry, _ in self.events[PARTS][child]:
            if entry.event in (Event.ENQUEUED, Event.CLAIMED):
                last = entry.event
            elif entry.event in (Event.CANCELLED, Event.EXPIRED) and last is Event.ENQUEUED:
                times += 1
        return times

    # Joins.

    def joins(self) -> Iterator[str]:
        """Check what handlers got from their maps."""
        mine: dict[tuple[str, int], list[tuple[str, ...]]] = {}
        for launch in self.launches:
            mine.setdefault((launch.parent, launch.number), []).append(launch.children)
        first: dict[tuple[str, ...], Joined] = {}
        for joined in self.of.joined:
            says = f"map {joined.number} ({joined.move}) of {joined.job_id} ({joined.fence})"
            ids = tuple(item.id for item in joined.items)
            if [item.index for item in joined.items] != list(range(calls.size_of(joined.move))):
                yield f"{says} got the indexes {[item.index for item in joined.items]}"
            if ids not in mine.get((joined.job_id, joined.number), []):
                yield f"{says} got children {ids}, which it has not enqueued"
            good = sum(item.kind == "Succeeded" for item in joined.items)
            if calls.has_enough(joined.move, good) is joined.has_failed:
                yield f"{says}: {good} succeeded, and {'' if joined.has_failed else 'not '}it failed"
            for item in joined.items:
                for why in self._item(joined, item):
                    yield f"{says}, item {item.index}: {why}"
            if not ids or joined.has_failed or self.lost[joined.queue]:
                continue
            before = first.setdefault(ids, joined)
            if before.items != joined.items:
                yield f"{says} got {joined.items}, and before, {before.items}"

    def _item(self, joined: Joined, item: Seen) -> Iterator[str]:
        """Compare an item with the log of its child."""
        if item.queue != PARTS:
            yield f"its queue is {item.queue}"
        if item.kind == "Gone":
            # Redis forgets how a child ended that no worker had run, if results have no room.
            is_evicted = self.of.had_little_room and not self._of(PARTS, item.id, Event.CLAIMED)
            if not self.lost[PARTS] and not is_evicted:
                yield f"child {item.id} is gone, and its server lost nothing"
            return
        if item.kind != "Succeeded":
            if item.kind not in ENDS or not self._of(PARTS, item.id, *ENDS[item.kind]):
                yield f"child {item.id} is {item.kind}, and its log has no such end"
            return
        ended = self._of(PARTS, item.id, Event.SUCCEEDED)
        if not ended:
            yield f"child {item.id} has succeeded, and its log has no success"
        if item.value is None:
            return
        tag, index, fence, _worker = json.loads(item.value)
        if (tag, index) != (calls.tag_of(joined.job_id, joined.number), item.index):
            yield f"it got the result of child {index} of {tag}"
        if fence not in [event.fields["fence"] for _, event in ended]:
            yield f"it got the result of claim {fence}, which did not succeed"
        digests = [event.fields.get("value_digest") for _, event in ended]
        if not any(_fits(item.value, each) for each in digests):
            yield f"it got {item.value}, and the digests in the log are {digests}"

    # Cancels.

    def cancelled(self) -> Iterator[str]:
        """Check that no child of a cancelled parent begins after the cancel of the family was done.

        A cancel that was not done leaves children, and is not checked. Nothing is checked after a crash or a loss.
        Children also go on if no run of the parent has saved that it enqueued them, and the parent was cancelled
        between two runs.
        """
        if self.of.crashes or self.of.lost:
            return
        when = self.of.shards[PARTS].when
        for launch in self.launches:
            done = self._cancel_done(launch)
            if done is None or not (launch.is_saved or self._ran_when_cancelled(launch)):
                continue
            for child in launch.children:
                if self._is_saved(launch, child) or self._is_requeued(launch, child):
                    continue
                for entry, _ in self._of(PARTS, child, Event.CLAIMED):
                    if when[str(entry.id)] > done:
                        yield (
                            f"{launch.parent} was cancelled with its family by step {done}, and its child {child}"
                            f" begins in step {when[str(entry.id)]}"
                        )

    def _cancel_done(self, launch: Launch) -> int | None:
        """Return the step in which the cancel of the family of a launch was done. Return None if the parent was not
        cancelled, or if the cancel was not done."""
        entry_id = self._cancel_of(launch)
        if entry_id is None:
            return None
        return self.of.cancelled.get(Cancel(launch.queue, launch.parent, entry_id))

    def _cancel_of(self, launch: Launch) -> str | None:
        """Return the id of the entry that cancels the parent of a launch. Return None if the parent was not cancelled.

        Only the end of the job that made the launch counts. A job that had its id before, or has it later, has other
        children.
        """
        is_begun = False
        for entry, event in self.events[launch.queue][launch.parent]:
            is_begun = is_begun or event.fields.get("life") == launch.life
            if is_begun and entry.event is Event.ENQUEUED:
                return None
            if is_begun and entry.event is Event.CANCELLED:
                return str(entry.id)
        return None

    def _is_requeued(self, launch: Launch, child: str) -> bool:
        """Return whether an operator has requeued a dead child after the cancel of its parent. The cancel of the family
        had left the child, which was dead."""
        cancel = self._cancel_of(launch)
        began = self.of.shards[launch.queue].when[cancel] if cancel is not None else 0
        when = self.of.shards[PARTS].when
        return any(
            when[str(entry.id)] > began for entry, _ in self._of(PARTS, child, Event.REQUEUED)
        )

    def _ran_when_cancelled(self, launch: Launch) -> bool:
        """Return whether the parent of a launch was running when it was cancelled."""
        ran = False
        for entry, _ in self.events[launch.queue][launch.parent]:
            if str(entry.id) == self._cancel_of(launch):
                break
            if entry.event in (Event.CLAIMED, Event.CANCEL_REQUESTED):
                ran = entry.event is Event.CANCEL_REQUESTED
        return ran

    def _is_saved(self, launch: Launch, child: str) -> bool:
        """Return whether the parent has saved the success of its child."""
        name = item_name(launch.name, launch.children.index(child))
        return any(
            (event.fields["life"], event.fields["name"]) == (launch.life, name)
            for _, event in self._of(launch.queue, launch.parent, Event.STEP_SAVED)
        )


def _fits(value: str, digest: object) -> bool:
    return bool(digest == digest_of(json.dumps(json.loads(value))))


def _check_audit(simulation: FamilySimulation) -> None:
    """Check that SQL has both logs, and that ``audit verify`` proves both (I7, I24, I25).

    After a loss of a server, verify need not prove everything of its queue, but must find no violation.
    """
    database = Database(simulation.audit_url)
    try:
        for queue in QUEUES:
            auditlog.drain(Mirror(Outbox(simulation.client_of(queue)), database, queue))
        results = verify(database).queues
        for queue, shard in simulation.shards.items():
            result, client = results[queue], simulation.client_of(queue)
            fits = result.verdict is LogVerdict.HOLDS
            if result.violations or not (fits or shard.lost):
                raise Violated(
                    f"audit verify: {queue} is {result.verdict}: {result.violations}, {result.notes}"
                )
            violations, notes = compare(client, database, queue)
            notes = [note for note in notes if not (shard.lost and agreement.box_is_unknown(note))]
            if violations or notes:
                raise Violated(f"verify --redis finds in {queue}: {[*violations, *notes]}")
            if simulation.seed % AGREE_EVERY == 0:
                agreement.assert_agree(
                    client, database, result.verdict, lost=bool(shard.lost), queue=queue
                )
    finally:
        database.close()


def everything(simulation: FamilySimulation) -> str:
    """Return as text all data that Redis and SQL have at the end."""
    found: list[Any] = [str(each) for each in simulation.joined]
    database = Database(simulation.audit_url)
    try:
        for queue in QUEUES:
            client = simulation.client_of(queue)
            snapshot = client.run(client.calls.reads.snapshot(queue))
            # The version of the facts has the server's time, not the simulation's.
            snapshot["meta"].pop("v", None)
            found += [snapshot, auditlog.events(database, queue)]
        found.append(auditlog.rows(database, "SELECT * FROM mirror_cursor ORDER BY queue"))
    finally:
        database.close()
    return str(found)
