"""Jobs as enqueue.lua takes them: what many of them have in common is said once in a call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache

from rq_core.model.job import NewJob, Profile

Record = tuple[str, str, str, str, str]


def pack(jobs: Sequence[NewJob]) -> tuple[str, list[Record]]:
    """Return the ``kinds`` and the records of a call that enqueues these jobs.

    A kind is [priority, delay in ms, head, detail, full]; a record is id, kind (its place in ``kinds``, from 1), digest
    of the arguments, lane, spec.
    """
    kinds: list[str] = []
    places: dict[tuple[int, int, str], str] = {}
    records: list[Record] = []
    sha256 = hashlib.sha256
    last = None
    kind = before = after = ""
    for job_id, _, profile, args_json, delay_ms, lane, full, _ in jobs:
        # Profiles are cached, and equal ones that are not the same only make one kind more.
        which = (id(profile), delay_ms, full)
        if which != last:
            last = which
            known = places.get(which)
            if known is None:
                kinds.append(_kind(profile, delay_ms, full))
                known = places[which] = str(len(kinds))
            kind = known
            before, after = profile.spec_parts
        digest = sha256(args_json.encode()).hexdigest()[:32]
        records.append((job_id, kind, digest, lane, f"{before}{args_json}{after}"))
    return f"[{','.join(kinds)}]", records


@lru_cache(maxsize=1024)
def _kind(profile: Profile, delay_ms: int, full: str) -> str:
    kind = (profile.rank, delay_ms, profile.head, profile.detail, full)
    return json.dumps(kind, separators=(",", ":"))
