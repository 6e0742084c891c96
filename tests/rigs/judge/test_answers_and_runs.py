"""The judges find each contradiction between the answers to producers, the runs of handlers, and the log."""

from tests.rigs.judge.told import Answers
from tests.rigs.judge.witnessed import Runs


def test_the_judge_compares_answers_with_the_existing_jobs() -> None:
    answers = Answers(attempted={"a", "b", "c"}, acknowledged={"a", "b"}, refused={"c"})

    assert answers.strangers({"a", "x"}) == ["x"]
    assert answers.contradicting({"a", "c"}, set()) == ["c"]
    assert answers.missing({"a", "c"}) == ["b"]


def test_the_judge_accepts_that_a_repeated_call_discards_a_job_that_redis_has_lost() -> None:
    """Checks a case that seed 1524 of the simulator found. Redis accepted a job, its reply was lost, and Redis forgot
    the job.

    The client then repeated the call, and a full cap discarded the job.
    """
    answers = Answers(attempted={"a"}, turned_away={"a"})

    assert answers.contradicting({"a"}, set()) == []
    assert answers.contradicting({"a"}, {"a"}) == ["a"]


def test_the_judge_compares_runs_with_the_claims_in_the_log() -> None:
    runs = Runs(began=[("a", 1), ("a", 1), ("b", 1)], ended=[("b", 1)])

    assert runs.begun_again() == [("a", 1)]
    assert runs.unlogged({("a", 1)}) == [("b", 1)]
    assert runs.hollow({("a", 1), ("b", 1)}) == [("a", 1)]
