"""Random histories of a queue agree with its model in Python."""

import pytest

from tests.model.durable_model import DurableQueue
from tests.model.kept_model import KeptQueue
from tests.model.machine import Queue
from tests.model.once_model import OnceQueue
from tests.model.running import LIMIT_S, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]


def test_random_histories_agree_with_the_model(valkey_url: str) -> None:
    run(lambda: Queue(valkey_url), examples=25)


def test_random_histories_with_names_and_edits_agree_with_the_model(valkey_url: str) -> None:
    run(lambda: OnceQueue(valkey_url), examples=20)


def test_random_histories_with_kept_results_agree_with_the_model(valkey_url: str) -> None:
    """Checks that a refused settlement stores no result. No job has the result of an earlier job with its id."""
    run(lambda: KeptQueue(valkey_url), examples=8)


def test_random_histories_of_durable_jobs_agree_with_the_model(valkey_url: str) -> None:
    """Checks that steps are saved once, and that signals are taken once and in order.

    A parked job wakes with the call that sends its signal, or with the first claim after its moment.
    """
    run(lambda: DurableQueue(valkey_url), examples=8)
