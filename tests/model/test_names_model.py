"""Random histories of jobs with names agree with their model in Python."""

import pytest

from tests.model.names_model import Names
from tests.model.running import LIMIT_S, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]


def test_random_histories_of_names_agree_with_the_model(valkey_url: str) -> None:
    run(lambda: Names(valkey_url), examples=25)
