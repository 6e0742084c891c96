"""A restore in a separate process, which kills itself.

    python -m tests.kit.restore_child REDIS_URL AUDIT_URL QUEUE CALLS

It dies when the script `restore` has answered CALLS times.
"""

import os
import signal
import sys

from rq_core.connections.client import Client
from rq_core.protocol.engine.plan import Call, Plan, T
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs


def main() -> None:
    redis_url, audit_url, queue, calls = sys.argv[1:]
    made = 0

    class Doomed(Client):
        def run(self, what: Plan[T] | Call[T]) -> T:
            nonlocal made
            answer = super().run(what)
            made += getattr(what, "__name__", "") == "restore"
            if made == int(calls):
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

    with Doomed(redis_url) as client:
        restore_jobs(client, Database(audit_url), queue, by="child")


if __name__ == "__main__":
    main()
