"""The views of a job's progress, with a bar, and of the chunks of its stream."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from rq_core.views.text import ago

if TYPE_CHECKING:
    from rq_core.model.showing.shown import Chunk, Progress

BAR: Final = 20
"""Width of the progress bar, in characters."""


def bar(progress: Progress) -> str:
    """Return the progress of a job as text. With a known total, the text begins with a bar, such as
    ``[#####               ] 25 %, 30 of 120 uploading``.
    """
    share, many = progress.share, f"{progress.done:,}"
    if progress.total is not None:
        many += f" of {progress.total:,}"
    if share is not None:
        full = int(share * BAR)
        many = f"[{'#' * full}{' ' * (BAR - full)}] {int(share * 100)} %, {many}"
    return f"{many} {progress.text}" if progress.text else many


def progress_says(progress: Progress, claims: int | None, now_ms: float) -> str:
    """Return the progress of a job as text, with the time since the handler reported it.

    ``claims`` is the number of the job's last claim; None: unknown. If the handler of an earlier claim reported the
    progress, the text has the number of the earlier claim.
    """
    of_claim = f", by claim {progress.claim}" if claims not in (None, progress.claim) else ""
    return f"{bar(progress)} ({ago(progress.at_ms, now_ms)}{of_claim})"


def progress_document(progress: Progress | None) -> dict[str, Any] | None:
    """Return the progress of a job as a JSON document, with the share that is done; None if there is no progress."""
    return None if progress is None else asdict(progress) | {"share": progress.share}


def chunk_document(chunk: Chunk) -> dict[str, Any]:
    """Return a chunk of a job's stream as a JSON document."""
    return asdict(chunk)
