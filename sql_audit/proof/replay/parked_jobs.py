"""Checks the events about signals and waits of durable jobs. A job that waits or sleeps is parked: it has no claim.

- I21: a job's signals have the numbers 1, 2, 3…, and the job's waits take each signal at most once, in order.
- I22: a job parks only for waits and sleeps that are not over.
- I23: a job is woken only by a signal for which it waits, or at the end of its wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rq_core.model.durable.boxes import KEY_PATTERN, MAP_PREFIX, OVER, SIGNAL_PATTERN, signal_of
from rq_core.model.lib.text import bytes_of
from rq_core.model.outcome import REASONS
from rq_core.model.table.machine import Event, State
from rq_core.model.unique_names import digest_of
from sql_audit.proof.event_details import facts_in
from sql_audit.proof.replay.contradictions import Fault
from sql_audit.proof.replay.live_job import Record
from sql_audit.proof.replay.mail import Signals, WaitingEntry
from sql_audit.store.job_rows import EventRow

Facts = Mapping[str, Any]
_SIGNAL: Final = re.compile(SIGNAL_PATTERN)
_KEY: Final = re.compile(KEY_PATTERN)
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")
_NOT_KEPT: Final = REASONS | {OVER}
_PARKED: Final = str(State.PARKED)


def send(row: EventRow, record: Record) -> Iterator[Fault]:
    """Add a signal to its job, from an event ``signalled``, and yield the event's faults."""
    facts, mail = facts_in(row[10]), record.mail
    if record.life is not None and facts["life"] != record.life:
        if _is_moved(row, record):
            record.entries = None
        else:
            yield "I21", f"is in box {facts['life']}, the job's is {record.life}"
        record.mail = mail = None
    record.life = facts["life"]
    yield from judge_value(facts, "I21")
    if _SIGNAL.fullmatch(facts["name"]) is None:
        yield "I21", f"is named {facts['name']!r}, and no signal can have this name"
    if facts.get("key") is not None and _KEY.fullmatch(facts["key"]) is None:
        yield "I21", f"has the key {facts['key']!r}, and no signal can have this key"
    if mail is None:
        return
    number, name, key = facts["message"], facts["name"], facts.get("key")
    last = None if key is None else mail.keys.get(key)
    if last is not None and mail.forget(last[0], name, facts["digest"]):
        # Redis had lost the signal, and its sender sends it again: a script broke off after it wrote the event, or a
        # failover took the signal. The number is new if a restore put the box back.
        numbers = {last[0]} if last[1] == row[1] else {last[0], mail.sent + 1}
    else:
        numbers = {mail.sent + 1}
        if last is not None:
            yield "I21", f"is sent with the key {key}, which came before"
    if number not in numbers:
        yield "I21", f"is signal {number}, the one before was {mail.sent}"
    mail.receive(number, name, key, facts["digest"], facts.get("bytes"), row[1])
    entries = [mail.waits.get(each) for each in _numbers(record.waits)]
    if record.state == _PARKED and any(
        each and each.kind == "wait" and signal_of(each.name) == name for each in entries
    ):
        mail.ripe = mail.ripe or row


def _is_moved(row: EventRow, record: Record) -> bool:
    """Return whether a job has got a new box, because Redis has lost the old one. (A box has the job's steps and
    signals.)

    A signal has then begun the new box, and the worker of the claim in force uses it. The claim is older than the
    epoch. The steps and signals of the lost box are not judged.
    """
    is_holder = record.worker is not None and row[8] == record.worker
    return is_holder and not record.entries and is_older(record.fence, row[1])


def forget_box_put_back(row: EventRow, facts: Facts, record: Record) -> None:
    """Forget a job's steps and signals if an event has a higher number of a step or a signal than the next one.

    Redis has then lost events about the job's box, and a restore has put the lost steps and signals back. The job may
    then park for a wait that was put back.
    """
    entries, mail, entry = record.entries, record.mail, facts.get("entry")
    message, is_sent = facts.get("message"), entry is None
    if row[4] == Event.PARKED:
        entry = max(_numbers(facts["waits"]), default=0) + 1
    if not is_sent and is_older(facts.get("fence"), row[1]):
        message = (
            None  # The worker itself may put back a wait that has taken a signal: see end_wait.
        )
    if (entries is not None and entry is not None and entry > len(entries) + 1) or (
        mail is not None and message is not None and message > mail.sent + is_sent
    ):
        record.entries = record.mail = None


def lose(row: EventRow, record: Record) -> Iterator[Fault]:
    """Replay an event ``signal_lost``: remove the signal from the signals of its job. Yield a fault if no such signal
    waits."""
    facts, mail = facts_in(row[10]), record.mail
    if mail is not None and facts["life"] == record.life and not mail.lose(facts["message"]):
        yield "I21", f"is about signal {facts['message']}, and no such signal waits"


