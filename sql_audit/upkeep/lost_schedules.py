"""Finds in the log the changes of schedules that Redis lost, and makes them again, for ``audit restore``.

Workers declare the schedules of their code in each new epoch (a history of the queue in Redis). So only *live* changes
must be put back: rules that an operator or ``schedule_many`` stored, pauses, and removals.

The log has every change, also those that Redis forgot. The last live change is in force unless a later event ended it.
Redis lets no declaration by code end a live rule, a pause or a removal. If the log has such a declaration after a live
change, Redis had lost this change by then.

Each event has the rule of its schedule. The log has the job of a schedule only with ``audit_payload="full"``.
Otherwise, the job is taken from Redis, if Redis still has it with the digest that is in the log.
"""

# ruff: noqa: S608 - statements are joined from constants; values are bound

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, text

from rq_core.connections.client import Client
from rq_core.errors import InvalidOption
from rq_core.model.events import OutboxId
from rq_core.model.keys import queue_keys
from rq_core.model.recurrence import from_json
from rq_core.model.schedule import JOB_FIELD, Schedule, job_digest
from rq_core.model.settings import AUDIT_PAYLOADS
from rq_core.protocol.calls.schedules import Declaration
from rq_core.protocol.engine.plan import pairs_of
from sql_audit.mirror.possible_gaps import Places
from sql_audit.store.connection.database import Database
from sql_audit.store.gaps import first_gap_after, gaps
from sql_audit.store.schema.tables import TICK_NAME
from sql_audit.store.storable_text import read_json

_CHANGES: Final = text(
    "SELECT epoch, seq, type, detail FROM job_event WHERE job_id IS NULL AND queue = :queue "
    "AND type IN ('schedule_changed', 'queue_deleted') ORDER BY epoch, seq"
)
_LAST_TICK: Final = text(
    f"SELECT detail FROM job_event WHERE queue = :queue AND type = 'ticked' AND {TICK_NAME} = :name "
    "ORDER BY at_ms DESC, epoch DESC, seq DESC LIMIT 1"
)
_NO_JOB: Final = (
    "the log does not keep its job's arguments: store it again with `rq-core schedule set`"
)


@dataclass(frozen=True, slots=True)
class LostSchedule:
    """A change of a schedule that Redis lost, and whether it can be made again."""

    name: str
    wants: str
    """The change to make: put (store its rule), pause, resume or remove."""
    state: str
    """The schedule's state according to the log."""
    rule: str
    """The schedule's rule according to the log, as JSON."""
    unknown: str | None = None
    """The reason why the change cannot be made again; None if the change can be made again."""
    uncertain: str | None = None
    """A sentence about where the schedule may have been changed without an event in SQL: a gap in the log, or an entry
    in quarantine. Otherwise None."""


@dataclass(slots=True)
class _Wanted:
    """The state and the rule that a schedule must have, according to its last changes in the log."""

    at: OutboxId
    state: str
    rule: str
    version: int
    is_live: bool
    """True if an operator or ``schedule_many`` set the rule, and not the code of workers."""
    pack: str | None = None
    digest: str | None = None


@dataclass(slots=True)
class LostSchedules:
    """The schedules of a queue whose changes Redis lost, with the data to put them back."""

    found: list[LostSchedule] = field(default_factory=list)
    stored: dict[str, Schedule] = field(default_factory=dict)
    """The schedules in Redis, by name."""
    wanted: dict[str, _Wanted] = field(default_factory=dict)
    packs: dict[str, str] = field(default_factory=dict)
    """By schedule whose rule Redis lost: the job that it enqueues, as text. Empty if neither the log nor Redis has the
    job."""
    last_ms: dict[str, int] = field(default_factory=dict)
    """By schedule in ``packs``: the last time at which it was due according to the log (Unix ms)."""


def stored_entries(client: Client, queue: str) -> dict[str, str]:
    """Return the schedules that Redis has, as stored: a dict from name to entry."""
    key = queue_keys(queue, client.prefix)("schedules")
    (read,) = client.run(client.calls.delivery.ask([["HGETALL", key]], queue))
    return dict(pairs_of(read))


def lost_schedules(database: Database, queue: str, entries: Mapping[str, str]) -> LostSchedules:
    """Compare the schedules in the log with ``entries``, the schedules in Redis (see ``stored_entries``).

    The mirror must have caught up after the entries were read. Otherwise a change that an operator has just made looks
    lost.
    """
    found = LostSchedules()
    for name, entry in entries.items():
        if not name.endswith(JOB_FIELD) and f"{name}{JOB_FIELD}" in entries:
            try:
                found.stored[name] = Schedule.parse(entry)
            except ValueError:
                continue  # It does not run: what the log has replaces it.
    with database.readers.connect() as connection:
        found.wanted = _wanted(connection, queue)
        places, holes = Places(connection, queue), gaps(connection, queue)
        for name, wanted in sorted(found.wanted.items()):
            wants = _wants(wanted, found.stored.get(name))
            if wants is None:
                continue
            unknown = uncertain = None
            if wants == "put":
                pack = _pack(wanted, entries.get(f"{name}{JOB_FIELD}"))
                unknown = _unfit(name, wanted.rule) or (_NO_JOB if pack is None else None)
                found.packs[name] = pack or ""
                asked = {"queue": queue, "name": name}
                last = connection.execute(_LAST_TICK, asked).scalar_one_or_none()
                tick = read_json(last, dict)
                found.last_ms[name] = int(tick.get("nominal_ms") or 0)
                wanted.version = max(wanted.version, int(tick.get("version") or 0))
            if (gap := first_gap_after(holes, wanted.at)) is not None:
                uncertain = f"it may have been changed in the gap before {gap.at}"
            elif (entry_at := places.unread(name, wanted.at)) is not None:
                uncertain = f"it may have been changed in entry {entry_at}, which is in quarantine"
            lost = LostSchedule(name, wants, wanted.state, wanted.rule, unknown, uncertain)
            found.found.append(lost)
    return found


