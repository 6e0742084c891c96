"""The view of a durable job's steps: those that are saved, and those in doubt, which were begun and not saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rq_core.model.durable.boxes import OVER, StepEntry, signal_of
from rq_core.views.text import ago, utc

if TYPE_CHECKING:
    from rq_core.protocol.reads.box_reads import SavedSteps

SHOWN_MAX: Final = 50
"""Maximum number of steps that the view of a job shows. If there are more, it shows the last steps."""
HEAD: Final = ("no", "step", "state", "when", "claim", "digest")


def state_of(entry: StepEntry) -> str:
    """Return whether a step is saved, in words."""
    if entry.is_saved:
        return "over" if entry.note == OVER else "saved"
    if entry.kind == "step":
        return "in doubt"
    until = "" if entry.until_ms is None else f" until {utc(entry.until_ms)}"
    return f"{'waits' if entry.kind == 'wait' else 'sleeps'}{until}"


def step_row(number: int, entry: StepEntry, now_ms: float) -> list[object]:
    """Return the cells of a step, in the order of HEAD."""
    at = ago(entry.at_ms, now_ms)
    return [number, entry.name, state_of(entry), at, entry.fence, entry.note or ""]


def step_documents(steps: SavedSteps, *, with_values: bool) -> list[dict[str, Any]]:
    """Return the steps as JSON documents. Without the values, a document has no contents of the job."""
    documents = [{"entry": number, **each._asdict()} for number, each in steps.entries.items()]
    if not with_values:
        for each in documents:
            del each["value"]
    return documents


def waits_for(waits: str | None, steps: SavedSteps) -> list[dict[str, Any]]:
    """Return the waits and sleeps for which a job is parked, each in words, with its end (Unix ms; None: it has no
    end). ``waits`` are the numbers of the entries, with commas. An entry that was not read is named by its number."""
    found = []
    for number in filter(str.isdecimal, (waits or "").split(",")):
        entry = steps.entries.get(int(number))
        if entry is None:
            says = f"entry {number} of its steps"
        elif entry.kind == "wait":
            says = f"the signal {signal_of(entry.name)}"
        else:
            says = f"the end of its sleep {entry.name}"
        found.append({"says": says, "until_ms": None if entry is None else entry.until_ms})
    return found


def parked_for(waits: str | None, steps: SavedSteps) -> str:
    """Return, in words, what a parked job waits for."""
    found = []
    for each in waits_for(waits, steps):
        until_ms = each["until_ms"]
        found.append(each["says"] + ("" if until_ms is None else f" until {utc(until_ms)}"))
    return ", ".join(found)


def signals_say(steps: SavedSteps, now_ms: float) -> str:
    """Return the signals that no wait has taken, in words; empty without any."""
    kept = steps.signals.items()
    return ", ".join(f"{n} {s.name}{_came(s.at_ms, now_ms)}" for n, s in kept)


def _came(at_ms: int | None, now_ms: float) -> str:
    return "" if at_ms is None else f" ({ago(at_ms, now_ms)})"


def signal_documents(steps: SavedSteps) -> list[dict[str, Any]]:
    """Return the signals that no wait has taken as JSON documents, without their values."""
    documents = [{"signal": number, **each._asdict()} for number, each in steps.signals.items()]
    for each in documents:
        del each["value"]
    return documents


def steps_say(steps: SavedSteps) -> str:
    """Return a sentence about the steps of a job."""
    if steps.is_lost:
        return "lost: Redis lacks them, so the next step fails; see `rq-core audit restore`"
    doubtful = [
        each.name for each in steps.entries.values() if not each.is_saved and each.kind == "step"
    ]
    says = f"{steps.size}"
    if doubtful:
        says += f", in doubt: {', '.join(doubtful)}"
    shown = len(steps.entries)
    return says if shown == steps.size else f"{says}; the last {shown} are shown"
