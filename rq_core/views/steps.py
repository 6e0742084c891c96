"""The view of a durable job's steps: those that are saved, and those in doubt, which were begun and not saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rq_core.model.durable.boxes import MAP_PREFIX, OVER, StepEntry, signal_of
from rq_core.model.durable.children import item_name, read_child_wait, read_queues
from rq_core.model.outcome import Failed
from rq_core.protocol.reads.result_reads import Absent
from rq_core.views.text import ago, utc

if TYPE_CHECKING:
    from rq_core.protocol.reads.box_reads import SavedSteps
    from rq_core.protocol.reads.result_reads import Found

SHOWN_MAX: Final = 50
"""Maximum number of steps that the view of a job shows. If there are more, it shows the last steps."""
HEAD: Final = ("no", "step", "state", "when", "fence", "digest")


def state_of(entry: StepEntry) -> str:
    """Return the state of a durable job's step, wait or sleep as text, such as ``saved``, ``in doubt`` (begun and not
    saved), ``over`` (it waited until its time was over) or ``waits until …``.
    """
    if entry.is_saved:
        return "over" if entry.note == OVER else "saved"
    if entry.is_in_doubt:
        return "in doubt"
    if entry.name.startswith(MAP_PREFIX):
        return "enqueueing"
    if entry.kind == "step":
        return "for job.key()"
    until = "" if entry.until_ms is None else f" until {utc(entry.until_ms)}"
    return f"{'waits' if entry.kind == 'wait' else 'sleeps'}{until}"


def step_row(number: int, entry: StepEntry, now_ms: float) -> list[object]:
    """Return the cells of a step's row in the table of steps. HEAD has the heads of the columns."""
    at = ago(entry.at_ms, now_ms)
    return [number, entry.name, state_of(entry), at, entry.fence, entry.note or ""]


def step_documents(steps: SavedSteps, *, with_values: bool) -> list[dict[str, Any]]:
    """Return the steps as JSON documents. ``with_values`` says whether they include the saved values, which are the
    job's data.
    """
    documents = [
        {"entry": number, **each._asdict(), "is_in_doubt": each.is_in_doubt}
        for number, each in steps.entries.items()
    ]
    if not with_values:
        for each in documents:
            del each["value"]
    return documents


def waits_for(waits: str | None, steps: SavedSteps) -> list[dict[str, Any]]:
    """Return the waits and sleeps for which a job is parked, each as text, with its end (Unix ms; None: no end).

    ``waits`` has the numbers of these waits and sleeps among the job's steps, separated by commas. If one was not read,
    its text has only its number.
    """
    found = []
    for number in filter(str.isdecimal, (waits or "").split(",")):
        entry = steps.entries.get(int(number))
        if entry is None:
            says = f"entry {number} of its steps"
        elif (child := read_child_wait(entry.name)) is not None:
            says = _children_say(steps, *child)
        elif entry.kind == "wait":
            says = f"the signal {signal_of(entry.name)}"
        else:
            says = f"the end of its sleep {entry.name}"
        found.append({"says": says, "until_ms": None if entry is None else entry.until_ms})
    return found


def _children_say(steps: SavedSteps, number: int, index: int) -> str:
    """Return, as text, the children for which a job waits.

    ``number`` is the number of the step that enqueued the children. ``index`` is the position, from 0, of the child
    that the wait is for.
    """
    launch = steps.entries.get(number)
    try:
        count = len(read_queues(launch.value if launch is not None else None))
    except (ValueError, TypeError):
        count = 0
    if launch is None or not count:
        return f"child {index} of the children that entry {number} has enqueued"
    name = launch.name.removeprefix(MAP_PREFIX)
    if count == 1:
        return f"its child {name}"
    if len(steps.entries) < steps.size:
        return f"its {count} children {name}"
    items = {item_name(name, n) for n in range(count)}
    got = sum(entry.is_saved and entry.name in items for entry in steps.entries.values())
    return f"its children {name} ({got} of {count} saved)"


def parked_for(waits: str | None, steps: SavedSteps) -> str:
    """Return, as text, the waits and sleeps for which a job is parked."""
    found = []
    for each in waits_for(waits, steps):
        until_ms = each["until_ms"]
        found.append(each["says"] + ("" if until_ms is None else f" until {utc(until_ms)}"))
    return ", ".join(found)


def end_of(found: Found) -> str:
    """Return how a child has ended, as text; ``gone`` if Redis does not have the child's outcome."""
    outcome = found.known if isinstance(found, Absent) else found
    if isinstance(outcome, Failed):
        return f"dead ({outcome.reason})" if outcome.reason else "dead"
    return "gone" if outcome is None else type(outcome).__name__.lower()


def error_of_child(found: Found) -> str:
    """Return the error that a child's last handler raised, as one line; empty if the child has not died of one."""
    outcome = found.known if isinstance(found, Absent) else found
    error = outcome.error if isinstance(outcome, Failed) else None
    return "" if error is None else " ".join(str(error).split())


def signals_say(steps: SavedSteps, now_ms: float) -> str:
    """Return the signals (values sent to a durable job) that no wait has taken, as text; empty without signals.

    Signals that children send are left out: a parent that runs reads the ends of its children, and needs no signal.
    """
    kept = [each for each in steps.signals.items() if read_child_wait(each[1].name) is None]
    return ", ".join(f"{n} {s.name}{_came(s.at_ms, now_ms)}" for n, s in kept)


def _came(at_ms: int | None, now_ms: float) -> str:
    return "" if at_ms is None else f" ({ago(at_ms, now_ms)})"


def signal_documents(steps: SavedSteps) -> list[dict[str, Any]]:
    """Return the signals sent to a durable job that no wait has taken, as JSON documents without the signals'
    values.
    """
    documents = [{"signal": number, **each._asdict()} for number, each in steps.signals.items()]
    for each in documents:
        del each["value"]
    return documents


def steps_say(steps: SavedSteps) -> str:
    """Return the number of a job's steps, as text, with the names of the steps in doubt. If Redis has lost the steps,
    return a sentence that says so."""
    if steps.is_lost:
        return "lost: Redis lacks them, so the next step fails; see `rq-core audit restore`"
    doubtful = [each.name for each in steps.entries.values() if each.is_in_doubt]
    says = f"{steps.size}"
    if doubtful:
        says += f", in doubt: {', '.join(doubtful)}"
    shown = len(steps.entries)
    return says if shown == steps.size else f"{says}; the last {shown} are shown"
