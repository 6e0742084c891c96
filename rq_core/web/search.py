"""Parses the address of a page (which queue, job or moment it names), and the text in the search box of /jobs.

A search can be written as text or as parameters: ``/jobs?q=queue:mail state:dead`` and ``/jobs?queue=mail&state=dead``
have the same meaning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from rq_core.errors import InvalidOption
from rq_core.model.keys import check_name
from rq_core.model.limits.scopes import scopes_of
from rq_core.model.recurrence import check_schedule_name
from rq_core.model.state_line import JobState
from rq_core.model.table.effects import CLAIM_ENDS
from rq_core.model.table.machine import Event, State
from rq_core.web.words import query

WORDS: Final = (
    "queue", "task", "state", "outcome", "error", "worker", "id", "lane", "scope", "since", "until",
)  # fmt: skip
"""The words that a search may have."""
ONLY_LIVE: Final = ("state", "lane")
"""Words about jobs that Redis has now. Only Redis can answer them."""
ONLY_ENDED: Final = ("outcome", "error", "since", "until")
"""Words about claims that ended. Only the audit log can answer them."""
SUCCEEDED: Final = str(Event.SUCCEEDED)
OUTCOMES: Final = (*sorted(map(str, CLAIM_ENDS)), "lost")
FAILED: Final = ("died", "retried", "lease_expired")
"""The outcomes that ``outcome:failed`` means."""
NOT_SUCCEEDED: Final = tuple(each for each in OUTCOMES if each != SUCCEEDED)
_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {"any": OUTCOMES, "failed": FAILED}
BULK_FIELDS: Final = (
    "verb", "where", "counted", "at", "number", "reason", "seal", "priority", "delay", "expires", "no_deadline",
)  # fmt: skip
"""The fields that the address of the page /bulk may have."""
TEXT_MAX: Final = 1_000
"""Maximum number of characters of a search."""
VALUE_MAX: Final = 300
"""Maximum number of characters of a word's value."""

Place = tuple[int, int, int]
"""An event's place in its queue's log: the epoch, the number of the entry, and the place in the entry."""


@dataclass(frozen=True)
class PageQuery:
    """The query in the address of a page."""

    queue: str | None = None
    job_id: str = ""
    name: str = ""
    """Name of a schedule."""
    words: tuple[tuple[str, str], ...] = ()
    """The words of a search, each with its value as it was entered, in the order of WORDS."""
    states: tuple[State, ...] = ()
    task: str | None = None
    outcomes: tuple[str, ...] = ()
    error: str = ""
    worker: str = ""
    lane: str | None = None
    """A lane. Empty: the jobs without scopes; None: any lane."""
    scope: str = ""
    since_ms: int = 0
    until_ms: int | None = None
    at_ms: int | None = None
    before: Place | None = None
    after: Place | None = None
    """A page of events begins after the place ``after``, or ends before the place ``before``."""
    behind: tuple[int, str, str, str] | None = None
    """The claim after which a page of ended claims begins."""
    form: tuple[tuple[str, str], ...] = ()
    """The fields of the form on the page /bulk that the address has."""

    @property
    def of_ended(self) -> bool:
        """Return whether the search is for ended claims, which the audit log has."""
        return any(word in ONLY_ENDED for word, _ in self.words)

    @property
    def fixed(self) -> bool:
        """Return whether the page shows only older events or claims, or the count of a change of many jobs, so that it
        must not be updated."""
        places = self.before, self.after, self.behind
        return bool(self.form) or any(place is not None for place in places)

    @property
    def text(self) -> str:
        """The search as text for the search box."""
        return " ".join(f"{word}:{_quoted(value)}" for word, value in self.words)

    def path(self, **changed: str | None) -> str:
        """Return the address of this search with some words changed. A word with the new value None is left out."""
        said = {**dict(self.words), **changed}
        return query("/jobs", **{word: said[word] for word in WORDS if said.get(word)})

    def matches(self, job: JobState) -> bool:
        """Return whether a job that is alive has the worker, the lane and the scope of the search."""
        lane = job.fields.get("lane", "")
        return (
            self.worker in ("", job.fields.get("by"))
            and self.lane in (None, lane)
            and (not self.scope or self.scope in scopes_of(lane))
        )


# The search box.

_TERM: Final = re.compile(r'(?:([a-z]+):)?(?:"([^"]*)"|(\S+))')


def parse_search(text: str) -> dict[str, str]:
    """Parse the text of the search box: ``word:value``, with quotes around a value with spaces. A value without a word
    is a job's id.

    Raises InvalidOption.
    """
    found: dict[str, str] = {}
    if len(text) > TEXT_MAX:
        raise InvalidOption.of("q", f"{text[:50]}…", f"must have at most {TEXT_MAX} characters")
    for term in _TERM.finditer(text):
        word, value = term[1] or "id", term[2] if term[2] is not None else term[3]
        if word not in WORDS:
            must = (
                f"must have words of these: {', '.join(WORDS)} (an id with a colon: id:{term[0]})"
            )
            raise InvalidOption.of("q", term[0][:100], must)
        if found.get(word, value) != value:
            raise InvalidOption.of("q", term[0][:100], f"must have {word}: once")
        found[word] = value
    return found


def _quoted(value: str) -> str:
    return f'"{value}"' if " " in value or not value else value


# Addresses.


