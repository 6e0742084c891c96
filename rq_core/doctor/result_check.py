"""Derives the contents that ``results`` (outcomes of ended jobs) and ``returned`` (their results) should have.

Redis is right, unless a value is lost or a line differs from the log. Each word (``name=value``) of a line in
``results`` is compared with the log, and a differing word is replaced by the log's. A word that the log does not have
is kept. A whole line is kept if another job of the id may have left it without an event.
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
"""Event that ended a job → the outcomes that ``results`` may show for it. (A restore that removes a job has no place
here: the job had ended before, by an event that Redis lost.)"""
_OF_CLAIMS: Final = frozenset({Event.SUCCEEDED, Event.CANCELLED})
"""Events that end a job together with its claim. If there was a claim, the job's line in ``results`` names it."""


class Remembered(NamedTuple):
    """The expected contents of ``results``, ``returned`` and ``kept`` for an id whose job has ended."""

    id: str
    line: str
    value: str | None
    met_ms: int | None
    """Time (Unix ms) at which a claim first checks whether the line may be removed; None if the line gives no time."""


class KeptResults(NamedTuple):
    """The expected contents of ``results``, ``returned`` and ``kept`` for all ids whose jobs have ended."""

    remembered: list[Remembered]
    doubts: dict[str, Doubt]
    """Id → the difference between its result and the log, if the log must not be trusted. The doctor leaves these
    results unchanged."""
    untold: list[str]
    """Ids with a value in ``returned`` or a time in ``kept`` that the doctor leaves unchanged. Their line in
    ``results`` is missing or gives no size, and the log does not show how their jobs ended."""


class Doubt(NamedTuple):
    """A difference between a kept result and a log that must not be trusted."""

    edits: list[Edit]
    """The edits that would make the result agree with the log."""
    why: str
    """The reason why the log must not be trusted."""


def kept_results(view: View, live: Container[str]) -> KeptResults:
    """Return the expected contents of ``results``, ``returned`` and ``kept``, without the ids of jobs that are alive
    (``live``).

    An id is included if its line or the key `kept` has a time until which the id is kept, or if it has no line.
    """
    snapshot = view.snapshot
    lines, values, marks = snapshot["results"], snapshot["returned"], snapshot["kept"]
    found: dict[str, Remembered] = {}
    edits: dict[str, list[Edit]] = {}
    untold = []
    for job_id in dict.fromkeys((*lines, *values, *marks)):
        line = lines.get(job_id)
        is_kept = job_id in marks or line is None or read_result(job_id, line).met_ms is not None
        if not is_kept or job_id in live or job_id in snapshot["jobs"]:
            continue
        if (line is None or _hides_value(view, job_id, line)) and _is_end_unknown(view, job_id):
            untold.append(job_id)
            continue
        wanted = _remembered(view, job_id, line)
        if wanted is not None:
            found[job_id] = wanted
        if job_id in view.ends or line is None:
            by_log = (
                ("results", line, wanted and wanted.line),
                ("returned", values.get(job_id), wanted and wanted.value),
            )
            told = [
                Edit(key, job_id, was or "", is_ or "") for key, was, is_ in by_log if was != is_
            ]
            if told:
                edits[job_id] = told
    whys = (
        view.log.distrust_ends({i: any(not e.value for e in each) for i, each in edits.items()})
        if edits
        else {}
    )
    for job_id in whys:
        found.pop(job_id, None)
        if job_id in lines:
            met_ms = read_result(job_id, lines[job_id]).met_ms
            found[job_id] = Remembered(job_id, lines[job_id], values.get(job_id), met_ms)
    doubts = {job_id: Doubt(edits[job_id], why) for job_id, why in whys.items()}
    return KeptResults(list(found.values()), doubts, untold)


def _hides_value(view: View, job_id: str, line: str) -> bool:
    """Return whether Redis has a result in ``returned`` for an id whose ``line`` gives neither the result's size nor
    why it is missing. No script writes such a line."""
    result = read_result(job_id, line)
    words = result_words(line)
    is_silent = result.until_ms is not None and not words.keys() & {"bytes", "value"}
    return is_silent and job_id in view.snapshot["returned"]


def _is_end_unknown(view: View, job_id: str) -> bool:
    """Return whether the log leaves open what Redis should have for this id, because it does not show how the id's last
    job ended."""
    end = view.ends.get(job_id)
    if end is None:
        return view.log.has_heard_of(job_id)
    return end.asked is None or not end.is_last


def _remembered(view: View, job_id: str, line: str | None) -> Remembered | None:
    """Return the contents that Redis should have for an id; None if it should have nothing. ``line``: the id's line in
    ``results``, or None."""
    value, end = view.snapshot["returned"].get(job_id), view.ends.get(job_id)
    mended: str | None = line
    if job_id in view.ends:
        mended = None if end is None else _line_by(line or "", read_result(job_id, line or ""), end)
    if mended is None:
        return None
    until_ms = read_result(job_id, mended).forgotten_ms
    if line is None and view.latest_ms is not None and (until_ms or 0) <= view.latest_ms:
        return None  # A claim has removed the line, since its time was over.
    return _with_value(job_id, mended, value, end)


