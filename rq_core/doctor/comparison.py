"""Compares a queue's indexes with the expected indexes, and groups the differences by owner, such as a job, a lane or a
name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rq_core.doctor import result_check
from rq_core.doctor.box_faults import SHOWN_MAX, BoxFaults
from rq_core.doctor.finding import LOWER, Edit, Finding, Kind
from rq_core.doctor.image import LISTS, AnyValue, AtLeast, Image, Want, place_in_line
from rq_core.doctor.rate_check import breaker_reason
from rq_core.doctor.snapshot import View
from rq_core.model.durable.boxes import header_in, life_of
from rq_core.model.keys import KEY_TYPES
from rq_core.model.lib.text import counted
from rq_core.model.limits.breakers import is_breaker
from rq_core.model.limits.scopes import is_rate
from rq_core.model.showing.shown import id_in_field
from rq_core.model.state_line import StoredJob
from rq_core.model.unique_names import is_name_field, name_field, name_in, read_holder

Owner = tuple[str, str]
"""The owner of a member of an index, as (kind, name): a job, a lane, a call slot, a rate, a field of `meta`…"""

_MAY_HAVE_MORE: Final = frozenset({"state", "fair", "meta", *LISTS})
"""Keys that may have members which the doctor does not derive. In a list, such a member is a tombstone: an entry whose
job no longer waits there."""
_FACTS: Final = {
    "sequence": "the highest place in line that was assigned",
    "tombstones": "the number of list entries without a waiting job",
    "ties": "1 if jobs have had deadlines, names, remembered ids or kept results",
    "remembers": "1 if jobs have had remembered ids or kept results",
    "kept_bytes": "the bytes of kept results, with their overhead",
    "results_bytes": "the bytes of all fields of `results`",
    "caps_by_task": "1 if limits of tasks are stored",
    "caps_by_key": "1 if limits of keys are stored",
    "schedules": "1 if the queue has had schedules",
    "durable": "1 if the queue has had durable jobs",
    "shows": "1 if jobs have shown their progress, or chunks of a stream",
}

_OWNERS: Final = {
    "meta": "fact", "results": "id", "kept": "id", "returned": "id", "rates": "rate", "fair": "key",
    "ticks": "schedule",
}  # fmt: skip
"""Key → kind of the owner of its members. ``owner_of`` has rules for some further keys. The members of all remaining
keys belong to jobs."""


def owner_of(key: str, member: str) -> Owner:
    """Return the owner (kind, name) of a member of an index."""
    if key in ("scheduled", "expiring"):
        kind, _, name = member.partition("|")
        kinds = {
            "job": "job",
            "dead": "job",
            "slot": "call slot",
            "rate": "rate",
            "name": "name",
            "tick": "first tick",
            "box": "box",
            "shown": "stream",
        }
        return (kinds[kind], name) if kind in kinds else ("member", member)
    if key == "blocked":
        return "lane", member.split("|", 2)[-1]
    if key in ("lanes", "open"):
        return "lane", member
    if key == "boxes":
        return "box", life_of(member)
    if key == "shown":
        return "stream", id_in_field(member)
    if key == "slots":
        return "name", member.partition("|")[2]
    return _OWNERS.get(key, "job"), member.rpartition("|")[2]


def edits_by_owner(image: Image) -> dict[Owner, list[Edit]]:
    """Return owner → the edits that make the owner's members in the indexes match the expected ones."""
    found: dict[Owner, list[Edit]] = defaultdict(list)
    unknown = set(_unknown(image))
    for key, wanted in image.indexes.items():
        actual = image.view.snapshot[key]
        if key in LISTS:
            actual = dict.fromkeys(actual, "")
        for member, want in wanted.items():
            edit = _compare(key, member, actual.get(member), want)
            if edit is not None:
                found[owner_of(key, member)].append(edit)
        more = [] if key in _MAY_HAVE_MORE else [each for each in actual if each not in wanted]
        if key == "slots":
            more = [
                each
                for each in more
                if is_name_field(each) and ("job", read_holder(actual[each]).job_id) not in unknown
            ]
        for member in more:
            owner = owner_of(key, member)
            if owner not in unknown and not _returns(key, member):
                found[owner].append(Edit(key, member, as_text(actual[member]), ""))
    return found


def _compare(key: str, member: str, actual: Any, want: Want) -> Edit | None:
    if isinstance(want, StoredJob):
        return None if actual is not None else Edit(key, member, "", str(place_in_line(want)))
    if isinstance(want, AtLeast):
        if _number(actual) < want.value:
            return Edit(key, member, LOWER, str(want.value))
        is_higher = want.most is not None and _number(actual) > want.most
        return Edit(key, member, as_text(actual), str(want.value)) if is_higher else None
    if isinstance(want, AnyValue):
        is_lost = actual is None and want.fresh is not None
        is_late = actual is not None and want.most is not None and actual > want.most
        is_early = actual is not None and want.least is not None and actual < want.least
        edit = Edit(key, member, as_text(actual), str(want.fresh))
        return edit if is_lost or is_late or is_early else None
    return None if actual == want else Edit(key, member, as_text(actual), str(want))


