"""Records what the doctor and ``audit verify`` find in each test, so that two commits can be compared.

    RQ_FOUND=/tmp/found scripts/test tests/doctor tests/audit -p tests.kit.found
    sort -u /tmp/found

Each line has a test, the program, and its finding: an invariant, or a kind with its keys.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import rq_core.doctor
from sql_audit.proof.compare import drift

_FILE = Path(os.environ["RQ_FOUND"])


def _of_doctor(found: Any) -> Iterable[str]:
    return (" ".join(["doctor", each.kind, *each.keys]) for each in found)


def _of_verify(found: Any) -> Iterable[str]:
    violations, notes = found
    return [*(f"verify {each.invariant}" for each in violations), *("verify note" for _ in notes)]


def _noting(
    function: Callable[..., Any], words: Callable[[Any], Iterable[str]]
) -> Callable[..., Any]:
    @wraps(function)
    def noting(*args: Any, **named: Any) -> Any:
        found = function(*args, **named)
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        with _FILE.open("a", encoding="utf-8") as out:
            out.writelines(f"{test} | {each}\n" for each in words(found))
        return found

    return noting


# Before tests and commands import them by name.
for _module in (rq_core.doctor, sys.modules["rq_core.doctor.repair"]):
    for _name in ("examine", "diagnose"):
        setattr(_module, _name, _noting(getattr(_module, _name), _of_doctor))
setattr(drift, "compare", _noting(drift.compare, _of_verify))  # noqa: B010
