"""The replay of claims under breakers. The replay accepts what Redis admits, and reports every lie."""

from __future__ import annotations

from typing import Any

import pytest

from sql_audit.proof.replay.replay import Replay
from tests.audit.test_replay import of_queue, replay, tell, the_violation
from tests.kit.story import MemoryWriter

FAMILY = "ask@60s:failures"
SCOPE = f"{FAMILY}=h"
LIMIT = [2, 60_000, 30_000]
BEGIN_MS = 2_000_000_000_000


@pytest.fixture
def log() -> MemoryWriter:
    made = MemoryWriter()
    tell(made, of_queue("cap_changed", FAMILY, None, "2/60000ms/30000", 1))
    for job_id in "abcd":
        beginning = [job_id, 1, None, "send", "normal", 9, 3, "d", f"2+{SCOPE}"]
        made.jobs("enqueued", beginning)
    return made


class Story:
    """A log of jobs ``a`` to ``d``. Each method adds an event with its time."""

    def __init__(self, log: MemoryWriter) -> None:
        self.log = log
        self.fences: dict[str, str] = {}
        self.claims: dict[str, int] = dict.fromkeys("abcd", 0)
        self.failures: dict[str, int] = dict.fromkeys("abcd", 0)

    def claim(self, job_id: str, ms: int) -> None:
        self.claims[job_id] += 1
        told = [job_id, self.claims[job_id], [[SCOPE, *LIMIT]]]
        self.fences[job_id] = tell_one(self.log, ms, "claimed", told)

    def pause(self, job_id: str, ms: int, until_ms: int) -> None:
        told = [job_id, self.fences[job_id], SCOPE, BEGIN_MS + until_ms]
        tell_one(self.log, ms, "scope_paused", told)

    def fail(self, job_id: str, ms: int, excepted: str = "") -> None:
        self.failures[job_id] += 1
        error = {"type": "E", "message": "no"} | ({"excepted": excepted} if excepted else {})
        told = [job_id, self.fences[job_id], None, self.failures[job_id], error]
        tell_one(self.log, ms, "retried", told)

    def succeed(self, job_id: str, ms: int) -> None:
        tell_one(self.log, ms, "succeeded", [job_id, self.fences[job_id]])

    def open_circuit(self) -> None:
        """Two failures pause the scope from 1,000 to 31,000 ms; ``c`` runs on."""
        for job_id in "abc":
            self.claim(job_id, 0)
        self.fail("a", 500)
        self.pause("b", 1_000, 31_000)
        self.fail("b", 1_000)


def tell_one(log: MemoryWriter, ms: int, kind: str, told: list[Any]) -> str:
    log.now_ms = BEGIN_MS + ms - 1
    return log.jobs(kind, told)


def test_replay_accepts_a_pause_that_a_successful_probe_ends(log: MemoryWriter) -> None:
    story = Story(log)
    story.open_circuit()
    story.claim("a", 31_000)
    story.succeed("c", 31_500)
    story.succeed("a", 32_000)
    story.claim("b", 32_001)
    story.claim("d", 32_001)

    assert replay(log).violations == []


def test_replay_reports_a_claim_during_the_pause(log: MemoryWriter) -> None:
    story = Story(log)
    story.open_circuit()
    story.claim("d", 30_990)

    found = the_violation(log)
    assert (found.invariant, found.job_id) == ("I3", "d")
    assert found.says == f"claimed 10 ms before the pause of {SCOPE} ends"


def test_replay_reports_a_claim_of_a_second_probe_while_the_first_probe_runs(
    log: MemoryWriter,
) -> None:
    """The success of a job that began before the pause opens nothing."""
    story = Story(log)
    story.open_circuit()
    story.claim("a", 31_000)
    story.succeed("c", 31_500)
    story.claim("d", 32_000)

    found = the_violation(log)
    assert (found.invariant, found.job_id) == ("I3", "d")
    assert f"while the probe of {SCOPE} runs" in found.says


def test_replay_reports_a_failure_that_must_pause_its_scope(log: MemoryWriter) -> None:
    story = Story(log)
    for job_id in "abc":
        story.claim(job_id, 0)
    story.fail("a", 500)
    story.fail("c", 600, excepted=f"other {FAMILY}")
    story.fail("b", 1_000)

    found = the_violation(log)
    assert (found.invariant, found.job_id) == ("I3", "b")
    assert found.says == f"is failure 2 in {SCOPE}, which allows 2, and does not pause it"


def test_replay_reports_a_failed_probe_that_does_not_pause_its_scope_again(
    log: MemoryWriter,
) -> None:
    story = Story(log)
    story.open_circuit()
    story.claim("a", 31_000)
    story.fail("a", 32_000)

    found = the_violation(log)
    assert found.says == f"is the failure of the probe of {SCOPE}, and does not pause it"


def test_replay_accepts_failures_that_are_further_apart_than_the_window_of_the_breaker(
    log: MemoryWriter,
) -> None:
    story = Story(log)
    for job_id in "abc":
        story.claim(job_id, 0)
    story.fail("a", 500)
    story.fail("b", 60_500)

    assert replay(log).violations == []


