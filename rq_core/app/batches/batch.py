"""The options of a batch task."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Final, Literal

from rq_core.errors import InvalidOption
from rq_core.model.lib.checks import check_whole
from rq_core.model.lib.durations import seconds_of

OnError = Literal["fail", "halve"]

SIZE_MAX: Final = 1_000
LINGER_S_MAX: Final = 10.0
"""Maximum ``linger``, in seconds: a third of the default lease."""


@dataclass(frozen=True)
class Batch:
    """Lets one call of a handler run up to ``size`` jobs: ``@app.task(queue="events", batch=Batch(500))``.

    - ``linger``: how long a worker waits for further jobs after the first job of a batch has arrived, in seconds or a
      timedelta. It is at most 10 s, and at most a third of the queue's lease. A claim brings at most 250 jobs, so
      larger batches need a linger.
    - ``per``: the name of a field of the arguments. All jobs of a batch have the same value in this field.
    - ``on_error``: what happens if the handler raises an exception. With ``"fail"``, all jobs of the batch fail with
      the exception. With ``"halve"``, the worker calls the handler again with each half of the batch, and halves a
      failing half again. At the end, only the jobs that cause the exception fail. After 8 calls in a row that raise an
      exception, the worker makes no further call, and the remaining jobs fail.

    Raises InvalidOption.
    """

    size: int
    _: KW_ONLY
    linger: float | timedelta = 0.1
    per: str | None = None
    on_error: OnError = "fail"

    def __post_init__(self) -> None:
        check_whole("size", self.size, 1, SIZE_MAX)
        linger = seconds_of("linger", self.linger)
        if linger > LINGER_S_MAX:
            raise InvalidOption.of("linger", self.linger, f"must be {LINGER_S_MAX:g} s or less")
        object.__setattr__(self, "linger", linger)
        per: object = self.per
        if per is not None and not isinstance(per, str):
            raise InvalidOption.of("per", per, "must be the name of a field of the arguments")
        if self.on_error not in ("fail", "halve"):
            raise InvalidOption.of("on_error", self.on_error, 'must be "fail" or "halve"')

    @property
    def linger_s(self) -> float:
        """The linger in seconds."""
        return float(self.linger)  # type: ignore[arg-type]  # the constructor has made it a number
