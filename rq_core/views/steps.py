"""The view of a durable job's steps: those that are saved, and those in doubt, which were begun and not saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rq_core.model.durable.boxes import OVER, StepEntry
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
