"""How a claim ends, from the worker's side: what is sent to complete, fail and rollback."""

from __future__ import annotations

import json
import traceback
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from rq_core.app.redaction import Redact, redacted
from rq_core.model.job import Claim
from rq_core.protocol import claims
from rq_core.protocol.plan import Call

MESSAGE_MAX: Final = 2_000
TRACEBACK_MAX: Final = 8_000
"""Characters of an error that go into the log; a job's history is not the place for a core dump."""


class Settlement(NamedTuple):
    """One claim's end. ``verdict``: complete, retry, final or rollback."""

    claim: Claim
    verdict: str
    delay_ms: int = 0
    reason: str = "error"
    error: str = "null"
    """A JSON object."""
    lane: str = ""
    """Of a rollback: the lane that the job belongs into, if its task's policy has changed."""


def describe(
    error: BaseException, *, with_traceback: bool = True, redact: Redact | None = None
) -> str:
    """An exception as the JSON object that events carry. ASCII only: lone surrogates and NUL are escaped.

    Whatever it says has passed through ``redact``, before it is shortened: half a secret is one, too.
    """
    lines = traceback_of(error) if with_traceback else None
    return describe_words(type(error).__name__, message_of(error), lines, redact=redact)


def describe_words(
    kind: str, message: str, lines: str | None, *, redact: Redact | None = None
) -> str:
    """The same of an exception that is known by its words only. ``lines`` is its traceback."""
    facts = {"type": kind, "message": _shorten(redacted(redact, message), MESSAGE_MAX)}
    if lines is not None:
        facts["traceback"] = _shorten(redacted(redact, lines), TRACEBACK_MAX)
    return json.dumps(facts)


def message_of(error: BaseException) -> str:
    """What an exception says of itself; never raises, whatever its class does when asked."""
    try:
        return str(error)
    except BaseException as unsaid:  # noqa: BLE001 - it is the user's code; also SystemExit
        return f"<no words: str() raised {type(unsaid).__name__}>"


def traceback_of(error: BaseException) -> str:
    """The traceback of an exception, with its causes; never raises either."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as unsaid:  # noqa: BLE001 - a property of the user's exception; also SystemExit
        return f"<no traceback: asking for it raised {type(unsaid).__name__}>"


def _shorten(text: str, most: int) -> str:
    """Keep the beginning and the end: the end of a traceback says what happened."""
    if len(text) <= most:
        return text
    half = most // 2 - 10
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def calls_of(
    worker: str, settlements: Iterable[Settlement]
) -> list[tuple[Call[dict[str, str]], list[Settlement]]]:
    """The fewest calls that report all of these, each with what it reports."""
    groups: defaultdict[tuple[str, str], list[Settlement]] = defaultdict(list)
    for settlement in settlements:
        script = "fail" if settlement.verdict in ("retry", "final") else settlement.verdict
        groups[settlement.claim.queue, script].append(settlement)
    calls = []
    for (queue, script), group in groups.items():
        call: Call[dict[str, str]]
        if script == "complete":
            call = claims.complete(queue, worker, [(s.claim.id, s.claim.fence) for s in group])
        elif script == "fail":
            call = claims.fail(
                queue,
                worker,
                [
                    (s.claim.id, s.claim.fence, s.verdict, s.delay_ms, s.reason, s.error)
                    for s in group
                ],
            )
        else:
            call = claims.rollback(
                queue,
                worker,
                [(s.claim.id, s.claim.fence, s.reason, s.error, s.lane, s.delay_ms) for s in group],
            )
        calls.append((call, group))
    return calls
