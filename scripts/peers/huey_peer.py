"""Peer huey: it runs threads. It acknowledges no jobs, so the jobs of a killed worker are lost."""

from __future__ import annotations

import time

from contender import TEXT, WAIT_S, concurrency, handler, run, url
from huey import RedisHuey

huey = RedisHuey("bench", url=url(), results=False)
note = handler()


@huey.task(name="noop")
def noop(number: int, text: str) -> None:
    """Do nothing, or wait."""
    note(number, text)
    if WAIT_S:
        time.sleep(WAIT_S)


def one(number: int) -> None:
    noop(number, TEXT)


def work() -> None:
    huey.create_consumer(
        workers=concurrency() if WAIT_S else 4, worker_type="thread", periodic=False
    ).run()


if __name__ == "__main__":
    run(one=one, work=work)
