"""Names that stand until an instant (Throttle): which one, by ``slots`` and by what the log says of their jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rq_core.doctor.view import View
from rq_core.model.ends import Lives
from rq_core.model.names import is_name_field, name_in, read_holder, read_stands


def instants(view: View) -> dict[str, int]:
    """By field of ``slots``, the instant that the log has for a name, where that is another one (Unix ms)."""
    slots = view.snapshot["slots"]
    told = view.told.names.items() if view.told else ()
    by_audit = {field: at_ms for field, (seen, at_ms) in told if slots.get(field) == seen}
    return by_audit | dict(unlike(slots, view.log.lives))


def until_instants(slots: Mapping[str, str]) -> list[str]:
    """The fields of names that stand until an instant."""
    return [
        f
        for f, value in slots.items()
        if is_name_field(f) and read_holder(value).until_ms is not None
    ]


def unlike(slots: Mapping[str, str], log: Lives) -> Iterator[tuple[str, int]]:
    """Yield the fields of names that stand until another instant by the log, and that instant (Unix ms).

    Only what the last job of the holder's id said when it took that very name is compared, if nothing is missing since.
    """
    for field in until_instants(slots):
        holder = read_holder(slots[field])
        if holder.job_id not in log.began:
            continue
        record = log.records[holder.job_id]
        logged = _instant(record.name_stands) if record.unique_name == name_in(field) else None
        if logged is not None and logged != holder.until_ms:
            yield field, logged


def _instant(name_stands: str | None) -> int | None:
    try:
        stands = read_stands(name_stands)
    except ValueError:
        return None
    return stands.at_ms if stands.how == "until" else None
