"""The options by which a command selects many jobs, and the change of the selected jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rq_core.cli.options import actor, known_queues, print_json
from rq_core.cli.text import say
from rq_core.model.lib.text import counted

if TYPE_CHECKING:
    from rq_core.connections.client import Client
    from rq_core.model.filters.job_filter import Filter
    from rq_core.protocol.calls.admin import Change
    from rq_core.protocol.calls.bulk import BulkPlace, JobsChanged

F = TypeVar("F", bound=Callable[..., Any])

PROGRESS_S: Final = 2.0
"""Seconds between two lines about the progress of a change."""
WORD_OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "task": ("NAME", "Jobs of this task."),
    "state": ("STATE", "Jobs in this state, or in several, separated by commas."),
    "scope": ("SCOPE", "Jobs of this scope, like tenant=acme."),
    "older": ("TIME", "Jobs that have been in their state for this time, like 90s, 10m, 2h or 7d."),
    "error": ("TYPE", "Dead jobs that died of an error of this type."),
    "since": ("TIME", "Jobs that came into their state at this time or later, like 11:00 (UTC)."),
    "until": ("TIME", "Jobs that came into their state before this time, like '10m ago'."),
}
"""The options that are terms of a filter, each with the placeholder of its value and its help."""
PAIR_OPTIONS: Final[Mapping[str, str]] = {
    "header": "Jobs with this header; may be repeated.",
    "arg": "Jobs with this argument; may be repeated.",
}
OWN_OPTIONS: Final = ("where", "limit", "resume", "dry_run", "yes")


def filter_options(function: F) -> F:
    """Add to a command the options of a filter and of a change of many jobs."""
    options: list[Callable[[F], F]] = [
        click.option(f"--{word}", metavar=metavar, help=says)
        for word, (metavar, says) in WORD_OPTIONS.items()
    ]
    options += [
        click.option(f"--{word}", multiple=True, metavar="NAME=VALUE", help=says)
        for word, says in PAIR_OPTIONS.items()
    ]
    options += [
        click.option(
            "--where",
            metavar="FILTER",
            help="Further terms, like 'priority:low failed:3', as in the search box of the web page.",
        ),
        click.option("--limit", type=click.IntRange(1), metavar="N", help="Change at most N jobs."),
        click.option(
            "--resume", metavar="PLACE", help="Go on where a change was stopped, at this place."
        ),
        click.option("--dry-run", is_flag=True, help="Change nothing, and count the jobs."),
        click.option("--yes", is_flag=True, help="Change all jobs that match."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def split_options(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the options of a command into two dicts: the options of ``filter_options``, and all others."""
    own = {*WORD_OPTIONS, *PAIR_OPTIONS, *OWN_OPTIONS}
    return (
        {name: value for name, value in given.items() if name in own},
        {name: value for name, value in given.items() if name not in own},
    )


def check_either(ids: object, asked: Mapping[str, Any]) -> None:
    """Raise UsageError unless the operator gave job ids, or a filter together with --dry-run or --yes."""
    context = click.get_current_context()
    said = [name for name, value in asked.items() if value]
    if ids and said:
        raise click.UsageError(
            f"--{said[0].replace('_', '-')} does not go with ids of jobs", context
        )
    if not ids and not said:
        raise click.UsageError("give ids of jobs, or a filter with --dry-run or --yes", context)
    if not ids and asked["dry_run"] == asked["yes"]:
        raise click.UsageError(
            "give either --dry-run, which counts the jobs, or --yes, which changes them", context
        )


def filter_of(queue: str | None, asked: Mapping[str, Any]) -> Filter:
    """Return the filter that the options describe. Raises UsageError if it has no queue, or no further term."""
    from datetime import UTC, datetime

    from rq_core.model.filters.filter_text import terms_of
    from rq_core.model.filters.job_filter import Filter

    terms = [] if queue is None else [("queue", queue)]
    terms += [(word, asked[word]) for word in WORD_OPTIONS if asked[word] is not None]
    terms += [(word, pair) for word in PAIR_OPTIONS for pair in asked[word]]
    terms += [
        (term.word or term.text, term.value if term.word else "")
        for term in terms_of(asked["where"] or "")
    ]
    context = click.get_current_context()
    if not any(word == "queue" for word, _ in terms):
        raise click.UsageError("give --queue QUEUE: a change of many jobs is of one queue", context)
    found = Filter.of_terms(terms, now=datetime.now(UTC))
    if found.is_for_all:
        raise click.UsageError(
            "give another term than --queue: --state ready, for example, if all ready jobs are meant",
            context,
        )
    return found


