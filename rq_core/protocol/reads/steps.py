"""Reads of queues, written as generators of steps. A read of many queues takes as many round trips as a read of one
queue.

In each step, the generator yields the commands of one round trip, and receives the replies. At the end it returns the
result. :meth:`QueueReader.exactly` carries out one read, and :meth:`QueueReader.side_by_side` several reads at once.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final, Generic, TypeVar

from rq_core.errors import RqCoreError
from rq_core.model.job import JobError, error_of
from rq_core.model.keys import QueueKeys, queue_keys
from rq_core.model.lib.text import printable, shorten
from rq_core.model.state_line import LINE_MAX, TOO_LONG, JobState, line_of_job, read_state_lines
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Plan
from rq_core.scripts.plain import plain_text

T = TypeVar("T")

Command = list[Any]
Steps = Generator[list[Command], list[Any], T]

TOGETHER_MAX: Final = 1_000
"""Maximum number of commands that the read of one queue sends in one round trip."""
WHY_MAX: Final = 300
"""Maximum number of characters of the reason why a queue cannot be read."""


def ask(**questions: Command | list[Command]) -> Steps[Any]:
    """Send named commands in one round trip. Returns an object with one attribute per name.

    The attribute is the reply to the command, or, for a list of commands, the list of the replies.
    """
    single = {name for name, asked in questions.items() if asked and isinstance(asked[0], str)}
    listed: dict[str, list[Command]] = {
        name: [asked] if name in single else asked for name, asked in questions.items()
    }
    replies = iter((yield [command for commands in listed.values() for command in commands]))
    found = {name: list(islice(replies, len(commands))) for name, commands in listed.items()}
    return SimpleNamespace(**{n: each[0] if n in single else each for n, each in found.items()})


def time_ms(reply: Sequence[str]) -> int:
    """Return the reply to the command TIME in Unix ms.

    Send TIME together with commands on keys of the queue. In a cluster, TIME then goes to the queue's shard. Only the
    clock of this shard counts.
    """
    seconds, micros = reply
    return int(seconds) * 1000 + int(micros) // 1000


def run_steps(delivery: Delivery, queue: str, steps: Steps[T]) -> Plan[T]:
    """Carry out one read of a queue: send the commands that ``steps`` yields. Raises ServerUnavailable,
    ServerUnsuitable or QueueDamaged.
    """
    replies: list[Any] | None = None
    while True:
        try:
            commands = next(steps) if replies is None else steps.send(replies)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        replies = []
        for at in range(0, len(commands), TOGETHER_MAX):
            some = commands[at : at + TOGETHER_MAX]
            replies += yield from delivery.ask(some, queue)


class QueueReader:
    """Carries out reads of queues, for one client."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def _keys(self, queue: str) -> QueueKeys:
        return queue_keys(queue, self._delivery.prefix)

    def exactly(self, queue: str, steps: Steps[T]) -> Plan[T]:
        """Carry out one read of a queue. Raises ServerUnavailable, ServerUnsuitable or QueueDamaged."""
        return run_steps(self._delivery, queue, steps)

    def side_by_side(self, reads: Mapping[str, Steps[T]]) -> Plan[tuple[list[T], dict[str, str]]]:
        """Carry out reads of several queues at once. ``reads`` has one read for each queue.

        Returns the results of the readable queues, in the order of ``reads``. Also returns, by queue, why a queue could
        not be read.
        """
        running = {queue: _Contained(steps) for queue, steps in reads.items()}
        while asked := [each for each in running.values() if each.asks is not None]:
            commands = [command for each in asked for command in each.asks or ()]
            replies = iter((yield from self._delivery.asking.ask_each(commands)))
            for each in asked:
                each.take(list(islice(replies, len(each.asks or ()))))
        unreadable = {queue: each.why for queue, each in running.items() if each.why is not None}
        return [found for each in running.values() for found in each.found], unreadable


