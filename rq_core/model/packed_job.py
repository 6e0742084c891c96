"""The form of a job in a row of the table ``rqc_inbox``. A producer inserts the row into its own database, and a relay,
a process of rq-core, reads the row and enqueues the job.

The columns ``queue``, ``job_id``, ``task`` and ``args`` are the job's; ``args`` is a JSON object without line breaks.
The column ``packed`` has all other options of the job, so that the relay does not need the task's code. It is a JSON
object of the fields below. Fields with their default values are left out. A row has no ``packed`` if it was inserted
without rq-core, or by a program without the task's code.

============  =============================================================================
priority      the priority's name
attempts      max_attempts; null: the worker's definition of the task decides
losses        max_losses; null has the same meaning
timeout       milliseconds of one attempt
delay         milliseconds from ``created_at`` until the job becomes ready
due           Unix ms at which the job becomes ready, in place of ``delay``
lane, full    the job's lane, and the rules for full scopes; only ``discard`` is allowed
spec_max      the most bytes of the job's JSON that its event keeps
headers       its headers, an object of strings
ties          its deadline, remembered id, kept result, costs and others (see ``ties_of`` in ``model.job``)
name          the name that no other job may have at the same time (``name`` of NewJob)
call          the digest of task and arguments: another call with the job's id must have it (``call`` of NewJob)
============  =============================================================================

>>> job = NewJob("j-1", "mail", profile("send"), '{"to":"a@b.c"}', delay_ms=60_000)
>>> pack(job)
'{"delay":60000}'
>>> unpack(pack(job), queue="mail", job_id="j-1", task="send", args='{"to":"a@b.c"}', age_ms=45_000).delay_ms
15000
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from rq_core.errors import RqCoreError
from rq_core.model.headers import headers_json
from rq_core.model.job import NewJob, Profile, profile
from rq_core.model.keys import check_name
from rq_core.model.limits.costs import read_costs
from rq_core.model.limits.scopes import SCOPE_PATTERN
from rq_core.model.result_encoding import FULL
from rq_core.model.settings import AUDIT_PAYLOADS
from rq_core.model.table.fields import GIVEN, WORD_LENGTH_MAX, FieldKind
from rq_core.model.table.machine import Priority
from rq_core.model.unique_names import check_unique_name

MS_MAX: Final = 10**14 - 1
"""The greatest number of milliseconds in a duration or an instant: Lua prints whole numbers exactly if they have at
most 14 digits."""
_USUAL: Final = Profile("any")
_LANE: Final = re.compile(rf"[0-3](?:\+{SCOPE_PATTERN})+")
_FULL: Final = re.compile(rf"discard\|{SCOPE_PATTERN}(?:\|[0-9]{{1,7}})?")
_CALL: Final = re.compile(r"=(?:[0-9a-f]{32})?")
_WORD: Final = re.compile(rf"\S{{1,{WORD_LENGTH_MAX}}}")
_WORDS: Final = {"unique": ("keep", "replace"), "audit": (FULL,)}
"""The ties (options in a job's field ``ties``) whose values are words, each with the words that are valid in a row.
``reject`` is not valid in a row: when the relay enqueues the job, no producer waits for the error."""
_TRAITS: Final = {field.line: field.kind for field in GIVEN}
"""The ties (options in a job's field ``ties``) that the event ``enqueued`` records as fields, each with its kind:
number or text."""
_TIES: Final = (
    "expires_in", "expires_at", "window", "after", "most", "remember", "cost", *_TRAITS, *_WORDS,
)  # fmt: skip


class Unreadable(ValueError):
    """Raised for a row that is not a valid job. The exception's text is the reason."""


def pack(job: NewJob) -> str:
    """Return the value of the column ``packed`` for a job's row."""
    given = job.profile
    said: dict[str, Any] = {}
    if given.priority is not _USUAL.priority:
        said["priority"] = given.priority
    if given.max_attempts != _USUAL.max_attempts:
        said["attempts"] = given.max_attempts
    if given.max_losses != _USUAL.max_losses:
        said["losses"] = given.max_losses
    others = {
        "timeout": given.timeout_ms,
        "delay": job.delay_ms,
        "due": job.due_ms,
        "lane": job.lane,
        "full": job.full,
        "spec_max": job.spec_max,
        "headers": json.loads(job.headers_json) if job.headers_json else None,
        "ties": json.loads(job.ties) if job.ties else None,
        "name": job.name,
        "call": job.call,
    }
    said |= {name: value for name, value in others.items() if value}
    return json.dumps(said, separators=(",", ":"))


def unpack(
    packed: str, *, queue: str, job_id: str, task: str, args: str, age_ms: int = 0
) -> NewJob:
    """Return the job of a row. Raises Unreadable if the row is not a valid job.

    ``age_ms`` is the time since the row was inserted, by the database's clock. A delay counts from the insertion, and
    so does a deadline that is a duration. A deadline that has passed becomes 1 ms: the job is enqueued, expires, and
    the log records its end.
    """
    try:
        check_name("job", job_id)
        _check_args(args)
        job = _without_arguments(packed, task, queue)
        if age_ms > 0 and (job.delay_ms or "expires_in" in job.ties):
            job = _aged(job, age_ms)
        # As `_replace` does, in a third of the time: a relay does this for every row.
        return NewJob(job_id, queue, job.profile, args, *job[4:])
    except RqCoreError as error:
        raise Unreadable(str(error)) from None


def _refuse(constant: str) -> None:
    raise ValueError(f"it has {constant}")


# What `json.loads` uses, without what it does around that: half of its time, for arguments as they usually are.
_read_value: Final = json.JSONDecoder(parse_constant=_refuse).scan_once  # type: ignore[attr-defined]


def _check_args(args: str) -> None:
    if "\n" in args or "\r" in args or not args.startswith("{"):
        raise Unreadable("args is not a JSON object without line breaks")
    try:
        if not args.isascii():
            args.encode()
        _, end = _read_value(args, 0)
    except StopIteration as error:
        raise Unreadable(f"args is not JSON: character {error.value}") from None
    except UnicodeEncodeError:
        raise Unreadable("args is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"args is not JSON: {error}") from None
    if end != len(args):
        raise Unreadable(f"args is not JSON: it goes on at character {end}")


@lru_cache(maxsize=4096)
def _without_arguments(packed: str, task: str, queue: str) -> NewJob:
    """Return a job without its id and arguments. The result is cached, because many rows have this part in common."""
    check_name("queue", queue)
    try:
        packed.encode()
        said: Any = json.loads(packed)
    except UnicodeEncodeError:
        raise Unreadable("packed is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"packed is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise Unreadable("packed is not a JSON object")
    ties = _ties(said.pop("ties", None))
    headers = said.pop("headers", None)
    shape = profile(
        task,
        Priority(_text(said, "priority", list(Priority), _USUAL.priority)),
        _limit(said, "attempts", _USUAL.max_attempts),
        _limit(said, "losses", _USUAL.max_losses),
        _number("timeout", said.pop("timeout")) if "timeout" in said else None,
    )
    job = NewJob(
        "", queue, shape, "",
        delay_ms=_number("delay", said.pop("delay", 0)),
        due_ms=_number("due", said.pop("due", 0)),
        lane=_matching(said, "lane", _LANE),
        full=_full(said),
        spec_max=_number("spec_max", said.pop("spec_max", 0), max(AUDIT_PAYLOADS.values())),
        headers_json=headers_json(headers) if headers is not None else "",
        ties=json.dumps(ties, separators=(",", ":")) if ties else "",
        name=said.pop("name", ""),
        call=_matching(said, "call", _CALL),
    )  # fmt: skip
    if said:
        raise Unreadable(f"packed has a field that this release does not know: {min(said)!r}")
    _check_together(job, ties)
    return job


def _check_together(job: NewJob, ties: Mapping[str, Any]) -> None:
    """Raise Unreadable if parts of a job contradict each other. Without this check, the queue would refuse the whole
    call that contains this job."""
    if job.name:
        if not isinstance(job.name, str):
            raise Unreadable("packed has a name that is no text")
        check_unique_name(job.name)
    if bool(job.name) != ("unique" in ties):
        raise Unreadable("packed has a unique name without its rule, or the rule without the name")
    if bool(job.call) != ("remember" in ties):
        raise Unreadable("packed has an id to remember without its call, or the call without it")
    if ("after" in ties) != ("most" in ties):
        raise Unreadable("packed has only one of the ties after and most")
    if job.full and not job.lane:
        raise Unreadable("packed has rules for full scopes, and no scopes")


def _aged(job: NewJob, age_ms: int) -> NewJob:
    ties: dict[str, Any] = json.loads(job.ties) if job.ties else {}
    if "expires_in" in ties:
        ties["expires_in"] = max(ties["expires_in"] - age_ms, 1)
    said = json.dumps(ties, separators=(",", ":")) if ties else ""
    return job._replace(delay_ms=max(job.delay_ms - age_ms, 0), ties=said)


def _ties(ties: object) -> dict[str, Any]:
    if ties is None:
        return {}
    if not isinstance(ties, dict):
        raise Unreadable("packed has ties that are no object")
    for name, value in ties.items():
        if name not in _TIES:
            raise Unreadable(f"packed has a tie that this release does not know: {name!r}")
        if name in _WORDS:
            if value not in _WORDS[name]:
                raise Unreadable(
                    f"packed has {name}={value!r}: must be {' or '.join(_WORDS[name])}"
                )
        elif name == "cost":
            try:
                read_costs(value)
            except (TypeError, ValueError):
                raise Unreadable(f"packed has {name}={value!r}: must be like tokens:1500") from None
        elif _TRAITS.get(name, FieldKind.NUMBER) is FieldKind.NUMBER:
            _number(name, value)
        elif not isinstance(value, str) or not _WORD.fullmatch(value):
            raise Unreadable(
                f"packed has {name}={value!r}: must be a text without spaces, of {WORD_LENGTH_MAX} characters at most"
            )
    return ties


def _number(name: str, value: object, most: int = MS_MAX) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise Unreadable(f"packed has {name}={value!r}: must be a whole number from 0 to {most}")
    return value


def _limit(said: dict[str, Any], name: str, usual: int | None) -> int | None:
    value = said.pop(name, usual)
    return None if value is None else _number(name, value)


def _text(said: dict[str, Any], name: str, known: list[Any], usual: str) -> str:
    value = said.pop(name, usual)
    if value not in known:
        raise Unreadable(f"packed has {name}={value!r}: must be one of {', '.join(known)}")
    return str(value)


def _matching(said: dict[str, Any], name: str, pattern: re.Pattern[str]) -> str:
    value = said.pop(name, "")
    if value != "" and not (isinstance(value, str) and pattern.fullmatch(value)):
        raise Unreadable(f"packed has an invalid {name}: {value!r}")
    return str(value)


def _full(said: dict[str, Any]) -> str:
    value = said.pop("full", "")
    if value != "" and not (isinstance(value, str) and all(map(_FULL.fullmatch, value.split(" ")))):
        raise Unreadable(f"packed has invalid rules for full scopes: {value!r}")
    return str(value)
