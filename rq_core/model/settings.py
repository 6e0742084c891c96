"""A queue's settings. They are fields of the queue's key ``meta``, so that all clients and workers use the same
values."""

from __future__ import annotations

from typing import Final, NamedTuple

from rq_core.errors import SECONDS_MAX


class Setting(NamedTuple):
    """One setting: its name in ``meta``, default, smallest valid value, and meaning."""

    name: str
    default: int
    minimum: int
    meaning: str

    @property
    def shown(self) -> str:
        """The setting's name as operators write it. For example, ``lease_ms`` is written ``lease``, with its value in
        seconds."""
        return self.name.removesuffix("_ms").replace("_", "-")

    def assigned(self, value: int) -> str:
        """Return the setting with a value, as operators write both: ``lease=30``."""
        text = f"{value / 1000:.15g}" if self.name.endswith("_ms") else f"{value}"
        return f"{self.shown}={text}"


RESULT_COST: Final = 300
"""Bytes that an entry of ``results``, together with the entry's member of ``kept``, takes in Redis on top of the
entry's text."""

SETTINGS: Final[dict[str, Setting]] = {
    s.name: s
    for s in (
        Setting("lease_ms", 30_000, 200, "how long a claim is in force unless it is extended"),
        Setting("dead_retention_ms", 30 * 86_400_000, 0, "how long dead jobs stay in Redis"),
        Setting("backlog_max_jobs", 1_000_000, 1, "unmirrored events at which enqueue is refused"),
        Setting(
            "backlog_max_bytes",
            512 * 1024 * 1024,
            1,
            "unmirrored bytes at which enqueue is refused",
        ),
        Setting(
            "results_max",
            1_000_000,
            0,
            "ids remembered after their jobs' ends at which enqueue of jobs with remember is refused",
        ),
        Setting(
            "results_max_bytes",
            512 * 1024 * 1024,
            0,
            f"bytes of the entries of these ids, plus {RESULT_COST} for each, at which it is refused",
        ),
        Setting(
            "kept_max_bytes",
            128 * 1024 * 1024,
            0,
            f"bytes of kept results, plus {RESULT_COST} for each, beyond which those that expire first"
            " are removed",
        ),
    )
}

FLAGS: Final = ("paused", "fair")
"""Fields of ``meta`` that are 0 or 1, and that operators change like settings.

Among the lanes of one priority, workers take one lane first. If ``fair`` is 0, it is the lane with the oldest first
job. If ``fair`` is 1, it is the lane whose key has the lowest virtual time. A key's virtual time grows with each claim,
and more slowly if the key has a higher weight.
"""

COUNTERS: Final = (
    "sequence", "last_activity", "backlog_jobs", "backlog_bytes", "fair_clock", "fair_top", "tombstones", "trimmed",
    "restored", "results_bytes", "kept_bytes", "evicted",
)  # fmt: skip
"""Fields of ``meta`` that calls update all the time. A change of any other field of ``meta`` also changes the queue's
version ``v``."""

AUDIT_PAYLOADS: Final = {"digest": 0, "full": 64 * 1024}
"""The values of an App's ``audit_payload``, each with the maximum number of bytes of a job's JSON that the enqueued
event keeps. If the JSON is longer, the log has only the digest of the arguments and the
timeout."""

VALUE_MAX: Final = SECONDS_MAX * 1000
"""The greatest value of a setting: a hundred years in ms, or that number of jobs or bytes."""

SLOT_LIFE_MS: Final = 3_600_000
"""Maximum ms for which Redis remembers a call slot after the last call in the slot. Redis remembers the slot for at
least five sixths of this time. (A call slot has the number of a client's last call, so that a repeated call is not
carried out twice.)"""

INBOX_SLOT: Final = "inbox."
"""The prefix of the names of call slots that Redis remembers for days. (A call slot has the number of a client's last
call, so that a repeated call is carried out once.) Callers choose the rest of the name. A relay uses this prefix: it
stores the number of its call in the user's database, and may repeat the call days later."""

INBOX_SLOT_LIFE_MS: Final = 30 * 86_400_000
"""Time for which a call slot that begins with INBOX_SLOT is remembered, in ms from the slot's first call. A caller
takes a new slot each day."""

SLOT_ANSWER: Final = "|a"
"""The suffix of a field name in the key ``slots``. The field NAME has the number of a client's last call in the call
slot NAME. The field ``NAME|a`` has the answer to this call, for a client that repeats it."""

LISTEN_MS: Final = 60_000
"""Maximum ms for which scripts publish the ends of jobs after a client has called ``listen``. They publish the ends for
at least half of this time."""

OUTBOX_RING: Final = 1_000
"""Approximate number of entries to which an outbox is trimmed while no mirror is attached."""

BATCH_MAX: Final = 10_000
"""Maximum number of records in one script call."""
