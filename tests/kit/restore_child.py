"""A restore in a process of its own, which kills itself when a call was carried out.

python -m tests.kit.restore_child REDIS_URL AUDIT_URL QUEUE CALLS
"""

import os
import signal
import sys
from typing import Any

from rq_core.connections.client import Client
from rq_core.protocol.answers import Restored
from sql_audit.store.database import Database
from sql_audit.upkeep.restore import apply


def main() -> None:
    redis_url, audit_url, queue, calls = sys.argv[1:]
    made = 0

    class Doomed(Client):
        def restore(self, *args: Any, **options: Any) -> Restored:
            nonlocal made
            answer = super().restore(*args, **options)
            made += 1
            if made == int(calls):
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

    with Doomed(redis_url) as client:
        apply(client, Database(audit_url), queue, by="child")


if __name__ == "__main__":
    main()
