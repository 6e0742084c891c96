"""Measures Redis' own time per job: µs of the server's processor for enqueue, claim and complete.

No Python worker is measured: one client sends batches, and the server reports its time (INFO cpu). There are four kinds
of jobs:

- no cap
- one cap that is never reached
- two caps that are never reached: one for the task, and one for each of 1,000 tenants
- two caps that are always reached
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.keys import QueueKeys
from rq_core.model.limits.scopes import lane_name
from rq_core.protocol.calls import claims

ARGS = '{"number":12345,"text":"0123456789012345678901234567890123456789"}'
TENANTS = 1_000
NEVER = "1000000"
KINDS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "uncapped": ((), {}),
    "one_cap": (("task=t",), {"task=t": NEVER}),
    "two_caps": (("task=t", "tenant"), {"task=t": NEVER, "tenant": NEVER}),
    "binding": (("task=t", "tenant"), {"task=t": "100", "tenant": "1"}),
}
BATCHES = (100, 10, 1)
ROUND = 100
"""The number of jobs between two reads of the server's processor time."""
BARE = "return {'ok'}"
"""A script that does nothing. It is sent with as many bytes as an enqueue of one job, to measure the cost of a bare
call."""


def measure(client: Client, jobs: int, repeats: int) -> dict[str, list[float]]:
    """Return the µs per job, by kind, batch size and script. Each value is measured once in each repeat."""
    figures: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        for batch in BATCHES:
            for kind in KINDS:
                spent = _life(client, kind, jobs if batch > 1 else jobs // 10, batch)
                for script, micros in spent.items():
                    figures[f"redis_us_{kind}_batch_{batch}_{script}"].append(micros)
                figures[f"redis_us_{kind}_batch_{batch}"].append(sum(spent.values()))
        figures["redis_us_bare_call"].append(_bare(client, jobs // 10))
    return figures


def names(medians: Mapping[str, float]) -> dict[str, float]:
    """Return the figures for the table of targets, from the medians of :func:`measure`."""
    plain = medians["redis_us_uncapped_batch_100"]
    return {
        "redis_us_per_job": plain,
        "redis_us_per_job_capped": medians["redis_us_one_cap_batch_100"],
        "redis_us_per_cap": medians["redis_us_one_cap_batch_100"] - plain,
        "redis_us_per_job_alone": medians["redis_us_uncapped_batch_1"],
        "redis_us_alone_over_bare": medians["redis_us_uncapped_batch_1"]
        / (3 * medians["redis_us_bare_call"]),
    }


def _bare(client: Client, calls: int) -> float:
    """Return the server's time (µs) for a call of a script that does nothing."""
    ask = client.calls.delivery.ask
    (sha,) = client.run(ask([["SCRIPT", "LOAD", BARE]]))
    call = ["EVALSHA", sha, 8, *(f"rqc:{{raw}}:{n}" for n in range(8)), "slot", 1, "c-1", ARGS]

    def work() -> None:
        for _ in range(calls):
            client.run(ask([call]))

    return timed(client, work) / calls


def table(figures: dict[str, list[float]]) -> list[str]:
    """Return the figures as lines of text."""
    lines = []
    for batch in BATCHES:
        plain = statistics.median(figures[f"redis_us_uncapped_batch_{batch}"])
        for kind in KINDS:
            name = f"redis_us_{kind}_batch_{batch}"
            parts = [
                statistics.median(figures[f"{name}_{s}"]) for s in ("enqueue", "claim", "complete")
            ]
            whole = figures[name]
            lines.append(
                f"batch {batch:>3} {kind:9} {' + '.join(f'{p:5.1f}' for p in parts)}"
                f" = {statistics.median(whole):6.1f} µs ({min(whole):.1f} to {max(whole):.1f}),"
                f" {statistics.median(whole) / plain:.2f} times uncapped"
            )
    return lines


def _life(client: Client, kind: str, jobs: int, batch: int) -> dict[str, float]:
    queue = f"raw-{kind}"
    scopes, caps = KINDS[kind]
    run, ops = client.run, client.calls
    run(ops.delivery.ask([["DEL", *QueueKeys(queue).all()]]))
    if caps:
        client.run(
            client.calls.caps.set(queue, [(scope, limit, -1) for scope, limit in caps.items()])
        )
    made = [
        NewJob(f"j-{n:032}", queue, profile("t"), ARGS, 0, _lane(scopes, n)) for n in range(jobs)
    ]
    held: list[list[tuple[str, str]]] = []

    def enqueue() -> None:
        for at in range(0, jobs, batch):
            client.run(client.calls.enqueue.many(made[at : at + batch]))

    spent = {"enqueue": timed(client, enqueue)}
    spent |= {"claim": 0.0, "complete": 0.0}
    done = 0
    rounds = max(1, ROUND // batch)
    while done < jobs:

        def claim() -> None:
            for _ in range(rounds):
                if not (found := client.run(claims.claim(queue, "w-1", batch)).jobs):
                    return
                held.append([(c.id, c.fence) for c in found])

        def complete() -> None:
            for pairs in held:
                client.run(claims.complete(queue, "w-1", pairs))

        # Asking for the time takes some itself, so that is done once for many jobs, also in batches of one.
        spent["claim"] += timed(client, claim)
        done += sum(map(len, held))
        spent["complete"] += timed(client, complete)
        held.clear()
    return {script: micros / jobs for script, micros in spent.items()}


def _lane(scopes: tuple[str, ...], number: int) -> str:
    return lane_name(
        2, [s if "=" in s else f"{s}=k{number * 7919 % 10_007 % TENANTS}" for s in scopes]
    )


def timed(client: Client, work: Callable[[], None]) -> float:
    before = spent_us(client)
    work()
    return spent_us(client) - before


def spent_us(client: Client) -> float:
    """Return the processor time (µs) that the server's main thread has used so far.

    Other programs on the machine do not change this time, but they change the duration of calls. It includes about 10
    µs per call outside the script.
    """
    (text,) = client.run(client.calls.delivery.ask([["INFO", "cpu"]]))
    facts = dict(line.split(":") for line in str(text).splitlines() if ":" in line)
    return 1e6 * sum(float(facts[f"used_cpu_{kind}_main_thread"]) for kind in ("user", "sys"))