def test_replay_accepts_a_second_probe_after_an_excepted_error_ended_the_first(
    log: MemoryWriter,
) -> None:
    """The next probe begins when the claim of the first one has ended, however it ended."""
    story = Story(log)
    story.open_circuit()
    story.claim("a", 31_000)
    story.fail("a", 31_500, excepted=FAMILY)
    story.claim("b", 31_500)
    story.succeed("b", 31_600)
    story.claim("d", 31_600)

    assert replay(log).violations == []


# Pauses that no failures explain.


def open_with(log: MemoryWriter, *failed: tuple[str, int]) -> Story:
    """Let ``a``, ``b`` and ``c`` run, and let some of them fail. ``failed`` has pairs of (job, ms)."""
    story = Story(log)
    for job_id in "abc":
        story.claim(job_id, 0)
    for job_id, ms in failed:
        story.fail(job_id, ms)
    return story


def forged_pause(story: Story, ms: int = 1_000, until_ms: int = 31_000) -> None:
    story.pause("b", ms, until_ms)
    story.fail("b", ms)
    story.succeed("c", ms + 1)


def test_replay_reports_a_pause_at_too_few_failures(log: MemoryWriter) -> None:
    forged_pause(open_with(log))

    found = the_violation(log)
    assert (found.invariant, found.job_id, found.event) == ("I3", "b", "scope_paused")
    assert found.says == f"pauses {SCOPE} at failure 1, and it allows 2"


def test_replay_reports_a_pause_that_needs_a_failure_from_before_the_window_of_the_breaker(
    log: MemoryWriter,
) -> None:
    forged_pause(open_with(log, ("a", 500)), 60_500, 90_500)

    assert the_violation(log).says == f"pauses {SCOPE} at failure 1, and it allows 2"


@pytest.mark.parametrize("until_ms", [30_990, 31_010])
def test_replay_reports_a_pause_whose_length_differs_from_the_cooldown(
    log: MemoryWriter, until_ms: int
) -> None:
    forged_pause(open_with(log, ("a", 500)), until_ms=until_ms)

    says = f"pauses {SCOPE} for {until_ms - 1_000} ms, and must for 30000"
    assert the_violation(log).says == says


def test_replay_reports_a_pause_by_an_error_that_the_breaker_excepts(log: MemoryWriter) -> None:
    story = open_with(log, ("a", 500))
    story.pause("b", 1_000, 31_000)
    story.fail("b", 1_000, FAMILY)

    assert the_violation(log).says == f"pauses {SCOPE} by an error that its breaker does not count"


def test_replay_reports_a_new_pause_of_a_paused_scope_by_a_job_that_is_not_the_probe(
    log: MemoryWriter,
) -> None:
    story = Story(log)
    story.open_circuit()
    story.pause("c", 2_000, 32_000)
    story.fail("c", 2_000)

    assert "is paused already" in the_violation(log).says


def test_replay_accepts_two_failures_of_one_call_in_either_order(log: MemoryWriter) -> None:
    """The events of a call begin with its pauses, whichever job of it failed first."""
    story = open_with(log)
    story.pause("a", 1_000, 31_000)
    log.now_ms = BEGIN_MS + 999
    error = {"type": "E", "message": "no"}
    told = [[job_id, story.fences[job_id], None, 1, error] for job_id in "ab"]
    log.jobs("retried", *told)
    story.succeed("c", 1_001)

    assert replay(log).violations == []


# Pauses of handlers.


def test_replay_accepts_a_pause_by_a_handler_whose_job_is_given_back_to_its_queue(
    log: MemoryWriter,
) -> None:
    story = open_with(log)
    story.pause("b", 1_000, 1_500)
    tell_one(log, 1_001, "rolled_back", ["b", story.fences["b"], None, "scope_paused", 0, None])
    story.claim("d", 1_500)

    assert replay(log).violations == []


@pytest.mark.parametrize("end", ["succeed", "fail"])
def test_replay_reports_a_pause_by_a_handler_whose_job_is_not_given_back_to_its_queue(
    log: MemoryWriter, end: str
) -> None:
    story = open_with(log)
    story.pause("b", 1_000, 1_500)
    getattr(story, end)("b", 1_600)

    assert f"its claim paused {SCOPE}" in the_violation(log).says


def test_replay_reports_a_handlers_pause_of_more_than_a_day(log: MemoryWriter) -> None:
    story = open_with(log)
    story.pause("b", 1_000, 1_001 + 86_400_000)
    tell_one(log, 1_001, "rolled_back", ["b", story.fences["b"], None, "scope_paused", 0, None])

    assert "for longer than a day" in the_violation(log).says


# What the log does not show is not judged.


