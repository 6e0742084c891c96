"""The doctor reports each kind of damage. It repairs the damage if Redis and the log have the data."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from rq_core.connections.client import Client
from rq_core.doctor import Finding, Kind, diagnose, examine, repair
from rq_core.doctor.image import LISTS
from rq_core.doctor.repair import carry_out
from rq_core.errors import QueueDamaged, ServerUnsuitable
from rq_core.model.events import OutboxId
from rq_core.model.job import Claim, NewJob, profile
from rq_core.model.keys import KEYS, queue_keys
from rq_core.model.table.machine import Priority, State
from rq_core.protocol.calls import audit, claims
from rq_core.protocol.calls.claims import Claimed
from rq_core.protocol.engine.plan import Call
from rq_core.protocol.reads.steps import read_lines
from tests.kit.doctor import look, mend, named
from tests.kit.seed import Seed
from tests.kit.snapshots import lines_of

QUEUE = "mail"
HOUR_MS = 3_600_000


@dataclass
class Scene:
    """A queue's client, a connection with which a test damages keys, and the claims in force by job id."""

    client: Client
    hand: "redis.Redis"
    held: dict[str, Claim] = field(default_factory=dict)

    def key(self, name: str) -> str:
        return queue_keys(QUEUE)(name)

    def job(self, job_id: str, priority: Priority = Priority.NORMAL, delay_ms: int = 0) -> NewJob:
        return NewJob(job_id, QUEUE, profile("send", priority), '{"to":"a@b.c"}', delay_ms)

    def claim(self, limit: int) -> Claimed:
        claimed = self.client.run(claims.claim(QUEUE, "w-1", limit))
        self.held |= {job.id: job for job in claimed.jobs}
        return claimed

    def settle(self, call: Callable[..., Call[Any]], job_id: str, *more: Any) -> Any:
        held = self.held.pop(job_id)
        return self.client.run(call(QUEUE, "w-1", [(held.id, held.fence, *more)]))

    def snapshot(self) -> dict[str, Any]:
        return self.client.run(self.client.calls.reads.snapshot(QUEUE))

    def diagnose(self) -> list[Finding]:
        return diagnose(self.client, QUEUE)

    def repair(self) -> list[Finding]:
        return repair(self.client, QUEUE, self.diagnose(), by="ada")

    def state(self, job_id: str) -> str:
        line: str = lines_of(self.snapshot())[job_id]
        return line

    def write(self, job_id: str, line: str) -> None:
        self.hand.hset(self.key("state"), job_id, line)


@pytest.fixture
def scene(redis_url: str) -> Iterator[Scene]:
    with (
        Client(redis_url) as client,
        redis.Redis.from_url(redis_url, decode_responses=True) as hand,
    ):
        made = Scene(client, hand)
        client.run(
            client.calls.enqueue.many(
                [made.job(i) for i in ("run", "stop", "die", "die2", "again")]
            )
        )
        made.claim(5)
        made.settle(claims.fail, "die", "final", 0, "no", "null")
        made.settle(claims.fail, "die2", "final", 0, "no", "null")
        made.settle(claims.fail, "again", "retry", HOUR_MS, "no", "null")
        client.run(client.calls.admin.cancel(QUEUE, ["stop"]))
        client.run(
            client.calls.enqueue.many(
                [
                    *(made.job(i) for i in ("a", "b", "c", "gone", "d")),
                    made.job("now", Priority.CRITICAL),
                    made.job("late", Priority.LOW, delay_ms=HOUR_MS),
                ]
            )
        )
        client.run(client.calls.admin.cancel(QUEUE, ["gone"]))
        yield made


def drain(scene: Scene) -> set[str]:
    """Claim all ready jobs, and return their ids."""
    return {job.id for job in scene.claim(100).jobs}


READY = {"a", "b", "c", "d", "now"}


def test_a_healthy_queue_has_no_findings(scene: Scene) -> None:
    """Checks jobs in each state but parked. The tests of boxes cover parked jobs."""
    states = {line.split(" ")[0] for line in lines_of(scene.snapshot()).values()}

    assert states == set(State) - {State.PARKED}
    assert scene.diagnose() == []


def test_a_queue_that_does_not_exist_has_no_findings(scene: Scene) -> None:
    assert diagnose(scene.client, "elsewhere") == []


def test_the_diagnosis_of_the_doctor_changes_nothing(scene: Scene) -> None:
    scene.hand.delete(scene.key("leases"))
    before = scene.snapshot()

    scene.diagnose()

    assert before == scene.snapshot()


