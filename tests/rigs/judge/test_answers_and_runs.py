"""The judges find each contradiction between the answers to producers, the runs of handlers, and the jobs."""

from tests.rigs.judge.told import Answers
from tests.rigs.judge.witnessed import Runs


def test_the_judge_compares_answers_with_the_existing_jobs() -> None:
    answers = Answers(attempted={"a", "b", "c"}, acknowledged={"a", "b"}, refused={"c"})

    assert answers.strangers({"a", "x"}) == ["x"]
    assert answers.contradicting({"a", "c"}, set()) == ["c"]
    assert answers.missing({"a", "c"}) == ["b"]


def test_the_judge_accepts_that_a_lost_job_is_discarded_when_its_call_is_sent_again() -> None:
    """Checks seed 1524: the reply to an accepted call was lost, and Redis was set back.

    The repeated call then found the cap full.
    """
    answers = Answers(attempted={"a"}, turned_away={"a"})

    assert answers.contradicting({"a"}, set()) == []
    assert answers.contradicting({"a"}, {"a"}) == ["a"]


def test_the_judge_compares_runs_with_the_claims_in_the_log() -> None:
    runs = Runs(began=[("a", 1), ("a", 1), ("b", 1)], ended=[("b", 1)])

    assert runs.begun_again() == [("a", 1)]
    assert runs.unlogged({("a", 1)}) == [("b", 1)]
    assert runs.hollow({("a", 1), ("b", 1)}) == [("a", 1)]
