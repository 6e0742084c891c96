"""A busy queue with caps, for the doctor's tests."""

from typing import Any

from rq_core.model.job import Claim, NewJob
from rq_core.model.recurrence import recurrence
from rq_core.protocol.calls.schedules import Declaration
from tests.kit.lanes import breaches
from tests.kit.seed import Seed

TENANTS = ("a", "b", "c")
RATE = "host@10s"
BREAKER = "zone@60s:failures"


class Busy:
    """A queue with jobs in many states: plain, running, scheduled and dead jobs, and open and blocked lanes.

    Lanes are blocked by a task's cap, by tenants' caps and by a rate. A failure has paused the scope of a breaker.
    """

    def __init__(self, seed: Seed, *, fair: bool = False) -> None:
        self.seed = seed
        self.fair = fair
        self.held: list[Claim] = []
        seed.enqueue("done", "done-too", remember_ms=86_400_000, call="=70c5", keep_ms=86_400_000)
        seed.complete(*seed.claim(2).jobs)
        seed.cap("queue", 6)
        seed.cap("task=t", 4)
        seed.cap("tenant", 1)
        seed.cap(RATE, "1/10000ms/1")
        seed.cap(BREAKER, "1/60000ms/30000")
        if fair:
            seed.configure(fair=1)
        for n in range(4):
            seed.enqueue(*(self.job(f"{t}-{n}", t, "task=t", f"tenant={t}") for t in TENANTS))
            seed.enqueue(self.job(f"rated-{n}", "r", "task=u", f"{RATE}=h"))
        seed.enqueue("plain-0", "plain-1", task="v")
        guarded = ("task=u", "tenant=x", f"{BREAKER}=z")
        seed.enqueue(self.job("dead", "x", *guarded, priority="critical"))
        seed.fail(seed.claim_one("dead"), verdict="final")
        seed.enqueue(self.job("again", "y", "task=u", "tenant=y", priority="critical"))
        seed.fail(seed.claim_one("again"), delay_ms=60_000)
        self.take(8)
        # Opens what is behind in its lane.
        self.end("a-0")
        seed.enqueue(self.job("late", "z", "task=u", "tenant=z"))
        seed.enqueue("plain-2", "plain-3", task="v")
        seed.enqueue(self.job("low", "a", "task=u", "tenant=a", priority="low"))
        for priority in ("critical", "high", "low"):
            seed.enqueue(f"plain-{priority}", task="v", priority=priority)
        for n, claim in enumerate(self.held[:2]):
            seed.save(claim, life=f"{n:016x}")
            seed.save(claim, life=f"{n:016x}", what="begin", entry=2)
        seed.show(self.held[0], says="1/2 busy")
        seed.show(self.held[0], chunks=[(1, "one"), (2, "two")])
        # Of which none is due here.
        rules = [recurrence(name, every=90 * 86_400) for name in ("monthly", "rarely")]
        made = [Declaration.of(seed.job("-", task="v"), rule) for rule in rules]
        seed.client.run(seed.client.calls.schedules.put(seed.queue, made))

    def job(self, job_id: str, key: str, *scopes: str, **options: Any) -> NewJob:
        task = scopes[0].removeprefix("task=")
        other = [f"fair={key}"] if self.fair else []
        return self.seed.job(job_id, task=task, scopes=[*scopes, *other], **options)

    def take(self, limit: int = 100) -> list[str]:
        claimed = self.seed.claim(limit).jobs
        self.held += claimed
        assert breaches(self.seed.snapshot()) == []
        return [c.id for c in claimed]

    def end(self, job_id: str | None = None) -> str:
        """Complete the running job with this id, and return the id. Without an id, complete the first running job."""
        at = 0 if job_id is None else [c.id for c in self.held].index(job_id)
        done = self.held.pop(at)
        self.seed.complete(done)
        return done.id

    def drain(self) -> set[str]:
        """Run all jobs except the dead one, and return their ids. While no job can run, advance the clock."""
        ran: set[str] = set()
        for _ in range(100):
            self.take()
            if self.held:
                ran.add(self.end())
            elif self.seed.snapshot()["jobs"].keys() == {"dead"}:
                break
            else:
                self.seed.advance(10_000)
        return ran
