"""Reads the boxes of durable jobs, for workers and for operators. A box has a job's saved steps, its waits and its
signals.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from rq_core.errors import QueueDamaged
from rq_core.model.durable.boxes import (
    ENTRIES_MAX,
    LIFE_PATTERN,
    MAP_PREFIX,
    OWN_PREFIX,
    BoxHeader,
    Signal,
    StepEntry,
    entry_in,
    header_in,
    read_entry,
    read_header,
    read_signal,
)
from rq_core.model.durable.children import join_name
from rq_core.model.result_encoding import VALUE_MAX
from rq_core.model.state_line import LINE_MAX, line_of_job, read_state_line
from rq_core.model.table.machine import State
from rq_core.protocol.engine.plan import Plan
from rq_core.protocol.reads.steps import QueueReader
from rq_core.scripts.plain import by_digest, plain_text

PAGE: Final = 250
"""Maximum number of saved entries of a durable job that one read returns."""
PAGES_MAX: Final = 8
"""Maximum number of pages of a job's saved entries that are read in one round trip. If a page ended early because it
had PAGE_BYTES, the next round trip reads only one page."""
PAGE_BYTES: Final = 1024 * 1024
"""Number of bytes of a job's saved entries after which a read stops."""
HEADS: Final = 2_000
"""Maximum number of saved entries that one read returns if it leaves out the results of steps and children."""
HEAD_BYTES: Final = 2 * 1024 * 1024
"""Number of bytes of entries after which a read that leaves out results stops. The server reads the results, but does
not send them."""
_CHUNK: Final = 25
"""Number of entries that the server reads with one command during a read that leaves out results."""
_LIFE: Final = re.compile(rf" life=({LIFE_PATTERN})(?: |$)")
_CLAIM: Final = re.compile(r" claim=([0-9]+)(?: |$)")


class Box(NamedTuple):
    """A durable job's box, as the job's worker reads it: the entries (steps, waits and sleeps) that the job has begun
    or saved.
    """

    life: str | None
    """The id of the job's box, in which Redis keeps its steps: 16 random hex digits. None: the job has saved
    nothing."""
    entries: tuple[StepEntry, ...] = ()


class SavedSteps(NamedTuple):
    """The steps of a job, as an operator sees them."""

    size: int
    """Number of entries (steps, waits and sleeps) that the job has begun or saved."""
    entries: dict[int, StepEntry]
    """The entries that were read, by number. An entry that cannot be read is left out."""
    signals: Mapping[int, Signal] = MappingProxyType({})
    """The signals that no wait has taken, by number."""
    is_lost: bool = False
    """True if the job had saved steps, and Redis has lost them."""
    life: str | None = None
    """The id of the job's box, in which Redis keeps the steps. None: the job has saved nothing."""