def change_many(
    client: Client,
    verb: str,
    asked: Mapping[str, Any],
    given: Mapping[str, Any],
    edit: Change | None = None,
) -> None:
    """Change all jobs that match the options with ``verb``, and print how many were changed. With --dry-run, only count
    them.

    ``asked``: the options of the filter. ``given``: the other options. Raises ClickException if matching jobs are left.
    """
    from rq_core.protocol.calls.admin import Change
    from rq_core.protocol.calls.bulk import VERBS, BulkChange, BulkPlace

    wanted = filter_of(given["queue"], asked)
    known_queues(client, wanted.queue)
    change = BulkChange(
        VERBS[verb], wanted, edit or Change(), actor(given["by"]), given["reason"], asked["limit"],
        asked["dry_run"],
    )  # fmt: skip
    place = None if asked["resume"] is None else BulkPlace.parse(asked["resume"])
    progress = _Progress(change.verb.done[0], dry_run=change.dry_run)
    try:
        done = client.run(client.calls.bulk.run(change, place, progress))
    except KeyboardInterrupt:
        if progress.last is not None and not change.dry_run:
            say(
                f"rq-core: stopped; the same command with --resume '{progress.last}' goes on",
                err=True,
            )
        raise
    for why in done.damaged:
        say(f"rq-core: {why}", err=True)
    if given["as_json"]:
        print_json(_document(verb, wanted, done, dry_run=change.dry_run))
    else:
        say(_sentence(change.verb.done[0], done, dry_run=change.dry_run))
    _tell_left(done, change.verb.done[0], limited=asked["limit"] is not None)


class _Progress:
    """Prints the progress of a change every PROGRESS_S seconds."""

    def __init__(self, done: str, *, dry_run: bool) -> None:
        self._done = done
        self._dry_run = dry_run
        self._said_at = time.monotonic()
        self.last: BulkPlace | None = None
        """The place in the queue that the change has reached; None at the beginning."""

    def __call__(self, place: BulkPlace) -> None:
        self.last = place
        if time.monotonic() - self._said_at < PROGRESS_S:
            return
        self._said_at = time.monotonic()
        done = f"{place.matched:,} match" if self._dry_run else f"{place.changed:,} {self._done}"
        again = f", round {place.round}" if place.round > 1 else ""
        say(f"rq-core: {place.looked:,} read, {done}{again}", err=True)


def _sentence(done: str, made: JobsChanged, *, dry_run: bool) -> str:
    counts = ", ".join(f"{number:,} {word}" for word, number in sorted(made.outcomes.items()))
    if dry_run:
        verb = "matches" if made.matched == 1 else "match"
        return f"{counted(made.matched, 'job')} {verb}" + (f": {counts}" if counts else "")
    others = {word: n for word, n in sorted(made.outcomes.items()) if word != done}
    but = f" ({', '.join(f'{number:,} {word}' for word, number in others.items())})"
    return f"{counted(made.changed, 'job')} {done}{but if others else ''}, bulk {made.id}"


def _document(verb: str, wanted: Filter, made: JobsChanged, *, dry_run: bool) -> dict[str, Any]:
    return {
        "id": made.id,
        "verb": verb,
        "filter": str(wanted),
        "dry_run": dry_run,
        "matched": made.matched,
        "changed": made.changed,
        "outcomes": made.outcomes,
        "left": made.left,
        "looked": made.looked,
        "complete": made.complete,
    }


def _tell_left(made: JobsChanged, done: str, *, limited: bool) -> None:
    """Raise ClickException if matching jobs are left, and Exit with status 1 if jobs could not be read.

    ``done``: the participle of the change, such as "cancelled". ``limited``: True if the operator set a maximum number.
    """
    if made.left:
        why = "; ".join(_WHY[word] for word in _WHY if made.outcomes.get(word))
        raise click.ClickException(f"{counted(made.left, 'job')} not {done}: {why}")
    if not made.complete and not limited:
        raise click.ClickException(
            "jobs that match kept coming while the queue was read; the same command changes what is left"
        )
    if made.damaged:
        raise click.exceptions.Exit(1)


_WHY: Final = {
    "held": "another job has its name",
    "never": "it would become ready at its deadline or later",
}
