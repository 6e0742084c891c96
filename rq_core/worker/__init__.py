"""One worker: an asyncio loop that settles and claims in one round trip per turn (group commit).

Everything that finished since the last turn, and a claim for the free places, travel together. At low load a batch
is one job; under load batches grow by themselves. The worker claims no more than it can start at once.

Turns overlap with handlers. A claim asks for half of the places (for all of them if
there are fewer than 16), and when its jobs come, the next turn is on its way
before they are begun: while Redis carries it out, they run. So the time that a job takes is the longer one of Python's
and Redis', not their sum.

A job's way through a worker, and the module of each step:

1. ``startup``: the worker meets its queues and declares their limits.
2. ``queue_group``: queues whose calls travel together, each group with a watcher (``wakeups``) that says when there
   may be something to claim.
3. ``capacity``: how many jobs to claim from which queues; ``shares`` divides free places by weight.
4. ``turns``: the round trip that claims them, and reports others.
5. ``handlers``: they arrive, their leases are kept (``heartbeat``), their handlers begin and end. ``executor`` runs
   each as a ``running``: on the loop, in ``threads``, or in a process (``isolation``), within its ``time_limits``.
6. ``queue_group`` again: each ends as a ``settlement``, which waits for the next turn.

``lifetime`` knows how long the worker claims and what grace there is then, ``burst`` when nothing is left, ``shutdown``
gives back and reports the rest, ``dead_hooks`` tells hooks of jobs that died, ``suspects`` runs a job alone that has
lost a worker. ``worker`` puts these together and runs them.
"""

from rq_core.worker.capacity import CLAIM_MAX
from rq_core.worker.lifetime import WorkerStats
from rq_core.worker.options import WorkerOptions
from rq_core.worker.worker import Worker

__all__ = ["CLAIM_MAX", "Worker", "WorkerOptions", "WorkerStats"]
