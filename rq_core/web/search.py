"""Parses the address of a page, and the text in the search box of /jobs.

A search has the text of a filter, as on the command line, with two further words: ``outcome`` and ``id``. An address
may have the text or parameters: ``/jobs?q=queue:mail state:dead`` and ``/jobs?queue=mail&state=dead`` mean the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from rq_core.errors import InvalidOption, UsageError
from rq_core.model.filters.filter_text import terms_of, text_of
from rq_core.model.filters.job_filter import WORDS as FILTER_WORDS
from rq_core.model.filters.job_filter import Filter
from rq_core.model.keys import check_name
from rq_core.model.lib.moments import moment_of
from rq_core.model.recurrence import check_schedule_name
from rq_core.model.table.effects import CLAIM_ENDS
from rq_core.model.table.machine import Event
from rq_core.web.words import query

OUTCOME: Final = "outcome"
"""The word for the outcome of ended claims. A search with this word lists claims, which only the audit log has."""
ID: Final = "id"
"""The word for a job's id. A value without a word also counts as an id."""
WORDS: Final = (*FILTER_WORDS, OUTCOME, ID)
"""The words that a search may have: those of a filter, ``outcome`` and ``id``."""
OF_LOG: Final = ("queue", "task", "error", "worker", "scope", "since", "until", OUTCOME, ID)
"""The words of a search that the audit log can answer."""
SUCCEEDED: Final = str(Event.SUCCEEDED)
OUTCOMES: Final = (*sorted(map(str, CLAIM_ENDS)), "lost")
FAILED: Final = ("died", "retried", "lease_expired")
"""The outcomes that the search ``outcome:failed`` includes."""
_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {"any": OUTCOMES, "failed": FAILED}
BULK_FIELDS: Final = (
    "verb", "where", "counted", "at", "number", "reason", "seal", "priority", "delay", "expires", "no_deadline",
    "name", "args",
)  # fmt: skip
"""The query parameters that the address of the page /bulk may have."""
TEXT_MAX: Final = 1_000
"""Maximum number of characters of a search."""
NOT_SEARCHED: Final = "header: and arg: are for those who may see the arguments of jobs"
"""The answer to a viewer who searches by headers or arguments but may not see them."""

ANY: Final = "-"
"""The value that replaces a queue's name in a filter for all queues."""
_NO_FILTER: Final = Filter(queue=ANY)

Place = tuple[int, int, int]
"""The position of an event in its queue's log: epoch, number of the entry, and position in the entry."""
Words = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class PageQuery:
    """The parsed path and query of a page's address."""

    queue: str | None = None
    job_id: str = ""
    name: str = ""
    """The name of a schedule."""
    words: Words = ()
    """(word, value) pairs of a search, with the values as they were entered, in the order of WORDS."""
    filter: Filter = _NO_FILTER
    """The filter in the search: its words except ``outcome`` and ``id``. If the search names no queue, the filter's
    queue is ANY."""
    outcomes: tuple[str, ...] = ()
    at_ms: int | None = None
    before: Place | None = None
    after: Place | None = None
    """A page of events begins after the event ``after``, or ends before the event ``before``."""
    behind: tuple[int, str, str, str] | None = None
    """The claim after which a page of ended claims begins: (end in Unix ms, job id, fence, queue)."""
    form: tuple[tuple[str, str], ...] = ()
    """(field, value) pairs of the form on the page /bulk."""

    @property
    def of_ended(self) -> bool:
        """Return whether the search is for ended claims, which only the audit log has."""
        return bool(self.outcomes)

    @property
    def fixed(self) -> bool:
        """Return whether the page must not update itself.

        This holds for pages of older events or claims, and for the count of a change of many jobs.
        """
        places = self.before, self.after, self.behind
        return bool(self.form) or any(place is not None for place in places)

    @property
    def needs_spec(self) -> bool:
        """Return whether the search, or the filter of the page /bulk, has terms for headers or arguments.

        Return False for a filter that cannot be parsed; the page /bulk reports the error itself.
        """
        where = dict(self.form).get("where", "")
        try:
            return self.filter.needs_spec or (bool(where) and Filter.parse(where).needs_spec)
        except UsageError:
            return False

    @property
    def text(self) -> str:
        """The search as the text of the search box."""
        return text_of(self.words)

    def path(self, **changed: str | None) -> str:
        """Return the address of this search with some words changed. The value None removes a word."""
        kept = [(word, value) for word, value in self.words if word not in changed]
        return search_path([*kept, *((word, new) for word, new in changed.items() if new)])


def search_path(words: Iterable[tuple[str, str]], **more: str) -> str:
    """Return the address of a search with these (word, value) pairs. ``more``: further query parameters."""
    values: dict[str, list[str]] = {}
    for word, value in sorted(words, key=lambda each: WORDS.index(each[0])):
        values.setdefault(word, []).append(value)
    return query("/jobs", **values, **more)