def test_replay_accepts_a_pause_that_failures_from_before_the_log_may_explain() -> None:
    log = MemoryWriter()
    log.begin(BEGIN_MS - 10, "attached")
    tell(log, of_queue("cap_changed", FAMILY, "none", "2/60000ms/30000", 2))
    for job_id in "abcd":
        log.jobs("enqueued", [job_id, 1, None, "send", "normal", 9, 3, "d", f"2+{SCOPE}"])
    forged_pause(open_with(log))

    assert replay(log).violations == []


def test_replay_judges_pauses_in_a_log_that_began_late_once_a_job_has_succeeded() -> None:
    log = MemoryWriter()
    log.begin(BEGIN_MS - 10, "attached")
    tell(log, of_queue("cap_changed", FAMILY, "none", "2/60000ms/30000", 2))
    for job_id in "abcd":
        log.jobs("enqueued", [job_id, 1, None, "send", "normal", 9, 3, "d", f"2+{SCOPE}"])
    story = Story(log)
    story.claim("d", 0)
    story.succeed("d", 1)
    story.claim("b", 1)
    story.claim("c", 1)
    forged_pause(story, 70_000, 100_000)

    assert the_violation(log).says == f"pauses {SCOPE} at failure 1, and it allows 2"


def test_replay_accepts_failures_that_pause_nothing_after_the_clock_went_back_during_a_pause(
    log: MemoryWriter,
) -> None:
    """Jobs that began before the pause fail during the pause, and change nothing."""
    story = Story(log)
    for job_id in "abcd":
        story.claim(job_id, 2_000)
    story.fail("a", 2_500)
    story.pause("b", 3_000, 33_000)
    story.fail("b", 3_000)
    story.fail("c", 1_000)
    story.fail("d", 1_100)

    assert replay(log).violations == []


@pytest.mark.parametrize("end", ["fail", "succeed"])
def test_replay_accepts_the_end_of_a_probe_although_the_state_of_its_scope_is_unknown(
    log: MemoryWriter, end: str
) -> None:
    """The clock goes back; an operator pauses the scope while a probe runs; the probe ends."""
    story = Story(log)
    story.open_circuit()
    tell(log, of_queue("paused"))
    log.now_ms = BEGIN_MS + 900
    tell(log, of_queue("resumed"))
    story.claim("a", 31_000)
    log.now_ms = BEGIN_MS + 31_500
    log.queue_event("pause_changed", SCOPE, BEGIN_MS + 32_000)
    if end == "fail":
        story.pause("a", 31_600, 61_600)
        story.fail("a", 31_600)
        story.claim("b", 61_600)
    else:
        story.succeed("a", 32_500)
        story.claim("b", 32_500)
        story.claim("d", 32_500)

    assert replay(log).violations == []


def test_replay_accepts_failures_that_pause_nothing_if_the_limit_was_removed_after_the_claim() -> (
    None
):
    """The log does not have the limit of the key. An operator removes that limit."""
    log = MemoryWriter()
    log.begin(BEGIN_MS - 10, "attached")
    for job_id in "abcd":
        log.jobs("enqueued", [job_id, 1, None, "send", "normal", 9, 3, "d", f"2+{SCOPE}"])
    story = open_with(log)
    tell(log, of_queue("cap_changed", SCOPE, "2/60000ms/30000", None, 2))
    for job_id in "abc":
        story.fail(job_id, 2_000)

    assert replay(log).violations == []


def test_replay_counts_failures_of_jobs_that_were_claimed_without_a_limit(
    log: MemoryWriter,
) -> None:
    """Redis counts by the job's lane: the claim need not name the breaker."""
    tell(log, of_queue("cap_changed", FAMILY, "2/60000ms/30000", "none", 2))
    story = Story(log)
    for job_id in "ab":
        story.claims[job_id] = 1
        story.fences[job_id] = tell_one(log, 0, "claimed", [job_id, 1, [["queue", None]]])
    tell(log, of_queue("cap_changed", FAMILY, "none", "2/60000ms/30000", 3))
    story.fail("a", 500)
    story.pause("b", 1_000, 31_000)
    story.fail("b", 1_000)
    story.claim("c", 31_000)

    assert replay(log).violations == []


def test_replay_accepts_two_claims_at_once_if_a_prune_removed_the_success_of_the_probe(
    log: MemoryWriter,
) -> None:
    """The prune has removed the probe and its success."""
    story = Story(log)
    story.open_circuit()
    found = replay_up_to_cut(log)
    story.claim("a", 40_000)
    story.claim("d", 40_000)
    found.feed(log.rows[found.events :])
    found.finish()

    assert found.violations == []


def replay_up_to_cut(log: MemoryWriter) -> Replay:
    at = log.rows[-1]
    found = Replay(log.queue, pruned_to=(at[1], at[2]))
    found.feed(list(log.rows))
    found.pass_cut()
    return found


def test_replay_reports_an_operators_pause_without_a_name(log: MemoryWriter) -> None:
    log.queue_event("pause_changed", SCOPE, BEGIN_MS + 500)
    log.rows[-1] = (*log.rows[-1][:8], None, *log.rows[-1][9:])

    assert the_violation(log).says == "names no actor"
