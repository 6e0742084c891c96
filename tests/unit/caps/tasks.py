"""Functions that the tests of caps declare as tasks or use as keys, and a function that returns a job's lane."""

from __future__ import annotations

from typing import Any

from rq_core import NewJob


def send(tenant: str, to: str = "", n: int | None = None) -> None: ...


async def later(tenant: str, **_: Any) -> str:
    return tenant


def lane(job: NewJob) -> str:
    return job.lane


def tenant_of(tenant: str, **_: Any) -> str:
    return tenant.upper()
