"""Ids that are remembered after their jobs have ended. Computes the id for an idempotency key, and parses the lines of
the key ``results``.

>>> id_of_key("send", "order-42")
'k-8b21bc0567e2051c6f931b27917833f6'
>>> read_result("order-42", "succeeded at=5 fence=5-88 once=86400005 call=70c5").outcome
'succeeded'
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from rq_core.errors import InvalidOption
from rq_core.model.lib.text import bytes_of, number_in
from rq_core.model.settings import RESULT_COST
from rq_core.model.unique_names import digest_of

KEY_MAX: Final = 1_000
"""Maximum number of characters of an idempotency key."""
WINDOW_MS: Final = 86_400_000
"""Default time for which the id of an idempotency key is remembered after the first call, in ms."""
SAME: Final = "same"
"""The outcome in a line of the key ``results`` if the line's id is an alias: a call that enqueues with this id gets the
handle of the job that the line names."""
_ORDER: Final = (
    "job", "at", "fence", "once", "call", "task", "reason", "value", "audit", "until", "bytes",
)  # fmt: skip
"""Names of the words in a line of ``results``, in the order in which scripts write them."""


def check_key(key: str) -> str:
    """Return ``key`` if it is a valid idempotency key. Raises InvalidOption otherwise."""
    # Callers that no type checker has seen pass None and numbers, too.
    given: object = key
    if not isinstance(given, str) or not 1 <= len(given) <= KEY_MAX:
        must = f"must be a text of 1 to {KEY_MAX:,} characters"
        raise InvalidOption.of("idempotency_key", given, must)
    try:
        given.encode()
    except UnicodeEncodeError:
        must = "must be valid Unicode text: it holds a lone surrogate"
        raise InvalidOption.of("idempotency_key", ascii(given), must) from None
    return given


def id_of_key(task: str, key: str) -> str:
    """Return the job id for an idempotency key of a task. The same key gives another id for another task."""
    return "k-" + hashlib.sha256(f"{task}\0{key}".encode()).hexdigest()[:32]


def call_digest(task: str, arguments: str) -> str:
    """Return the digest (32 hex digits) of a call. It shows whether two calls with the same id also have the same task
    and arguments. ``arguments`` are canonical JSON.
    """
    return digest_of(f"{task}\0{arguments}")


class ResultLine(NamedTuple):
    """A parsed line of the key ``results``, which is about one id."""

    id: str
    outcome: str
    """How the job ended: succeeded, cancelled, expired, replaced or dead. ``same``: calls with this id get the
    handle of the job ``same_as``."""
    at_ms: int | None
    """Unix ms at which the job ended."""
    fence: str | None
    """Fence of the claim with which the job ended; None if the line has no fence."""
    once_ms: int | None
    """Unix ms until which an enqueue with this id is a duplicate; None: the id is not remembered."""
    call: str | None
    """The digest of the call that enqueued the job. A further call with this id must have the same digest. None: calls
    are not compared."""
    same_as: str | None
    until_ms: int | None = None
    """Unix ms until which the outcome is kept for clients that wait; None: the outcome is not kept."""
    value_bytes: int | None = None
    """Bytes of the job's result in the key ``returned``; None: there is no result."""
    missing: str | None = None
    """One word for the reason why there is no result; None: the line gives no reason."""

    @property
    def forgotten_ms(self) -> int | None:
        """Unix ms at which Redis forgets the id; None: the line does not name a time."""
        if self.until_ms is None:
            return self.once_ms
        return max(self.until_ms, self.once_ms or 0)

    @property
    def met_ms(self) -> int | None:
        """Unix ms from which on a worker's claim call cleans up the line. The call removes only the result if the id is
        still remembered then, and otherwise the whole line. None: the line does not name a time.
        """
        return self.until_ms or self.once_ms


def load_of(line: str) -> int:
    """Return the number of bytes that a line of ``results`` adds to the queue's counter of kept bytes (the field
    ``kept_bytes`` of the key ``meta``). ``lua/include/results/results.lua`` counts in the same way.

    >>> load_of("succeeded at=5 until=9 bytes=7")
    337
    """
    result = read_result("", line)
    load = result.value_bytes or 0
    if result.until_ms is None or result.once_ms is not None:
        return load
    return load + len(bytes_of(line)) + RESULT_COST


def result_words(line: str) -> dict[str, str]:
    """Return the words after the outcome in a line of ``results``, as values by name."""
    _, *words = line.partition("\n")[0].split(" ")
    return dict(word.partition("=")[::2] for word in words)


def with_words(line: str, outcome: str, changes: Mapping[str, str | None]) -> str:
    """Return a line of ``results`` with another outcome and changed words. A change to None removes the word. The words
    keep the order in which scripts write them.

    >>> with_words("dead at=5 until=9 value=lost", "succeeded", {"value": None, "fence": "5-88"})
    'succeeded at=5 fence=5-88 until=9'
    """
    head, newline, rest = line.partition("\n")
    had = result_words(line)
    words = {name: value for name, value in {**had, **changes}.items() if value is not None}
    if words == had and outcome == head.partition(" ")[0]:
        return line
    ordered = [name for name in (*_ORDER, *words) if name in words]
    return (
        " ".join([outcome, *(f"{name}={words[name]}" for name in dict.fromkeys(ordered))])
        + newline
        + rest
    )


def read_result(job_id: str, line: str) -> ResultLine:
    """Parse a line of ``results``. A field becomes None if its word is missing, or if the word must be a number and is
    not."""
    outcome, fields = line.partition("\n")[0].partition(" ")[0], result_words(line)
    return ResultLine(
        job_id,
        outcome,
        number_in(fields.get("at")),
        fields.get("fence"),
        number_in(fields.get("once")),
        fields.get("call"),
        fields.get("job"),
        number_in(fields.get("until")),
        number_in(fields.get("bytes")),
        fields.get("value"),
    )


def result_line(
    outcome: str, at_ms: int, once_ms: int, *, fence: str | None = None, call: str | None = None
) -> str:
    """Return the line of ``results`` for the remembered id of an ended job. ``once_ms`` (Unix ms) is when Redis forgets
    the id."""
    parts = [outcome, f"at={at_ms}", f"fence={fence}" if fence else "", f"once={once_ms}"]
    parts.append(f"call={call}" if call else "")
    return " ".join(filter(None, parts))
