"""Runs a state machine for a number of examples, or for a number of minutes."""

import os
import time
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

MINUTES = "RQ_CORE_MODEL_MINUTES"
"""The environment variable with the minutes for which each machine runs. scripts/prove/model sets it."""
BATCH = 200
LIMIT_S = 0 if MINUTES in os.environ else 900
"""Time limit of pytest for one test, in seconds. It leaves time to shrink a failure to fewer steps. The long form has
no limit, and ends by itself."""


def run(machine: Callable[[], RuleBasedStateMachine], *, examples: int, steps: int = 50) -> None:
    """Run a machine for ``examples`` examples, or for RQ_CORE_MODEL_MINUTES minutes if this variable is set.

    A failure prints its steps, and how to repeat them.
    """
    minutes = float(os.environ.get(MINUTES, "0"))
    if not minutes:
        _run(machine, examples, steps)
        return
    until = time.monotonic() + 60 * minutes
    begun = 0
    while time.monotonic() < until:
        _run(machine, BATCH, steps)
        begun += BATCH
        print(f"{begun} examples agree", flush=True)  # noqa: T201 - tells how far a long run has come


def _run(machine: Callable[[], RuleBasedStateMachine], examples: int, steps: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