def is_kept(edit: Edit, now: Mapping[tuple[str, str], str]) -> bool:
    """Return whether a member still has the value from which ``edit`` was derived. The values are compared as
    repair.lua compares them.

    ``now``: (key, member) → current value; a member that is not in ``now`` counts as unchanged.
    """
    actual = now.get((edit.key, edit.member), edit.was)
    if edit.was == LOWER:
        return actual == LOWER or _number(actual) < float(edit.value)
    if actual == edit.was or KEY_TYPES.get(edit.key) != "zset" or "" in (actual, edit.was):
        return actual == edit.was
    return float(actual) == float(edit.was)


def _number(actual: Any) -> float:
    """Return a stored number; 0 if it is missing, -1 if its text is not a number."""
    if isinstance(actual, str):
        is_number = actual.isascii() and actual.isdigit() and len(actual) < 19
        return int(actual) if is_number else -1
    return float(actual or 0)


def as_text(value: Any) -> str:
    """Return a member's value as text, in the form of ``Edit.was``; empty if there is no value."""
    return f"{value:.17g}" if isinstance(value, float) else value or ""


def _returns(key: str, member: str) -> bool:
    """Return whether claims need this member of `scheduled`, which does not belong to a job: it marks when to check a
    rate, or when to continue a change of limits."""
    kind, _, rest = member.partition("|")
    at_rest = (kind == "rate" and is_rate(rest)) or (kind == "caps" and "|" in rest)
    return key == "scheduled" and at_rest


def _unknown(image: Image) -> Iterator[Owner]:
    """Yield the owners that cannot be compared: jobs whose state Redis does not show, and lanes in which these jobs may
    wait."""
    unreadable = image.view.unreadable.keys() - image.jobs.keys() | image.view.untold.keys()
    for job_id in unreadable:
        yield "job", job_id
    for member in image.view.snapshot["waiting"] if unreadable else ():
        if member.rpartition("|")[2] in unreadable:
            yield "lane", member.split("|")[0]


