"""The table of actions that operators and admins carry out on the web page. Each row defines an address, a form, and
the role that it needs.

Each action makes the same calls to Redis as the corresponding command of ``rq-core``. The audit log has the name of the
person who sent the form, and that person's reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rq_core.app.handles.edit import change_of
from rq_core.app.many.copying import Copying, copy_id, replay_name
from rq_core.errors import InvalidOption, UnknownQueue, UsageError
from rq_core.model.keys import check_name, is_name
from rq_core.model.limits.limit import shown, wanted_limit
from rq_core.model.recurrence import check_schedule_name
from rq_core.protocol.calls.admin import WHY_MAX, check_why
from rq_core.web.acting.fields import (
    COPIED_WITH,
    EDITED,
    Form,
    FormField,
    copy_args,
    edit_options,
)
from rq_core.web.tokens import ADMIN, OPERATOR, Access
from rq_core.web.words import job_path, queue_path, schedule_path, word

if TYPE_CHECKING:
    from rq_core.app.app import App
    from rq_core.model.filters.copy_reader import CopyReader
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations

REASON: Final = "reason"
FIELD_MAX: Final = 500
"""Maximum number of characters of a form field. A reason may be longer: WHY_MAX."""


class By(NamedTuple):
    """The operator's name and the reason of a change, as the log has them."""

    name: str
    why: str


class ActionOutcome(NamedTuple):
    """The outcome of an action: whether it was done, and a sentence for the operator."""

    done: bool
    says: str
    leads_to: str = ""
    """The address of the page to show next, if the action has made something with its own page, such as a copy of a
    job. Empty: the browser shows the page of ``Action.back``."""


Change = Callable[["Operations", Form, By], "Plan[ActionOutcome]"]
Copy = Callable[["App", "CopyReader | None", Form, By], ActionOutcome]
"""A function that makes copies of jobs. Its arguments are an app, the reader of the audit log, the form, and the
operator."""