def judge_value(facts: Facts, invariant: str) -> Iterator[Fault]:
    """Yield a fault if an event about a step or a signal has an impossible digest or size, or a value that does not fit
    them.
    """
    value, digest, size = facts.get("value"), facts.get("digest"), facts.get("bytes")
    is_kept = _DIGEST.fullmatch(str(digest)) is not None
    if digest is None:
        return
    if not is_kept and digest not in _NOT_KEPT:
        yield invariant, f"has digest {digest!r}, and no value has such a digest"
    elif is_kept is (size is None):
        yield invariant, f"has digest {digest}, and {'no' if is_kept else 'a'} number of bytes"
    if value is None:
        return
    found = digest_of(value)
    if found != digest:
        yield invariant, f"has digest {digest}, and its value has {found}"
    elif (found_size := len(bytes_of(value))) != size:
        yield invariant, f"has {size} bytes, and its value has {found_size}"


def begin_wait(row: EventRow, facts: Facts, record: Record) -> Iterator[Fault]:
    """Add a wait or a sleep to its job, from an event ``step_begun``, and yield the event's faults. Another step is not
    added; it is a fault if such a step has a time at which it ends.
    """
    mail, kind, until_ms = record.mail, facts.get("kind"), facts.get("until_ms")
    if kind is None and until_ms is not None:
        yield "I22", f"is a step, and waits until {until_ms}"
    elif kind == "sleep" and until_ms is None:
        yield "I22", "sleeps without end"
    if mail is None or kind is None:
        return
    if until_ms is not None and until_ms <= row[5]:
        yield "I22", f"waits for a moment that was over {row[5] - until_ms} ms before"
    waiting = mail.oldest(facts["name"]) if kind == "wait" else None
    if waiting is not None:
        yield "I21", f"waits, and signal {waiting} has come"
    mail.waits[facts["entry"]] = WaitingEntry(facts["name"], kind, until_ms)


def end_wait(
    row: EventRow, facts: Facts, record: Record, *, was_begun: bool, is_again: bool
) -> Iterator[Fault]:
    """End a wait or a sleep of a job, from an event ``step_saved``, and yield the event's faults.

    ``was_begun`` is True if the step was begun before, ``is_again`` if it was saved before.
    """
    mail, name = record.mail, facts["name"]
    if mail is None:
        return
    waiting = mail.waits.pop(facts["entry"], None)
    if is_again:
        return
    is_answer = facts.get("message") is not None or facts.get("digest") == OVER
    if is_answer and ("=" in name or name.startswith(MAP_PREFIX)):
        yield "I20", "ends as a wait or a sleep does, and no wait has such a name"
    if was_begun and waiting is None and is_answer and not is_older(facts.get("fence"), row[1]):
        yield "I20", "ends as a wait or a sleep does, and was begun as a step"
    if facts.get("message") is not None:
        if waiting is not None and waiting.kind != "wait":
            yield "I21", f"takes signal {facts['message']}, and is a sleep"
        yield from _take(row, facts, mail)
    elif facts.get("digest") == OVER and waiting is not None:
        if waiting.until_ms is None or waiting.until_ms > row[5]:
            yield "I22", f"is over, and waits until {waiting.until_ms}"
        if waiting.kind == "wait" and (first := mail.oldest(name)) is not None:
            yield "I21", f"is over, and signal {first} waits"
    elif waiting is not None:
        yield "I21", f"is saved without a signal, and waits as {waiting.name}"


def _take(row: EventRow, facts: Facts, mail: Signals) -> Iterator[Fault]:
    """Remove the signal that a wait has taken, according to the event ``row``, and yield the event's faults."""
    message, name = facts["message"], facts["name"]
    is_another = message in mail.digests and (
        mail.digests[message] != facts.get("digest")
        or message not in mail.names.get(signal_of(name), ())
    )
    is_forgotten = message > mail.sent or message in mail.skipped
    if (is_forgotten or is_another) and is_older(facts.get("fence"), row[1]):
        # Redis forgot the signal and the take. The worker, whose claim is older than the epoch, put the take back.
        # Another signal may have the number since then, and waits.
        mail.put_back(message)
        return
    first = mail.oldest(name)
    if message not in mail.names.get(signal_of(name), ()):
        yield "I21", f"takes signal {message}, which does not wait"
        return
    if message != first:
        yield "I21", f"takes signal {message}, and signal {first} came before"
    if (digest := mail.digests.pop(message)) != facts.get("digest"):
        yield (
            "I21",
            f"takes signal {message} with digest {facts.get('digest')}, which was {digest}",
        )
    size = mail.sizes.pop(message)
    if size != facts.get("bytes"):
        yield "I21", f"takes signal {message} of {facts.get('bytes')} bytes, which had {size}"
    mail.names[signal_of(name)].remove(message)