def put_back(
    client: Client, queue: str, lost: LostSchedules, *, by: str, why: str, accept_gaps: bool
) -> Iterator[tuple[LostSchedule, str]]:
    """Make the lost changes again, as far as possible. Yield each change with ``changed`` or another answer of Redis.

    Uncertain changes are made only with ``accept_gaps``.
    """
    calls = client.calls.schedules
    for each in lost.found:
        if each.unknown is not None or (each.uncertain is not None and not accept_gaps):
            continue
        name, stored = each.name, lost.stored.get(each.name)
        wanted = lost.wanted[name]
        if each.wants != "put":
            assert stored is not None
            made = client.run(
                calls.change(queue, name, each.wants, version=stored.version, by=by, why=why)
            )
            yield each, made.outcome
            continue
        declared = Declaration(
            from_json(name, wanted.rule), lost.packs[name], AUDIT_PAYLOADS["full"]
        )
        if stored is None:
            last = (wanted.version, lost.last_ms[name])
            made = client.run(calls.restore(queue, declared, *last, by=by, why=why))
        else:
            version = stored.version
            put = calls.put(queue, [declared], version=version, by=by, why=why)
            made = client.run(put)[name]
        if made.outcome == "changed" and wanted.state == "paused":
            pause = calls.change(queue, name, "pause", version=made.version, by=by, why=why)
            made = client.run(pause)
        yield each, "changed" if made.outcome == "same" else made.outcome


def _wanted(connection: Connection, queue: str) -> dict[str, _Wanted]:
    """Return the last settings of each schedule, from all changes in the log. Changes that Redis forgot are
    included.
    """
    found: dict[str, _Wanted] = {}
    for row in connection.execute(_CHANGES, {"queue": queue}):
        if row.type == "queue_deleted":
            found.clear()
            continue
        said = read_json(row.detail, dict)
        name, rule = said.get("name"), said.get("new")
        if not isinstance(name, str) or not isinstance(said.get("version"), int):
            continue  # `audit verify` names it.
        if rule is None:
            found.pop(name, None)
            continue
        before = found.get(name)
        if before is not None and _is_after_a_loss(before, said):
            continue
        found[name] = _changed(before, OutboxId(row.epoch, row.seq), said)
    return found


def _is_after_a_loss(before: _Wanted, said: dict[str, Any]) -> bool:
    """Return whether the event ``said`` shows that Redis had already lost the change ``before``.

    It does if the event is a declaration by code that Redis would otherwise have refused.
    """
    if said["source"] != "code":
        return False
    return before.is_live or (before.state in ("paused", "removed") and said["state"] == "on")


def _changed(before: _Wanted | None, at: OutboxId, said: dict[str, Any]) -> _Wanted:
    is_put = said.get("job_digest") is not None
    wanted = _Wanted(at, said["state"], said["new"], said["version"], is_live=False)
    if is_put:
        wanted.pack, wanted.digest = said.get("pack"), said["job_digest"]
        if wanted.pack is None and before is not None and before.digest == wanted.digest:
            wanted.pack = before.pack
        wanted.is_live = said["source"] == "live"
    elif before is not None:
        wanted.pack, wanted.digest = before.pack, before.digest
        wanted.is_live = before.is_live and said["source"] != "released"
    return wanted


def _wants(wanted: _Wanted, stored: Schedule | None) -> str | None:
    """Return the change after which the schedule in Redis has its last settings in the log: put, pause, resume or
    remove. None: no change is needed.
    """
    if stored is not None and stored.source == "live" and stored.version > wanted.version:
        return None  # An operator set it while the log was off.
    if wanted.state == "removed":
        return "remove" if stored is not None and stored.state != "removed" else None
    if wanted.is_live and (stored is None or stored.source != "live" or stored.rule != wanted.rule):
        return "put"
    if stored is None or stored.state == wanted.state:
        return None
    if wanted.state == "paused" and stored.state == "on":
        return "pause"
    return "resume" if wanted.state == "on" and stored.state == "paused" else None


def _pack(wanted: _Wanted, stored: str | None) -> str | None:
    """Return the job that a schedule enqueues, as text, from the log or from Redis. Return None if neither has the job
    with the right digest.
    """
    for pack in (wanted.pack, stored):
        if pack is not None and job_digest(pack) == wanted.digest:
            return pack
    return None


def _unfit(name: str, rule: str) -> str | None:
    try:
        from_json(name, rule)
    except InvalidOption as error:
        return str(error)
    return None
