"""Compares a queue's settings, limits and schedules with the log, and checks that the rows of its lists are readable.

rq-core logs each change as an event. A change by HSET has no event, so the log cannot show who made it. The doctor
keeps the value in Redis, because it is already in force. The finding names the command that sets the value back or logs
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from rq_core.doctor.finding import Edit, Finding, Kind
from rq_core.doctor.log import SCHEDULE_MARK, LoggedSchedule
from rq_core.doctor.snapshot import View
from rq_core.errors import InvalidOption, QueueDamaged
from rq_core.model.job import read_spec, spec_fault
from rq_core.model.keys import DEFAULT_PREFIX, QueueKeys
from rq_core.model.lib.text import shorten
from rq_core.model.limits import scopes
from rq_core.model.limits.limit import Limit
from rq_core.model.limits.policy import read_naming, read_options, read_policy
from rq_core.model.recurrence import INSTANT_MAX, from_json
from rq_core.model.schedule import JOB_FIELD, Schedule, job_digest
from rq_core.model.settings import SETTINGS
from rq_core.protocol.engine.queue_check import epoch_of
from rq_core.protocol.reads.worker_registry import is_readable

SHOWN_MAX: Final = 100
"""Maximum number of characters of a value that a message shows."""
_WHY: Final = "a client changed it with HSET, or a script was cut short"


Row = tuple[str, str, str, str]
"""A difference from the log: key, member, description, and the advice to the operator, such as the command that sets
the value back."""


def settings_findings(view: View) -> Iterator[Finding]:
    """Yield findings for settings, limits and schedules that differ from the log.

    Also yield findings for unreadable rows of `workers` and `tasks`.
    """
    if view.facts.get("epoch"):
        for key, member, differs, how in (*_epoch(view), *_settings(view), *_limits(view)):
            kind = (
                Kind.UNREADABLE
                if member == "epoch" and view.log.epoch is None
                else Kind.LOG_DIFFERS
            )
            actual = view.snapshot[key].get(member, "")
            yield Finding(
                kind, f"{differs}: {_WHY}; {how}", edits=(Edit(key, member, actual, actual),)
            )
    yield from _rows(view)
    yield from _schedules(view)


def _epoch(view: View) -> Iterator[Row]:
    epoch, logged = view.facts["epoch"], view.log.epoch
    meta, says = f"'{view.keys('meta')}'", f"epoch is {_shown(epoch)} in `meta`"
    if logged is None:
        try:
            epoch_of(view.keys.queue, epoch)
        except QueueDamaged:
            how = f"`redis-cli HDEL {meta} epoch` lets a new epoch begin"
            yield "meta", "epoch", f"{says}, which is no number, and the log has no event", how
    elif epoch != str(logged):
        how = f"`redis-cli HSET {meta} epoch {logged}` sets it back"
        yield "meta", "epoch", f"{says}, and the last event is of epoch {logged}", how


def _settings(view: View) -> Iterator[Row]:
    for name, logged in sorted(view.log.settings.items()):
        default = str(SETTINGS[name].default) if name in SETTINGS else "0"
        actual = view.facts.get(name, default)
        if actual != logged:
            differs = f"{name} is {_shown(actual)} in `meta`, {_shown(logged)} by the log"
            yield "meta", name, differs, _how(view.keys, name, logged)


def _how(keys: QueueKeys, name: str, logged: str) -> str:
    """Return a phrase with the command that sets a setting back to the log's value."""
    if name == "paused":
        return f"`rq-core {'pause' if logged == '1' else 'resume'} {keys.queue}{_given(keys)}` sets it back"
    if name in SETTINGS:
        setting = SETTINGS[name].assigned(int(logged))
        return f"`rq-core set {keys.queue} {setting}{_given(keys)}` sets it back"
    return "App.queue(fair=…) logs the value that you want"


def _given(keys: QueueKeys) -> str:
    """Return the option --prefix for commands about this queue; empty if its prefix is the default."""
    return "" if keys.prefix == DEFAULT_PREFIX else f" --prefix {keys.prefix}"


def _limits(view: View) -> Iterator[Row]:
    stored = view.snapshot["caps"]
    # The loss of all limits is a separate finding.
    for scope, (text, version) in sorted(view.log.limits.items()) if stored else ():
        actual = view.caps.get(scope)
        if scopes.family_of(scope) == scopes.WEIGHT or (scope in stored and actual is None):
            continue  # An unreadable limit is a separate finding, too.
        try:
            logged = None if text is None else Limit.parse(text)
        except (ValueError, TypeError):
            continue
        found = None if actual is None else actual.limit
        has, had = (str(each or "none") for each in (found, logged))
        how = "`rq-core cap` logs the limit that you want"
        if found == logged and actual is not None and actual.version != version:
            # The next change increments this version, so the log would show a skipped version.
            has, had = f"{has} version={actual.version}", f"{had} version={version}"
            entry = stored[scope].replace(f"version={actual.version}", f"version={version}", 1)
            how = f"`redis-cli HSET '{view.keys('caps')}' {scope} '{entry}'` sets it back"
        if has != had:
            yield "caps", scope, f"the limit of {scope} is {has} in `caps`, {had} by the log", how


def _rows(view: View) -> Iterator[Finding]:
    for name, row in view.snapshot["workers"].items():
        if not is_readable(name, row):
            says = f"{_shown(name)} of `workers` cannot be read, so it is not shown: {_shown(row)}"
            yield Finding(Kind.UNREADABLE, f"{says}; workers remove such rows within an hour")
    for task, policy in view.snapshot["tasks"].items():
        try:
            read_policy(policy)
            read_naming(policy)
            read_options(policy)
        except (ValueError, KeyError, TypeError):
            says = f"the policy of task {_shown(task)} cannot be read: {_shown(policy)}"
            yield Finding(Kind.UNREADABLE, f"{says}; its workers register it again when they start")


