"""What ``results`` and ``returned`` keep of jobs that have ended, against the events that ended them.

The log is asked for each word of a line. What it does not say is not compared, nor is what another job of the id may
have left of which the log was not told. What then differs is false, and the line gets the log's words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rq_core.model.ends import End
from rq_core.model.events import OutboxId
from rq_core.model.machine import Event
from rq_core.model.names import digest_of
from rq_core.model.outcome import LOST, NOT_KEPT
from rq_core.model.remembered import SAME, Result, read_result, with_words, words_of
from rq_core.model.text import bytes_of

SUCCEEDED: Final = "succeeded"
_OUTCOMES: Final[Mapping[Event, frozenset[str]]] = {
    Event.SUCCEEDED: frozenset({SUCCEEDED}),
    Event.CANCELLED: frozenset({"cancelled"}),
    Event.EXPIRED: frozenset({"expired"}),
    Event.PRUNED: frozenset({"dead"}),
    Event.REPLACED: frozenset({"replaced", SAME}),
}
"""What a line of ``results`` says of a job that this event has ended. A job that a restore removed had ended before, by
an event that Redis forgot."""
_OF_CLAIMS: Final = frozenset({Event.SUCCEEDED, Event.CANCELLED})
"""Ends that may be those of a claim, which their lines name."""


def wrong_outcome(result: Result, end: End) -> str | None:
    """Say why a line is not that of the job which ended so; None if it may be."""
    if not _is_of(result, end):
        return None
    if result.outcome not in _OUTCOMES[end.event]:
        return f"kept as {result.outcome}, {end.event} by the log"
    if result.outcome == SUCCEEDED and result.fence not in (None, end.fence):
        return f"the result of claim {result.fence} is kept, and by the log claim {end.fence} succeeded"
    return None


def wrong_words(line: str, result: Result, end: End) -> Iterator[str]:
    """Say what else a line tells otherwise than the log."""
    if not _is_of(result, end):
        return
    has = words_of(line)
    for name, logged in _words(result, end).items():
        if has.get(name) != logged:
            yield f"kept with {_said(name, has.get(name))}, {_said(name, logged)} by the log"


def wrong_value(result: Result, value: str | None, end: End) -> str | None:
    """Say why a value is not the one that the job returned which ended so; None if it may be."""
    if value is None or result.value_bytes is None or end.event is not Event.SUCCEEDED:
        return None
    found = digest_of(value)
    if end.digest is None:
        return "a value is kept, and by the log there is none"
    if found == end.digest:
        return None
    return f"the digest of its value is {found}, {end.digest} by the log"


def faults(line: str, result: Result, value: str | None, end: End) -> list[str]:
    """Say all that is wrong with what Redis keeps of a job which ended so."""
    if wrong := wrong_outcome(result, end):
        return [wrong]
    return [*wrong_words(line, result, end), *_of_value(result, value, end)]


def _of_value(result: Result, value: str | None, end: End) -> Iterator[str]:
    if result.value_bytes is None or end.event is not Event.SUCCEEDED:
        return
    size = -1 if value is None else len(bytes_of(value))
    if wrong := wrong_value(result, value, end):
        yield wrong
    elif value is not None and size != result.value_bytes:
        yield f"kept with bytes={result.value_bytes}, and its value has {size}"
    elif value is None and value_by(None, end) is not None:
        yield "its value is lost, and the log has it"


def line_by(line: str, result: Result, end: End) -> str | None:
    """Return the line as the log has it; None if it is to go: it is another job's, and the log has too little of this
    one for a line, or Redis keeps nothing of it. A line that a call needs, to know that its id is remembered, stays."""
    if not _is_of(result, end):
        return line
    is_other = wrong_outcome(result, end) is not None
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
    if outcome != SUCCEEDED:
        return with_words(line, outcome, words | {"value": None, "bytes": None, "audit": None})
    mended = with_words(line, outcome, words)
    if words.get("until") is None or read_result("", mended).value_bytes is not None:
        return mended
    return with_words(mended, outcome, {"value": NOT_KEPT if end.digest is None else LOST})


def value_by(value: str | None, end: End | None) -> str | None:
    """Return the value that is to be kept: the log's, if this one is not the handler's; None if that is lost."""
    if end is None or end.event is not Event.SUCCEEDED:
        return value
    if end.digest is None:
        return None
    if value is not None and digest_of(value) == end.digest:
        return value
    return end.value if end.value is not None and digest_of(end.value) == end.digest else None


def _is_of(result: Result, end: End) -> bool:
    """Whether a line can only be that of the job which ended so."""
    if end.event not in _OUTCOMES:
        return False
    if result.until_ms is not None:
        return True
    # A call that another job stands for leaves such a line without an event; so does a restore, of a job that ended
    # later in what Redis forgot.
    return result.outcome != SAME and (end.is_last or not is_later(result, end))


def is_later(result: Result, end: End) -> bool:
    """Whether a line tells of a claim behind an end, or else of a later time."""
    claim = claim_of(result)
    if claim is None:
        return result.fence is None and (result.at_ms or 0) > end.at_ms
    return claim > end.at


def claim_of(result: Result) -> OutboxId | None:
    """The entry of the claim that a result names; None if no script can have given it."""
    try:
        claim = OutboxId.parse(result.fence or "")
    except ValueError:
        return None
    return claim if claim.is_given else None


def _words(result: Result, end: End, *, as_other: bool = False) -> dict[str, str | None]:
    """The words of a line that the log knows. Only a script that ended the job said all of them; a line that a restore
    wrote has neither a claim of this job nor a time up to which its result is kept. ``as_other``: the line is another
    job's."""
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


def _said(name: str, value: str | None) -> str:
    return f"no {name}" if value is None else f"{name}={value}"
