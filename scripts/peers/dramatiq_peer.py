"""Peer dramatiq: it runs one process with threads, and prefetches 1,000 jobs."""

from __future__ import annotations

import os
import sys
import time

import dramatiq
from contender import TEXT, WAIT_S, concurrency, handler, run, url
from dramatiq.brokers.redis import RedisBroker

THREADS = str(concurrency()) if WAIT_S else "8"

broker = RedisBroker(url=url())
dramatiq.set_broker(broker)
note = handler()


@dramatiq.actor(queue_name="bench")
def noop(number: int, text: str) -> None:
    """Do nothing, or wait."""
    note(number, text)
    if WAIT_S:
        time.sleep(WAIT_S)


def one(number: int) -> None:
    noop.send(number, TEXT)


def work() -> None:
    os.environ["dramatiq_queue_prefetch"] = "1000"  # noqa: SIM112 - its name
    words = ["dramatiq_peer", "--processes", "1", "--threads", THREADS]
    os.execv(sys.executable, [sys.executable, "-m", "dramatiq", *words])  # noqa: S606 - no shell


if __name__ == "__main__":
    run(one=one, work=work)