# What a careless hand does, and what the doctor names.
HANDS: dict[str, tuple[Callable[[Scene], object], set[str]]] = {
    "ready list lost": (lambda s: s.hand.delete(s.key("ready:2")), {"ready:2", "meta"}),
    "entry in the list of another priority": (
        lambda s: (s.hand.lrem(s.key("ready:0"), 1, "now"), s.hand.lpush(s.key("ready:3"), "now")),
        {"ready:0", "meta"},
    ),
    "entries too many": (
        lambda s: s.hand.rpush(s.key("ready:1"), "a", "nobody", "run", "not a name"),
        {"meta"},
    ),
    "strays in the leases": (
        lambda s: s.hand.zadd(s.key("leases"), {"a": 9e15, "nobody": 0.5, 'q"x': float("inf")}),
        {"leases"},
    ),
    "marks that lead nowhere": (
        lambda s: s.hand.zadd(
            s.key("expiring"), {"dead|a": 9e15, "dead|nobody": 9e15, "slot|x": 9e15, "?": 9e15}
        ),
        {"expiring"},
    ),
    "arguments without a state": (lambda s: s.hand.hset(s.key("jobs"), "nobody", "{}"), {"jobs"}),
    "token lost": (lambda s: s.hand.delete(s.key("wake")), {"no_wake"}),
    "tokens too many": (lambda s: s.hand.rpush(s.key("wake"), "1", "1", "1"), {"wake"}),
    "state of one job lost": (lambda s: s.hand.hdel(s.key("state"), "run"), {"lost"}),
    "all states lost": (lambda s: s.hand.delete(s.key("state")), {"lost"}),
    "line that no script wrote": (lambda s: s.write("a", "rubbish"), {"unreadable"}),
    "line without a place": (lambda s: s.write("a", "ready task=send since=1"), {"unreadable"}),
    "invalid number": (
        lambda s: s.write("run", s.state("run").replace("claim=1", "claim=one")),
        {"unreadable"},
    ),
    "every index lost": (
        lambda s: s.hand.delete(
            *map(s.key, ("scheduled", "leases", "dead", "expiring", "wake", *LISTS))
        ),
        {"scheduled", "leases", "dead", "expiring", "no_wake", "ready:0", "ready:2", "meta"},
    ),
    "every index and all states lost": (
        lambda s: s.hand.delete(*map(s.key, ("state", "scheduled", "leases", "dead", *LISTS))),
        {"lost", "meta"},
    ),
}


@pytest.mark.parametrize("hand", HANDS)
def test_the_doctor_finds_and_repairs_damage_that_was_done_by_hand(hand: str, scene: Scene) -> None:
    act, expected = HANDS[hand]
    before = scene.snapshot()
    act(scene)

    found = scene.diagnose()
    assert expected <= named(found), found
    assert all(finding.mendable for finding in found)

    assert scene.repair() == []
    after = scene.snapshot()
    assert lines_of(before) == lines_of(after)
    assert before["jobs"] == after["jobs"]
    for name in ("scheduled", "dead", "expiring"):
        kept = {m: v for m, v in after[name].items() if m in before[name]}
        assert before[name] == kept, name
    assert before["leases"].keys() == after["leases"].keys()

    again = scene.repair()
    assert again == []
    assert after["outbox"] == scene.snapshot()["outbox"], "a second repair has nothing to log"

    assert drain(scene) == READY
    assert scene.claim(100).jobs == (), "no job is given out twice"


@pytest.mark.parametrize(("sequence", "keys"), [(None, set()), ("?", {"meta"})])
def test_a_missing_sequence_counter_is_no_finding_in_a_queue_that_never_had_a_job(
    sequence: str | None, keys: set[str], redis_url: str
) -> None:
    with Seed(redis_url) as seed:
        seed.configure(paused=0)
        seed.control.hdel(seed.keys("meta"), "sequence")
        if sequence is not None:
            seed.control.hset(seed.keys("meta"), "sequence", sequence)

        assert named(look(seed)) == keys
        assert mend(seed) == []


def test_a_lost_ready_list_is_restored_in_order(scene: Scene) -> None:
    scene.hand.delete(scene.key("ready:2"))

    scene.repair()

    assert [job.id for job in scene.claim(100).jobs] == ["now", "a", "b", "c", "d"]


def test_a_worker_can_settle_a_job_whose_lost_lease_was_restored(scene: Scene) -> None:
    scene.hand.delete(scene.key("leases"))

    scene.repair()

    complete = claims.complete
    assert scene.settle(complete, "run") == {}


