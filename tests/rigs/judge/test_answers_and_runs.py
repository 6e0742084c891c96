"""The judges find each contradiction between what was told, what ran, and what is there."""

from tests.rigs.judge.told import Answers
from tests.rigs.judge.witnessed import Runs


def test_answers_are_held_against_the_jobs_that_are_there() -> None:
    answers = Answers(attempted={"a", "b", "c"}, acknowledged={"a", "b"}, refused={"c"})

    assert answers.strangers({"a", "x"}) == ["x"]
    assert answers.contradicting({"a", "c"}, set()) == ["c"]
    assert answers.missing({"a", "c"}) == ["b"]


def test_a_job_that_redis_forgot_may_be_turned_away_when_its_call_is_sent_again() -> None:
    """Seed 1524: accepted, the reply lost, Redis set back; then the same call found the cap full."""
    answers = Answers(attempted={"a"}, turned_away={"a"})

    assert answers.contradicting({"a"}, set()) == []
    assert answers.contradicting({"a"}, {"a"}) == ["a"]


def test_runs_are_held_against_the_claims_of_the_log() -> None:
    runs = Runs(began=[("a", 1), ("a", 1), ("b", 1)], ended=[("b", 1)])

    assert runs.begun_again() == [("a", 1)]
    assert runs.unlogged({("a", 1)}) == [("b", 1)]
    assert runs.hollow({("a", 1), ("b", 1)}) == [("a", 1)]
