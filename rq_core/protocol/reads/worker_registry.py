"""The list of workers. While a worker runs, the key ``workers`` of each of the worker's queues has a row for the
worker.

A row has the time (Unix s) of the worker's last report and the worker's description: ``1795225746 {"host":"db-1",…}``.
Workers with the same code share one field for the names of their tasks: ``code|`` and the code's digest.

Rows are not part of the state of jobs: no script reads them, no event records them, and writing them creates no queue.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, NamedTuple

from rq_core.model.keys import QueueKeys, queue_keys
from rq_core.protocol.engine.plan import Plan, Send, pairs_of
from rq_core.scripts.plain import plain_text

SILENT_MS: Final = 30_000
"""Ms without a report after which a worker counts as gone: three times TELL_EVERY_S."""
TELL_EVERY_S: Final = 10.0
"""Seconds between two reports of a worker that it is alive."""
SWEEP_AFTER_MS: Final = 3_600_000
"""Ms for which the row of a vanished worker stays in the key ``workers``."""
WORD_MAX: Final = 256
"""Maximum number of characters of each text in a worker's row: the host, the version, the code, and the name of each
queue."""
WORKERS_MAX: Final = 1_000
"""Approximate number of a queue's workers that are read."""

_CODE: Final = "code|"
"""The prefix of those fields of the key ``workers`` that list task names. Such a field has the names of the tasks of
all workers with the same code. No worker's name can contain ``|``."""


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker's description of itself, which it reports to Redis."""

    host: str
    pid: int
    version: str
    """The version of rq-core."""
    code: str
    """Digest of the worker's tasks: workers with different digests run different code."""
    queues: tuple[str, ...]
    places: int
    """Maximum number of jobs that the worker runs at once."""
    busy: int
    """How many of the ``places`` are in use."""
    since_ms: int
    """Unix ms at which the worker started, by its own clock."""


@dataclass(frozen=True, slots=True)
class PresentWorker:
    """A worker, as its row in the key ``workers`` describes it."""

    worker: str
    says: Presence
    silent_ms: int
    """Ms between the worker's last report and the read, by Redis' clock. (If the clock was set back, the report may be
    in the future.)"""

    @property
    def gone(self) -> bool:
        """Return whether the worker counts as gone: its last report is more than SILENT_MS ago."""
        return self.silent_ms > SILENT_MS


class KnownTasks(NamedTuple):
    """The tasks of a queue's workers. Workers that are gone are left out."""

    workers: int
    """Number of the workers that serve the queue and are not gone."""
    tasks: frozenset[str] | None
    """Names of all tasks of these workers; None: not all names could be read."""

    def knows(self, task: str | None) -> bool | None:
        """Return whether one of the workers has the task; None if this is unknown or no worker runs."""
        if self.tasks is None or not self.workers:
            return None
        return task in self.tasks


def announce(
    prefix: str, worker: str, says: Presence, queues: Iterable[str], tasks: Iterable[str]
) -> Plan[None]:
    """Report to Redis that a worker is alive: write its row and the names of its ``tasks`` for these queues. Errors are
    ignored, because the worker calls this function again.
    """
    row = json.dumps(asdict(says), separators=(",", ":"))
    code = _CODE + says.code, json.dumps(sorted(tasks), separators=(",", ":"))
    program = plain_text("tell")
    yield Send([["EVAL", program, 1, _key(prefix, queue), worker, row, *code] for queue in queues])


def leave(prefix: str, worker: str, queues: Iterable[str]) -> Plan[None]:
    """Remove a worker's row from these queues, when the worker ends. Errors are ignored, because a sweep removes the
    row later."""
    yield Send([["HDEL", _key(prefix, queue), worker] for queue in queues])


def sweep(prefix: str, queues: Sequence[str]) -> Plan[None]:
    """Remove rows that cannot be read, and rows that workers left behind when they ended long ago. Also remove task
    names that no row needs.

    Errors are ignored, because the next sweep repeats the work.
    """
    commands: list[list[Any]] = []
    for queue in queues:
        commands += [["HLEN", _key(prefix, queue)], ["TIME"], ["HGETALL", _key(prefix, queue)]]
    replies = yield Send(commands)
    stale: list[list[Any]] = []
    for at, queue in enumerate(queues):
        _, now, rows = replies[3 * at : 3 * at + 3]
        if isinstance(now, Exception) or isinstance(rows, Exception):
            continue
        fields = pairs_of(rows)
        kept = {
            each.worker: each.says.code
            for each in rows_of(fields, int(now[0]) * 1000)
            if each.silent_ms <= SWEEP_AFTER_MS
        }
        old = fields.keys() - kept.keys() - {_CODE + code for code in kept.values()}
        if old:
            stale.append(["HDEL", _key(prefix, queue), *old])
    if stale:
        yield Send(stale)


def rows_command(keys: QueueKeys) -> list[Any]:
    """Return the command that reads the workers of a queue."""
    return ["HSCAN", keys("workers"), 0, "COUNT", WORKERS_MAX]


def rows_of(rows: Mapping[str, str], now_ms: int) -> tuple[PresentWorker, ...]:
    """Return the workers of a queue, sorted by name. Rows that cannot be read are left out."""
    found = (read_row(worker, row, now_ms) for worker, row in sorted(rows.items()))
    return tuple(each for each in found if each is not None)


def known_tasks(
    rows: Mapping[str, str], workers: Iterable[PresentWorker], *, whole: bool
) -> KnownTasks:
    """Return the tasks of those ``workers`` that are not gone. ``rows`` are fields of the key ``workers``; ``whole`` is
    true if they are all its fields.
    """
    present = [each for each in workers if not each.gone]
    tasks: set[str] = set()
    for code in {each.says.code for each in present}:
        of_code = _tasks_of(rows.get(_CODE + code, ""))
        tasks |= of_code or set()
        whole = whole and of_code is not None
    return KnownTasks(len(present), frozenset(tasks) if whole else None)


def _tasks_of(text: str) -> set[str] | None:
    """Return the task names in a field of ``workers``; None if the text cannot be read."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return set(found) if _are_words(found) else None


def is_readable(field: str, text: str) -> bool:
    """Return whether this release can read a field of ``workers``: the row of a worker, or the task names of a code."""
    if field.startswith(_CODE):
        return _tasks_of(text) is not None
    return read_row(field, text, 0) is not None


def read_row(worker: str, row: str, now_ms: int) -> PresentWorker | None:
    """Return the worker that a row describes; None if the row is invalid or another version of rq-core wrote it with
    other fields."""
    seen, _, text = row.partition(" ")
    try:
        facts = json.loads(text)
        if facts.keys() != _FITS.keys() or not all(fits(facts[k]) for k, fits in _FITS.items()):
            return None
        facts["queues"] = tuple(facts["queues"])
        return PresentWorker(worker, Presence(**facts), abs(now_ms - int(seen) * 1000))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _is_word(value: object) -> bool:
    return isinstance(value, str) and len(value) <= WORD_MAX


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _are_words(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_word, value))


# Any client with a worker's rights may write a row, so the type of each value is checked before it is summed or shown.
_FITS: Final[dict[str, Callable[[object], bool]]] = {
    each.name: {"str": _is_word, "int": _is_number, "tuple[str, ...]": _are_words}[str(each.type)]
    for each in fields(Presence)
}


def _key(prefix: str, queue: str) -> str:
    return queue_keys(queue, prefix)("workers")