def test_the_restored_state_line_of_a_running_job_still_has_the_claim(scene: Scene) -> None:
    """Checks a running job that lost its state line. After the repair, its worker can still settle the job."""
    before = scene.state("run")
    scene.hand.hdel(scene.key("state"), "run")

    assert scene.repair() == []

    assert before == scene.state("run")
    assert scene.settle(claims.complete, "run") == {}


def test_a_lost_job_is_restored_with_its_indexes_in_one_call(scene: Scene) -> None:
    scene.hand.hdel(scene.key("state"), "run")
    scene.hand.zrem(scene.key("leases"), "run")
    found = scene.diagnose()
    assert ["lost"] == [f.kind for f in found]

    carry_out(scene.client, QUEUE, found, by="ada")

    assert scene.diagnose() == []


def test_repair_logs_a_lost_job_without_arguments_as_gone(scene: Scene) -> None:
    scene.hand.hdel(scene.key("jobs"), "a")
    found = scene.diagnose()
    assert "lost" in named(found)
    assert "job a is ready by the log, and Redis does not have it" in {f.says for f in found}

    assert scene.repair() == []

    last = scene.snapshot()["outbox"][-1][1]
    assert last["type"] == "baseline"
    assert last["by"] == "ada"
    assert last["jobs"] == '[["a",null]]'


def test_a_job_written_by_hand_is_added_to_the_log(scene: Scene) -> None:
    scene.write("new", "ready task=send seq=1 since=1")
    scene.hand.hset(scene.key("jobs"), "new", '{"task":"send","args":{}}')

    assert {"unlogged", "ready:2"} <= named(scene.diagnose())
    assert scene.repair() == []
    assert drain(scene) == {*READY, "new"}


def test_repair_corrects_the_log_if_it_differs_from_a_state_line(
    scene: Scene,
) -> None:
    """Checks that the repair changes only the log. Redis decides which state a job has."""
    changed = scene.state("a").replace("task=send", "task=send failed=1")
    scene.write("a", changed)
    found = scene.diagnose()

    assert [f.kind for f in found] == [Kind.LOG_DIFFERS]
    assert found[0].says == "job a differs from the log: failed=1, 0 by the log"
    assert scene.repair() == []
    assert changed == scene.state("a")


def test_if_the_log_lacks_a_job_the_doctor_compares_max_attempts_in_its_json_with_its_state_line(
    scene: Scene,
) -> None:
    value = scene.hand.hget(scene.key("jobs"), "a")
    scene.hand.hset(scene.key("jobs"), "a", value.replace('{"task"', '{"attempts":9,"task"'))
    last = scene.snapshot()["outbox"][-1][0]
    scene.hand.xtrim(scene.key("outbox"), minid=last, approximate=False)

    (finding,) = scene.diagnose()

    assert finding.kind is Kind.SPEC_DIFFERS
    assert finding.says.endswith("its JSON allows 9 attempts, and the job has 3")


def test_the_doctor_leaves_a_ready_job_without_arguments_to_the_worker(scene: Scene) -> None:
    scene.claim(1)
    scene.settle(claims.rollback, "now", "shutdown", "null", "", 0)
    scene.hand.hdel(scene.key("jobs"), "now")

    left = scene.repair()

    assert [f.kind for f in left] == [Kind.NO_SPEC]
    assert not left[0].mendable
    assert drain(scene) == READY


def test_an_unreadable_state_line_without_a_log_is_kept(scene: Scene) -> None:
    """Checks that the doctor does not invent a state line."""
    scene.write("a", "rubbish")
    last = scene.snapshot()["outbox"][-1][0]
    scene.hand.xtrim(scene.key("outbox"), minid=last, approximate=False)

    left = scene.repair()

    assert [(f.kind, f.job_id, f.mendable) for f in left] == [(Kind.UNREADABLE, "a", False)]
    assert scene.state("a") == "rubbish"


def test_an_overlong_state_line_is_refused_and_restored_from_the_log(
    scene: Scene,
) -> None:
    """Checks a state line of 2 MB. No reader loads the whole line, and no message contains it."""
    line = "ready task=send lane=2+k=" + "x" * 2_000_000 + " seq=1 since=1"
    scene.write("a", line)
    calls = scene.client.calls
    with pytest.raises(QueueDamaged, match=rf"job a has {len(line):,} bytes") as refused:
        scene.client.run(calls.reads.job("a", [QUEUE]))
    listed = scene.client.run(calls.reads.jobs(QUEUE, states=[State.READY]))
    assert listed.damaged == (str(refused.value),)
    assert len(str(refused.value)) < 300
    assert scene.client.run(read_lines(calls.delivery, queue_keys(QUEUE), ["a"])) == [
        f"too long: {len(line)}"
    ]

    (finding,) = [f for f in scene.diagnose() if f.kind is Kind.UNREADABLE]

    assert len(finding.says) < 400
    assert scene.repair() == []
    assert scene.state("a").startswith("ready task=send")


