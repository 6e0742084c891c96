"""A call that fails before its first write changes no byte, and no call fails after its first write.

Redis does not undo a script, so each script checks everything before its first write. These tests let it fail at each
point before that write, and with each kind of wrong key or argument.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from rq_core import errors
from rq_core.model.keys import KEY_TYPES
from rq_core.model.settings import BATCH_MAX
from rq_core.model.table.machine import TRANSITIONS
from rq_core.protocol.engine.plan import Patience
from rq_core.scripts.script import names
from tests.kit.clock import CLOCK_KEY, timed, timed_with
from tests.kit.consistency import assert_consistent
from tests.kit.failover import fail_over
from tests.kit.scenes import SCENES, Scene
from tests.kit.seed import Seed
from tests.kit.servers import RedisServer
from tests.kit.snapshots import raw

pytestmark = pytest.mark.damaged

WRITES = {"XADD", "HSET", "HDEL", "ZADD", "ZREM", "LPUSH", "RPUSH", "LTRIM", "XTRIM", "UNLINK"}
READS = {
    "GET", "HMGET", "HGET", "HLEN", "INFO", "XLEN", "XRANGE", "XREVRANGE", "ZCARD", "ZRANGE", "ZRANGEBYSCORE",
    "LLEN", "LINDEX", "LRANGE", "EXISTS", "HSCAN", "ZSCORE", "ZRANGEBYLEX", "ZLEXCOUNT", "HEXISTS", "HSTRLEN",
}  # fmt: skip

# A script may have 200 locals, and some have nearly as many: each of these adds one.
RECORD = """
local redis = (function(server)
  return {sha1hex = server.sha1hex, call = function(command, ...)
    local reply = server.call(command, ...)
    server.call('RPUSH', 'test:calls', command .. ' ' .. tostring((...)))
    return reply
  end}
end)(redis)
"""

BREAK_AT = "test:break-at"
ASIDE = "test:aside"
"""The key that keeps the value of another key while a test puts a value of a wrong type there."""
BREAK = f"""
local redis = (function(server, made)
  local at = tonumber(server.call('GET', '{BREAK_AT}'))
  return {{sha1hex = server.sha1hex, call = function(...)
    made = made + 1
    if made == at then
      error('broken by the test')
    end
    return server.call(...)
  end}}
end)(redis, 0)
"""

scenes = pytest.mark.parametrize("name", list(SCENES))


def calls_of(seed: Seed, scene: Scene) -> list[str]:
    """Run the call, and return the Redis commands that it sends."""
    seed.control.execute_command(*scene.command(seed, timed_with(scene.script, RECORD)))
    return [command for command, _ in touched(seed)]


def touched(seed: Seed) -> list[tuple[str, str]]:
    """Return each Redis command of the call with its first argument, which is nearly always a key."""
    made = seed.control.lrange("test:calls", 0, -1)
    seed.control.delete("test:calls")
    return [(command, first) for command, _, first in (line.partition(" ") for line in made)]


def refused(seed: Seed, command: list[Any]) -> Any:
    """Run a call, assert that it changed nothing, and return its reply or its error."""
    pattern = f"rqc:{{{seed.queue}}}:*"
    before = raw(seed.control, pattern)
    try:
        reply = seed.control.execute_command(*command)
    except redis.ResponseError as error:
        reply = error
    after = raw(seed.control, pattern)
    changed = [key for key in {*before, *after} if before.get(key) != after.get(key)]

    assert changed == [], f"it wrote, and answered {reply!r}"
    return reply


def test_the_crash_tests_have_a_prepared_call_for_every_script(seed: Seed) -> None:
    shown = {make(seed.of(name)).script for name, make in SCENES.items()}

    assert set(names()) == shown
    assert {t.script for t in TRANSITIONS} <= shown


@scenes
def test_no_script_reads_after_its_first_write(seed: Seed, name: str) -> None:
    """A read may fail, so all reads must come before the first write."""
    made = calls_of(seed, SCENES[name](seed))
    first = next(at for at, command in enumerate(made) if command in WRITES)

    assert set(made) <= READS | WRITES | {"TIME"}
    assert [command for command in made[first:] if command in READS] == []
    if "XADD" in made:
        assert made[first] == "XADD"


@scenes
@pytest.mark.slow
def test_an_error_at_any_read_of_a_script_changes_no_byte(seed: Seed, name: str) -> None:
    made = calls_of(seed.of("rehearsal"), SCENES[name](seed.of("rehearsal")))
    reads = next(at for at, command in enumerate(made) if command in WRITES)
    scene = SCENES[name](seed)
    broken = timed_with(scene.script, BREAK)

    for at in range(1, reads + 2):
        seed.control.set(BREAK_AT, at)
        reply = refused(seed, scene.command(seed, broken))
        assert "broken by the test" in str(reply)
    whole = seed.control.execute_command(*scene.command(seed, timed(scene.script)))
    assert whole[0] == "ok"


@scenes
@pytest.mark.slow
def test_a_script_writes_nothing_if_any_key_has_a_wrong_type(seed: Seed, name: str) -> None:
    """An operator's mistake in redis-cli can leave a key of a wrong type. The call must fail before it writes.

    Checks EVALSHA, with which a script reads every key again, and functions, which may remember some keys.
    """
    rehearsal = SCENES[name](seed.of("rehearsal"))
    seed.control.execute_command(
        *rehearsal.command(seed.of("rehearsal"), timed_with(rehearsal.script, RECORD))
    )
    used = {first for _, first in touched(seed)}
    function = timed(rehearsal.script)
    scene = SCENES[name](seed)
    for key in function.keys:
        if seed.of("rehearsal").keys(key) not in used:
            continue
        full = seed.keys(key)
        there = seed.control.exists(full)
        if there:
            seed.control.rename(full, ASIDE)
        for wrong in ("string", "other"):
            if wrong == "string":
                seed.control.set(full, "x")
            elif KEY_TYPES[key] == "hash":
                seed.control.rpush(full, "x")
            else:
                seed.control.hset(full, "x", "y")
            script = function.instead if wrong == "string" else function
            assert script is not None
            reply = refused(seed, scene.command(seed, script))
            assert "WRONGTYPE" in str(reply), f"{key} as {wrong}: {reply}"
            seed.control.delete(full)
        if there:
            seed.control.rename(ASIDE, full)


def test_a_wrong_type_is_raised_as_queue_damaged(seed: Seed) -> None:
    """The error message names the command ``doctor``."""
    seed.enqueue("a")
    seed.control.delete(seed.keys("scheduled"))
    seed.control.set(seed.keys("scheduled"), "x")

    with pytest.raises(errors.QueueDamaged, match=r"wrong type.*doctor q --repair"):
        seed.enqueue("b", delay_ms=1)
    with pytest.raises(errors.QueueDamaged, match="scheduled"):
        seed.snapshot()
    with pytest.raises(errors.QueueDamaged, match="wrong type"):
        seed.client.run(seed.client.calls.reads.counts(seed.queue))


# Arguments.

NOT_WHOLE = ["", "x", "nan", "inf", "-inf", "1.5", "99999999999999"]
"""Texts that a call refuses as whole numbers: they are no whole numbers, or are too large."""
NOT_NUMBERS = [*NOT_WHOLE, "1e3", "0x10", " 1"]


def ints_of(section: tuple[str, ...]) -> list[int]:
    return [at for at, word in enumerate(section) if word.endswith(":int")]


@scenes
def test_a_call_with_invalid_arguments_is_refused_as_a_whole(seed: Seed, name: str) -> None:
    scene = SCENES[name](seed)
    script = timed(scene.script)
    command = scene.command(seed, script)
    head = 3 + len(script.all_keys)
    argv = command[head:]
    count = len(script.args)
    bad: list[tuple[str, list[Any]]] = [
        *((f"only {kept} arguments", argv[:kept]) for kept in range(count)),
        *(
            (f"argument {at} is {value!r}", [*argv[:at], value, *argv[at + 1 :]])
            for at in ints_of(script.header.words("Args"))
            for value in NOT_NUMBERS
        ),
    ]
    width = len(script.each)
    # The records end before the tail.
    behind = 1 + int(argv[-1]) if script.has_tail else 0
    records, tail = argv[: len(argv) - behind], argv[len(argv) - behind :]
    if not width:
        bad.append(("one more argument", [*argv, "x"]))
    else:
        first = argv[count : count + width]
        bad.append(("too many records", [*argv[:count], *first * (BATCH_MAX + 1)]))
        bad += [
            (
                f"field {at} of the last record is {value!r}",
                [*records[: at - width], value, *records[at - width + 1 :], *tail],
            )
            for at in ints_of(script.header.words("Each"))
            if at - width + 1 < 0
            for value in NOT_WHOLE
        ]
        if width > 1:
            bad.append(("a ragged record", argv[:-1]))
    if script.has_tail:
        bad += [
            (f"{count!r} words behind", [*argv[:-1], count]) for count in (-2, 1, 10_000, "", "x")
        ]
    for what, wrong in bad:
        reply = refused(seed, [*command[:head], *wrong])
        assert isinstance(reply, list), f"{what}: {reply!r}"
        assert reply[:2] == ["refused", "arguments"], f"{what}: {reply}"


KIND = [2, 0, "task=t", '"t","normal",5,3,"', ""]


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "{", "[", "7", "null", '"task=t"', "[7]", "[[]]"),
        *(json.dumps([[*KIND[:at], value, *KIND[at + 1 :]]]) for at, value in [
            (0, -1), (0, 4), (0, "2"), (0, None), (1, 0.5), (1, "5"), (1, 1e14), (1, None),
            (2, "priority=low"), (2, 1), (3, None), (4, None), (4, []),
        ]),
        json.dumps([KIND[:4]]),
        *(json.dumps([[*KIND, due]]) for due in ("", "1795295032150", None, 0.5, 1e14)),
        json.dumps([[*KIND, 1_795_295_032_150, 0]]),
        *(json.dumps([[*KIND, 0, {"keep": value}]]) for value in ("1", -1, 0.5, None, [])),
        json.dumps([KIND, KIND[:4]]),
    ],
)  # fmt: skip
def test_an_enqueue_call_with_invalid_common_fields_of_its_jobs_is_refused(
    seed: Seed, wrong: str
) -> None:
    scene = SCENES["enqueue"](seed)
    call = Scene("enqueue", {**scene.args, "kinds": wrong}, scene.each)

    reply = refused(seed, call.command(seed, timed("enqueue")))

    assert reply in (["refused", "arguments", "kinds"], ["refused", "arguments", "kind"])


@pytest.mark.parametrize("place", ["0", "99", "", "x"])
def test_a_job_that_refers_to_common_fields_that_the_call_lacks_is_refused(
    seed: Seed, place: str
) -> None:
    scene = SCENES["enqueue"](seed)
    record = list(scene.each[0])
    record[1] = place
    wrong = Scene("enqueue", scene.args, [*scene.each, tuple(record)])

    reply = refused(seed, wrong.command(seed, timed("enqueue")))

    assert reply == ["refused", "arguments", "kind"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("paused", 2), ("lease_ms", 0), ("lease_ms", -1), ("nonsense", 1), ("epoch", 1)],
)
def test_an_invalid_setting_is_refused(seed: Seed, field: str, value: int) -> None:
    """One invalid setting is `paused` with the value 2. The queue would log that it is paused, and would not stop."""
    scene = SCENES["configure"](seed)
    wrong = Scene("configure", scene.args, [*scene.each, (field, value)])

    reply = refused(seed, wrong.command(seed, timed("configure")))

    assert reply == ["refused", "field", field]
    with pytest.raises(errors.InvalidOption):
        seed.configure(**{field: value})


def test_an_unknown_mode_of_attach_is_refused(seed: Seed) -> None:
    scene = SCENES["attach"](seed)
    wrong = Scene("attach", {**scene.args, "mode": "maybe"}, [])

    reply = refused(seed, wrong.command(seed, timed("attach")))

    assert reply == ["refused", "arguments", "mode"]


def test_a_trim_removes_no_entry_if_redis_has_lost_the_last_mirrored_entry(seed: Seed) -> None:
    """The anchor is the last entry that the mirror has committed. It shows the mirror whether Redis has another
    history."""
    scene = SCENES["trim"](seed)
    epoch = seed.meta("epoch")
    wrong = Scene("trim", {**scene.args, "upto": f"{epoch}-999"}, [])

    reply = refused(seed, wrong.command(seed, timed("trim")))

    assert reply == ["ok", "absent"]


# The epoch.


def lose_replid(seed: Seed) -> None:
    fail_over(seed.control)


def lose_meta(seed: Seed) -> None:
    seed.control.delete(seed.keys("meta"))


def lose_outbox(seed: Seed) -> None:
    seed.control.delete(seed.keys("outbox"))
    # Calls that append nothing look for it once a second.
    seed.advance(1_000)


def lose_everything(seed: Seed) -> None:
    seed.control.delete(*seed.keys.all())


@pytest.mark.parametrize("lose", [lose_replid, lose_meta, lose_outbox, lose_everything])
@pytest.mark.parametrize("name", [n for n in SCENES if not n.startswith("handshake")])
@pytest.mark.slow
def test_a_call_that_a_client_prepared_before_redis_lost_data_changes_nothing(
    seed: Seed, name: str, lose: Callable[[Seed], None]
) -> None:
    scene = SCENES[name](seed)
    lose(seed)

    reply = refused(seed, scene.command(seed, timed(scene.script)))

    # A queue that is to be deleted must not be made for that.
    is_gone = scene.script == "delete" and lose is lose_everything
    assert reply == (["ok", "absent"] if is_gone else ["epoch"])


@scenes
def test_no_script_writes_its_event_into_an_outbox_that_redis_has_lost(
    seed: Seed, name: str
) -> None:
    """The outbox was deleted, while the Redis functions still remember it."""
    rehearsal = SCENES[name](seed.of("rehearsal"))
    begins = rehearsal.script == "handshake"
    appends = "XADD" in calls_of(seed.of("rehearsal"), rehearsal)
    scene = SCENES[name](seed)
    seed.control.delete(seed.keys("outbox"))
    if begins or not appends:
        return

    reply = refused(seed, scene.command(seed, timed(scene.script)))

    assert reply == ["epoch"] or str(reply).startswith("EPOCH")


# Memory.


@pytest.fixture
def full(seed: Seed) -> Iterator[Callable[[], None]]:
    """Yield a function that sets Redis' memory limit below the memory in use."""

    def fill() -> None:
        seed.control.config_set("maxmemory", "1")

    yield fill
    seed.control.config_set("maxmemory", "0")


