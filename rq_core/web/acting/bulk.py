"""Changes of many jobs, which operators make on the page /bulk.

The page counts the jobs that match a filter. An operator confirms the number. Then each request changes a part of the
jobs, about CHANGED_MAX at most.

The server does not run the change by itself. Each answer has the *place* in the queue that the change has reached, and
the next request sends this place back. So a change stops when the operator closes the page. It goes on when the
operator sends the form again, even after a restart of the page's server.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rq_core.app.handles.edit import change_of
from rq_core.app.many.copying import COPIED, check_terms, replay_name
from rq_core.errors import InvalidOption, RqCoreError, UsageError
from rq_core.model.filters.job_filter import Filter
from rq_core.protocol.calls.admin import Change
from rq_core.protocol.calls.bulk import VERBS, BulkChange, BulkPlace, pause_after
from rq_core.protocol.engine.plan import Pause
from rq_core.web.acting.actions import By, check_is_there
from rq_core.web.acting.fields import COPIED_WITH, EDITED, FIELD_MAX, Form, copy_args, edit_options
from rq_core.web.search import BULK_FIELDS
from rq_core.web.views import Facts
from rq_core.web.words import LINK_MAX, job_path, query, word

if TYPE_CHECKING:
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations
    from rq_core.web.rows import Document

PATH: Final = "/bulk"
ACT_PATH: Final = "/act/bulk"
COUNT_S: Final = 0.8
"""Seconds for which one request counts jobs."""
CHANGE_S: Final = 0.7
"""Maximum number of seconds for which one request changes jobs."""
CHANGED_MAX: Final = 2_500
"""Number of matching jobs, changed or not, after which a request ends. It is low, so that the operator sees the
progress and can stop the change."""
SAMPLE_MAX: Final = 20
"""Maximum number of jobs that a preview names."""
REASON_MAX: Final = 500
"""Maximum number of characters of a reason. It is short, because the address of a change under way contains it."""
AGE_MAX_MS: Final = 7 * 86_400_000
"""Maximum age of a change that an operator may continue, in ms since the change began."""
SOON_MS: Final = 60_000

COPY: Final = "copy"
"""The verb of the change that enqueues copies of jobs that died according to the audit log. VERBS has the other
verbs."""
OWN_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "edit": tuple(each.name for each in EDITED), COPY: tuple(each.name for each in COPIED_WITH),
}  # fmt: skip
"""Verb of a change → the form fields that only this kind of change has."""
FORM_FIELDS: Final = (*BULK_FIELDS, "count")
"""All fields of the form that changes many jobs."""
_DONE: Final[Mapping[str, str]] = {
    "cancel": "cancelled", "edit": "edited", "requeue": "requeued", "prune": "removed",
    COPY: "copied",
}  # fmt: skip


class BulkAsked(NamedTuple):
    """The change of many jobs that an address or a form asks for. Relative times in its filter are already converted to
    moments."""

    verb: str
    filter: Filter
    place: BulkPlace | None
    counted: BulkPlace | None
    """The place in the queue that the count of matching jobs has reached; None if the count has not begun."""
    number: int
    """The number of jobs that the operator has confirmed; 0 if there is no confirmation yet."""
    reason: str
    form: Form

    @property
    def own(self) -> dict[str, str]:
        """The values of the form fields that only this kind of change has, by name."""
        return {name: self.form.get(name, "") for name in OWN_FIELDS.get(self.verb, ())}

    @property
    def edit(self) -> Change:
        """The new options of the jobs if the change is an edit; otherwise no options. Raises UsageError for an edit
        without new options."""
        if self.verb != "edit":
            return Change()
        return change_of(self.filter.queue, **edit_options(self.form))

    def change(self, by: By | None) -> BulkChange:
        """Return the change that ``by``, an operator, makes. Without ``by``, return a change that only counts the jobs.
        Raises UsageError for an unsuitable filter."""
        verb = VERBS[self.verb]
        if by is None:
            return BulkChange(verb, self.filter, dry_run=True)
        return BulkChange(
            verb, self.filter, self.edit, by=by.name, reason=by.why, limit=self.number
        )

    def address(self, place: BulkPlace, seal: str) -> str:
        """Return the address of the page that continues the change.

        ``place``: the place in the queue that the change has reached. ``seal``: proof of the operator's confirmation
        (see Seals).
        """
        return query(
            PATH, verb=self.verb, where=str(self.filter), at=str(place), number=self.number,
            reason=self.reason, seal=seal, **self.own,
        )  # fmt: skip


def asked_for(form: Form, now_ms: int) -> BulkAsked:
    """Return the change of many jobs that a form or the query of an address asks for. Raises UsageError."""
    verb = form.get("verb") or "cancel"
    if verb not in _DONE:
        raise InvalidOption.of("verb", word(verb, 50), f"must be one of {', '.join(_DONE)}")
    found = Filter.parse(form.get("where", ""))
    if found.is_for_all:
        must = "must have another term than queue: state:ready, for example, if all ready jobs are meant"
        raise InvalidOption.of("filter", str(found), must)
    if len(str(found)) > LINK_MAX:
        must = f"must have at most {LINK_MAX:,} characters here"
        raise InvalidOption.of("filter", str(found)[:50], must)
    place, counted = _place_of(form, "at", now_ms), _place_of(form, "counted", now_ms)
    number = form.get("number", "").replace(",", "")
    if number and not (number.isascii() and number.isdigit() and 0 < len(number) < 10):
        raise InvalidOption.of("number", word(number, 50), "must be a number of jobs")
    reason = form.get("reason", "")
    if len(reason) > REASON_MAX:
        must = f"must have at most {REASON_MAX} characters"
        raise InvalidOption.of("reason", f"{reason[:50]}…", must)
    asked = BulkAsked(verb, found, place, counted, int(number or 0), reason, form)
    for name, value in asked.own.items():
        if len(value) > FIELD_MAX:
            must = f"must have at most {FIELD_MAX} characters"
            raise InvalidOption.of(name, f"{value[:50]}…", must)
    # For their checks.
    if verb == COPY:
        check_terms(found)
        replay_name(form.get("name") or None, copy_args(form))
    else:
        asked.change(None)
    return asked


def _place_of(form: Form, name: str, now_ms: int) -> BulkPlace | None:
    if not form.get(name):
        return None
    place = BulkPlace.parse(form[name])
    if not now_ms - AGE_MAX_MS < place.begun_ms < now_ms + SOON_MS:
        raise InvalidOption.of(name, form[name][:30], "must be of a change of the last 7 days")
    return place


class Seals:
    """Protects the address of a confirmed change of many jobs with an HMAC, so that a link from another site cannot
    skip the operator's confirmation."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, name: str, asked: BulkAsked, place: BulkPlace) -> str:
        """Return the HMAC of a change that an operator has confirmed. ``name``: the operator. ``place`` has the id of
        the change."""
        said = [name, asked.verb, str(asked.filter), str(asked.number), place.id]
        text = "\0".join([*said, *asked.own.values()])
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()[:32]

    def holds(self, name: str, asked: BulkAsked) -> bool:
        """Return whether the address has the right HMAC for this operator and this change."""
        if asked.place is None:
            return False
        expected = self.seal(name, asked, asked.place)
        return hmac.compare_digest(expected.encode(), asked.form.get("seal", "").encode())