@pytest.mark.parametrize("lost", ["meta", "outbox"])
def test_a_repair_of_a_lost_meta_or_outbox_starts_an_epoch(lost: str, scene: Scene) -> None:
    scene.hand.delete(scene.key(lost))
    assert f"no_{lost}" in named(scene.diagnose())

    assert scene.repair() == []

    assert scene.snapshot()["meta"]["epoch"]
    assert drain(scene) == READY


def test_the_doctor_reports_nothing_for_a_log_whose_old_entries_were_trimmed(
    scene: Scene,
) -> None:
    """Checks an outbox that a mirror has trimmed."""
    entries = scene.snapshot()["outbox"]
    for entry_id, _ in entries:
        scene.hand.xtrim(scene.key("outbox"), minid=entry_id, approximate=False)

        assert scene.diagnose() == []


def test_the_doctor_concludes_nothing_about_a_job_from_a_refused_settlement_alone(
    scene: Scene,
) -> None:
    """Checks an outbox with one event about a running job: the refused settlement of another worker."""
    scene.client.run(claims.complete(QUEUE, "w-9", [("run", "1-1")]))
    entry_id, entry = scene.snapshot()["outbox"][-1]
    scene.hand.xtrim(scene.key("outbox"), minid=entry_id, approximate=False)

    assert entry["type"] == "settlement_refused"
    assert scene.diagnose() == []


def test_the_doctor_reports_a_gap_in_the_log(scene: Scene) -> None:
    entries = scene.snapshot()["outbox"]
    scene.hand.xdel(scene.key("outbox"), entries[3][0])

    assert "log_gap" in named(scene.diagnose())


def test_the_doctor_reports_an_unreadable_entry(scene: Scene) -> None:
    scene.hand.xadd(scene.key("outbox"), {"type": "promoted", "at": "1", "by": "x", "jobs": "[1]"})
    scene.hand.xadd(scene.key("outbox"), {"colour": "blue"})

    assert "log_unreadable" in named(scene.diagnose())


@pytest.mark.parametrize("stray", ["18446744073709551615-0", f"{2**63}-7", f"{2**53 + 2}-0"])
@pytest.mark.parametrize("log_is_there", [True, False], ids=["log", "no log"])
def test_repair_removes_an_entry_whose_high_number_prevents_all_later_events(
    stray: str, log_is_there: bool, scene: Scene
) -> None:
    """Checks an entry whose number is too high. No script can append an event with a higher number, and every call
    fails."""
    outbox = scene.key("outbox")
    if not log_is_there:
        scene.hand.xtrim(outbox, maxlen=0, approximate=False)
    scene.hand.xadd(outbox, {"colour": "blue"}, id=stray)
    with pytest.raises(QueueDamaged, match="rq-core doctor"):
        scene.claim(1)

    (finding,) = [f for f in scene.diagnose() if f.kind is Kind.LOG_STRAY]

    assert finding.mendable
    assert stray in finding.says
    assert scene.repair() == []
    assert stray not in [entry_id for entry_id, _ in scene.snapshot()["outbox"]]
    assert drain(scene) == READY


