"""Limits on what Redis functions remember, and on how much one call reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from rq_core.errors import QueueDamaged
from rq_core.model.job import NewJob, profile
from rq_core.model.state_line import LINE_MAX
from rq_core.protocol.calls.claims import SWEEP_MAX
from rq_core.protocol.reads.steps import LONG, read_lines
from rq_core.scripts.script import function, lua_directory
from tests.kit.lua_patterns import Pattern, hard_texts, lua_texts, patterns_of
from tests.kit.seed import Seed

pytestmark = pytest.mark.damaged

RING_MAX = 1_500
"""The highest number of entries. An outbox without a mirror keeps 1,000 entries, and Redis removes only whole nodes of
the stream, now and then."""


LONG_TEXT = 60_000
"""The length of a text of letters that is longer than every state line."""
MATCH = """
local all = ARGV[2] == 'gsub' or ARGV[2] == 'gmatch'
for _, letters in ipairs({tonumber(ARGV[3]) / 20, tonumber(ARGV[3])}) do
  local repeated = {}
  for at = 4, #ARGV, 2 do
    local piece = ARGV[at + 1]
    repeated[piece] = repeated[piece] or piece:rep(letters / #piece)
    local text = ARGV[at] .. repeated[piece]
    local began = os.clock()
    if all then text:gsub(ARGV[1], '') else text:find(ARGV[1]) end
    local took = os.clock() - began
    if took > 0.02 then
      return {ARGV[at], piece, letters, tostring(took)}
    end
  end
end
return false
"""
"""A Lua program that tries short texts before long texts. So a pattern whose time grows with the square of the length
does not block the server for long."""
TEXTS_IN_CALL = 500
"""The number of texts that a call of MATCH tries. One pattern has 9,000 texts: a busy machine needs longer for all of
them than a client waits for an answer."""


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    """Yield a seed on the server's own clock. By this clock, functions forget what they remember."""
    with Seed(redis_url, real_clock=True, scripts=function) as made:
        yield made


@pytest.mark.slow
def test_each_queue_without_a_mirror_is_trimmed_when_calls_alternate_between_queues(
    seed: Seed,
) -> None:
    """Appended entries are counted for each queue apart, so both queues are trimmed."""
    first, second = seed.of("first"), seed.of("second")
    for n in range(2_000):
        first.enqueue(f"j-{n}")
        second.enqueue(f"j-{n}")

    entries = [seed.control.xlen(each.keys("outbox")) for each in (first, second)]

    assert max(entries) < RING_MAX


def test_claims_remove_expired_entries_as_fast_as_new_entries_expire(seed: Seed) -> None:
    """One claim removes a limited number of expired entries. If more are left, the next claim continues at once, and
    not after 100 ms."""
    seed.enqueue(*(f"j-{n}" for n in range(4)))
    members = {f"rate|host@1s={n}": 1 for n in range(3 * SWEEP_MAX)}
    seed.control.zadd(seed.keys("expiring"), members)

    for _ in range(3):
        seed.claim(1)

    assert not any(name in members for name in seed.control.zrange(seed.keys("expiring"), 0, -1))


@pytest.mark.parametrize("call", ["claim", "turn"])
def test_a_call_that_removes_an_expired_rate_fails_if_the_redis_key_rates_has_a_wrong_type(
    seed: Seed, call: str
) -> None:
    """The call fails and writes nothing if the key has a wrong type."""
    seed.enqueue("a", "b")
    held = seed.claim_one("a")
    seed.control.zadd(seed.keys("expiring"), {"rate|host@10s=x": 1})
    seed.control.set(seed.keys("rates"), "x")
    before = {name: seed.control.dump(name) for name in seed.control.keys("rqc:*")}

    # A call that remembers when it looked last would not look.
    seed.control.function_flush()
    with pytest.raises(QueueDamaged, match="WRONGTYPE"):
        seed.claim(1) if call == "claim" else seed.turn(held)

    assert {name: seed.control.dump(name) for name in seed.control.keys("rqc:*")} == before


def test_a_baseline_call_reads_about_a_megabyte_of_arguments(seed: Seed) -> None:
    count, size = 60, 100_000
    seed.enqueue(
        *(seed.job(f"j-{n}", args_json='{"text":"%s"}' % ("x" * size)) for n in range(count))
    )

    # So that the log lacks how they came.
    seed.control.xtrim(seed.keys("outbox"), maxlen=1, approximate=False)
    seed.control.config_resetstat()
    seed.attach()

    scans = seed.control.info("commandstats")["cmdstat_hscan"]["calls"]
    entries = [
        fields
        for _, fields in seed.control.xrange(seed.keys("outbox"))
        if fields["type"] == "baseline"
    ]
    assert sum(fields["jobs"].count('"j-') for fields in entries) == count
    # A call reads up to a megabyte and what the last scan brought.
    assert len(entries) >= count * size / 2**20 / 3
    assert scans >= len(entries)


def test_state_lines_are_read_without_long_arguments(seed: Seed) -> None:
    seed.enqueue(seed.job("long", args_json='{"text":"%s"}' % ("x" * LONG)), "short")

    with seed.control.monitor() as monitor:
        lines = seed.client.run(
            read_lines(seed.calls.delivery, seed.keys, ["long", "short", "none"])
        )
        seed.control.ping()
        read = []
        for each in monitor.listen():
            if each["command"] == "PING":
                break
            read.append(each["command"])

    assert [line and line.split()[0] for line in lines] == ["ready", "ready", None]
    of_jobs = f"HGET {seed.keys('jobs')} "
    assert [command.split()[-1] for command in read if command.startswith(of_jobs)] == [
        "short", "none"
    ]  # fmt: skip


def test_a_very_long_word_in_a_rule_for_full_scopes_is_read_in_linear_time(
    seed: Seed,
) -> None:
    """The word has 20 KB. If Lua tried the pattern from each letter, the server would be blocked for seconds."""
    job = NewJob("a", "q", profile("t"), "{}", lane="2+k=x", full="x" * 20_000 + " most|1")
    seed.control.config_resetstat()

    accepted = seed.client.run(seed.client.calls.enqueue.one(job))

    assert accepted.ids == ("a",)
    assert seed.control.info("commandstats")["cmdstat_fcall"]["usec"] < 1_000_000


@pytest.mark.parametrize("key", ["state", "jobs"])
@pytest.mark.parametrize("letters", [16_000, LONG_TEXT])
def test_a_claim_reads_a_long_forged_line_in_linear_time(
    seed: Seed, key: str, letters: int
) -> None:
    """The lines have 16,000 and 60,000 letters. If Lua tried a pattern from each letter, the server would be blocked
    for 10 s."""
    seed.enqueue("a", "b")
    beginning = "ready task=" if key == "state" else "task="
    seed.control.hset(seed.keys(key), "a", beginning + "q" * letters)
    seed.control.config_resetstat()

    claimed = [job.id for job in seed.claim().jobs]

    assert "b" in claimed
    assert ("a" in claimed) == (key == "state" and letters < LINE_MAX)
    assert seed.control.hexists(seed.keys(key), "a")
    spent = seed.control.info("commandstats")
    assert max(spent[name]["usec"] for name in spent if "fcall" in name) < 300_000


@pytest.mark.parametrize("how", ["complete", "fail", "rollback"])
def test_a_settlement_of_a_job_with_an_overlong_state_line_is_refused_as_stale(
    seed: Seed, how: str
) -> None:
    seed.enqueue("a")
    held = seed.claim_one("a")
    line = f"{seed.state('a')} why={'q' * LONG_TEXT}"
    seed.control.hset(seed.keys("state"), "a", line)

    assert getattr(seed, how)(held) == {"a": "stale"}

    assert seed.state("a") == line


def test_every_lua_pattern_takes_linear_time(seed: Seed) -> None:
    found = {
        (pattern.function, pattern.text): pattern
        for where, code in lua_texts(
            lua_directory(), *(lua_directory().parent / name for name in ("rq_core", "sql_audit"))
        )
        for pattern in patterns_of(where, code)
    }
    slow: dict[Pattern, object] = {}
    for pattern in sorted(found.values()):
        texts = sorted(hard_texts(pattern.text))
        for at in range(0, len(texts), TEXTS_IN_CALL):
            words = [part for text in texts[at : at + TEXTS_IN_CALL] for part in text]
            # A pause of the machine makes one measurement slow. A pattern that takes quadratic time is slow each time.
            answers = (
                seed.control.eval(MATCH, 0, pattern.text, pattern.function, LONG_TEXT, *words)
                for _ in range(3)
            )
            told = list(itertools.takewhile(bool, answers))
            if len(told) == 3:
                slow[pattern] = told[0]

    assert len(found) > 50
    assert not slow
