"""The replay of claims under breakers. The replay accepts what Redis admits, and reports every lie."""

from __future__ import annotations

from typing import Any

import pytest

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
    """A log of jobs ``a`` to ``d``, of which each claim is told with its time."""

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


def test_replay_accepts_a_pause_and_a_probe_that_opens_the_scope(log: MemoryWriter) -> None:
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


def test_replay_reports_a_second_probe(log: MemoryWriter) -> None:
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


def test_replay_reports_a_probe_whose_failure_does_not_pause_its_scope(log: MemoryWriter) -> None:
    story = Story(log)
    story.open_circuit()
    story.claim("a", 31_000)
    story.fail("a", 32_000)

    found = the_violation(log)
    assert found.says == f"is the failure of the probe of {SCOPE}, and does not pause it"


def test_replay_accepts_failures_that_are_further_apart_than_the_window(log: MemoryWriter) -> None:
    story = Story(log)
    for job_id in "abc":
        story.claim(job_id, 0)
    story.fail("a", 500)
    story.fail("b", 60_500)

    assert replay(log).violations == []


def test_replay_reports_a_probe_that_excepted_errors_did_not_end(log: MemoryWriter) -> None:
    """The next probe begins when the claim of the first one has ended, however it ended."""
    story = Story(log)
    story.open_circuit()
    story.claim("a", 31_000)
    story.fail("a", 31_500, excepted=FAMILY)
    story.claim("b", 31_500)
    story.succeed("b", 31_600)
    story.claim("d", 31_600)

    assert replay(log).violations == []