@pytest.mark.parametrize("bound", ["STRIKE_ENTRIES_MAX", "STRIKE_BYTES_MAX"])
def test_repair_does_not_copy_a_long_outbox_in_one_call(
    bound: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks an outbox so long that its copy would block other clients of Redis. The repair is refused.

    A mirror can still read the entries before the invalid entry.
    """
    monkeypatch.setattr(audit, bound, 3)
    scene.hand.xadd(scene.key("outbox"), {"colour": "blue"}, id=f"{2**63}-7")
    before = scene.snapshot()["outbox"]

    with pytest.raises(ServerUnsuitable, match="let `rq-core audit run` take them first"):
        scene.repair()
    assert before == scene.snapshot()["outbox"]


def test_repair_logs_a_baseline_of_jobs_whose_events_have_numbers_that_sql_cannot_store(
    scene: Scene,
) -> None:
    """Checks events after the invalid entry, whose numbers SQL cannot store."""
    epoch = scene.snapshot()["meta"]["epoch"]
    scene.hand.xadd(scene.key("outbox"), {"colour": "blue"}, id=f"{epoch}-{2**63}")
    (claimed,) = scene.claim(1).jobs
    assert f"{epoch}-{2**63}, {epoch}-{2**63 + 1}" in scene.diagnose()[-1].says

    assert scene.repair() == []

    snapshot = scene.snapshot()
    assert [fields["type"] for _, fields in snapshot["outbox"]][-1] == "baseline"
    assert f'["{claimed.id}"' in snapshot["outbox"][-1][1]["jobs"]
    assert OutboxId.parse(snapshot["outbox"][-1][0]).seq < 100


def test_the_finding_about_an_entry_with_a_later_epoch_names_the_command_that_repairs_it(
    scene: Scene,
) -> None:
    later = int(scene.snapshot()["meta"]["epoch"]) + 5
    scene.hand.xadd(scene.key("outbox"), {"colour": "blue"}, id=f"{later}-0")

    (finding,) = [f for f in scene.diagnose() if f.kind is Kind.LOG_DIFFERS]

    assert f"`redis-cli HSET '{scene.key('meta')}' epoch {later}`" in finding.says


@pytest.mark.parametrize("key", [key.name for key in KEYS])
def test_a_redis_key_of_a_wrong_type_makes_the_doctor_raise_an_error_that_names_the_key(
    key: str, scene: Scene
) -> None:
    scene.hand.delete(scene.key(key))
    scene.hand.set(scene.key(key), "?")

    with pytest.raises(QueueDamaged, match=f"key rqc:{{mail}}:{key} is not a .*RENAME"):
        scene.diagnose()


def test_the_doctor_does_not_report_an_expired_lease_or_a_due_job(scene: Scene) -> None:
    """Checks two conditions that are not damage: the next claim ends the lease, and promotes the job."""
    with scene.hand.pipeline() as pipe:
        pipe.zadd(scene.key("leases"), {"run": 1})
        pipe.execute()
    snapshot = scene.snapshot()
    snapshot["scheduled"]["job|late"] = 5.0
    snapshot["state"]["late"] = "scheduled task=send priority=low due=5 since=1"

    assert named(examine(snapshot)) == {"log_differs"}, "the due time was changed by hand"
    assert scene.diagnose() == []


def test_a_missing_wake_token_is_no_finding_in_a_paused_queue(scene: Scene) -> None:
    scene.client.run(scene.client.calls.admin.configure(QUEUE, {"paused": 1}))
    scene.hand.delete(scene.key("wake"))

    assert scene.diagnose() == []


def test_the_doctor_checks_twice_whether_a_wake_token_is_missing(scene: Scene) -> None:
    scene.hand.delete(scene.key("wake"))

    found = diagnose(
        scene.client, QUEUE, sleep=lambda _: (scene.hand.rpush(scene.key("wake"), "1"), None)[1]
    )

    assert found == []


def test_many_jobs_are_repaired_in_chunks(scene: Scene) -> None:
    scene.client.run(scene.client.calls.enqueue.many([scene.job(f"m{n}") for n in range(1_200)]))
    before = scene.snapshot()["ready:2"]
    scene.hand.delete(scene.key("ready:2"), scene.key("scheduled"))

    assert scene.repair() == []

    expected = [job_id for job_id in before if job_id != "gone"]
    assert expected == scene.snapshot()["ready:2"]


@pytest.mark.parametrize("seed", range(6))
def test_random_damage_to_indexes_is_repaired(seed: int, scene: Scene) -> None:
    """Checks members of indexes that are removed, moved or added at random. A seed repeats the random choice."""
    chance = random.Random(seed)
    before = scene.snapshot()
    ids = [*lines_of(before), "nobody"]
    for _ in range(12):
        job_id, priority = chance.choice(ids), chance.randrange(4)
        match chance.randrange(6):
            case 0:
                scene.hand.lrem(scene.key(f"ready:{priority}"), 1, job_id)
            case 1:
                scene.hand.rpush(scene.key(f"ready:{priority}"), job_id)
            case 2:
                scene.hand.zrem(scene.key(chance.choice(["leases", "dead"])), job_id)
            case 3:
                scene.hand.zadd(scene.key(chance.choice(["leases", "dead"])), {job_id: 9e12})
            case 4:
                scene.hand.zrem(scene.key("scheduled"), f"job|{job_id}")
            case _:
                scene.hand.zadd(scene.key("scheduled"), {f"job|{job_id}": 9e12})

    scene.repair()

    assert scene.diagnose() == []
    assert lines_of(before) == lines_of(scene.snapshot())
    assert drain(scene) == READY
