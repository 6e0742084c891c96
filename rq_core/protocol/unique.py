"""The names of a queue's unique jobs: who holds them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from rq_core.model.keys import check_name, queue_keys
from rq_core.model.names import check_unique_name, is_name_field, name_field, name_in
from rq_core.model.state_line import JobState, read_state_line
from rq_core.protocol.admin import IDS_CHUNK, check_why
from rq_core.protocol.delivery import Delivery
from rq_core.protocol.lines import read_lines
from rq_core.protocol.plan import Call, Plan, pairs_of, parse_pairs

PAGE: Final = 1_000
"""Fields of ``slots`` that are read at once."""


class Held(NamedTuple):
    """A name, and the job that holds it."""

    name: str
    job_id: str
    job: JobState | None
    """None: it has ended since the name was read."""


class Names:
    """The calls about names."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def held(self, queue: str, name: str | None = None) -> Plan[list[Held]]:
        """The names that jobs of a queue hold, in order; or this one alone, if a job holds it."""
        keys = queue_keys(queue, self._delivery.prefix)
        found: dict[str, str] = {}
        if name is not None:
            (job_id,) = yield from self._delivery.ask(
                [["HGET", keys("slots"), name_field(name)]], queue
            )
            if job_id is not None:
                found[name] = job_id
        cursor = "0" if name is None else ""
        while cursor:
            ((cursor, flat),) = yield from self._delivery.ask(
                [["HSCAN", keys("slots"), cursor, "MATCH", name_field("*"), "COUNT", PAGE]], queue
            )
            fields = pairs_of(flat)
            found |= {name_in(f): by for f, by in fields.items() if is_name_field(f)}
            cursor = "" if cursor in ("0", 0) else cursor
        lines = yield from read_lines(self._delivery, keys, list(found.values()))
        return [
            Held(each, job_id, read_state_line(queue, job_id, line) if line else None)
            for (each, job_id), line in sorted(
                zip(found.items(), lines, strict=True), key=itemgetter(0)
            )
        ]

    def free(
        self, queue: str, names: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str | None]]:
        """Free names. By name, the id of the job that held it, which lives on without it; None if no job did. Raises
        InvalidOption for an invalid name."""
        holders: dict[str, str | None] = {}
        args = {"by": check_name("actor", by or self._delivery.name), "why": check_why(why)}
        once = tuple(dict.fromkeys(map(check_unique_name, names)))
        for start in range(0, len(once), IDS_CHUNK):
            records = [(name,) for name in once[start : start + IDS_CHUNK]]
            found = yield from self._delivery.call(Call("free", queue, args, parse_pairs, records))
            holders |= {name: None if by == "-" else by for name, by in found.items()}
        return holders