def _schedules(view: View) -> Iterator[Finding]:
    """Yield findings for schedules that are unreadable, contradict themselves, or differ from the log."""
    stored = view.snapshot["schedules"]
    names = {name.removesuffix(JOB_FIELD) for name in stored} | view.log.schedules.keys()
    for name in sorted(names):
        entry, packed = stored.get(name), stored.get(f"{name}{JOB_FIELD}")
        logged = view.log.schedules.get(name)
        for kind, says in _schedule(name, entry, packed, logged, has_all=view.log.all_schedules):
            if not (view.is_fuzzy and f"{SCHEDULE_MARK}{name}" in view.log.moving):
                moved = _moved_on(entry, logged) if kind is Kind.LOG_DIFFERS else None
                values = [(name, entry, moved or entry), (f"{name}{JOB_FIELD}", packed, packed)]
                edits = [Edit("schedules", f, was or "", now or "") for f, was, now in values]
                yield Finding(kind, says, edits=tuple(edits))


def _schedule(
    name: str,
    entry: str | None,
    packed: str | None,
    logged: LoggedSchedule | None,
    *,
    has_all: bool,
) -> Iterator[tuple[Kind, str]]:
    """Yield (kind, sentence) for each problem of a schedule.

    ``entry``: the stored schedule. ``packed``: the job that it enqueues. ``logged``: the schedule according to the log.
    ``has_all``: True if the log should have every schedule.
    """
    is_known = logged is not None and logged.state
    if entry is None and packed is None:
        if logged is not None and is_known:
            says = f"schedule {name} is {logged.state} by the log, and Redis does not have it"
            yield (
                Kind.LOST,
                f"{says}: workers declare those of their code, `rq-core audit restore` puts back the others",
            )
        return
    how = "`rq-core schedule set` stores it again, `rq-core audit restore` as the log has it"
    if _moved_on(entry, logged):
        how = "repair moves it on to the next instant of the log"
    if entry is None or packed is None:
        half = "an entry and no job" if packed is None else "a job and no entry"
        yield Kind.UNREADABLE, f"schedule {_shown(name)} has {half}, so it does not run; {how}"
        return
    try:
        schedule = Schedule.parse(entry)
    except ValueError as error:
        yield (
            Kind.UNREADABLE,
            f"schedule {_shown(name)} cannot be read, so it does not run: {error}; {how}",
        )
        return
    if wrong := _of_job(packed, logged):
        yield Kind.SPEC_DIFFERS, f"the job of schedule {name} {wrong}: {_WHY}; {how}"
    if not is_known and (has_all or logged is not None):
        yield (
            Kind.UNLOGGED,
            f"schedule {name} is {schedule.state}, and the log does not have it: {_WHY}",
        )
        logged = None
    differs = list(_unlike(name, schedule, logged))
    if differs:
        yield (
            Kind.LOG_DIFFERS,
            f"schedule {name} differs from the log: {', '.join(differs)}: {_WHY}; {how}",
        )


def _moved_on(entry: str | None, logged: LoggedSchedule | None) -> str | None:
    """Return a schedule's entry, moved on to the next instant that the log has.

    An entry is behind the log if a script failed after it had appended its event. Return None if the entry also differs
    in another field, or if the log's instant is not later.
    """
    with suppress(ValueError):
        schedule = Schedule.parse(entry or "")
        if (
            logged is not None
            and (schedule.state, schedule.version) == (logged.state, logged.version)
            and logged.rule in (None, schedule.rule)
            and logged.next_ms is not None
            and logged.next_ms > schedule.next_ms
        ):
            due_ms = logged.next_ms + schedule.due_ms - schedule.next_ms
            moved = schedule._replace(
                next_ms=logged.next_ms, due_ms=due_ms, last_ms=schedule.next_ms
            )
            return str(moved)
    return None


def _of_job(packed: str, logged: LoggedSchedule | None) -> str:
    """Return what is wrong with the job that a schedule enqueues, as the end of a sentence; empty if nothing is wrong.

    ``packed``: the stored job.
    """
    if logged is not None and logged.job_digest not in (None, job_digest(packed)):
        return "is not the one that the log has"
    try:
        _, _, digest, spec = packed.split("\n", 3)
        task = read_spec(spec).task
    except (ValueError, RecursionError):
        return "cannot be read, so it is not enqueued"
    return "has other arguments" if spec_fault(spec, task, digest.partition(" ")[0]) else ""


def _unlike(name: str, schedule: Schedule, logged: LoggedSchedule | None) -> Iterator[str]:
    if logged is not None:
        pairs = [
            ("state", schedule.state, logged.state),
            ("v", schedule.version, logged.version),
            ("next", schedule.next_ms, logged.next_ms),
            ("rule", schedule.rule, logged.rule),
        ]
        for what, actual, said in pairs:
            if said is not None and actual != said:
                yield f"{what}={shorten(str(actual), SHOWN_MAX)}, {shorten(str(said), SHOWN_MAX)} by the log"
    # A rule of newer code, or of a time zone that this system lacks, says nothing here.
    with suppress(InvalidOption, ValueError, OverflowError):
        due_ms = min(schedule.next_ms + from_json(name, schedule.rule).shift_ms, INSTANT_MAX)
        if schedule.due_ms != due_ms:
            yield f"due={schedule.due_ms}, {due_ms} by its rule"


def _shown(text: str) -> str:
    return repr(shorten(text, SHOWN_MAX))
