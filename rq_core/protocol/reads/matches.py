"""Finds the jobs that match a filter, and reads the JSON of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from rq_core.model.filters.job_filter import Filter
from rq_core.model.job import spec_of
from rq_core.model.keys import QueueKeys
from rq_core.model.state_line import JobState
from rq_core.protocol.reads.steps import Steps, errors_of

SPECS_BYTES_MAX: Final = 1024 * 1024
"""Maximum number of bytes of jobs that one command reads, unless a single job is larger."""


def matching(
    keys: QueueKeys, jobs: Sequence[JobState], which: Filter, now_ms: int
) -> Steps[list[JobState]]:
    """Return the jobs that match a filter. The filter's terms ``older`` and ``due`` count from ``now_ms`` (Unix ms).

    Errors and JSON are read only if the filter needs them, and only for jobs that match all other terms.
    """
    found = [job for job in jobs if which.matches_line(job, now_ms)]
    if which.needs_error and found:
        errors = yield from errors_of(keys, [job.id for job in found])
        read = (replace(job, error=error) for job, error in zip(found, errors, strict=True))
        found = [job for job in read if which.matches_error(job)]
    if which.needs_spec and found:
        specs = yield from specs_of(keys, [job.id for job in found])
        read_too = zip(found, specs, strict=True)
        found = [job for job, spec in read_too if which.matches_spec(spec)]
    return found


def specs_of(keys: QueueKeys, ids: Sequence[str]) -> Steps[list[str | None]]:
    """Return the JSON of these jobs, in order; None for a job that Redis does not have. One command reads at most
    SPECS_BYTES_MAX bytes, or one larger job.
    """
    sizes: list[int] = (yield [["HSTRLEN", keys("jobs"), job_id] for job_id in ids]) if ids else []
    commands: list[list[Any]] = []
    together = 0
    for job_id, size in zip(ids, sizes, strict=True):
        if not commands or together + size > SPECS_BYTES_MAX:
            commands.append(["HMGET", keys("jobs")])
            together = 0
        commands[-1].append(job_id)
        together += size
    found: list[str | None] = []
    for command in commands:
        (values,) = yield [command]
        found += (None if value is None else spec_of(value) for value in values)
    return found
