"""One worker: an asyncio loop that claims jobs and settles claims (reports how they ended). One *turn* does both in one
round trip.

A turn sends the settlements of all jobs that ended since the last turn, and a claim for the free *places*. A place lets
one handler run. At low load a turn settles one job; under load it settles many. The worker claims no more jobs than it
can start at once.

Turns overlap with handlers. A claim asks for at most half of the worker's places, or for all places if the worker has
fewer than 16. When the claimed jobs arrive, the worker sends the next turn before it starts the handlers of these jobs.
So handlers run while Redis carries out the turn. The time per job is the longer of Python's time and Redis' time, not
their sum.

The modules, in the order in which a job passes through them:

- ``startup``: the worker's handshake with its queues, and the declaration of their limits.
- ``queue_group``: queues whose calls are sent together.
- ``wakeups``: decides when to claim from a queue.
- ``capacity``: divides the free places between queues, by weight.
- ``batch_places``: the places of a worker that has batch tasks.
- ``turns``: the round trip that claims and settles.
- ``child_ends``: sends signals to the parents of children that have ended.
- ``settlement``: the reports of how claims ended in this worker.
- ``held_jobs``: starts handlers, and runs one at a time the jobs whose earlier worker vanished.
- ``execution/``: runs each job on the loop, in threads or in a process, within its timeout.
- ``liveness/``: extends leases, and reports that the worker is alive.
- ``ticker``: computes when due schedules run next.
- ``dead_hooks``: enqueues the hooks of jobs that died.

The worker itself:

- ``worker``: creates these parts and runs them.
- ``options``: the options of a worker.
- ``lifetime``: how long the worker claims, and its grace period.
- ``shutdown``: ends the worker: gives jobs back, and sends the last settlements.
- ``claim_counters``: counts of claims that ended.
"""

from rq_core.worker.capacity import CLAIM_MAX
from rq_core.worker.lifetime import WorkerStats
from rq_core.worker.options import WorkerOptions
from rq_core.worker.worker import Worker

__all__ = ["CLAIM_MAX", "Worker", "WorkerOptions", "WorkerStats"]
