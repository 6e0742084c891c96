"""A worker process whose handlers take 0 to 2 ms: ``python -m tests.rigs.waits.settler URL QUEUE FILE``.

It writes a line into FILE for each success that Redis accepts: the job's id, and the time (s) of Redis' reply. The time
is that of the monotonic clock, which all processes of the machine share. SIGTERM ends the worker.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

from rq_core.connections.client import Client
from rq_core.errors import RqCoreError
from rq_core.protocol.calls import claims
from rq_core.protocol.engine.plan import Patience

THREADS = 4
LIMIT = 4
HANDLER_S = 0.002
PAUSE_S = 0.001
PATIENCE = Patience(unsent=120.0, unknown=120.0)


def serve(url: str, queue: str, worker: str, sink: TextIO, stop: threading.Event) -> None:
    """Claim jobs, and settle each job in a call of its own. The result of a job is its id."""
    draw = random.Random(worker)
    with Client(url, patience=PATIENCE) as client:
        while not stop.is_set():
            try:
                for job in client.run(claims.claim(queue, worker, LIMIT)).jobs:
                    time.sleep(draw.uniform(0, HANDLER_S))
                    held = [(job.id, job.fence)]
                    refused = client.run(claims.complete(queue, worker, held, {1: f'"{job.id}"'}))
                    if not refused:
                        sink.write(f"{job.id} {time.monotonic()}\n")
            except RqCoreError as error:
                sys.stderr.write(f"{worker}: {error!r}\n")
            time.sleep(PAUSE_S)


def main(url: str, queue: str, file: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Path(file).open("a", buffering=1, encoding="utf-8") as sink:
        threads = [
            threading.Thread(target=serve, args=(url, queue, f"w-{n}", sink, stop))
            for n in range(THREADS)
        ]
        for each in threads:
            each.start()
        while not stop.wait(0.5):
            pass
        for each in threads:
            each.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