REFUSED_WHEN_FULL = {
    "save",
    "show",
    "signal",
    "enqueue",
    "edit",
    "requeue",
    "restore",
    "schedule",
    "tick",
}


@pytest.mark.parametrize("name", [n for n in SCENES if SCENES[n]])
def test_a_full_server_refuses_only_calls_that_add_data(
    seed: Seed, name: str, full: Callable[[], None]
) -> None:
    """Workers must still be able to drain the queue, and workers and mirrors must be able to start."""
    scene = SCENES[name](seed)
    command = scene.command(seed, timed(scene.script))
    full()
    if scene.script in REFUSED_WHEN_FULL:
        reply = refused(seed, command)
        assert isinstance(reply, redis.exceptions.OutOfMemoryError)
    else:
        assert seed.control.execute_command(*command)[0] == "ok"


def test_a_full_server_refuses_enqueue_and_lets_a_new_worker_drain_the_queue(
    seed: Seed, redis_url: str, full: Callable[[], None]
) -> None:
    """The memory would stay full if a new worker could not join the queue."""
    seed.enqueue("a", "b")
    full()
    before = raw(seed.control)

    with pytest.raises(errors.QueueFull, match="maxmemory"):
        seed.enqueue("c")
    assert before == raw(seed.control)
    with pytest.raises(errors.QueueFull):
        seed.requeue("a")
    with Seed(redis_url, name="c-2", real_clock=True) as newcomer:
        first, second = newcomer.claim(worker="w-new").jobs
        newcomer.fail(first, verdict="final", worker="w-new")
        newcomer.complete(second, worker="w-new")
        newcomer.configure(paused=1)
        newcomer.configure(paused=0)

        assert_consistent(newcomer.snapshot())


