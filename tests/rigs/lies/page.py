"""Writes the page docs/lies.md, which says which lies each judge finds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.rigs.lies.judges import JUDGES
from tests.rigs.lies.kinds import OF_REDIS, OF_ROWS, OF_SCHEMA
from tests.rigs.lies.run import PART, Outcome

PAGE: Final = Path(__file__).parents[3] / "docs" / "lies.md"
_FITS: Final = ", the chain fits"

_HEAD: Final = """\
<!-- Written by scripts/prove/lies, which saw what it says. Do not edit. -->
# Lies

Changes to an audit database that nobody may make, made on purpose by someone who may do everything, and who finds them.
The schema alone makes them: each kind is applied to every table, column, view, trigger, index and constraint. The log
is one that Redis forgot once, that was pruned, and that has an entry in quarantine. A lie in rows is told a second time
with digests, heads and cursors that fit it (*the chain fits*), by someone who knows how the chain is made. Lies about
durable jobs are made by hand: in the events of a job, and in its box in Redis.

- `verify` reads SQL alone; `--redis` and `doctor` compare what is alive, what the outbox still has, and kept results,
  with Redis.
- `--head` is `verify` with the heads that `rq-core audit head` printed before.
- *found*: the exit status is 1, or it is 2 where the database cannot be read any more. *Found or refused*: the
  database itself refuses some, on PostgreSQL by its CHECKs, which SQLite lets a connection ignore.

`scripts/prove/lies` tells all of them on SQLite; on PostgreSQL all in the schema and {part} of those in rows, since
both give `verify` the same rows. CI runs a short form.

The columns show what each finds alone: `--redis` and `--head` are options of `verify`. What they and the doctor miss,
`verify` finds, but for the table at the end, which names each such lie, who finds it, and why `verify` does not.

{count} lies; {refused} were refused; {missed} were found by neither `verify` nor `--head`.

| lie | `verify` | `--redis` | `--head` | `doctor` |
|---|---|---|---|---|
"""

REASONS: Final = {
    "audit_meta": "each chain begins with the database's name, so all heads differ: keep heads elsewhere",
    "audit_meta.place": "where the database is: a mirror compares it when it starts, and refuses a copy",
    "mirror_proof": "the record of earlier checks, for people; `prune` proves the log itself",
    "mirror_epoch.id": "only the order of rows, and that is proved",
    "mirror_loss.id": "only the order of rows, and that is proved",
    "mirror_prune.id": "only the order of rows, and that is proved",
    "quarantine.id": "only the order of rows, and that is proved",
    "mirror_cursor.prefix": "a queue without a source is compared with none: the next mirror of the queue takes it",
    "mirror_cursor.stamp": "a queue without a source is compared with none: the next mirror of the queue takes it",
    "job_throttled": "no row of this log belongs into the index",
    "job_remembered": "no row of this log belongs into the index",
    "a step ": (
        "no event contradicts it, so only the head behind it proves it: keep heads elsewhere. While the job is alive,"
        " its box in Redis shows it"
    ),
    **dict.fromkeys(
        ("an entry ", "two entries ", "a value ", "a sleep ", "a signal ", "the header "),
        "a box is in Redis, and `verify` reads SQL alone: `--redis` and the doctor compare it with the log",
    ),
    "q": "nothing of the queue is left in SQL: a head kept elsewhere shows it, or Redis",
    "mirror_batch": "what a batch says of itself is proved only by the head behind it: keep heads elsewhere",
    "quarantine": "what was set aside is proved only by the head of its batch: keep heads elsewhere",
    "mirror_loss": "what no event shows is proved only by the head of its batch: keep heads elsewhere",
    "mirror_prune": (
        "the record of a prune is proved only by the head of its batch: keep heads elsewhere. Exchanged, its two rows "
        "say that the prune is under way, and `verify` that it cannot tell (exit status 2)"
    ),
    "mirror_epoch": "what no event shows is proved only by the head of its batch: keep heads elsewhere",
    "job_event": "no row of a job depends on it, so only the head behind it proves it: keep heads elsewhere",
    "claim_minute": "of what was pruned only the minute is left: its times are not known",
}
"""The reasons why `verify` alone does not find a lie, by the beginning of the changed place. The longest matching
beginning counts."""


def page(told: Sequence[Outcome]) -> str:
    """Return the text of docs/lies.md."""
    refused = sum(outcome.refused for outcome in told)
    missed = [o for o in told if not (o.refused or o.found["verify"] or o.found["--head"])]
    text = _HEAD.format(part=f"one in {PART}", count=len(told), refused=refused, missed=len(missed))
    for kind in (*OF_ROWS, *OF_SCHEMA, *OF_REDIS):
        for chain in (False, True):
            rows = [o for o in told if (o.kind, o.chain) == (kind, chain)]
            if rows:
                cells = " | ".join(_cell(rows, judge) for judge in JUDGES)
                text += f"| {kind}{_FITS if chain else ''} | {cells} |\n"
    text += "\n## What `verify` does not find\n\n"
    text += "| lie | found by | about | why not by `verify` |\n|---|---|---|---|\n"
    return text + "".join(_lines(told))


def _cell(rows: Sequence[Outcome], judge: str) -> str:
    open_ = [o for o in rows if not o.refused]
    found = sum(o.found[judge] for o in open_)
    if found == len(open_):
        return "found" if len(open_) == len(rows) else "found or refused"
    if not found:
        return "not found"
    return f"{found} of {len(open_)}"


class Missing(NamedTuple):
    """A lie that `verify` does not find."""

    lie: str
    about: str
    by: str
    """The judges apart from `verify` that find the lie."""

    def is_on(self, written: str) -> bool:
        """Return whether the text of the page lists this lie, with the same judges."""
        begin = f"| {self.lie} | {self.by} | "
        return any(
            line.startswith(begin) and f"`{self.about}`" in line for line in written.splitlines()
        )


def missing(told: Iterable[Outcome]) -> list[Missing]:
    """Return the lies that `verify` does not find, and the other judges that find them on every tested database."""
    by: defaultdict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in told:
        if not outcome.refused and not outcome.found["verify"]:
            by[outcome.kind + (_FITS if outcome.chain else ""), outcome.about].append(outcome)
    return [
        Missing(
            lie,
            about,
            ", ".join(f"`{j}`" for j in JUDGES if all(o.found[j] for o in rows)) or "nobody",
        )
        for (lie, about), rows in sorted(by.items())
    ]


def _lines(told: Iterable[Outcome]) -> Iterator[str]:
    by: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for each in missing(told):
        by[each.lie, each.by, reason(each.about)].append(f"`{each.about}`")
    for (lie, judges, why), abouts in by.items():
        yield f"| {lie} | {judges} | {', '.join(abouts)} | {why} |\n"


def reason(about: str) -> str:
    """Return why `verify` cannot find a lie about this place. Raises KeyError if no reason is written down."""
    known = [begin for begin in REASONS if about.startswith(begin)]
    return REASONS[max(known, key=len)] if known else REASONS[about]
