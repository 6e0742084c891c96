"""Peer rq: it uses SimpleWorker, which runs jobs in its own process, and keeps no results. (The default worker forks
per job.)
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import redis
from contender import TEXT, WAIT_S, handler, run, url
from rq import Queue, SimpleWorker

connection = redis.Redis.from_url(url())
queue = Queue("bench", connection=connection)
_note: list = []


def noop(number: int, text: str) -> None:
    """Do nothing, or wait."""
    if not _note:
        _note.append(handler())
    _note[0](number, text)
    if WAIT_S:
        time.sleep(WAIT_S)


def one(number: int) -> None:
    queue.enqueue("rq_peer.noop", number, TEXT, result_ttl=0)


def bulk(numbers: Sequence[int]) -> None:
    queue.enqueue_many(
        [Queue.prepare_data("rq_peer.noop", (number, TEXT), result_ttl=0) for number in numbers]
    )


def work() -> None:
    SimpleWorker([queue], connection=connection).work(logging_level="WARNING")


if __name__ == "__main__":
    run(one=one, bulk=bulk, work=work)
