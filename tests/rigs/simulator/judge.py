"""The verdict on a seed. It compares the answers to producers, the records of handlers, Redis and SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import NoResultFound

from rq_core.doctor import examine
from rq_core.model.events import Entry
from rq_core.model.schedule import tick_of
from rq_core.model.table.machine import Event
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import agreement, auditlog
from tests.kit.fleet import QUEUE
from tests.rigs.judge.witnessed import Runs
from tests.rigs.simulator import durable
from tests.rigs.simulator.actors import MirrorProcess
from tests.rigs.simulator.watch import Violated

if TYPE_CHECKING:
    from tests.rigs.simulator.simulation import Simulation


def judge(simulation: Simulation) -> dict[str, int]:
    """Check all promises at the end of a simulation. Return the numbers of events by type, and of late calls that were
    refused.

    Raises Violated or AssertionError if a promise does not hold.
    """
    client = simulation.direct()
    simulation.watch.add(simulation.world.exchange([], simulation.watch.last)[1])
    simulation.watch.compare(client)
    found = [finding.says for finding in examine(client.run(client.calls.reads.snapshot(QUEUE)))]
    if found:
        raise Violated(f"the doctor finds: {found}")
    simulation.check_results()
    _check_told(simulation)
    _check_witness(simulation)
    if wrong := durable.problems(simulation):
        raise Violated("; ".join(wrong))
    _check_audit(simulation)
    counts = Counter(str(entry.event) for entry in simulation.watch.entries)
    return {**counts, **{f"late {what} refused": n for what, n in simulation.refused.items()}}


def _check_told(simulation: Simulation) -> None:
    """Check the answers to producers (I1, I10, I11).

    Each acknowledged job must be in the log once, and must have ended. No refused job may be in the log.
    """
    watch, told = simulation.watch, simulation.told
    logged = set(_produced(watch.entries))
    ever = logged | set(_produced(watch.forgotten))
    if stray := told.strangers(ever):
        raise Violated(f"unexpected: nobody enqueued {stray}")
    if stray := told.contradicting(ever, logged):
        raise Violated(f"unexpected: {stray} are in the log, and were refused")
    entries = [*watch.entries, *watch.forgotten]
    # The watch has looked at the jobs of schedules.
    times = Counter(_produced(entries))
    if (twice := sorted((times - simulation.sent).keys())) and not simulation.lost:
        raise Violated(f"I10: {twice} were enqueued more often than producers wanted")
    if lost := told.missing(ever):
        raise Violated(f"I1: {lost} were acknowledged and never logged")
    if (lost := told.missing(logged)) and not simulation.lost:
        raise Violated(f"I1: {lost} were acknowledged, and are not in the log")
    for job_id in sorted(told.acknowledged & logged):
        record = watch.records[job_id]
        if record.state is not None and str(record.state) != "dead":
            raise Violated(f"I11: {job_id} is {record.state} when all is worked off")


def _produced(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield the id in each ``enqueued`` event, without the jobs of schedules."""
    for entry in entries:
        if entry.event is Event.ENQUEUED:
            yield from (each.job_id for each in entry.jobs if tick_of(each.job_id) is None)


def _check_witness(simulation: Simulation) -> None:
    """Check that the records of handlers and the answers to workers agree with the log (I12)."""
    entries = [*simulation.watch.entries, *simulation.watch.forgotten]
    claimed: set[tuple[str, str]] = set()
    succeeded: set[tuple[str, str]] = set()
    for entry in entries:
        for event in entry.jobs:
            if entry.event is Event.CLAIMED:
                claimed.add((event.job_id, str(entry.id)))
            elif entry.event is Event.SUCCEEDED:
                succeeded.add((event.job_id, str(event.fields["fence"])))
    runs = Runs(
        *(
            [(line.job_id, line.fence) for line in simulation.lines if line.kind == kind]
            for kind in ("began", "ended")
        )
    )
    if twice := runs.begun_again():
        raise Violated(f"begun more than once in one claim: {twice}")
    if stray := runs.unlogged(claimed):
        raise Violated(f"I12: ran in claims that the log does not have: {stray}")
    if stray := runs.hollow(succeeded):
        raise Violated(f"I12: succeeded by the log, and no handler ended: {stray}")
    if unheard := sorted(set(simulation.completed) - succeeded):
        raise Violated(f"I12: workers were told of successes that the log does not have: {unheard}")


def _check_audit(simulation: Simulation) -> None:
    """Check that SQL has the log, and that ``audit verify`` proves the log (I7).

    After a loss of Redis, verify need not prove everything, but must find no violation.
    """
    if not any(isinstance(actor, MirrorProcess) for actor in simulation.actors):
        return
    client, database = simulation.direct(), Database(simulation.audit_url)
    try:
        verdict = LogVerdict.UNKNOWN if simulation.lost else LogVerdict.HOLDS
        auditlog.drain(Mirror(Outbox(client), database, QUEUE))
        if simulation.lost:
            verdict = verify(database).queues[QUEUE].verdict
        agreement.assert_agree(client, database, verdict, lost=bool(simulation.lost))
        if verdict is LogVerdict.VIOLATED:
            raise Violated("audit verify: violated")
        _compare_log(simulation, database)
    finally:
        database.close()


def check_boxes(simulation: Simulation) -> None:
    """Check that `audit verify --redis` finds no error in the boxes of durable jobs, while the mirror is behind."""
    client = simulation.direct()
    lines = client.run(client.calls.reads.snapshot(QUEUE))["state"].values()
    has_mirror = any(isinstance(actor, MirrorProcess) for actor in simulation.actors)
    if not has_mirror or not any(" life=" in line for line in lines):
        return
    database = Database(simulation.audit_url)
    try:
        violations, notes = compare(client, database, QUEUE)
    except NoResultFound:
        return  # The mirror has not begun.
    finally:
        database.close()
    wrong = [
        each.says for each in violations if any(word in each.says for word in ("box", "signal"))
    ]
    if not simulation.lost:
        wrong += [note.says for note in notes if agreement.box_is_unknown(note)]
    if wrong:
        raise Violated(f"verify --redis finds: {'; '.join(wrong)}")


def _compare_log(simulation: Simulation, database: Database) -> None:
    """Check that SQL lacks no entry of its newest epoch that Redis has (I7)."""
    rows = auditlog.events(database, QUEUE)
    mirrored = {(row["epoch"], row["seq"]) for row in rows}
    epoch = max(e for e, _ in mirrored)
    missing = [
        e.id
        for e in simulation.watch.entries
        if e.id.epoch == epoch and tuple(e.id) not in mirrored
    ]
    if missing:
        raise Violated(f"I7: SQL lacks {missing}")


def everything(simulation: Simulation) -> str:
    """Return as text all data that Redis and SQL have at the end."""
    snapshot: dict[str, Any] = simulation.direct().run(
        simulation.direct().calls.reads.snapshot(QUEUE)
    )
    # The version of the facts has the server's time, not the simulation's.
    snapshot["meta"].pop("v", None)
    database = Database(simulation.audit_url)
    try:
        cursor = auditlog.rows(database, "SELECT * FROM mirror_cursor")
        events = auditlog.events(database, QUEUE)
    finally:
        database.close()
    return f"{snapshot} {cursor} {events}"