class Action(NamedTuple):
    """An action on the web page, such as cancelling a job: its form, its role, and its function."""

    name: str
    """The kind of object that the action changes, and the change: ``job/cancel``, for example."""
    role: str
    title: str
    says: str
    """A sentence that says what the action does."""
    change: Change | None
    fields: tuple[FormField, ...] = ()
    hidden: tuple[str, ...] = ()
    """Further fields of the form, which no person fills in. They may be missing."""
    copy: Copy | None = None
    """The function of an action that makes copies of jobs. This action then has no ``change``."""

    @property
    def path(self) -> str:
        """The address to which the form is sent."""
        return f"/act/{self.name}"

    @property
    def of(self) -> str:
        """The kind of object that the action changes: ``job``, ``queue`` or ``schedule``."""
        return self.name.partition("/")[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The form fields that name the object to change, such as ``queue`` and ``id``."""
        return _NAMES[self.of]

    def back(self, form: Form) -> str:
        """Return the address of the page that shows the changed object."""
        if self.of == "job":
            return job_path(form["queue"], form["id"])
        if self.of == "schedule":
            return schedule_path(form["queue"], form["name"])
        return queue_path(form["queue"])


_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "job": ("queue", "id"),
    "queue": ("queue",),
    "schedule": ("queue", "name"),
}


def checked_form(action: Action, pairs: Collection[tuple[str, str]]) -> dict[str, str]:
    """Return a sent form as field → value.

    Raises InvalidOption or InvalidName if a field is unknown, repeated, too long, missing or invalid.
    """
    known = {*action.names, *action.hidden, *(each.name for each in action.fields), REASON}
    form: dict[str, str] = {}
    for name, value in pairs:
        if name not in known or name in form:
            must = "must be a field of this form, once"
            raise InvalidOption.of("field", word(name, 50), must)
        if len(value) > (WHY_MAX if name == REASON else FIELD_MAX):
            most = WHY_MAX if name == REASON else FIELD_MAX
            raise InvalidOption.of(name, f"{value[:50]}…", f"must have at most {most:,} characters")
        form[name] = value.strip()
    check_name("queue", form.get("queue", ""))
    if "id" in action.names:
        check_name("job", form.get("id", ""))
    if "name" in action.names:
        check_schedule_name(form.get("name", ""))
    for field in action.fields:
        if field.required and not form.get(field.name):
            raise InvalidOption.of(field.name, "", "must not be empty")
        if field.choices and form.get(field.name, "") not in ("", *field.choices):
            must = f"must be one of {', '.join(field.choices)}"
            raise InvalidOption.of(field.name, form[field.name], must)
    return form


def by_of(access: Access, reason: str) -> By:
    """Return the operator and the reason of a change, for the log.

    Characters that are not allowed in an operator's name, such as the @ of an e-mail address, are replaced. The reason
    then begins with the original name. Raises UsageError for an empty name, and InvalidOption for a reason that is not
    allowed in the log.
    """
    if not access.name.strip():
        raise UsageError("your login gives you no name, and the log must say who changes something")
    if is_name(access.name):
        return By(access.name, check_why(reason))
    said = access.name.strip()[:200]
    name = re.sub(r"[^A-Za-z0-9_.:-]", "_", said.replace("@", ".at."))[:128]
    return By(name, check_why(f"{said}: {reason}" if reason else said))


def carried_out(calls: Operations, action: Action, form: Form, by: By) -> Plan[ActionOutcome]:
    """Carry out an action and return its outcome. Raises UnknownQueue."""
    assert action.change is not None, f"{action.name} makes copies"
    yield from check_is_there(calls, form["queue"])
    return (yield from action.change(calls, form, by))


def check_is_there(calls: Operations, queue: str) -> Plan[None]:
    """Raise UnknownQueue if a queue does not exist. Without this check, a change would create the queue."""
    if not (yield from calls.reads.is_there(queue)):
        listed = yield from calls.reads.listed()
        raise UnknownQueue(queue=queue, known=", ".join(listed.queues) or "none")


# Jobs.


_SAID: Final[Mapping[str, str]] = {
    "cancelled": "The job is cancelled.",
    "cancelling": "The job runs, and was asked to stop: its worker sees this when it next extends its leases.",
    "requeued": "The job is ready again, at the tail of its line. Its failures are reset.",
    "pruned": "The job is removed from Redis.",
    "edited": "The job is changed.",
    "same": "The job was like this already.",
    "gone": "Redis has no such job: perhaps it has ended.",
    "held": "Another job has its name.",
    "never": "It would become ready at its deadline or later, so no worker could begin it.",
}


def _told(outcome: str, done: Collection[str]) -> ActionOutcome:
    """Return the outcome of a change of a job for the operator. ``outcome``: the script's answer. ``done``: the answers
    that mean success."""
    if outcome in done:
        return ActionOutcome(True, _SAID[outcome])
    if outcome in ("gone", "held", "never"):
        return ActionOutcome(False, f"Nothing is changed. {_SAID[outcome]}")
    return ActionOutcome(False, f"Nothing is changed: the job is {word(outcome, 40)}.")


def _cancel(calls: Operations, form: Form, by: By) -> Plan[ActionOutcome]:
    job_id = form["id"]
    made = yield from calls.families.cancel(form["queue"], [job_id], by=by.name, why=by.why)
    return _told(made[job_id], {"cancelled", "cancelling"})


def _requeue(calls: Operations, form: Form, by: By) -> Plan[ActionOutcome]:
    job_id = form["id"]
    made = yield from calls.families.requeue(form["queue"], [job_id], by=by.name, why=by.why)
    return _told(made[job_id], {"requeued"})


def _prune(calls: Operations, form: Form, by: By) -> Plan[ActionOutcome]:
    job_id = form["id"]
    made = yield from calls.admin.prune(form["queue"], [job_id], by=by.name, why=by.why)
    return _told(made[job_id], {"pruned"})


def _edit(calls: Operations, form: Form, by: By) -> Plan[ActionOutcome]:
    job_id, change = form["id"], change_of(form["queue"], **edit_options(form))
    made = yield from calls.admin.edit(form["queue"], [job_id], change, by=by.name, why=by.why)
    return _told(made[job_id], {"edited", "same"})


MIRROR_S: Final = 5.0
"""Seconds for which a copy of a job waits until the audit log has all of the job's events."""


def _copy(app: App, log: CopyReader | None, form: Form, by: By) -> ActionOutcome:
    queue, job_id, args = form["queue"], form["id"], copy_args(form)
    name = replay_name(form.get("name") or None, args)
    app.client.run(check_is_there(app.client.calls, queue))
    made = Copying(
        app, app.tasks, log, queue, name, args, by=by.name, reason=by.why, wait_s=MIRROR_S
    ).one(job_id)
    if made.discarded:
        return ActionOutcome(False, "No copy is enqueued: its scope is full.")
    if made.id != copy_id(job_id, name):
        return ActionOutcome(False, f"No copy is enqueued: {word(made.id)} has its name.")
    says = "It was copied before: this is its copy." if made.duplicate else "This copy is enqueued."
    return ActionOutcome(True, says, job_path(queue, made.id))


# Queues.


def _pausing(value: int, done: str, same: str) -> Change:
    def change(calls: Operations, form: Form, by: By) -> Plan[ActionOutcome]:
        made = yield from calls.admin.configure(
            form["queue"], {"paused": value}, by=by.name, why=by.why
        )
        return ActionOutcome(True, done if made["paused"] == "changed" else same)

    return change


def _limit(calls: Operations, form: Form, by: By) -> Plan[ActionOutcome]:
    queue, scope, version = form["queue"], form["scope"], form.get("version", "")
    if version and not (version.isascii() and version.isdigit() and len(version) < 10):
        raise InvalidOption.of("version", version, "must be a whole number")
    yield from calls.caps.check_task(queue, scope)
    made = yield from calls.caps.change(
        queue,
        scope,
        wanted_limit(form["limit"]),
        version=int(version) if version else None,
        by=by.name,
        why=by.why,
    )
    is_now = "is now" if made.outcome == "changed" else "was already"
    return ActionOutcome(True, f"The limit of {word(scope)} {is_now} {shown(made.limit)}.")


# Schedules.


def _scheduling(what: str, done: str, same: str) -> Change:
    def change(calls: Operations, form: Form, by: By) -> Plan[ActionOutcome]:
        made = yield from calls.schedules.change(
            form["queue"], form["name"], what, by=by.name, why=by.why
        )
        if made.outcome == "undeclared":
            return ActionOutcome(False, "Nothing is changed: no code declares this schedule.")
        if made.outcome == "gone":
            return ActionOutcome(
                False, "Nothing is changed: the schedule is removed, or it never existed."
            )
        if made.outcome not in ("changed", "same"):
            return ActionOutcome(False, f"Nothing is changed: {word(made.outcome, 40)}.")
        return ActionOutcome(True, done if made.outcome == "changed" else same)

    return change


def _run(calls: Operations, form: Form, by: By) -> Plan[ActionOutcome]:
    made = yield from calls.schedules.run(form["queue"], form["name"], by=by.name, why=by.why)
    if made.outcome == "run":
        return ActionOutcome(True, "Its job is enqueued.")
    why = f"{word(made.holder)} is in its place" if made.holder else word(made.outcome, 40)
    why = {"gone": "the schedule is removed", "later": "its stored job cannot be read"}.get(
        made.outcome, why
    )
    return ActionOutcome(False, f"No job is enqueued: {why}.")


ACTIONS: Final = (
    Action(
        "job/cancel", OPERATOR, "cancel",
        "A job that waits is removed at once. A job that runs is asked to stop.", _cancel,
    ),
    Action(
        "job/edit", OPERATOR, "edit",
        "A field that is left empty changes nothing. The arguments stay as they are.", _edit, EDITED,
    ),
    Action(
        "job/requeue", OPERATOR, "requeue",
        "The job becomes ready again, at the tail of its line. Its failures are reset. If it waits for children, those"
        " that are dead are requeued first.", _requeue,
    ),
    Action(
        "job/prune", OPERATOR, "remove",
        "The job is removed from Redis. The audit log keeps its history.", _prune,
    ),
    Action(
        "job/copy", OPERATOR, "copy",
        "A new job with the same arguments is enqueued, as its task says now. This job stays as it is.",
        None, COPIED_WITH, copy=_copy,
    ),
    Action(
        "queue/pause", OPERATOR, "pause",
        "No worker claims jobs of this queue any more. Running jobs go on, and the queue takes new jobs.",
        _pausing(1, "The queue is paused.", "The queue was paused already."),
    ),
    Action(
        "queue/resume", OPERATOR, "resume", "Workers may claim jobs of this queue again.",
        _pausing(0, "The queue is resumed.", "The queue was not paused."),
    ),
    Action(
        "queue/limit", ADMIN, "set a limit",
        "It holds at once, for every worker. Lowering a limit ends no running job.", _limit,
        (
            FormField("scope", "scope", hint="queue, task=NAME, a family, or FAMILY=KEY", required=True),
            FormField("limit", "limit", hint="10, none, 100/60s, or code: what the code declares", required=True),
        ),
        hidden=("version",),
    ),
    Action(
        "schedule/pause", OPERATOR, "pause",
        "It enqueues no job until it is resumed, and none later for the instants in between.",
        _scheduling("pause", "The schedule is paused.", "The schedule was paused already."),
    ),
    Action(
        "schedule/resume", OPERATOR, "resume", "It goes on with its next instant.",
        _scheduling("resume", "The schedule is on again.", "The schedule is on already."),
    ),
    Action(
        "schedule/run", OPERATOR, "run now",
        "Its job is enqueued once now, in addition to its instants.", _run,
    ),
    Action(
        "schedule/release", ADMIN, "give back to code",
        "Its rule holds until a worker declares the rule that the code has.",
        _scheduling("release", "The schedule is given back to code.", "Its rule is what the code declared already."),
    ),
    Action(
        "schedule/remove", ADMIN, "remove",
        "It enqueues no job any more. Code that still declares it does not bring it back.",
        _scheduling("remove", "The schedule is removed.", "The schedule was removed already."),
    ),
)  # fmt: skip
"""All actions. Each has an address that accepts forms from people with the action's role or a higher role."""
ACTION_BY_NAME: Final = {each.name: each for each in ACTIONS}

_OF_STATE: Final[Mapping[str, tuple[str, ...]]] = {
    "ready": ("job/cancel", "job/edit"),
    "scheduled": ("job/cancel", "job/edit"),
    "running": ("job/cancel",),
    "dead": ("job/requeue", "job/prune"),
}
"""State of a job → names of the actions that make sense in this state."""


def offered(page: str, document: Mapping[str, Any], access: Access) -> list[Action]:
    """Return the actions that a page offers: those that suit the state of the shown job, queue or schedule, and that
    the viewer's role allows."""
    names: tuple[str, ...] = ()
    if page == "job":
        names = _OF_STATE.get(document["job"]["state"], ()) if document["job"] else ()
        if document["job"] or document["events"]:
            names = (*names, "job/copy")
    elif page == "queue" and document["queue"]:
        names = ("queue/resume" if document["queue"]["paused"] else "queue/pause", "queue/limit")
    elif page == "schedule" and document["schedule"]:
        names = _of_schedule(document["schedule"])
    return [ACTION_BY_NAME[name] for name in names if access.may(ACTION_BY_NAME[name].role)]


def _of_schedule(schedule: Mapping[str, Any]) -> tuple[str, ...]:
    if schedule["state"] == "removed":
        return ("schedule/resume",)
    first = "schedule/pause" if schedule["state"] == "on" else "schedule/resume"
    released: tuple[str, ...] = ()
    if schedule["source"] == "live" and schedule["seen_ms"]:
        released = ("schedule/release",)
    return (first, "schedule/run", *released, "schedule/remove")