def search_terms(text: str) -> list[tuple[str, str]]:
    """Parse the text of the search box to (word, value) pairs. A value without a word is a job's id.

    :mod:`rq_core.model.filters.filter_text` describes the text. Raises InvalidOption.
    """
    if len(text) > TEXT_MAX:
        raise InvalidOption.of("q", f"{text[:50]}…", f"must have at most {TEXT_MAX} characters")
    found = []
    for term in terms_of(text):
        if (term.word or ID) not in WORDS:
            must = (
                f"must have words of these: {', '.join(WORDS)} (an id with a colon: id:{term.text})"
            )
            raise InvalidOption.of("q", term.text[:100], must)
        found.append((term.word or ID, term.value))
    return found


# Addresses.


def asked_of(path: Mapping[str, str], asks: Iterable[tuple[str, str]], now_ms: int) -> PageQuery:
    """Parse the address of a page. ``path``: the names in its path. ``asks``: its query parameters. ``now_ms``: the
    present time.

    Raises InvalidName or InvalidOption.
    """
    asks = list(asks)
    given = {**dict(asks), **path}
    # To the second, so that a moment like "10m ago" is the same for all who look now.
    now = datetime.fromtimestamp(now_ms // 1_000, UTC)
    terms = search_terms(given.get("q", ""))
    in_text = {word for word, _ in terms}
    if not given.get("where"):
        terms += [
            (word, value) for word, value in asks if word in WORDS and word not in in_text and value
        ]
    terms = [(word, value) for word, value in terms if word not in path]
    terms += [(word, value) for word, value in path.items() if word in WORDS]
    words = tuple(sorted(dict.fromkeys(terms), key=lambda each: WORDS.index(each[0])))
    one = {
        word: [value for name, value in words if name == word] for word in ("queue", OUTCOME, ID)
    }
    for word, values in one.items():
        if len(values) > 1:
            raise InvalidOption.of(word, values[1][:100], f"must have {word} once")
    queue, outcome, job_id = (values[0] if values else "" for values in one.values())
    if job_id:
        check_name("job", job_id)
    name = given.get("name", "")
    if name and not given.get("where"):
        check_schedule_name(name)
    outcomes = _outcomes(outcome, words, queue)
    found = [(word, value) for word, value in words if word in FILTER_WORDS[1:]]
    which = Filter.of_terms([("queue", queue or ANY), *found], now=now)
    at = given.get("t", "").strip()
    return PageQuery(
        queue or None, job_id, name, words, which, outcomes, parse_moment(at, now) if at else None,
        _place("before", given), _place("after", given), behind_of(given.get("behind", "")),
        tuple((name, given[name]) for name in BULK_FIELDS if given.get(name)) if given.get("where") else (),
    )  # fmt: skip


def _outcomes(text: str, words: Words, queue: str) -> tuple[str, ...]:
    """Return the outcomes that the text of the word ``outcome`` names.

    Raises InvalidOption if an outcome is unknown, if the search asks for successes without naming a queue, or if it
    also has a word that the log cannot answer.
    """
    said = _one_of(OUTCOME, text, (*OUTCOMES, *_GROUPS))
    outcomes = tuple(dict.fromkeys(o for each in said for o in _GROUPS.get(each, (each,))))
    for word, value in words if outcomes else ():
        if word not in OF_LOG:
            must = (
                f"must not stand beside outcome: {word} is asked of Redis, which has the jobs of now, and outcome of"
                " the audit log, which has the claims that ended"
            )
            raise InvalidOption.of(word, value[:100], must)
    if SUCCEEDED in outcomes and not queue:
        must = "must not ask for successes of all queues: say queue:, or outcome:failed"
        raise InvalidOption.of(OUTCOME, text, must)
    return outcomes


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


def behind_of(text: str) -> tuple[int, str, str, str] | None:
    """Parse a text of ``behind_text`` to (end in Unix ms, job id, fence, queue) of a claim. Return None for an empty
    text.

    Raises InvalidOption.
    """
    if not text:
        return None
    found = _BEHIND.fullmatch(text)
    if found is None or not text.isascii():
        raise InvalidOption.of("behind", text[:100], "must be as a page before says it")
    return int(found[1]), found[4], found[2], found[3]


def behind_text(place: tuple[int, str, str, str]) -> str:
    """Return the text, for an address, of the claim after which a page of ended claims begins."""
    ended_at_ms, job_id, fence, queue = place
    return f"{ended_at_ms}/{fence}/{queue}/{job_id}"


def parse_moment(text: str, now: datetime) -> int:
    """Parse a text such as ``10m ago`` to Unix ms. ``now``: the present time. Raises InvalidOption."""
    try:
        return max(0, moment_of(text, now))
    except (ValueError, OverflowError):
        must = "must be like 2026-11-21 10:00, yesterday 12:03, 10m ago, now, or Unix ms"
        raise InvalidOption.of("t", text[:100], must) from None
