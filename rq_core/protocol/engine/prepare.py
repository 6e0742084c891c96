"""Loads the Redis functions of this version of rq-core into a server, for users that have no right to load
functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rq_core.model.lib.url import is_cluster
from rq_core.protocol.engine import server_check
from rq_core.protocol.engine.plan import Plan, pairs_of
from rq_core.protocol.engine.retried_commands import Asking
from rq_core.scripts.script import function, names


@dataclass(frozen=True, slots=True)
class Prepared:
    """The function libraries of rq-core that a server has after ``prepare``, by name."""

    loaded: tuple[str, ...]
    """The functions that were loaded: the server lacked them, or had them with another text. In a cluster: all."""
    known: tuple[str, ...]
    """The functions of this version that the server had before. In a cluster: none, since all are loaded."""
    others: tuple[str, ...]
    """The functions of other versions of rq-core that the server has."""


def prepare(asking: Asking) -> Plan[Prepared]:
    """Load the functions of this version that the server lacks. In a cluster, load all functions into each primary.

    A function that the server already has is not loaded again, because this would empty its cache. Raises
    ServerUnavailable, or ServerUnsuitable if the user may load no functions or the server takes none.
    """
    yield from server_check.inspect(asking)
    (found,) = yield from asking.ask([["FUNCTION", "LIST", "LIBRARYNAME", "rqc_*", "WITHCODE"]])
    there: dict[str, str] = dict(_library(pairs_of(entry)) for entry in found)
    made = [function(name) for name in names()]
    # In a cluster only one node has answered FUNCTION LIST.
    known = (
        () if is_cluster(asking.url) else tuple(s for s in made if there.get(s.function) == s.text)
    )
    missing = [script for script in made if script not in known]
    if missing:
        yield from asking.ask([list(script.loading) for script in missing])
    return Prepared(
        loaded=tuple(script.function for script in missing),
        known=tuple(script.function for script in known),
        others=tuple(sorted(there.keys() - {script.function for script in made})),
    )


def _library(entry: Mapping[str, Any]) -> tuple[str, str]:
    return str(entry["library_name"]), str(entry["library_code"])