def asked_of(path: Mapping[str, str], query: Mapping[str, str], now_ms: int) -> PageQuery:
    """Parse the address of a page. Raises InvalidName or InvalidOption."""
    given = {**query, **parse_search(query.get("q", "")), **path}
    queue = given.get("queue") or None
    if queue is not None:
        check_name("queue", queue)
    job_id = given.get("id", "")
    if job_id:
        check_name("job", job_id)
    task = given.get("task") or None
    if task is not None:
        check_name("task", task)
    name = given.get("name", "")
    if name:
        check_schedule_name(name)
    said = tuple((word, given[word]) for word in WORDS if given.get(word))
    for word, value in said:
        if len(value) > VALUE_MAX:
            must = f"must have at most {VALUE_MAX} characters"
            raise InvalidOption.of(word, f"{value[:50]}…", must)
    _check_one_source(dict(said))
    # To the second, so that a moment like "10m ago" is the same for all who look now.
    about_now_ms = now_ms // 1_000 * 1_000
    moments = {
        word: parse_moment(given[word].strip(), about_now_ms, word)
        for word in ("since", "until", "t")
        if given.get(word, "").strip()
    }
    outcomes = _one_of("outcome", given.get("outcome", ""), (*OUTCOMES, *_GROUPS))
    asked = PageQuery(
        queue, job_id, name, said, tuple(map(State, _one_of("state", given.get("state", ""), State))),
        task, tuple(dict.fromkeys(o for each in outcomes for o in _GROUPS.get(each, (each,)))), given.get("error", ""),
        given.get("worker", ""), given.get("lane") or None, given.get("scope", ""), moments.get("since", 0),
        moments.get("until"), moments.get("t"), _place("before", given), _place("after", given), _behind(given),
        tuple((name, given[name]) for name in BULK_FIELDS if given.get(name)) if given.get("where") else (),
    )  # fmt: skip
    if SUCCEEDED in asked.outcomes and queue is None:
        must = "must not ask for successes of all queues: say queue:, or outcome:failed"
        raise InvalidOption.of("outcome", given["outcome"], must)
    return asked


def _check_one_source(said: Mapping[str, str]) -> None:
    """Raise InvalidOption for a search with words that only Redis answers and words that only the audit log answers:
    no list has jobs from both."""
    live = [word for word in ONLY_LIVE if word in said]
    ended = [word for word in ONLY_ENDED if word in said]
    if live and ended:
        must = (
            f"must not stand beside {ended[0]}: {live[0]} is asked of Redis, which has the jobs of now, and {ended[0]}"
            " of the audit log, which has the claims that ended"
        )
        raise InvalidOption.of(live[0], said[live[0]], must)


def _one_of(option: str, text: str, known: object) -> list[str]:
    words = list(dict.fromkeys(each for each in text.split(",") if each))
    every = list(map(str, known))  # type: ignore[call-overload]
    for each in words:
        if each not in every:
            raise InvalidOption.of(option, each[:100], f"must be one of {', '.join(every)}")
    return words


_PLACE: Final = re.compile(r"(\d{1,18})-(\d{1,18})(?:-(\d{1,9}))?")
_BEHIND: Final = re.compile(r"(\d{1,18})/([0-9-]{1,60})/([^/]{1,200})/(.{1,300})")


def _place(option: str, given: Mapping[str, str]) -> Place | None:
    text = given.get(option, "")
    if not text:
        return None
    found = _PLACE.fullmatch(text)
    if found is None or not text.isascii():
        raise InvalidOption.of(option, text[:100], "must be the number of an entry, like 5-1234")
    return int(found[1]), int(found[2]), int(found[3] or 0)


def _behind(given: Mapping[str, str]) -> tuple[int, str, str, str] | None:
    text = given.get("behind", "")
    if not text:
        return None
    found = _BEHIND.fullmatch(text)
    if found is None or not text.isascii():
        raise InvalidOption.of("behind", text[:100], "must be as a page before says it")
    return int(found[1]), found[4], found[2], found[3]


def behind_text(place: tuple[int, str, str, str]) -> str:
    """Return the value of ``behind`` in the address of a page of ended claims that begins after this claim."""
    ended_at_ms, job_id, fence, queue = place
    return f"{ended_at_ms}/{fence}/{queue}/{job_id}"


_AGO: Final = re.compile(r"(\d{1,6}) ?(s|m|h|d)(?: ago)?")
_OF_DAY: Final = re.compile(r"(?:(today|yesterday) )?([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_DAY_MS: Final = _UNIT_MS["d"]


def parse_moment(text: str, now_ms: int, option: str = "t") -> int:
    """Return a moment in Unix ms. The text is Unix ms, ``2026-11-21 10:00`` (UTC if no zone is given), ``yesterday
    12:03`` (UTC), ``10m ago``, or ``now``. A time without a day means the last time that a clock showed it.

    Raises InvalidOption.
    """
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    if text == "now":
        return now_ms
    if found := _AGO.fullmatch(text):
        return max(0, now_ms - int(found[1]) * _UNIT_MS[found[2]])
    if found := _OF_DAY.fullmatch(text):
        hours, minutes, seconds = (int(each or 0) for each in found.groups()[1:])
        at_ms = now_ms // _DAY_MS * _DAY_MS + 1000 * (3600 * hours + 60 * minutes + seconds)
        was_before = found[1] == "yesterday" or (found[1] is None and at_ms > now_ms)
        return max(0, at_ms - _DAY_MS * was_before)
    try:
        moment = datetime.fromisoformat(text.removesuffix(" UTC"))
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return max(0, int(zoned.timestamp() * 1000))
    except (ValueError, OverflowError):
        must = "must be like 2026-11-21 10:00, yesterday 12:03, 10m ago, now, or Unix ms"
        raise InvalidOption.of(option, text[:100], must) from None
