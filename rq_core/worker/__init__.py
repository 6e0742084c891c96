"""One worker: an asyncio loop that settles and claims in one round trip per turn (group commit).

Everything that finished since the last turn, and a claim for the free places, travel together. At low load a batch
is one job; under load batches grow by themselves. The worker claims no more than it can start at once.

Turns overlap with handlers. A claim asks for half of the places (for all of them if
there are fewer than 16), and when its jobs come, the next turn is on its way
before they are begun: while Redis carries it out, they run. So the time that a job takes is the longer one of Python's
and Redis', not their sum.

A job's way through a worker:

- ``startup``: the worker meets its queues and declares their limits.
- ``queue_group``, ``wakeups``: queues whose calls travel together, with a watcher that says when there may be something
  to claim.
- ``capacity``: how many jobs to claim from which queues; free places are divided by weight.
- ``turns``, ``settlement``: the round trip that claims and reports; how a job ended here.
- ``held_jobs``: handlers begin and end; a job that has lost a worker runs alone.
- ``execution/``: runs each job on the loop, in threads or in a process, within its timeout.
- ``liveness/``: extends leases, and says that the worker is alive.
- ``ticker``: computes the instants of schedules that are due.
- ``dead_hooks``: calls the hooks of jobs that died.

The worker itself:

- ``worker``, ``options``: puts these together and runs them.
- ``lifetime``, ``shutdown``: how long it claims, and its grace; giving back and reporting the rest.
- ``claim_counters``: counts of claims that ended.
"""

from rq_core.worker.capacity import CLAIM_MAX
from rq_core.worker.lifetime import WorkerStats
from rq_core.worker.options import WorkerOptions
from rq_core.worker.worker import Worker

__all__ = ["CLAIM_MAX", "Worker", "WorkerOptions", "WorkerStats"]
