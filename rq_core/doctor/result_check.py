"""Derives the contents that ``results`` and ``returned`` should have.

These are the actual contents, unless a value is lost or the log differs. Each word of a line is compared with the log.
A word that the log does not have is kept. A line is also kept if another job of the id may have left it without an
event. Any other word that differs is replaced by the log's word.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from rq_core.doctor.finding import Edit
from rq_core.doctor.snapshot import View
from rq_core.model.idempotency import SAME, ResultLine, read_result, result_words, with_words
from rq_core.model.job_ends import End, claim_of
from rq_core.model.lib.text import bytes_of
from rq_core.model.outcome import LOST, NOT_KEPT
from rq_core.model.table.machine import Event
from rq_core.model.unique_names import digest_of

_SUCCEEDED: Final = "succeeded"
_OUTCOMES: Final[Mapping[Event, frozenset[str]]] = {
    Event.SUCCEEDED: frozenset({_SUCCEEDED}),
    Event.CANCELLED: frozenset({"cancelled"}),
    Event.EXPIRED: frozenset({"expired"}),
    Event.PRUNED: frozenset({"dead"}),
    Event.REPLACED: frozenset({"replaced", SAME}),
}
"""Event that ended a job → possible outcomes in ``results``. (A job that a restore removed had ended before, by an
event that Redis forgot.)"""
_OF_CLAIMS: Final = frozenset({Event.SUCCEEDED, Event.CANCELLED})
"""Events that end a job, and its claim if it has one. The job's line in ``results`` then names the claim."""


class Remembered(NamedTuple):
    """The contents that ``results``, ``returned`` and ``kept`` should have for an id that no job has now."""

    id: str
    line: str
    value: str | None
    met_ms: int | None
    """Time (Unix ms) at which a claim first checks the line; None if the line does not give a time."""


def remembered(view: View, live: Container[str]) -> Iterator[Remembered]:
    """Yield the contents that each remembered id should have. ``live``: the ids that jobs have now, which are left out.

    An id is remembered if its line or the key `kept` has a time.
    """
    snapshot = view.snapshot
    for job_id, line in snapshot["results"].items():
        result = read_result(job_id, line)
        is_kept = result.met_ms is not None or job_id in snapshot["kept"]
        if not is_kept or job_id in live or job_id in snapshot["jobs"]:
            continue
        value, end = snapshot["returned"].get(job_id), view.ends.get(job_id)
        mended: str | None = line
        if job_id in view.ends:
            mended = None if end is None else _line_by(line, result, end)
        if mended is not None:
            yield _with_value(job_id, mended, value, end)


def _with_value(job_id: str, line: str, value: str | None, end: End | None) -> Remembered:
    result = read_result(job_id, line)
    if result.value_bytes is None:
        return Remembered(job_id, line, None, result.met_ms)
    kept = value_by(value, end)
    size = -1 if kept is None else len(bytes_of(kept))
    if kept is not None and (size == result.value_bytes or _has_digest(end)):
        line = with_words(line, result.outcome, {"bytes": str(size)})
        return Remembered(job_id, line, kept, result.met_ms)
    # Replaced in place, so that the words keep the order in which scripts write them.
    line = line.replace(f" bytes={result.value_bytes}", f" value={LOST}")
    return Remembered(job_id, line, None, result.met_ms)


def _has_digest(end: End | None) -> bool:
    """Return whether the log has the value's digest. Then the size in the line does not matter."""
    return end is not None and end.digest is not None


def reasons(view: View, job_id: str, edits: Iterable[Edit]) -> Iterator[str]:
    """Yield, as text, each difference between the log and the line of an id."""
    if job_id not in view.ends:
        return
    end = view.ends[job_id]
    if end is None:
        yield view.log.made_up.get(job_id, "by the log no job of this id can have left it")
        return
    for edit in edits:
        if edit.key == "results" and edit.value:
            has, logged = result_words(edit.was), result_words(edit.value)
            kept, ended = (line.partition(" ")[0] for line in (edit.was, edit.value))
            if kept != ended:
                yield f"kept as {kept}, {ended} by the log"
            for name in has | logged:
                is_lost = name in ("bytes", "value") and logged.get("value") == LOST
                if has.get(name) != logged.get(name) and not is_lost:
                    yield f"kept with {_said(name, has)}, {_said(name, logged)} by the log"
        elif edit.key == "results":
            yield f"another job's result is kept: the last one ended as {end.event} by the log"
        elif edit.key == "returned" and edit.was and end.event is Event.SUCCEEDED:
            yield f"the digest of its value is {digest_of(edit.was)}, {end.digest or 'none'} by the log"


