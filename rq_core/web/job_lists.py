"""Makes the document (dict) of the page /jobs: live jobs from Redis, or ended claims from the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rq_core.app.many.copying import TERMS
from rq_core.errors import InvalidOption
from rq_core.metrics.causes import Unread
from rq_core.model.filters.filter_text import text_of
from rq_core.model.keys import is_name
from rq_core.model.table.machine import State
from rq_core.protocol.calls.bulk import VERBS, BulkChange
from rq_core.views.jobs import ALIVE, ListedJob
from rq_core.views.table import Found
from rq_core.web.acting.bulk import COPY, PATH
from rq_core.web.rows import Document, listed_row, state_counts
from rq_core.web.search import (
    FAILED,
    ID,
    OF_LOG,
    OUTCOME,
    SUCCEEDED,
    WORDS,
    PageQuery,
    behind_text,
    search_path,
)
from rq_core.web.tokens import Access
from rq_core.web.views import Facts
from rq_core.web.words import job_path, query, word

_STATES: Final = (
    ("ready", "ready"),
    ("running", "running,cancelling"),
    ("scheduled", "scheduled"),
    ("parked", "parked"),
    ("dead", "dead"),
)
_DEATHS: Final = frozenset({"died", "lease_expired"})
_OUTCOMES: Final = ("failed", *FAILED, SUCCEEDED, "any")


def jobs_page(facts: Facts) -> Document:
    """Return the document of /jobs, with the live jobs or the ended claims that a search finds."""
    asked, found, logged = facts.asked, facts.found, facts.logged
    queues = [{"queue": q.queue, "counts": state_counts(q)} for q in facts.queues]
    document: Document = {
        "queue": asked.queue,
        "search": asked.text,
        "of": "the audit log" if asked.of_ended else "Redis",
        "queues": queues,
        "words": [
            {"word": name, "value": value, "without": _without(asked, (name, value))}
            for name, value in asked.words
        ],
        "choices": _choices(asked, queues, has_log=facts.log is not None),
        "jobs": [], "claims": [], "with_id": [], "notes": [], "empty": "",
        "looked": 0, "searched_to_ms": None, "next": None, "many": _many(asked, has_log=facts.log is not None),
    }  # fmt: skip
    if asked.job_id:
        _add_with_id(document, facts)
    elif asked.of_ended:
        if logged is not None and not isinstance(logged, Unread):
            _add_ended(document, asked, facts.access, logged)
    elif asked.queue is None:
        document["empty"] = _no_queue(facts, asked)
    elif not isinstance(found, Unread | None):
        _add_alive(document, facts, found)
    return document


def _without(asked: PageQuery, word: tuple[str, str]) -> str:
    return search_path(each for each in asked.words if each != word)


def _many(asked: PageQuery, *, has_log: bool) -> list[Document]:
    """Return links to change or copy all jobs that a search finds. The list is empty if a filter cannot express the
    search."""
    which = asked.filter
    if asked.queue is None or asked.job_id or which.is_for_all:
        return []
    verbs = [] if asked.of_ended else [verb for verb in VERBS if _fits(verb, asked)]
    died = which.only_states == (State.DEAD,) or (asked.outcomes and {*asked.outcomes} <= _DEATHS)
    terms = [(name, value) for name, value in asked.words if name != OUTCOME]
    found = [{"says": v, "path": query(PATH, verb=v, where=text_of(terms))} for v in verbs]
    copied = [(name, value) for name, value in terms if name != "state"]
    if has_log and died and len(copied) > 1 and {name for name, _ in copied} <= {*TERMS}:
        found.append({"says": COPY, "path": query(PATH, verb=COPY, where=text_of(copied))})
    return found


def _fits(verb: str, asked: PageQuery) -> bool:
    """Return whether the search includes all states of jobs that the change ``verb`` (such as cancel) affects."""
    try:
        change = BulkChange(VERBS[verb], asked.filter)
    except InvalidOption:
        return False
    return set(change.states) <= set(asked.filter.only_states or ALIVE)


def _add_alive(document: Document, facts: Facts, found: Found[ListedJob]) -> None:
    asked = facts.asked
    document["jobs"] = [listed_row(row, facts.access, facts.now_ms) for row in found.rows]
    for row in document["jobs"]:
        row["of_task"] = asked.path(task=row["task"]) if is_name(row["task"]) else ""
    notes = (*found.notes, *found.unread)
    document["notes"] = [word(_on_page(each)) for each in notes]
    others = [
        f"{name} {value}"
        for name, value in asked.words
        if name not in ("queue", "task", "state", ID)
    ]
    document["empty"] = word(f"{found.empty} of {', '.join(others)}" if others else found.empty)


def _on_page(note: str) -> str:
    """Return a note that was written for the command line, in words that fit the web page."""
    return note.replace("; --limit shows more", " are shown").replace(
        ": --state leaves out other states", ": a state or a lane in the search leaves out others"
    )


def _add_with_id(document: Document, facts: Facts) -> None:
    """Add to the document the queues that have a job with the searched id. If there is only one, redirect the browser
    to the job."""
    asked, found, logged = facts.asked, facts.found, facts.logged
    places: dict[str, str] = {}
    if logged is not None and not isinstance(logged, Unread):
        places = {row["queue"]: f"{row['state']}, as the audit log has it" for row in logged}
    if found is not None and not isinstance(found, Unread):
        places[found.queue] = f"{found.state}, in Redis"
    if asked.queue is not None:
        places = {asked.queue: ""}
    document["with_id"] = [
        {"queue": name, "says": says, "path": job_path(name, asked.job_id)}
        for name, says in places.items()
    ]
    if len(places) == 1:
        (document["leads_to"],) = [each["path"] for each in document["with_id"]]
    document["empty"] = f"no queue in Redis has a job with the id {asked.job_id}" + (
        ", nor does the audit log know one" if facts.log is not None else ""
    )


def _add_ended(
    document: Document, asked: PageQuery, access: Access, found: Mapping[str, Any]
) -> None:
    document["claims"] = [claim_row(row, access) for row in found["rows"]]
    document["looked"] = found["looked"]
    if found["next"] is not None:
        place = found["next"]
        document["searched_to_ms"] = place[0]
        document["next"] = search_path(asked.words, behind=behind_text(place))
    elif not document["claims"]:
        document["empty"] = "no claim ended so" + (" before that" if asked.behind else "")


def claim_row(found: Mapping[str, Any], access: Access) -> Document:
    """Return the table row of an ended claim."""
    names = (
        "queue", "job_id", "claim", "task", "worker", "ended_at_ms", "waited_ms", "ran_ms", "outcome", "error_type",
    )  # fmt: skip
    row = {name: found[name] for name in names}
    if access.see_arguments:
        row["error_message"] = found["error_message"]
    says = word(found["error_type"] or "")
    if found["error_message"]:
        shown = access.see_arguments
        says += f": {word(found['error_message'])}" if shown else " (its message is hidden)"
    return row | {"says": says, "path": job_path(found["queue"], found["job_id"])}


def _choices(asked: PageQuery, queues: list[Document], *, has_log: bool) -> Document:
    """Return the links of /jobs to searches in other queues, states and outcomes."""
    said = dict(asked.words)
    dead = dict.fromkeys((OUTCOME, ID, "due"))
    alive = dead | dict.fromkeys(("error", "since", "until") if asked.of_ended else ("error",))
    ended = dict.fromkeys((ID, *(each for each in WORDS if each not in OF_LOG)))
    counts: dict[str, int] = next(
        (each["counts"] for each in queues if each["queue"] == asked.queue), {}
    )

    def chip(says: str, path: str, *, on: bool, count: int | None = None) -> Document:
        return {"says": says, "path": path, "on": on, "count": count}

    choices: Document = {
        "queues": [
            chip(
                each["queue"],
                asked.path(queue=each["queue"], id=None),
                on=each["queue"] == asked.queue,
                count=sum(
                    each["counts"][name] for name in ("ready", "running", "scheduled", "parked")
                ),
            )
            for each in queues
        ],
        "states": [],
        "outcomes": [],
    }
    if asked.queue is not None:
        live = not asked.of_ended and not asked.job_id
        shown = ",".join(asked.filter.only_states) if live else None
        choices["states"] = [
            chip("all alive", asked.path(**alive, state=None), on=shown == ""),
            *(
                chip(
                    name,
                    asked.path(**{**(dead if name == "dead" else alive), "state": states}),
                    on=shown == states,
                    count=counts.get(name),
                )
                for name, states in _STATES
            ),
        ]
    if has_log:
        choices["outcomes"] = [
            chip(
                name.replace("_", " "),
                asked.path(**ended, outcome=name),
                on=said.get("outcome") == name,
            )
            for name in _OUTCOMES
            if asked.queue is not None or name not in (SUCCEEDED, "any")
        ]
    return choices


def _no_queue(facts: Facts, asked: PageQuery) -> str:
    if isinstance(facts.state, Unread):
        return ""
    if not facts.queues:
        return "no queues yet: the first job of a queue makes it"
    words = " ".join(f"{name}:…" for name, _ in asked.words)
    beside = f" beside {words}" if words else ""
    return f"choose a queue, or type queue:NAME{beside}, or the id of a job"
