"""Entries of the outbox, written as redis-cli shows them."""

from tests.kit.seed import START_MS

T = START_MS


def entry(number: int, kind: str, jobs: str, *, by: str = "w-1", at: int = T) -> tuple[str, dict]:
    return f"{T}-{number}", {"type": kind, "at": str(at), "by": by, "jobs": jobs}