# Steps.


@dataclass
class Seen:
    """The count of the jobs that match a filter, as far as one request could count them."""

    asked: BulkAsked | None = None
    wrong: str = ""
    """Why the address is wrong, as a sentence; empty if it is valid."""
    begin: str = ""
    """The place in the queue at which the change will begin."""
    matched: int = 0
    looked: int = 0
    complete: bool = True
    """True if the whole queue was searched."""
    states: dict[str, int] = field(default_factory=dict)
    counted: str = ""
    """The place in the queue at which the next request continues the count."""
    sample: list[tuple[str, str]] = field(default_factory=list)
    """(job id, state) of the first matching jobs."""


def seen(calls: Operations, form: Form, now_ms: int) -> Plan[Seen | None]:
    """Count the jobs that match the filter in an address, for at most COUNT_S seconds.

    If the change has already begun, the jobs are not counted again. For a change that copies jobs, return None:
    ``seen_copies`` counts those.
    """
    if not form.get("where"):
        return Seen()
    if form.get("verb") == COPY:
        return None
    try:
        asked = asked_for(form, now_ms)
    except UsageError as error:
        return Seen(wrong=word(error, 600))
    queue = asked.filter.queue
    if not (yield from calls.reads.is_there(queue)):
        return Seen(wrong=f"Redis has no queue {queue}")
    if asked.place is not None:
        return Seen(asked, begin=str(asked.place))
    change, until = asked.change(None), time.monotonic() + COUNT_S
    place = asked.counted or (yield from calls.bulk.begin(queue))
    begin = BulkPlace(place.id)
    states: Counter[str] = Counter()
    sample: list[tuple[str, str]] = []
    while True:
        step = yield from calls.bulk.step(change, place)
        place = step.place
        states.update(step.outcomes.values())
        sample += [*step.outcomes.items()][: SAMPLE_MAX - len(sample)]
        if step.is_last or time.monotonic() >= until:
            return Seen(
                asked, begin=str(begin), matched=place.matched, looked=place.looked,
                complete=step.is_last, states=dict(states), sample=sample, counted=str(place),
            )  # fmt: skip