class _Contained(Generic[T]):
    """The read of one queue, in the same round trips as reads of other queues. An error ends this read, but not the
    reads of other queues."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self.asks: list[Command] | None = []
        """The commands whose answers the read waits for; None: the read has ended."""
        self.found: list[T] = []
        """The returned value of the read, as the only item. The list is empty while the read goes on, and after an
        error."""
        self.why: str | None = None
        """The reason why the queue could not be read; None without an error."""
        self.take(None)

    def take(self, answers: list[Any] | None) -> None:
        """Continue the read with the answers to its last commands. With None, begin the read."""
        asked, self.asks = self.asks or (), None
        for answer, command in zip(answers or (), asked, strict=True):
            if isinstance(answer, Exception):
                # Redis does not say which key has another type.
                key = f"key {_keys_in(command)}: " if str(answer).startswith("WRONGTYPE") else ""
                self.why = _fit(f"{key}{answer}")
                return
        try:
            self.asks = next(self._steps) if answers is None else self._steps.send(answers)
        except StopIteration as done:
            self.found = [done.value]
        except RqCoreError as error:
            self.why = _fit(str(error))
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            self.why = _fit(f"a key holds something unexpected ({type(error).__name__}: {error})")


def _keys_in(command: Command) -> str:
    """Return the keys of a command as text, for an error message."""
    return " or ".join(command[3 : 3 + command[2]] if command[0] == "EVAL_RO" else command[1:2])


def _fit(text: str) -> str:
    """Return an error message as one printable line, shortened to about WHY_MAX characters."""
    return printable(" ".join(shorten(text, WHY_MAX).split()))


# The state lines of many jobs, without their arguments.

PAGE: Final = 500
"""Maximum number of jobs that one command reads. A server reads this number of values of the key ``jobs`` in about a
millisecond."""

LONG: Final = 4096
"""Length in bytes from which a value in the key ``jobs`` is long. A job with a long value always has a line in the key
``state``."""

_ERRORS_PAGE: Final = 20
"""Maximum number of jobs whose errors one command reads. Redis reads each job's value as a whole, and other clients
wait meanwhile."""


def lines_of(keys: QueueKeys, ids: Sequence[str]) -> Steps[list[str | None]]:
    """Read the state lines of any number of jobs, in order; None for a job that Redis does not have. A state line is
    the text in the key ``state`` with a job's state and counters.
    """
    lines: list[str | None] = []
    program = plain_text("lines", LINE_MAX=LINE_MAX, TOO_LONG=TOO_LONG, VALUE_MAX=LONG)
    for at in range(0, len(ids), PAGE):
        page = ids[at : at + PAGE]
        (found,) = yield [["EVAL_RO", program, 2, keys("state"), keys("jobs"), *page]]
        lines += map(line_of_job, found[: len(page)], found[len(page) :])
    return lines


def jobs_of(keys: QueueKeys, ids: Sequence[str]) -> Steps[tuple[list[JobState], list[str]]]:
    """Read the states of jobs. Returns the states of those jobs that Redis has, and a message for each job that cannot
    be read.
    """
    lines = yield from lines_of(keys, ids)
    return read_state_lines(keys.queue, zip(ids, lines, strict=True))


def beside(steps: Steps[T], commands: list[Command]) -> Steps[tuple[T, list[Any]]]:
    """Carry out a read, and send ``commands`` in its first round trip. Returns the result of the read, and the replies
    to ``commands``."""
    answers: list[Any] | None = None if commands else []
    replies: list[Any] | None = None
    while True:
        try:
            asked = next(steps) if replies is None else steps.send(replies)
        except StopIteration as done:
            if answers is None:
                answers = yield commands
            return done.value, answers
        more = commands if answers is None else []
        replies = yield [*asked, *more]
        if answers is None:
            answers, replies = replies[len(asked) :], replies[: len(asked)]


def errors_of(keys: QueueKeys, ids: Sequence[str]) -> Steps[list[JobError | None]]:
    """Return the error that each of these dead jobs died of, in order; None for a job without an error."""
    pages = [ids[at : at + _ERRORS_PAGE] for at in range(0, len(ids), _ERRORS_PAGE)]
    found = yield [["EVAL_RO", plain_text("errors"), 1, keys("jobs"), *page] for page in pages]
    return [None if head is None else error_of(head) for heads in found for head in heads]


def read_lines(delivery: Delivery, keys: QueueKeys, ids: Sequence[str]) -> Plan[list[str | None]]:
    """Carry out ``lines_of``: return the state lines of these jobs, in order; None for a job that Redis does not
    have.
    """
    return run_steps(delivery, keys.queue, lines_of(keys, ids))