class BoxReads(QueueReader):
    """Reads the boxes of durable jobs: their saved steps, waits and signals."""

    def box(
        self, queue: str, job_id: str, fence: str, worker: str, *, first: int = 1
    ) -> Plan[Box | None]:
        """Return the saved steps (the box) of a job, for the worker that holds the job's claim. Entries before number
        ``first`` are left out. Returns None if the worker does not hold the claim.

        Raises QueueDamaged if the box is missing, cannot be read, or has two entries with the same name. (If two steps
        had the same name, one of them would run again.)
        """
        keys = self._keys(queue)
        program = plain_text("box", ENTRIES=PAGE, BYTES=PAGE_BYTES, LINE_MAX=LINE_MAX)
        found: list[StepEntry] = []
        pages = 1
        while True:
            named: list[Any] = [job_id, fence, worker]
            head = ["EVAL_RO", program, 2, keys("state"), keys("boxes"), *named]
            starts = range(len(found), len(found) + pages * PAGE, PAGE)
            commands = [by_digest([*head, first + start]) for start in starts]
            replies = yield from self._delivery.ask(commands, queue)
            for start, reply in zip(starts, replies, strict=True):
                if not reply:
                    return None
                life, header, *page = reply
                if not life:
                    return Box(None)
                if start > len(found):
                    # The page before stopped at PAGE_BYTES.
                    break
                if not header:
                    raise QueueDamaged(
                        f"job {job_id!r} in queue {queue!r} has lost what its steps had saved. `rq-core audit restore"
                        f' --queue {queue}` puts it back if the log has the values (audit_result="full")',
                        queue=queue,
                        why=f"the box of job {job_id} is missing",
                    )
                try:
                    entries = read_header(header).entries - first + 1
                    found += map(read_entry, page or [""][: entries - len(found)])
                    if len(found) >= entries:
                        _refuse_doubled(found)
                except (ValueError, TypeError) as why:
                    raise QueueDamaged(
                        f"the steps of job {job_id!r} in queue {queue!r} cannot be read: {why}. Run"
                        f" `rq-core doctor {queue}`",
                        queue=queue,
                        why=str(why),
                    ) from None
                if len(found) >= entries:
                    return Box(life, tuple(found))
            is_cut = len(found) < starts.stop
            pages = 1 if is_cut else min(PAGES_MAX, -(-(entries - len(found)) // PAGE))

    def steps(self, job_id: str, queues: Sequence[str]) -> Plan[SavedSteps | None]:
        """Return the saved steps of a job, for operators. The first of ``queues`` that has the job is read. Returns
        None if no queue has the job.
        """
        for queue in queues:
            keys = self._keys(queue)
            asked = [["HGET", keys(key), job_id] for key in ("state", "jobs")]
            line, value = yield from self._delivery.ask(asked, queue)
            stands = line_of_job(line, value)
            if stands is not None:
                life = read_state_line(queue, job_id, stands).fields.get("life")
                return (yield from self.saved_steps(queue, life))
        return None

    def lives(
        self, queue: str, ids: Sequence[str], only: State | None = None
    ) -> Plan[dict[str, str]]:
        """Return, by job id, the id (life) of the box in which Redis keeps the job's steps. Jobs without a box are left
        out. With ``only``, jobs that are in another state are left out, too.
        """
        lines = yield from self.lines(queue, ids)
        return _lives_in({i: line for i, line in lines.items() if only in (None, _state(line))})

    def lives_and_ends(
        self, queue: str, ids: Sequence[str]
    ) -> Plan[tuple[dict[str, str], dict[str, int]]]:
        """Return two mappings by job id: the id (life) of the box in which Redis keeps the job's steps, and the number
        of the job's ended claims. The first mapping lacks jobs without a box.
        """
        lines = yield from self.lines(queue, ids)
        ended = {}
        for job_id, line in lines.items():
            claim = _CLAIM.search(line)
            runs = _state(line) in (State.RUNNING, State.CANCELLING)
            ended[job_id] = (int(claim[1]) if claim else 0) - runs
        return _lives_in(lines), ended

    def lines(self, queue: str, ids: Sequence[str]) -> Plan[dict[str, str]]:
        """Return, by job id, the job's line in the key ``state``; an empty text if there is no line. A job without a
        line has no saved steps: Redis does not have the job, or the job has never been claimed.
        """
        state = self._keys(queue)("state")
        found: dict[str, str] = {}
        for first in range(0, len(ids), PAGE):
            chunk = ids[first : first + PAGE]
            (lines,) = yield from self._delivery.ask([["HMGET", state, *chunk]], queue)
            found |= {i: line or "" for i, line in zip(chunk, lines, strict=True)}
        return found

    def saved_steps(
        self, queue: str, life: str | None, last: int = ENTRIES_MAX
    ) -> Plan[SavedSteps]:
        """Return the last steps of a job, for operators: at most ``last`` entries. ``life`` is the id of the box in
        which Redis keeps the steps; None: the job has saved nothing.
        """
        if life is None:
            return SavedSteps(0, {})
        boxes = self._keys(queue)("boxes")
        header, found = yield from self._entries(boxes, queue, life, last)
        signals = yield from self._kept_signals(boxes, queue, life, header, last)
        count = header.entries if header else 0
        return SavedSteps(count, found, signals, header is None, life)

    def entries(self, queue: str, life: str) -> Plan[dict[int, StepEntry]]:
        """Return all entries (steps, waits and sleeps) of a durable job's box, by number. An entry that cannot be read
        is left out. ``life`` is the id of the box.
        """
        _, found = yield from self._entries(self._keys(queue)("boxes"), queue, life, ENTRIES_MAX)
        return found

    def beginning(
        self, queue: str, job_id: str, life: str, before: int
    ) -> Plan[dict[int, StepEntry]]:
        """Return the entries of a job's box whose numbers are below ``before``, by number. An entry that is missing or
        cannot be read is left out. ``life`` is the id of the box. The result is empty if Redis does not have the job,
        or if the job's box has another id.
        """
        keys = self._keys(queue)
        boxes = keys("boxes")
        asked = [["HGET", boxes, life], ["HGET", keys("state"), job_id]]
        text, line = yield from self._delivery.ask(asked, queue)
        header = header_in(text)
        # The doctor compares only boxes of jobs with the log: a person may have made up a box without a job.
        if header is None or _lives_in({job_id: line or ""}).get(job_id) != life:
            return {}
        # With large values, a reply has at most PAGE_BYTES.
        page = PAGE if header.size <= PAGE_BYTES else PAGE_BYTES // VALUE_MAX
        found: dict[int, StepEntry] = {}
        for first in range(1, before, page):
            numbers = range(first, min(first + page, before))
            fields = [f"{life}|{number}" for number in numbers]
            (texts,) = yield from self._delivery.ask([["HMGET", boxes, *fields]], queue)
            found |= {n: e for n, e in zip(numbers, map(entry_in, texts), strict=True) if e}
        return found

    def heads(self, queue: str, life: str) -> Plan[dict[str, StepEntry] | None]:
        """Return the entries of a durable job's box by name, without the results of steps and of children. Values that
        rq-core itself has saved are returned. An entry that cannot be read is left out. Returns None if Redis lacks the
        box.

        A read sends few commands, however large the results are.
        """
        boxes = self._keys(queue)("boxes")
        program = plain_text(
            "heads", ENTRIES=HEADS, BYTES=HEAD_BYTES, CHUNK=_CHUNK, OWN=OWN_PREFIX, MAP=MAP_PREFIX, JOIN=join_name("")
        )  # fmt: skip
        found: dict[str, StepEntry] = {}
        first = 1
        while first <= ENTRIES_MAX:
            asked = [["EVAL_RO", program, 1, boxes, life, first]]
            (reply,) = yield from self._delivery.ask(asked, queue)
            if not reply:
                return None
            header, *texts = reply
            found |= {each.name: each for each in map(entry_in, texts) if each is not None}
            first += len(texts)
            known = header_in(header)
            if not texts or known is None or first > known.entries:
                break
        return found

    def _entries(
        self, boxes: str, queue: str, life: str, last: int
    ) -> Plan[tuple[BoxHeader | None, dict[int, StepEntry]]]:
        """Return the header of a durable job's box, and its newest entries by number, at most ``last`` of them."""
        (text,) = yield from self._delivery.ask([["HGET", boxes, life]], queue)
        header = header_in(text)
        count = header.entries if header else 0
        found: dict[int, StepEntry] = {}
        for first in range(max(0, count - last) + 1, count + 1, PAGE):
            numbers = range(first, min(first + PAGE, count + 1))
            names = [f"{life}|{number}" for number in numbers]
            (page,) = yield from self._delivery.ask([["HMGET", boxes, *names]], queue)
            for number, each in zip(numbers, page, strict=True):
                with suppress(ValueError):
                    found[number] = read_entry(each or "")
        return header, found

    def _kept_signals(
        self, boxes: str, queue: str, life: str, header: BoxHeader | None, last: int
    ) -> Plan[dict[int, Signal]]:
        """Read the last ``last`` signals of a durable job, and return those signals that no wait has taken, by
        number.
        """
        count = header.signals if header else 0
        found: dict[int, Signal] = {}
        for first in range(max(0, count - last) + 1, count + 1, PAGE):
            numbers = range(first, min(first + PAGE, count + 1))
            names = [f"{life}>{number}" for number in numbers]
            (page,) = yield from self._delivery.ask([["HMGET", boxes, *names]], queue)
            for number, text in zip(numbers, page, strict=True):
                with suppress(ValueError):
                    signal = read_signal(text or "")
                    if signal.value is not None:
                        found[number] = signal
        return found


def _state(line: str) -> str:
    return line.partition(" ")[0]


def _lives_in(lines: Mapping[str, str]) -> dict[str, str]:
    """Return the ids of the boxes (saved steps and signals) of jobs, by job id, from the jobs' state lines. Jobs
    without a box are left out.
    """
    found = {job_id: _LIFE.search(line) for job_id, line in lines.items()}
    return {job_id: life[1] for job_id, life in found.items() if life is not None}


def _refuse_doubled(entries: Sequence[StepEntry]) -> None:
    """Raise ValueError if two saved entries of a job have the same name."""
    if len({entry.name for entry in entries}) < len(entries):
        ((name, _),) = Counter(entry.name for entry in entries).most_common(1)
        raise ValueError(f"two entries have the name {name}")