def _with_value(job_id: str, line: str, value: str | None, end: End | None) -> Remembered:
    result = read_result(job_id, line)
    if result.value_bytes is None and not _is_true(value, result, end):
        return Remembered(job_id, line, None, result.met_ms)
    kept = value_by(value, end)
    size = -1 if kept is None else len(bytes_of(kept))
    if kept is not None and (size == result.value_bytes or _has_digest(end)):
        line = with_words(line, result.outcome, {"bytes": str(size), "value": None})
        return Remembered(job_id, line, kept, result.met_ms)
    # Replaced in place, so that the words keep the order in which scripts write them.
    line = line.replace(f" bytes={result.value_bytes}", f" value={LOST}")
    return Remembered(job_id, line, None, result.met_ms)


def _is_true(value: str | None, result: ResultLine, end: End | None) -> bool:
    """Return whether ``value`` is the result whose digest is in the log, although the line says that the result is
    missing."""
    if value is None or end is None or end.event is not Event.SUCCEEDED or result.until_ms is None:
        return False
    return _is_of(result, end) and end.digest == digest_of(value)


def _has_digest(end: End | None) -> bool:
    """Return whether the log has the digest of the result. With a digest, the doctor need not compare the size."""
    return end is not None and end.digest is not None


def reasons(view: View, job_id: str, edits: Iterable[Edit]) -> Iterator[str]:
    """Yield each difference between the log and the line or the result of an id, as text for the operator."""
    if job_id not in view.ends:
        return
    end = view.ends[job_id]
    if end is None:
        says = "by the log no job of this id can have left it"
        if job_id in view.log.records or job_id in view.log.doubtful:
            says = f"the log shows no end of job {job_id}"
        yield view.log.made_up.get(job_id, says)
        return
    for edit in edits:
        if edit.key == "results" and edit.value and edit.was:
            has, logged = result_words(edit.was), result_words(edit.value)
            kept, ended = (line.partition(" ")[0] for line in (edit.was, edit.value))
            if kept != ended:
                yield f"kept as {kept}, {ended} by the log"
            for name in has | logged:
                is_lost = name in ("bytes", "value") and logged.get("value") == LOST
                if has.get(name) != logged.get(name) and not is_lost:
                    yield f"kept with {_said(name, has)}, {_said(name, logged)} by the log"
        elif edit.key == "results" and edit.was:
            yield f"another job's result is kept: the last one ended as {end.event} by the log"
        elif edit.key == "returned" and edit.was and end.event is Event.SUCCEEDED:
            digest = digest_of(edit.was)
            if digest != end.digest:
                yield f"the digest of its value is {digest}, {end.digest or 'none'} by the log"


def _said(name: str, words: Mapping[str, str]) -> str:
    return f"{name}={words[name]}" if name in words else f"no {name}"


def _line_by(line: str, result: ResultLine, end: End) -> str | None:
    """Return the line of ``results`` that an id should have according to the log; None if the line must be removed.

    A line is removed in two cases:

    - The line belongs to another job, and the log lacks the data for the right line. It stays if it has the time
      until which its id is remembered, because calls need this time.
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
    """Return the result that Redis should have: ``value`` if its digest is in the log or the log shows no success of
    the job, otherwise the log's value.

    None: no result should be kept, or it is lost.
    """
    if end is None or end.event is not Event.SUCCEEDED:
        return value
    if end.digest is None:
        return None
    if value is not None and digest_of(value) == end.digest:
        return value
    return end.value if end.value is not None and digest_of(end.value) == end.digest else None


def _is_of(result: ResultLine, end: End) -> bool:
    """Return whether a line in ``results`` must belong to the job that ended with ``end``."""
    if end.event not in _OUTCOMES:
        return False
    if result.until_ms is not None:
        return True
    # A call that is answered with another job leaves such a line without an event. So does a restore, for a job that
    # ended later, in entries that Redis forgot.
    return result.outcome != SAME and (end.is_last or not is_later(result, end))


def is_later(result: ResultLine, end: End) -> bool:
    """Return whether a line in ``results`` comes from a later claim than the one that ended with ``end``. If the line
    names no claim, compare the times."""
    claim = claim_of(result.fence)
    if claim is None:
        return result.fence is None and (result.at_ms or 0) > end.at_ms
    return claim > end.at


def _words(result: ResultLine, end: End, *, as_other: bool = False) -> dict[str, str | None]:
    """Return the words (name → value, None: no such word) that a line in ``results`` should have according to the log.

    A script that ends a job writes all of them. A line that `rq-core audit restore` wrote lacks the job's claim, and
    the time until which the result is kept. ``as_other``: True if the line in Redis belongs to another job.
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