def judge_park(facts: Facts, record: Record, row: EventRow) -> Iterator[Fault]:
    """Yield the faults of an event ``parked``."""
    mail, numbers = record.mail, _numbers(facts["waits"])
    if not numbers:
        yield "I22", "waits for nothing"
    elif ",".join(map(str, sorted(set(numbers)))) != facts["waits"]:
        says = "these are not the numbers of different entries, in order"
        yield "I22", f"waits for {facts['waits']!r}, and {says}"
    if mail is None:
        return
    known = [mail.waits.get(each) for each in numbers]
    # A failover may take a wait before its job parks. When the worker has saved the wait again, it may be over.
    judged = not is_older(facts.get("fence"), row[1]) and record.entries is not None
    for number, each in zip(numbers, known, strict=True):
        if judged and each is None:
            yield "I22", f"waits for entry {number}, which is no wait or is over"
    moments = [each.until_ms for each in known if each is not None and each.until_ms is not None]
    if None not in known and facts.get("due_ms") != min(moments, default=None):
        yield (
            "I22",
            f"is due at {facts.get('due_ms')}, and waits until {min(moments, default=None)}",
        )
    has_signal = any(
        each and each.kind == "wait" and mail.oldest(each.name) is not None for each in known
    )
    if judged and (has_signal or any(moment <= row[5] for moment in moments)):
        mail.ripe = row


def judge_wake(facts: Facts, record: Record, row: EventRow) -> Iterator[Fault]:
    """Yield the faults of an event ``woken``."""
    mail, cause = record.mail, facts.get("cause")
    if mail is None or record.waits is None:
        return
    ripe, mail.ripe = mail.ripe, None
    if ripe is not None and ripe[5] == row[5] and _asked(ripe) != _asked(row):
        yield "I23", f"is woken by {_asked(row)}, and it could go on since a call of {_asked(ripe)}"
    numbers = _numbers(record.waits)
    if cause is not None:
        waiting = mail.waits.get(cause)
        if cause not in numbers or waiting is None or waiting.kind != "wait":
            yield "I23", f"is woken for entry {cause}, for which the job does not wait"
        elif mail.oldest(waiting.name) is None:
            yield (
                "I23",
                f"is woken for entry {cause}, and no signal {signal_of(waiting.name)} waits",
            )
    elif all(each in mail.waits for each in numbers) and (
        record.due is None or record.due > row[5]
    ):
        yield "I23", f"is woken without a signal at {row[5]}, and is due at {record.due}"
    if cause is None and facts.get("why") is not None:
        yield "I23", f"is woken without a signal, and for a reason: {facts['why']}"


def _asked(row: EventRow) -> str:
    """Return who made a call to Redis, and for which reason, from the call's event."""
    why = facts_in(row[10]).get("why")
    return str(row[8]) if why is None else f"{row[8]} ({why})"


def stay(kind: str, record: Record) -> Iterator[Fault]:
    """Yield a fault if an event of the type ``kind`` happens to a parked job that Redis should have woken before."""
    mail = record.mail
    if mail is not None and mail.ripe is not None and kind not in (Event.WOKEN, Event.SIGNALLED):
        mail.ripe = None
        yield "I23", "happens to a job that is parked, although what it waits for has come"


def left_parked(records: Iterable[Record], last: tuple[int, int]) -> Iterator[tuple[EventRow, str]]:
    """Yield the event after which a job should have been woken, and a phrase, for each job that is parked all the same
    at the end of the log.

    ``last`` is the log's last entry. If it has the event, the log may lack the next entry of the same call.
    """
    for record in records:
        ripe = None if record.mail is None else record.mail.ripe
        if ripe is not None and record.state == _PARKED and (ripe[1], ripe[2]) != last:
            yield ripe, "leaves its job parked, although what the job waits for has come"


def is_older(fence: object, epoch: int) -> bool:
    """Return whether a claim began before ``epoch``, a history of the queue in Redis. ``fence`` is the claim's fencing
    token.
    """
    begun = str(fence).partition("-")[0]
    return begun.isascii() and begun.isdigit() and len(begun) < 20 and int(begun) < epoch


def _numbers(waits: str | None) -> list[int]:
    """Parse the numbers of waits and sleeps, separated by commas, such as ``3,4``."""
    return [int(each) for each in (waits or "").split(",") if each.isascii() and each.isdigit()]
