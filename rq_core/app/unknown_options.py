"""Makes the error for an unknown option. The error names all known options, and the one that the caller probably
meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_ATTEMPTS: Final = "max_attempts=…, which counts the first run, too"
_OF_RETRIES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("retries", "max_retries", "max_tries"), _ATTEMPTS),
    **dict.fromkeys(("retry_delay", "default_retry_delay", "min_backoff"), "base=…"),
    **dict.fromkeys(("max_backoff", "retry_backoff_max"), "maximum=…"),
    "autoretry_for": "retry_on=…",
    "dont_autoretry_for": "give_up_on=…",
    "retry_backoff": "backoff=…",
    "retry_jitter": "jitter=…",
}
_OF_BOTH: Final[Mapping[str, str]] = {
    **dict.fromkeys(("time_limit", "soft_time_limit", "job_timeout"), "timeout=…"),
    **dict.fromkeys(("result_ttl", "result_expires", "store_results"), "keep_result=…"),
}
OF_POLICIES: Final[Mapping[str, str]] = {
    **_OF_RETRIES,
    "attempts": _ATTEMPTS,
    **dict.fromkeys(("delay", "countdown", "interval"), "base=…"),
    "max_delay": "maximum=…",
}
"""The names of options of other libraries' retry policies, each with the option of RetryPolicy to use instead."""
OF_JOBS: Final[Mapping[str, str]] = {
    **_OF_BOTH,
    **dict.fromkeys(("retries", "max_retries", "max_tries", "retry"), _ATTEMPTS),
    **dict.fromkeys(("countdown", "defer_by", "schedule_in"), "delay=…"),
    **dict.fromkeys(("eta", "defer_until", "schedule_at", "run_at"), "at=…"),
    **dict.fromkeys(("task_id", "job_id", "_job_id", "message_id"), "id=…"),
    **dict.fromkeys(("ttl", "expire", "max_age"), "expires=…"),
}
"""The names of options that jobs of other libraries have, each with the option of rq-core to use instead."""
OF_TASKS: Final[Mapping[str, str]] = {
    **_OF_BOTH,
    **{
        name: f"retry=RetryPolicy({option.replace('…', '…)', 1)}"
        for name, option in {**_OF_RETRIES, "max_attempts": _ATTEMPTS}.items()
    },
    "queue_name": "queue=…",
}
"""The names of options that tasks of other libraries have, each with the option of rq-core to use instead."""


def naming_options(what: str, meant: Mapping[str, str]) -> Callable[[F], F]:
    """Return a decorator for a method with options. For an unknown option, the method raises the error of
    ``unexpected``.

    ``what`` is the method's name. ``meant`` maps the names of other libraries' options to the options to use instead.
    """

    def decorate(function: F) -> F:
        _, *others = inspect.signature(function).parameters.values()
        known = [each.name for each in others if each.kind is not inspect.Parameter.POSITIONAL_ONLY]

        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            for given in options:
                if given not in known:
                    raise unexpected(f"{what}() ", given, known, meant, "its")
            return function(*args, **options)

        return cast("F", checked)

    return decorate


def unexpected(
    what: str, given: str, known: Collection[str], meant: Mapping[str, str], whose: str
) -> TypeError:
    """Return the error for the unknown option ``given`` of the method ``what``. ``known`` are the method's options.

    ``meant`` maps the names of other libraries' options to the options to use instead.
    """
    write = meant.get(given, "")
    hint = f" (write {write})" if write.partition("=")[0] in known else ""
    return TypeError(
        f"{what}got an unexpected keyword argument {given!r}{hint}: {whose} options are {', '.join(known)}"
    )
