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
- ``handlers``, ``heartbeat``, ``lease_table``: handlers begin and end; a job that has lost a worker runs alone;
  leases are kept, and are in memory that the supervisor can read.
- ``executor``, ``running``: runs each job on the loop, in ``threads`` or in a process, within its ``time_limits``.
- ``threads``, ``isolation``, ``isolated``: threads; the pool of processes; such a process, with its loop.
- ``time_limits``, ``dead_hooks``: timeouts; hooks for jobs that died.

The worker itself:

- ``worker``, ``options``: puts these together and runs them.
- ``lifetime``, ``shutdown``: how long it claims, and its grace; giving back and reporting the rest.
- ``presence``, ``flow``, ``loop_watch``: the worker's row in the list of workers; counts of what ended; how late the
  event loop is.
"""

from rq_core.worker.capacity import CLAIM_MAX
from rq_core.worker.lifetime import WorkerStats
from rq_core.worker.options import WorkerOptions
from rq_core.worker.worker import Worker

__all__ = ["CLAIM_MAX", "Worker", "WorkerOptions", "WorkerStats"]
