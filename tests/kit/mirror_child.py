"""A mirror in a separate process, which kills itself at a step.

    python -m tests.kit.mirror_child REDIS_URL AUDIT_URL QUEUE STEP OCCURRENCE

It dies when STEP occurs for the OCCURRENCE-th time.
"""

import os
import signal
import sys
from collections import Counter

from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.turn import Mirror, TurnOutcome
from sql_audit.store.connection.database import Database
from tests.kit.outbox import StreamSource


def main() -> None:
    redis_url, audit_url, queue, fatal, occurrence = sys.argv[1:]
    seen: Counter[str] = Counter()

    def on_step(step: str) -> None:
        seen[step] += 1
        if step == fatal and seen[step] == int(occurrence):
            os.kill(os.getpid(), signal.SIGKILL)

    limits = BatchLimits(events=7)
    mirror = Mirror(
        StreamSource(redis_url), Database(audit_url), queue, limits=limits, on_step=on_step
    )
    while mirror.turn().outcome is not TurnOutcome.IDLE:
        pass


if __name__ == "__main__":
    main()