def guarded(image: Image, owner: Owner, edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Return an owner's edits, preceded by guards: edits that change nothing, of the members from which the other edits
    were derived.

    If a guarded member has changed since, repair.lua makes none of the edits.
    """
    view, (kind, name) = image.view, owner
    edits = tuple(edits)
    changed = {(edit.key, edit.member) for edit in edits}
    first = [job_id for _, job_id in image.lanes.get(name, ())[:1]]
    first += filter(None, [view.heads.get(name, "").rpartition("|")[2]])
    rests_on = {
        "job": [("line", name)],
        # A job that enters an empty lane may change only the lane's head.
        "lane": [
            ("head", name),
            ("lanes", name),
            *(("line", each) for each in dict.fromkeys(first)),
        ],
        "id": [("line", name), ("results", name)],
        "call slot": [("slots", name)],
        "rate": [("rates", name), ("expiring", f"rate|{name}")],
        "schedule": [("schedules", name)],
        "box": [("boxes", name), *(("line", job_id) for job_id in _jobs_of_box(image, name))],
        "stream": [("line", name), ("shown", name)],
        "name": [("slots", name_field(name)), *_holders(view, name_field(name), edits)],
    }
    read_alone = {"head": view.heads, "line": view.standing}
    kept = []
    for key, member in rests_on.get(kind, ()):
        if (key, member) not in changed:
            actual = read_alone[key] if key in read_alone else view.snapshot[key]
            was = as_text(actual.get(member))
            kept.append(Edit(key, member, was, was))
    return (*kept, *edits)


def _jobs_of_box(image: Image, life: str) -> Iterator[str]:
    """Yield the jobs whose state lines name this box (saved steps of a job), and the job in the box's header."""
    named = [i for i, job in image.jobs.items() if job.fields.get("life") == life]
    header = header_in(image.view.snapshot["boxes"].get(life))
    yield from dict.fromkeys([*named, *([header.job_id] if header else [])])


def _job_of_box(image: Image, life: str) -> str | None:
    """Return the id of the job of a box (saved steps): the job whose state line names the box, else the job in the
    box's header. Return None if there is neither."""
    header = header_in(image.view.snapshot["boxes"].get(life))
    return image.box_owners.get(life) or (header and header.job_id)


def _holders(view: View, field: str, edits: Iterable[Edit]) -> list[tuple[str, str]]:
    """Return (key, member) pairs for the state lines of the jobs that hold a unique name: the holder in `slots` now,
    and the holder after the edits."""
    values = [view.snapshot["slots"].get(field, ""), *(e.value for e in edits if e.key == "slots")]
    return [("line", read_holder(value).job_id) for value in dict.fromkeys(values) if value]


def index_findings(image: Image, differing: Mapping[Owner, list[Edit]]) -> Iterator[Finding]:
    """Yield one finding for each owner whose members in the indexes differ.

    ``differing``: owner → the edits that correct its members.
    """
    doubts = _doubts(image) if any(kind == "name" for kind, _ in differing) else {}
    for owner, edits in differing.items():
        kind, name = owner
        faults = image.box_faults.get(name) if kind == "box" else None
        if faults is not None and faults.says:
            yield box_finding(image, faults, edits)
            continue
        says = "; ".join([*_reasons(image, owner, edits), *(_says(image, name, e) for e in edits)])
        if (why := doubts.get(owner)) is not None:
            says = f"{says}; {why}"
            edits = [edit._replace(value=edit.was) for edit in edits]  # noqa: PLW2901
        yield Finding(
            Kind.INDEX,
            f"{_subject(image, owner)}: {says}",
            name if kind == "job" else _job_of_box(image, name) if kind == "box" else None,
            guarded(image, owner, edits),
            owner,
        )


def _doubts(image: Image) -> dict[Owner, str]:
    """Return owner → reason, for unique names whose holding times must not be corrected from the log."""
    slots, instants = image.view.snapshot["slots"], image.instants
    holders = {field: read_holder(slots[field]).job_id for field in instants}
    whys = image.view.log.distrust_ends(
        {i: instants[field] is None for field, i in holders.items()}
    )
    return {("name", name_in(field)): whys[i] for field, i in holders.items() if i in whys}


def box_finding(image: Image, faults: BoxFaults, edits: Iterable[Edit]) -> Finding:
    """Return the finding about a box (saved steps of a job) that differs from the log. Without ``edits``, the finding
    says what to do by hand."""
    owner, edits = ("box", faults.life), tuple(edits)
    boxes, shown = image.view.snapshot["boxes"], faults.says[:SHOWN_MAX]
    more = len(faults.says) - len(shown)
    says = f"the box of job {faults.job_id} differs from the log: {'; '.join(shown)}"
    says += f"; and {more} more" if more else ""
    if not edits:
        kept = [(name, boxes.get(name, "")) for name in list(faults.members)[:SHOWN_MAX]]
        edits = tuple(Edit("boxes", name, is_, is_) for name, is_ in kept)
        says += f"; {faults.distrusted or 'cancel the job, or write the true value back'}"
    is_part = faults.is_part and faults.is_mendable
    return Finding(
        Kind.BOX_DIFFERS,
        says,
        faults.job_id,
        guarded(image, owner, edits),
        owner,
        is_part=is_part,
    )


def _subject(image: Image, owner: Owner) -> str:
    kind, name = owner
    if kind == "job":
        job = image.jobs.get(name)
        in_lane = f" in lane {job.lane}" if job and job.lane else ""
        return f"job {name} is {job.state}{in_lane}" if job else f"there is no job {name!r}"
    if kind == "lane":
        return f"lane {name}, where {counted(len(image.lanes.get(name, ())), 'job waits', 'jobs wait')}"
    if kind == "box" and (job_id := _job_of_box(image, name)) is not None:
        return f"box {name!r} of job {job_id}"
    return f"{kind} {name!r}" + (f" ({_FACTS[name]})" if kind == "fact" else "")


def _reasons(image: Image, owner: Owner, edits: Iterable[Edit]) -> Iterator[str]:
    kind, name = owner
    if kind == "lane" and name in image.kept_waiting:
        yield f"scope {image.kept_waiting[name]} has room, but no event would open the lane"
    if kind == "rate" and is_breaker(name) and any(edit.key == "rates" for edit in edits):
        yield breaker_reason(image.view, name)
    elif kind == "rate" and any(edit.key == "rates" for edit in edits):
        lost = any(edit.key == "rates" and not edit.was for edit in edits)
        yield (
            "the time until which the rate is exhausted is missing"
            if lost
            else "the rate is exhausted for longer than its limit allows: the clock went back"
        )
    if kind == "id":
        yield from result_check.reasons(image.view, name, edits)
    if kind == "name" and (field := name_field(name)) in image.instants:
        at_ms = image.instants[field]
        yield (
            "by the log no job can hold it"
            if at_ms is None
            else f"it is held until {at_ms} by the log"
        )


def _says(image: Image, name: str, edit: Edit) -> str:
    what = "it" if edit.member == name else repr(edit.member)
    actual = {} if edit.key in LISTS else image.view.snapshot[edit.key]
    if edit.member not in actual:
        return f"`{edit.key}` lacks {what}"
    has = f"`{edit.key}` has {what}"
    return f"{has} at {as_text(actual[edit.member])!r}, not {edit.value!r}" if edit.value else has
