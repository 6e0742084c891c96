"""Makes the JSON in ``job_event.detail``: the fields of an event that have no column of their own.

Most batches repeat a few details many times, so a :class:`Details` caches the JSON texts of one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rq_core.model.table.event_fields import JOB_EVENT_FIELDS
from rq_core.model.table.machine import Event
from sql_audit.mirror.intake import Intake
from sql_audit.store.storable_text import to_json

_IN_COLUMNS: Final[dict[Event, frozenset[str]]] = {
    Event.ENQUEUED: frozenset({"id", "task"}),
    Event.CLAIMED: frozenset({"id", "claim"}),
    Event.DISCARDED: frozenset({"id", "task"}),
    Event.BASELINE: frozenset({"id", "task"}),
    Event.RESTORED: frozenset({"id", "task"}),
}
"""By type of event: the fields that have columns of their own in ``job_event``. All other fields are in the JSON of
``detail``."""

_DETAIL: Final = {
    event: tuple(f.name for f in fields if f.name not in _IN_COLUMNS.get(event, frozenset({"id"})))
    for event, fields in JOB_EVENT_FIELDS.items()
}
_FENCE_ONLY: Final = {
    event: tuple(name for name in names if name != "fence")
    for event, names in _DETAIL.items()
    if names == ("fence",) or event is Event.SUCCEEDED
}
"""For the types of events whose detail mostly has only ``fence``: the names of the other fields that the detail may
have."""
_USUAL: Final = frozenset({"seq", "priority", "max_attempts", "max_losses", "digest"})
_SELDOM: Final = tuple(name for name in _DETAIL[Event.ENQUEUED] if name not in _USUAL)
"""The fields of an ``enqueued`` event that most jobs leave null, such as a deadline."""


class Details:
    """Makes the JSON texts for ``job_event.detail`` of one batch's events, and caches repeated texts."""

    def __init__(self) -> None:
        self._fences: dict[tuple[str | None, str | None], str | None] = {}
        self._between: dict[tuple[Any, ...], str] = {}

    def of(self, intake: Intake) -> list[str | None]:
        """Return the JSON text of the detail of each event in an entry, in the order of the jobs. None: all fields are
        null.
        """
        assert intake.event is not None
        why = intake.why
        if intake.event in _FENCE_ONLY and not any(
            map(any, (intake.columns[name] for name in _FENCE_ONLY[intake.event]))
        ):
            # Jobs that were claimed together have the same fence, so most of these details are equal.
            memo = self._fences
            details = []
            for fence in intake.columns["fence"]:
                key = (fence, why)
                if key not in memo:
                    memo[key] = _detail(("fence",), (fence,), why)
                details.append(memo[key])
            return details
        names = _DETAIL[intake.event]
        if not names:
            return [_detail((), (), why)] * len(intake.ordinals)
        columns = [intake.columns[name] for name in names]
        return [_detail(names, values, why) for values in zip(*columns, strict=True)]

    def of_enqueued(self, intake: Intake) -> list[str | None]:
        """Return the details of an ``enqueued`` entry's events, as :meth:`of` does, but faster.

        The fast way works if the details have only the usual fields of a job. Otherwise :meth:`of` is called.
        """
        columns = intake.columns
        digests = columns["digest"]
        for name in _SELDOM:
            if columns[name].count(None) < len(digests):
                return self.of(intake)
        if (
            intake.why is not None
            or None in digests
            or None in columns["seq"]
            or not _needs_no_encoder("".join(digests))
        ):
            return self.of(intake)
        memo = self._between
        details: list[str | None] = []
        for place, digest, *key in zip(
            columns["seq"], digests, columns["priority"], columns["max_attempts"],
            columns["max_losses"], strict=True,
        ):  # fmt: skip
            between = memo.get(tuple(key))
            if between is None:
                inner = _detail(("priority", "max_attempts", "max_losses"), key, None)
                between = memo[tuple(key)] = f"{inner[1:-1]}," if inner else ""
            details.append(f'{{"seq":{place},{between}"digest":"{digest}"}}')
        return details


def queue_detail(intake: Intake) -> str | None:
    """Return the JSON text for ``job_event.detail`` of an event about the queue; None if all fields are null."""
    return _detail(tuple(intake.data), tuple(intake.data.values()), intake.why)


def _needs_no_encoder(text: str) -> bool:
    return text.isalnum() and text.isascii()


def _detail(names: Sequence[str], values: Sequence[Any], why: str | None) -> str | None:
    """Return a JSON object with the values that are not null, as text; None if all values are null."""
    parts = []
    for name, value in zip(names, values, strict=True):
        if value is None:
            continue
        # Most values are numbers and plain words, which need no encoder.
        if type(value) is int:
            parts.append(f'"{name}":{value}')
        elif type(value) is str and _needs_no_encoder(value):
            parts.append(f'"{name}":"{value}"')
        else:
            parts.append(f'"{name}":{to_json(value)}')
    if why is not None:
        parts.append(f'"why":{to_json(why)}')
    return f"{{{','.join(parts)}}}" if parts else None
