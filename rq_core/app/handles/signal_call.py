"""Makes the call that sends a signal to a durable job, and checks the outcome of the call."""

from __future__ import annotations

import re
from typing import Any, Final

from rq_core.app.handlers.result_types import Returned
from rq_core.errors import InvalidOption, NotSignalled
from rq_core.model.durable.boxes import KEY_PATTERN, SIGNAL_PATTERN, reserved_prefix
from rq_core.model.result_encoding import NO_VALUE, VALUE_MAX, unpack_result
from rq_core.protocol.calls.boxes import Sending, Sent

_WHY: Final = {
    "gone": "there is no such job. It has ended, or it was never enqueued",
    "lost": "Redis has lost what the job had saved, and the signals that it had. `rq-core audit restore` puts them back"
    " if the log has them",
    "full": "the job has had 10,000 signals, or its steps and signals have 16 MiB",
}


_VALUES: Final = Returned("signal", lambda: None)


def sending_of(job_id: str, name: str, value: Any, key: str = "") -> Sending:
    """Return the record with which a signal is sent to Redis. Raises InvalidOption."""
    _check(name, key)
    packed = _VALUES.dump(value)
    if packed.startswith(NO_VALUE):
        must = "must be plain data, dataclasses or pydantic models"
        problem = _VALUES.problem_of(value, packed)
        if not problem:
            must = "must be stored elsewhere, and sent as a reference"
            problem = f"value is longer than {VALUE_MAX:,} bytes as JSON"
        raise InvalidOption(
            f"signal {name!r} cannot be sent: {problem}. It {must}",
            option="value",
            value=value,
            must=must,
        )
    return Sending(job_id, name, key, unpack_result(packed)[1])


def sending_of_json(job_id: str, name: str, value_json: str, key: str = "") -> Sending:
    """Return the record with which a signal is sent to Redis, if the signal's value is already JSON. Raises
    InvalidOption for an invalid name or key."""
    _check(name, key)
    return Sending(job_id, name, key, value_json)


def _check(name: Any, key: Any) -> None:
    """Raise InvalidOption for an invalid name or an invalid key of a signal."""
    if not isinstance(name, str) or not re.fullmatch(SIGNAL_PATTERN, name):
        raise InvalidOption.of(
            "name", name, "must be 1 to 58 of the characters A-Z a-z 0-9 _ . : -, not only digits"
        )
    if prefix := reserved_prefix(name):
        raise InvalidOption.of(
            "name", name, f"must not begin with {prefix!r}, as only rq-core's own entries do"
        )
    if key != "" and not (isinstance(key, str) and re.fullmatch(KEY_PATTERN, key)):
        why = "must be 1 to 128 of the characters A-Z a-z 0-9 _ . : -, or empty for a signal without a key"
        raise InvalidOption.of("key", key, why)


def outcome_of(queue: str, record: Sending, sent: Sent) -> str:
    """Return the outcome of sending a signal, such as ``woken``. Raises NotSignalled if Redis refused the signal."""
    if sent.outcome in _WHY:
        raise NotSignalled(queue=queue, id=record.id, name=record.name, why=_WHY[sent.outcome])
    return sent.outcome
