"""What the log says of the queue itself, against what its own facts, limits and lists say.

A change by one of rq-core's calls is an event. What a client wrote past them, with HSET, has none, so the log cannot
tell who did it and when. The value in Redis is in force all the same: it stands, and the finding says how to log it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rq_core.doctor.finding import Edit, Finding, Kind
from rq_core.doctor.view import View
from rq_core.errors import QueueDamaged
from rq_core.model import scopes
from rq_core.model.keys import DEFAULT_PREFIX, QueueKeys
from rq_core.model.limits import Limit
from rq_core.model.policy import read_naming, read_options, read_policy
from rq_core.model.settings import SETTINGS
from rq_core.model.text import shorten
from rq_core.protocol.presence import is_readable
from rq_core.protocol.usable import epoch_of

SHOWN_MAX: Final = 100
"""Characters of a value that are shown."""
_WHY: Final = "a client changed it with HSET, or a script was cut short"


def findings(view: View) -> Iterator[Finding]:
    """Say what the log tells otherwise, and which rows of lists nothing can be read of."""
    if view.facts.get("epoch"):
        yield from _epoch(view)
        says = f"{{}}: {_WHY}; {{}}"
        for key, member, differs, how in (*_settings(view), *_limits(view)):
            actual = view.snapshot[key].get(member, "")
            evidence = Edit(key, member, actual, actual)
            yield Finding(Kind.LOG_DIFFERS, says.format(differs, how), edits=(evidence,))
    yield from _rows(view)


def _epoch(view: View) -> Iterator[Finding]:
    epoch, logged = view.facts["epoch"], view.log.epoch
    meta = f"'{view.keys('meta')}'"
    if logged is None:
        try:
            epoch_of(view.keys.queue, epoch)
        except QueueDamaged:
            says = (
                f"epoch is {_shown(epoch)} in `meta`, which is no number, and the log has no event"
            )
            how = f"`redis-cli HDEL {meta} epoch` lets a new epoch begin"
            yield Finding(Kind.UNREADABLE, f"{says}: {_WHY}; {how}")
    elif epoch != str(logged):
        says = (
            f"epoch is {_shown(epoch)} in `meta`, and the last event is of epoch {logged}: {_WHY}"
        )
        how = f"`redis-cli HSET {meta} epoch {logged}` sets it back"
        evidence = Edit("meta", "epoch", epoch, epoch)
        yield Finding(Kind.LOG_DIFFERS, f"{says}; {how}", edits=(evidence,))


def _settings(view: View) -> Iterator[tuple[str, str, str, str]]:
    """Yield the settings that differ: key, member, the difference, and what sets it back."""
    for name, logged in sorted(view.log.settings.items()):
        default = str(SETTINGS[name].default) if name in SETTINGS else "0"
        actual = view.facts.get(name, default)
        if actual != logged:
            differs = f"{name} is {_shown(actual)} in `meta`, {_shown(logged)} by the log"
            yield "meta", name, differs, _how(view.keys, name, logged)


def _how(keys: QueueKeys, name: str, logged: str) -> str:
    """What sets a setting back to what the log says."""
    if name == "paused":
        return f"`rq-core {'pause' if logged == '1' else 'resume'} {keys.queue}{_given(keys)}` sets it back"
    if name in SETTINGS:
        setting = SETTINGS[name].assigned(int(logged))
        return f"`rq-core set {keys.queue} {setting}{_given(keys)}` sets it back"
    return "App.queue(fair=…) logs how it is to be"


def _given(keys: QueueKeys) -> str:
    """The option of commands about this queue, if its prefix is not the usual one."""
    return "" if keys.prefix == DEFAULT_PREFIX else f" --prefix {keys.prefix}"


def _limits(view: View) -> Iterator[tuple[str, str, str, str]]:
    """Yield the limits that differ, likewise."""
    stored = view.snapshot["caps"]
    # That all limits are gone is one finding of its own.
    for scope, (text, version) in sorted(view.log.limits.items()) if stored else ():
        actual = view.caps.get(scope)
        if scopes.family_of(scope) == scopes.WEIGHT or (scope in stored and actual is None):
            continue  # What cannot be read is a finding of its own, too.
        try:
            logged = None if text is None else Limit.parse(text)
        except (ValueError, TypeError):
            continue
        found = None if actual is None else actual.limit
        has, had = (str(each or "none") for each in (found, logged))
        how = "`rq-core cap` logs how it is to be"
        if found == logged and actual is not None and actual.version != version:
            # The next change goes on from there, and by the log it skips a version.
            has, had = f"{has} version={actual.version}", f"{had} version={version}"
            entry = stored[scope].replace(f"version={actual.version}", f"version={version}", 1)
            how = f"`redis-cli HSET '{view.keys('caps')}' {scope} '{entry}'` sets it back"
        if has != had:
            yield "caps", scope, f"the limit of {scope} is {has} in `caps`, {had} by the log", how


def _rows(view: View) -> Iterator[Finding]:
    for name, row in view.snapshot["workers"].items():
        if not is_readable(name, row):
            says = f"{_shown(name)} of `workers` cannot be read, so it is not shown: {_shown(row)}"
            yield Finding(Kind.UNREADABLE, f"{says}; workers remove such rows within an hour")
    for task, policy in view.snapshot["tasks"].items():
        try:
            read_policy(policy)
            read_naming(policy)
            read_options(policy)
        except (ValueError, KeyError, TypeError):
            says = f"how jobs of task {_shown(task)} are treated cannot be read: {_shown(policy)}"
            yield Finding(Kind.UNREADABLE, f"{says}; its workers register it again when they start")


def _shown(text: str) -> str:
    return repr(shorten(text, SHOWN_MAX))