def _said(name: str, words: Mapping[str, str]) -> str:
    return f"{name}={words[name]}" if name in words else f"no {name}"


def _line_by(line: str, result: ResultLine, end: End) -> str | None:
    """Return the line that an id should have according to the log; None if the line must be removed.

    A line is removed in two cases:

    - The line belongs to another job, and the log lacks the data for the right line. A line with the time until which
      its id is remembered stays, because calls need this time.
    - Neither the id nor the result of the job is kept.
    """
    if not _is_of(result, end):
        return line
    is_other = result.outcome not in _OUTCOMES[end.event]
    is_other = is_other or (result.outcome == _SUCCEEDED and result.fence not in (None, end.fence))
    if is_other and end.asked is None and result.once_ms is None:
        return None
    if end.asked is not None and end.once_ms is None and end.until_ms is None:
        return None
    words = _words(result, end, as_other=is_other)
    if not is_other:
        return with_words(line, result.outcome, words)
    (outcome, *_) = sorted(_OUTCOMES[end.event])
    if end.event is Event.REPLACED and end.once_ms is not None:
        outcome = SAME
    words |= {"reason": end.died_of}
    if outcome != _SUCCEEDED:
        return with_words(line, outcome, words | {"value": None, "bytes": None, "audit": None})
    mended = with_words(line, outcome, words)
    if words.get("until") is None or read_result("", mended).value_bytes is not None:
        return mended
    return with_words(mended, outcome, {"value": NOT_KEPT if end.digest is None else LOST})


def value_by(value: str | None, end: End | None) -> str | None:
    """Return ``value`` if the log has its digest, or has no success of the job. Otherwise return the log's value.

    None: no result is kept, or it is lost.
    """
    if end is None or end.event is not Event.SUCCEEDED:
        return value
    if end.digest is None:
        return None
    if value is not None and digest_of(value) == end.digest:
        return value
    return end.value if end.value is not None and digest_of(end.value) == end.digest else None


def _is_of(result: ResultLine, end: End) -> bool:
    """Return whether a line can only belong to the job that had this end."""
    if end.event not in _OUTCOMES:
        return False
    if result.until_ms is not None:
        return True
    # A call that is answered with another job leaves such a line without an event. So does a restore, for a job that
    # ended later, in entries that Redis forgot.
    return result.outcome != SAME and (end.is_last or not is_later(result, end))


def is_later(result: ResultLine, end: End) -> bool:
    """Return whether a line comes from a claim after this end. A line without a claim is judged by its time."""
    claim = claim_of(result.fence)
    if claim is None:
        return result.fence is None and (result.at_ms or 0) > end.at_ms
    return claim > end.at


def _words(result: ResultLine, end: End, *, as_other: bool = False) -> dict[str, str | None]:
    """Return the words that a line should have according to the log. A script that ends a job writes all of them.

    A line from a restore lacks two: the job's claim, and the time until which the result is kept. ``as_other``: the
    line belongs to another job.
    """
    of_script = as_other or result.until_ms is not None
    of_script = of_script or (result.fence is not None and result.fence == end.fence)
    words: dict[str, str | None] = {}
    if of_script:
        words["fence"] = end.fence if end.event in _OF_CLAIMS else None
        is_replaced = end.event is Event.REPLACED
        words["job"] = end.facts.get("by_job") if is_replaced else None
    elif end.event in _OF_CLAIMS and result.fence is not None:
        words["fence"] = end.fence
    if end.since_ms is not None:
        words["at"] = str(end.since_ms)
    asked = end.asked
    if asked is None:
        return words
    words["once"] = _text(end.once_ms)
    words["call"] = None if end.once_ms is None else asked.call
    if of_script:
        words["until"] = _text(end.until_ms)
        is_told = end.until_ms is not None and end.event is not Event.REPLACED
        words["task"] = asked.task if is_told else None
        if end.died_of is not None and end.until_ms is not None:
            words["reason"] = end.died_of
    return words


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)
