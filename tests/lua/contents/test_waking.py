"""Wake tokens, which wake a waiting worker, and the calls that push one."""

from tests.kit.seed import Seed
from tests.kit.snapshots import fields_of, lines_of


def fence_of(seed: Seed, job_id: str) -> str:
    return fields_of(seed.state(job_id) or "")["fence"]


def test_a_wake_token_is_pushed_only_when_a_worker_may_be_needed(seed: Seed) -> None:
    """Checks, for each call, whether it pushes a token while the queue has none."""
    seed.client.run(seed.client.calls.delivery.handshake("q"))

    def pushed(call: object) -> int:
        seed.take_token()
        call()  # type: ignore[operator]
        return seed.tokens()

    found = {
        "enqueue now": pushed(lambda: seed.enqueue("a")),
        "enqueue a duplicate": pushed(lambda: seed.enqueue("a")),
        "claim all": pushed(lambda: seed.claim()),
        "the first delayed": pushed(lambda: seed.enqueue("d-1", delay_ms=1_000)),
        "one due later": pushed(lambda: seed.enqueue("d-2", delay_ms=2_000)),
        "one due earlier": pushed(lambda: seed.enqueue("d-0", delay_ms=500)),
        "empty claim": pushed(lambda: seed.claim()),
        "two more": pushed(lambda: seed.enqueue("b", "c")),
        "claim that leaves one": pushed(lambda: seed.claim(1)),
        "claim of the last": pushed(lambda: seed.claim(1)),
    }
    held = {
        i: (i, line.split("fence=")[1].split(" ")[0])
        for i, line in lines_of(seed.snapshot()).items()
        if "fence" in line
    }
    found |= {
        "retry later than others": pushed(lambda: seed.fail(held["a"], delay_ms=9_000)),
        "retry earlier than others": pushed(lambda: seed.fail(held["b"], delay_ms=5)),
        "rollback": pushed(lambda: seed.rollback(held["c"])),
        "claim it again": pushed(lambda: seed.claim(1)),
        "retry at once": pushed(lambda: seed.fail(("c", fence_of(seed, "c")))),
        "cancel": pushed(lambda: seed.cancel("d-2")),
        "pause": pushed(lambda: seed.configure(paused=1)),
        "claim while paused": pushed(lambda: seed.claim()),
        "resume": pushed(lambda: seed.configure(paused=0)),
        "resume again": pushed(lambda: seed.configure(paused=0)),
    }

    assert found == {
        "enqueue now": 1,
        "enqueue a duplicate": 0,
        "claim all": 0,
        "the first delayed": 1,
        "one due later": 0,
        "one due earlier": 1,
        "empty claim": 0,
        "two more": 1,
        "claim that leaves one": 1,
        "claim of the last": 0,
        "retry later than others": 0,
        "retry earlier than others": 1,
        "rollback": 1,
        "claim it again": 0,
        "retry at once": 1,
        "cancel": 0,
        "pause": 0,
        "claim while paused": 0,
        "resume": 1,
        "resume again": 0,
    }


def test_at_most_one_wake_token_exists(seed: Seed) -> None:
    for n in range(3):
        seed.enqueue(f"a-{n}")
        seed.claim(0)
        seed.configure(paused=1)
        seed.configure(paused=0)
        seed.dead(f"d-{n}")
        seed.requeue(f"d-{n}")
        seed.rollback(seed.claim_one(f"d-{n}"))
        seed.claim(1)

    assert seed.tokens() == 1
