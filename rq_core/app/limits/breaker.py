"""Breakers, as a task declares them. If the service behind the jobs of a key, such as one host, fails too often, no job
of this key begins for a while.

    @app.task(breaker=Breaker(failures=20, per_seconds=60, cooldown=30, per="host"))
    def ask(host: str, question: str) -> str: ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import Final

from rq_core.app.limits.caps import Cap, Per, Rate, check_scope_key, family_name, window_text
from rq_core.errors import InvalidOption, InvalidTask
from rq_core.model.lib.durations import ms_of
from rq_core.model.limits.breakers import FAILURES, check_breaker
from rq_core.model.limits.limit import Limit

ErrorTypes = type[BaseException] | tuple[type[BaseException], ...]

_DAY_S: Final = 86_400


@dataclass(frozen=True)
class Breaker:
    """Pauses the jobs of a key, such as one host, when the service behind them fails. After the pause, a single job,
    the probe, tests the service.

    After ``failures`` failures within ``per_seconds``, the scope (the jobs of the key) is paused for ``cooldown``: no
    job of the scope begins, and so no job spends an attempt. Jobs that already run are not stopped. After the pause,
    one job begins, the probe. If it succeeds, all jobs may begin again. If it fails, the scope is paused again. If it
    ends in another way, such as a lost lease or a cancellation, the next job is the probe.

    A failure is a claim that the log has as ``retried`` or ``died``: an error or a timeout. A lost worker does not
    count. An error of a type in ``except_for`` does not count either.

    - ``failures``: from 1 to 1,000.
    - ``per_seconds`` and ``cooldown``: seconds, or timedeltas, of at most a day.
    - ``per`` and ``name`` have the same meaning as for Cap.
    - ``except_for``: an exception type, or a tuple of exception types. The breaker does not count these errors, which
      the service has not caused.

    Raises InvalidOption or InvalidName.
    """

    failures: int
    _: KW_ONLY
    per_seconds: float | timedelta
    cooldown: float | timedelta
    per: Per | None = None
    name: str | None = None
    except_for: ErrorTypes = ()
    window_ms: int = field(init=False, repr=False, compare=False)
    cooldown_ms: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_scope_key(self.per, self.name)
        window_ms = ms_of("per_seconds", self.per_seconds, minimum=0.001, maximum=_DAY_S)
        cooldown_ms = ms_of("cooldown", self.cooldown, minimum=0.001, maximum=_DAY_S)
        check_breaker(self.failures, cooldown_ms, names=("failures", "cooldown"))
        object.__setattr__(self, "window_ms", window_ms)
        object.__setattr__(self, "cooldown_ms", cooldown_ms)
        types = self.except_for if isinstance(self.except_for, tuple) else (self.except_for,)
        checked: tuple[object, ...] = types
        if not all(isinstance(t, type) and issubclass(t, BaseException) for t in checked):
            must = "must be an exception type or a tuple of them"
            raise InvalidOption.of("except_for", self.except_for, must)
        object.__setattr__(self, "except_for", types)

    @property
    def limit(self) -> Limit:
        """The limit that applies to each scope (each key) of the breaker. Its field ``burst`` has the cooldown, in
        ms."""
        return Limit(self.failures, self.window_ms, self.cooldown_ms)

    def family(self, task: str) -> str:
        """Return the family of the breaker for a task, which is the first part of the names of all its scopes:
        ``ask.host@60s:failures``.

        Raises InvalidName if the family would be too long.
        """
        name = family_name(task, self.per, self.name)
        return f"{name}@{window_text(self.window_ms)}s:{FAILURES}"

    def excepts(self, error: BaseException) -> bool:
        """Return whether ``except_for`` names the type of this error, so that the breaker does not count the error."""
        return isinstance(error, self.except_for)


def breakers_of(task: str, breaker: object) -> tuple[Breaker, ...]:
    """Return the breakers of a task from its option ``breaker``: one Breaker, several, or None. Raises InvalidTask."""
    if breaker is None:
        return ()
    given = tuple(breaker) if isinstance(breaker, list | tuple) else (breaker,)
    for each in given:
        if not isinstance(each, Breaker):
            like = "like Breaker(20, per_seconds=60, cooldown=30)"
            raise InvalidTask(
                task=task, why=f"breaker must be a Breaker or a list of them, not {each!r}: {like}"
            )
    return given


def with_breakers(
    task: str, caps: Sequence[Cap | Rate], breakers: tuple[Breaker, ...]
) -> Sequence[Cap | Rate | Breaker]:
    """Return the caps and the breakers of a task. Raises InvalidTask if ``caps`` has a Breaker."""
    given: object = caps
    if not isinstance(given, list | tuple):
        return caps  # ``add_task`` refuses such a value.
    for each in given:
        if isinstance(each, Breaker):
            raise InvalidTask(task=task, why=f"caps must not hold {each!r}: pass it as breaker=")
    return [*caps, *breakers]


def excepted_by(breakers: tuple[Breaker, ...], task: str, error: BaseException) -> str:
    """Return the breakers that do not count this error: their families (names such as ``ask.host@60s:failures``),
    joined by spaces."""
    return " ".join(each.family(task) for each in breakers if each.excepts(error))
