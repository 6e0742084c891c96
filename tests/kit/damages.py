"""A table of the kinds of damage that a client can do to a queue if it bypasses the scripts.

Each row has the damage, and a part of the text of the finding. The doctor finds the damage while the outbox has all
entries (``tests/doctor/test_damages.py``). When the mirror has trimmed the outbox, the doctor or verify finds it with
the help of SQL (``tests/audit/test_damages.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rq_core.model.headers import FORK_HEADER, PARENT_HEADER
from rq_core.model.job import profile
from rq_core.model.recurrence import recurrence
from rq_core.model.result_encoding import pack_result
from rq_core.protocol.calls.schedules import Declaration
from tests.kit.seed import Seed

HOUR_MS = 3_600_000
YEARS_MS = 10 * 365 * 24 * HOUR_MS
IN_2286_MS = 9_999_999_999_999
RATE = "host@10s"
CALL = "=" + "70c5" * 8
THROTTLED = "t/user=9"
"""The unique name of a job that has ended, which a throttle window still holds."""
HELD = "t/user=8"
"""The unique name of a waiting job."""
ORIGIN = "9f3a0b1c9f3a0b1c 3 2 o-1"
"""The header of the waiting job ``waits``, which is a fork."""
PARENT = "rq_core.child.3.0 imports import-7 9f3a0b1c9f3a0b1c pages"
"""The header of the same job that names its parent: it is a child, too."""


class Damage(NamedTuple):
    """A kind of damage to a queue that ``fill`` has filled, and the finding about it."""

    plant: Callable[[Seed], object]
    says: str
    """A part of the text that the finding must have."""
    invariant: str = "I8"
    is_mended: bool = True
    """True if ``--repair`` restores the earlier data. If false, ``--repair`` leaves the damaged data unchanged."""


def fill(seed: Seed) -> None:
    """Fill the queue with ended, waiting and running jobs, an exhausted rate, and two schedules."""
    both: dict[str, Any] = {"remember_ms": 2 * HOUR_MS, "call": CALL, "keep_ms": HOUR_MS}
    seed.enqueue("done", **both)
    seed.complete(seed.claim_one("done"), values={1: pack_result('"d"')})
    seed.enqueue("plain", keep_ms=HOUR_MS)
    seed.complete(seed.claim_one("plain"), values={1: pack_result('"p"')})
    seed.enqueue("once", remember_ms=2 * HOUR_MS, call=CALL)
    seed.complete(seed.claim_one("once"))
    seed.dead("dead", **both)
    seed.prune("dead")
    seed.fail(seed.cancelling("stopped", **both))
    seed.enqueue("withdrawn", keep_ms=HOUR_MS)
    seed.cancel("withdrawn")
    for job_id in ("old", "new"):
        seed.enqueue(job_id, name="t/r", unique="replace", keep_ms=HOUR_MS, delay_ms=HOUR_MS)
    seed.enqueue("throttled", name=THROTTLED, unique="keep", window_ms=HOUR_MS)
    seed.complete(seed.claim_one("throttled"))
    seed.enqueue("held", name=HELD, unique="keep", window_ms=HOUR_MS, delay_ms=HOUR_MS)
    seed.cap("tenant", 3)
    seed.cap(RATE, "1/10000ms/1")
    timed = profile("t", timeout_ms=5_000)
    headers = f'{{"{FORK_HEADER}":"{ORIGIN}","{PARENT_HEADER}":"{PARENT}"}}'
    waits = seed.job("waits", args_json='{"to":"a@b.c"}')
    seed.enqueue(waits._replace(profile=timed, headers_json=headers))
    seed.enqueue("rated", "rated-too", scopes=[f"{RATE}=h"], priority="critical")
    seed.complete(seed.claim_one("rated"))
    seed.running("runs", scopes=["tenant=a"])
    seed.enqueue("late", delay_ms=HOUR_MS)
    rules = [recurrence(name, every=86_400) for name in ("nightly", "weekly")]
    made = [Declaration.of(seed.job("-", args_json='{"day":"x"}'), rule) for rule in rules]
    seed.client.run(seed.calls.schedules.put(seed.queue, made))
    seed.client.run(seed.calls.schedules.change(seed.queue, "weekly", "pause"))


def _put(key: str, member: str, value: str) -> Callable[[Seed], object]:
    return lambda seed: seed.control.hset(seed.keys(key), member, value)


def _replace(key: str, member: str, was: str, lie: str) -> Callable[[Seed], object]:
    def plant(seed: Seed) -> None:
        has = str(seed.control.hget(seed.keys(key), member))
        assert was in has
        seed.control.hset(seed.keys(key), member, has.replace(was, lie, 1))

    return plant


def _nightly_in_an_hour(seed: Seed) -> None:
    """Delay the next instant of a schedule by an hour, in all keys that store it."""
    (stored,) = seed.client.run(seed.calls.schedules.stored(seed.queue, ["nightly"])).values()
    at_ms = stored.due_ms + HOUR_MS
    entry = str(stored._replace(next_ms=at_ms, due_ms=at_ms))
    seed.control.hset(seed.keys("schedules"), "nightly", entry)
    seed.control.zadd(seed.keys("ticks"), {"nightly": at_ms})
    seed.control.zadd(seed.keys("scheduled"), {"tick|": at_ms})


def _no_nightly(seed: Seed) -> None:
    seed.control.hdel(seed.keys("schedules"), "nightly", "nightly|job")
    seed.control.zrem(seed.keys("ticks"), "nightly")
    seed.control.zrem(seed.keys("scheduled"), "tick|")


def _weekly_under_another_name(seed: Seed) -> None:
    for end in ("", "|job"):
        entry = str(seed.control.hget(seed.keys("schedules"), f"weekly{end}"))
        seed.control.hset(seed.keys("schedules"), f"monthly{end}", entry)


def _name_of_nobody(seed: Seed) -> None:
    seed.control.hset(seed.keys("slots"), "unique|t/user=7", f"nobody {IN_2286_MS}")


def _name_of_nobody_with_its_mark(seed: Seed) -> None:
    _name_of_nobody(seed)
    seed.control.zadd(seed.keys("expiring"), {"name|t/user=7": IN_2286_MS})


def _rate_spent_for_years(seed: Seed) -> None:
    until = seed.now + YEARS_MS
    seed.control.hset(seed.keys("rates"), f"{RATE}=h", str(until * 1000))
    seed.control.zadd(seed.keys("expiring"), {f"rate|{RATE}=h": until})


def _resume_in_years(seed: Seed) -> None:
    seed.control.zadd(seed.keys("scheduled"), {f"rate|{RATE}=h": seed.now + YEARS_MS})


def _lease_for_years(seed: Seed) -> None:
    seed.control.zadd(seed.keys("leases"), {"runs": seed.now + YEARS_MS})


def _running_job_made_ready(seed: Seed) -> None:
    _replace("state", "runs", "running", "ready")(seed)


def _running_job_made_ready_without_its_claim(seed: Seed) -> None:
    line = seed.state("runs") or ""
    words = [word for word in line.split(" ")[1:] if word.partition("=")[0] not in ("fence", "by")]
    seed.control.hset(seed.keys("state"), "runs", " ".join(["ready", *words]))


def _word(job_id: str, was: str, lie: str) -> Callable[[Seed], object]:
    """Return a function that changes a word in a line of the key ``results``. It also corrects the stored size of the
    key."""

    def plant(seed: Seed) -> None:
        before = str(seed.control.hget(seed.keys("results"), job_id))
        _replace("results", job_id, was, lie)(seed)
        after = str(seed.control.hget(seed.keys("results"), job_id))
        seed.control.hincrby(seed.keys("meta"), "results_bytes", len(after) - len(before))

    return plant


def _moment(name: str, by_ms: int) -> Callable[[Seed], object]:
    """Return a function that changes the end of a name's window. It changes all keys that store the end, and not the
    log."""

    def plant(seed: Seed) -> None:
        field = f"unique|{name}"
        job_id, until = str(seed.control.hget(seed.keys("slots"), field)).split(" ")
        seed.control.hset(seed.keys("slots"), field, f"{job_id} {int(until) + by_ms}")
        seed.control.zadd(seed.keys("expiring"), {f"name|{name}": int(until) + by_ms})

    return plant


WORDS = [
    ("done", " task=t", " task=u"),
    ("done", " until=1", " until=2"),
    ("done", " until=1", " until=0"),
    ("done", " once=1", " once=2"),
    ("done", " call=70c5", " call=70c6"),
    ("done", " call=" + "70c5" * 8, ""),
    ("done", " at=1", " at=2"),
    ("done", "succeeded", "cancelled"),
    ("done", " fence=1", " fence=2"),
    ("done", " bytes=3", " bytes=9"),
    ("done", " until=1", " job=evil until=1"),
    ("done", "succeeded", "replaced job=evil"),
    ("plain", " until=1", " until=2"),
    ("plain", " task=t", " task=u"),
    ("plain", " fence=1", " fence=2"),
    ("once", " at=1", " at=2"),
    ("once", " fence=1", " fence=2"),
    ("once", " once=1", " once=2"),
    ("once", " call=70c5", " call=70c6"),
    ("once", "succeeded", "dead"),
    ("dead", " at=1", " at=2"),
    ("dead", " reason=final", " reason=poison"),
    ("dead", "dead", "expired"),
    ("stopped", " fence=1", " fence=2"),
    ("withdrawn", " at=1", " at=2"),
    ("withdrawn", " until=1", " until=2"),
    ("withdrawn", "cancelled", "expired"),
    ("old", " job=new", " job=mark"),
    ("old", " until=1", " until=2"),
    ("old", " until=1", " task=evil until=1"),
]
"""Words in lines of ``results``: the id of the line, the true word, and the false word that replaces the true word."""

DAMAGES = {
    "a name that nobody's job holds": Damage(
        _name_of_nobody, "by the log no job can hold it", "I13"
    ),
    "a name that nobody's job holds, with its mark": Damage(
        _name_of_nobody_with_its_mark, "by the log no job can hold it", "I13"
    ),
    "other arguments": Damage(
        _replace("jobs", "waits", "a@b.c", "b@b.c"), "the digest of its arguments and its timeout", is_mended=False
    ),
    "another task": Damage(
        _replace("jobs", "waits", '"task":"t"', '"task":"u"'), "its JSON is of task 'u'", is_mended=False
    ),
    "another timeout": Damage(
        _replace("jobs", "waits", '"timeout_ms":5000', '"timeout_ms":9000'),
        "the digest of its arguments and its timeout", is_mended=False,
    ),
    "no timeout": Damage(
        _replace("jobs", "waits", ',"timeout_ms":5000', ""),
        "the digest of its arguments and its timeout", is_mended=False
    ),
    "a fork that goes on behind fewer steps": Damage(
        _replace("jobs", "waits", ORIGIN, ORIGIN.replace("3 2", "2 1")),
        f"its header {FORK_HEADER}", is_mended=False,
    ),
    "a fork that begins at its first step": Damage(
        _replace("jobs", "waits", f'"{FORK_HEADER}":"{ORIGIN}",', ""),
        f"its header {FORK_HEADER}", is_mended=False,
    ),
    "a job that was made a fork": Damage(
        _replace("jobs", "late", '{"task"', f'{{"headers":{{"rq-core\\u002dfork":"{ORIGIN}"}},"task"'),
        f"its header {FORK_HEADER}", is_mended=False,
    ),
    "a child of another parent": Damage(
        _replace("jobs", "waits", PARENT, PARENT.replace("import-7", "import-8")),
        f"its header {PARENT_HEADER}", is_mended=False,
    ),
    "a child without a parent": Damage(
        _replace("jobs", "waits", f',"{PARENT_HEADER}":"{PARENT}"', ""),
        f"its header {PARENT_HEADER}", is_mended=False,
    ),
    "more attempts": Damage(
        _replace("jobs", "late", '{"task"', '{"attempts":9,"task"'),
        "its JSON allows 9 attempts, and the job has 3", is_mended=False,
    ),
    "as many attempts as the task has": Damage(
        _replace("jobs", "late", '{"task"', '{"attempts":0,"task"'),
        "its JSON allows the task's attempts, and the job has 3", is_mended=False,
    ),
    "as many losses as the task has": Damage(
        _replace("jobs", "late", '{"task"', '{"losses":0,"task"'),
        "its JSON and its max_losses, 3, differ in whether the task decides", is_mended=False,
    ),
    "more attempts in the line": Damage(
        _replace("state", "late", "task=t ", "task=t attempts=9 "), "attempts=9, 3 by the log"
    ),
    "more losses in the line": Damage(
        _replace("state", "late", "task=t ", "task=t losses=9 "), "losses=9, 3 by the log"
    ),
    "arguments that cannot be read": Damage(
        _replace("jobs", "waits", '"task"', '"tusk"'), "its JSON cannot be read", is_mended=False
    ),
    "another version of a limit": Damage(
        _replace("caps", "tenant", "version=1", "version=7"),
        "3 version=7 in `caps`, 3 version=1 by the log", is_mended=False,
    ),
    "a rate that is spent for years": Damage(_rate_spent_for_years, "the clock went back"),
    "a rate that goes on in years": Damage(_resume_in_years, "`scheduled` has"),
    "a lease for years": Damage(_lease_for_years, "`leases` has"),
    "a running job that was made ready": Damage(_running_job_made_ready, "job runs"),
    "a running job that was made ready without its claim": Damage(
        _running_job_made_ready_without_its_claim, "ready by its state, running by the log"
    ),
    "another instant of a schedule": Damage(_nightly_in_an_hour, "by the log", is_mended=False),
    "another rule of a schedule": Damage(
        _replace("schedules", "weekly", "86400000", "86400001"), "by the log", is_mended=False
    ),
    "another version of a schedule": Damage(
        _replace("schedules", "weekly", "v=2", "v=7"), "v=7, 2 by the log", is_mended=False
    ),
    "other arguments of a schedule": Damage(
        _replace("schedules", "nightly|job", '"x"', '"y"'), "the job of schedule nightly", is_mended=False
    ),
    "another priority of a schedule's jobs": Damage(
        _replace("schedules", "nightly|job", "normal", "high"), "not the one that the log has", is_mended=False
    ),
    "a schedule that cannot be read": Damage(
        _replace("schedules", "weekly", "v=2", "v=x"), "schedule 'weekly' cannot be read", is_mended=False
    ),
    "a schedule without a job": Damage(
        lambda seed: seed.control.hdel(seed.keys("schedules"), "weekly|job"), "an entry and no job", is_mended=False
    ),
    "a job without a schedule": Damage(
        lambda seed: seed.control.hdel(seed.keys("schedules"), "weekly"), "a job and no entry", is_mended=False
    ),
    "a lost schedule": Damage(_no_nightly, "schedule nightly is on by the log", is_mended=False),
    "a schedule that nobody made": Damage(
        _weekly_under_another_name, "schedule monthly is paused, and the log does not have it", is_mended=False
    ),
    "a schedule that claims do not learn of": Damage(
        lambda seed: seed.control.zrem(seed.keys("scheduled"), "tick|"), "`scheduled` lacks 'tick|'"
    ),
    "a schedule that is due in years": Damage(
        lambda seed: seed.control.zadd(seed.keys("ticks"), {"nightly": IN_2286_MS}), "`ticks` has it at"
    ),
    **{
        f"{name} stands {by_ms} ms longer": Damage(_moment(name, by_ms), "by the log", "I13")
        for name in (THROTTLED, HELD)
        for by_ms in (-60_000, 60_000)
    },
    **{
        f"{lie or 'nothing'} instead of {was} of {job_id}": Damage(_word(job_id, was, lie), "by the log", "I14")
        for job_id, was, lie in WORDS
    },
}  # fmt: skip