class Stretch(NamedTuple):
    """The part of a change of many jobs that one request has made."""

    place: BulkPlace
    is_last: bool
    outcomes: dict[str, int]
    """Outcome → number of jobs in this part."""


def stretch(calls: Operations, asked: BulkAsked, by: By) -> Plan[Stretch]:
    """Change jobs until CHANGED_MAX have an outcome, changed or not, or CHANGE_S seconds are over. The change ends
    earlier if the confirmed number is reached. Return the part of the change that was made.

    Each step changes some jobs. A pause follows each step except the very last, so that the server can do other work.
    If a step fails, the result has the steps before it. An error in the first step is raised.
    """
    yield from check_is_there(calls, asked.filter.queue)
    change, until = asked.change(by), time.monotonic() + CHANGE_S
    begin = place = asked.place or (yield from calls.bulk.begin(asked.filter.queue))
    outcomes: Counter[str] = Counter()
    while True:
        since = time.monotonic()
        try:
            step = yield from calls.bulk.step(change, place)
        except RqCoreError:
            if place == begin:
                raise
            return Stretch(place, False, dict(outcomes))
        place = step.place
        outcomes.update(step.outcomes.values())
        now = time.monotonic()
        if not step.is_last:
            # Also after the last step of a part, since the next request may come at once.
            yield Pause(pause_after(now - since))
        if step.is_last or now >= until or outcomes.total() >= CHANGED_MAX:
            return Stretch(place, step.is_last, dict(outcomes))


def check_confirmed(asked: BulkAsked) -> None:
    """Raise UsageError unless the operator has entered the number of jobs again, and a reason."""
    count = asked.form.get("count", "")
    if not asked.number or str(asked.number) != count:
        must = f"must repeat how many jobs are {_DONE[asked.verb]}: {word(count, 20)}"
        raise InvalidOption.of("number", asked.form.get("number", "")[:20], must)
    if not asked.reason:
        raise InvalidOption.of("reason", "", "must not be empty: the log has it for each job")


def says(asked: BulkAsked, made: Stretch) -> str:
    """Return a sentence about the progress of a change. ``made``: the part that was made last."""
    done = f"{made.place.changed:,} of {asked.number:,} {_DONE[asked.verb]}"
    usual = (COPIED,) if asked.verb == COPY else VERBS[asked.verb].done
    others = {name: many for name, many in sorted(made.outcomes.items()) if name not in usual}
    but = ", ".join(f"{number:,} {word(name, 40)}" for name, number in others.items())
    end = f"; the log has it as bulk {made.place.id}" if made.is_last else ""
    return f"{done}{f' ({but})' if but else ''}{end}."


# The page.


def bulk_page(facts: Facts) -> Document:
    """Return the document (dict) of the page /bulk: the number of matching jobs, or the progress of a change."""
    form = dict(facts.asked.form)
    document: Document = {
        "verb": form.get("verb") or "cancel", "where": form.get("where", ""), "verbs": list(_DONE), "wrong": "",
        "queue": None, "begin": "", "matched": None, "looked": 0, "complete": True, "states": {}, "sample": [],
        "count_on": "", "resumed": False, "changed": 0, "number": None, "reason": form.get("reason", ""), "id": None,
        "own": {name: form.get(name, "") for names in OWN_FIELDS.values() for name in names}, "copied_as": None,
    }  # fmt: skip
    found: Any = facts.found
    if not isinstance(found, Seen):
        return document
    document["wrong"] = found.wrong
    if found.asked is None or found.wrong:
        return document
    asked = found.asked
    queue = asked.filter.queue
    document |= {
        "queue": queue, "where": str(asked.filter), "begin": found.begin, "matched": found.matched,
        "looked": found.looked, "complete": found.complete, "states": found.states,
        "count_on": "" if found.complete else query(
            PATH, verb=asked.verb, where=str(asked.filter), counted=found.counted, **asked.own
        ),
        "sample": [
            {"id": job_id, "state": state, "path": job_path(queue, job_id)}
            for job_id, state in found.sample
        ],
    }  # fmt: skip
    if asked.verb == COPY:
        document["copied_as"] = replay_name(form.get("name") or None, copy_args(form))
    if asked.place is not None:
        document |= {
            "resumed": True, "matched": None, "changed": asked.place.changed, "number": asked.number,
            "id": asked.place.id,
        }  # fmt: skip
    return document
