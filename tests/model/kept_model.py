"""A model of a queue in which half of the jobs keep their results."""

from __future__ import annotations

from typing import Any

from rq_core.model.job import Claim, NewJob
from rq_core.model.result_encoding import FULL, pack_result
from rq_core.protocol.calls.claims import Claimed
from tests.kit.seed import Seed
from tests.kit.snapshots import Snapshot
from tests.model.machine import Queue

KEEP_MS = 10**9
"""Time for which Redis keeps a result, in milliseconds. It is longer than any history, since this model does not cover
how results expire."""


def keeps(job_id: str) -> bool:
    """Return whether the job with this id keeps its result."""
    return int(job_id.rpartition("-")[2]) % 2 == 0


class KeptSeed(Seed):
    """A seed that reports a different result for each success, also for jobs that keep none."""

    presented: dict[tuple[str, str], str]
    """For each job and fence: the value that the last report of a success had."""

    def job(self, job_id: str, **options: Any) -> NewJob:
        return super().job(job_id, **({"keep_ms": KEEP_MS} if keeps(job_id) else {}), **options)

    def complete(self, *held: Claim | tuple[str, str], **options: Any) -> dict[str, str]:
        return super().complete(*held, values=self._values(held), **options)

    def turn(self, *held: Claim | tuple[str, str], **options: Any) -> Claimed:
        return super().turn(*held, values=self._values(held), **options)

    def _values(self, held: tuple[Any, ...]) -> dict[int, str]:
        if not hasattr(self, "presented"):
            self.presented = {}
        values = {}
        for place, (job_id, fence) in enumerate(held, 1):
            value = f'"{job_id} {len(self.presented)}"'
            self.presented[job_id, fence] = value
            values[place] = pack_result(value, FULL)
        return values


class KeptQueue(Queue):
    """Random histories in which half of the jobs keep their results."""

    seed_of = KeptSeed
    seed: KeptSeed

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.values: dict[str, str] = {}
        """For each id: the value of the job that succeeded last under this id."""
        self.known: set[str] = set()
        """The ids of all jobs that were to keep their results, also of jobs that have ended."""

    def succeed(self, held: Any, worker: str) -> dict[str, str]:
        refused = super().succeed(held, worker)
        for job_id, fence in held:
            if job_id not in refused and keeps(job_id):
                self.values[job_id] = self.seed.presented[job_id, fence]
        return refused

    def check(self, snapshot: Snapshot) -> None:
        for job in self.model.jobs.values():
            # Whoever has the id now, the result of the job before is gone.
            self.values.pop(job.id, None)
            if keeps(job.id):
                job.keep = KEEP_MS
                self.known.add(job.id)
        super().check(snapshot)

        assert self.values == snapshot["returned"]
        ended = self.known - self.model.jobs.keys()
        words = {i: line.partition(" ")[0] for i, line in snapshot["results"].items()}
        assert ended == words.keys()
        assert self.values.keys() == {i for i, word in words.items() if word == "succeeded"}