def test_a_full_server_can_start_a_new_epoch(seed: Seed, full: Callable[[], None]) -> None:
    """Workers must continue after a failover to a replica whose memory is full."""
    seed.enqueue("a")
    lose_replid(seed)
    full()

    claimed = seed.claim()

    assert [c.id for c in claimed.jobs] == ["a"]
    seed.control.config_set("maxmemory", "0")


# The server.


def test_a_killed_server_restarts_with_a_consistent_queue(
    start_redis: Callable[..., RedisServer],
) -> None:
    """The append-only file is synced at each write. So all acknowledged calls have their effects after a restart.

    A call that was interrupted has its whole effect, or none.
    """
    server = start_redis(appendonly="yes", appendfsync="always")
    acknowledged: set[str] = set()
    settled: set[str] = set()
    stop = threading.Event()
    patience = Patience(unsent=0.2, unknown=0.2)

    def produce(seed: Seed, name: str) -> None:
        at = 0
        while not stop.is_set():
            ids = [f"{name}-{at + n}" for n in range(20)]
            at += 20
            try:
                acknowledged.update(seed.enqueue(*ids).ids)
                seed.enqueue(f"{name}-late-{at}", delay_ms=5)
                seed.cancel(ids[0])
            except errors.ServerError:
                return

    def work(seed: Seed, name: str) -> None:
        while not stop.is_set():
            try:
                jobs = seed.claim(30, worker=name).jobs
                for at, job in enumerate(jobs):
                    settled.add(job.id)
                    match at % 4:
                        case 0:
                            seed.fail(job, delay_ms=5, worker=name)
                        case 1:
                            seed.rollback(job, worker=name)
                        case _:
                            seed.complete(job, worker=name)
            except errors.ServerError:
                return

    seeds = [Seed(server.url, name=f"c-{n}", patience=patience, real_clock=True) for n in range(4)]
    # Audit on, so that the ring keeps the whole log.
    seeds[0].enqueue("first")
    seeds[0].attach()
    threads = [
        threading.Thread(target=target, args=(seed, f"{target.__name__}-{n}"))
        for n, (target, seed) in enumerate(zip([produce, produce, work, work], seeds, strict=True))
    ]
    for thread in threads:
        thread.start()
    try:
        with server.client(decode_responses=True) as control:
            while control.xlen(seeds[0].keys("outbox")) < 300:
                stop.wait(0.01)
        server.kill()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for seed in seeds:
            seed.client.close()
            seed.control.close()
    server.start()

    with Seed(server.url, name="c-after", real_clock=True) as seed:
        snapshot = seed.snapshot()
        assert_consistent(snapshot)
        logged = set(
            re.findall(
                r'\["([^"]+)",(?:\d+|null),',
                " ".join(raw["jobs"] for _, raw in snapshot["outbox"] if raw["type"] == "enqueued"),
            )
        )
        assert acknowledged <= logged
        # The next call finds that the history has changed, and goes on in a new epoch.
        old = int(snapshot["meta"]["epoch"])
        seed.enqueue("after")
        assert int(seed.meta("epoch") or 0) > old
        assert seed.entries()[-2].data["reason"] == "replid_changed"
        assert_consistent(seed.snapshot())


def test_the_key_of_the_test_clock_is_not_among_the_keys_of_a_queue(seed: Seed) -> None:
    assert CLOCK_KEY not in seed.keys.all()
