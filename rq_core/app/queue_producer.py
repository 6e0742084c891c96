"""The part of an app for whole queues: it declares their settings and limits, and changes caps."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from rq_core.app.handles.bulk import ManyProducer
from rq_core.app.producer import AuditPayload, spec_max
from rq_core.errors import InvalidOption
from rq_core.model.keys import check_name
from rq_core.model.lib.checks import check_whole
from rq_core.model.lib.durations import Duration, ms_of
from rq_core.model.limits.limit import Limit
from rq_core.model.settings import SETTINGS

if TYPE_CHECKING:
    from rq_core.protocol.calls.caps import CapChange
    from rq_core.protocol.calls.pauses import PauseChange
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations
    from rq_core.protocol.reads.scope_reads import ScopeStatus

LIST_MAX: Final = 1_000_000_000
"""Maximum number of scopes that one call of ``caps`` lists."""


class QueueProducer(ManyProducer):
    """A producer with the methods for settings and limits of queues. Threads may share a producer."""

    # Queues.

    def queue(
        self,
        name: str,
        *,
        lease: Duration | None = None,
        dead_retention: Duration | None = None,
        cap: int | None = None,
        fair: str | Literal[False] | None = None,
        weights: Mapping[str, int] | None = None,
        audit_payload: AuditPayload | None = None,
    ) -> None:
        """Declare a queue's settings. A worker writes them to the server when it starts; apply_settings does the same.

        Options that are left out, or None, change nothing.

        - ``lease``: how long a claim is in force unless its worker extends it, in seconds or a timedelta.
        - ``dead_retention``: how long Redis keeps dead jobs, in seconds or a timedelta.
        - ``cap``: the maximum number of jobs of the queue that may be claimed at once.
        - ``fair``: the argument whose values share the queue. Among jobs of one priority, workers take jobs of each
          value in turn, in proportion to the value's weight. The numbers of waiting jobs do not matter. False switches
          fairness off.
        - ``weights``: the weights by value. A value without an entry has the weight 1.
        - ``audit_payload``: replaces the App's option for jobs that this app enqueues into the queue. It takes effect
          at once.

        Raises InvalidName or InvalidOption.
        """
        changes: dict[str, int] = {}
        kept = None if audit_payload is None else spec_max(audit_payload)
        for field, option, value in (
            ("lease_ms", "lease", lease),
            ("dead_retention_ms", "dead_retention", dead_retention),
        ):
            if value is not None:
                minimum = SETTINGS[field].minimum / 1000
                changes[field] = ms_of(option, value, minimum=minimum)
        given: object = fair
        if given is not None and given is not False:
            if not isinstance(given, str) or not given.isidentifier():
                raise InvalidOption.of("fair", fair, "must be the name of an argument, or False")
            changes["fair"] = 1
        elif given is False:
            changes["fair"] = 0
        check_name("queue", name)
        self.declared.set_queue(name, cap, "" if fair is False else fair, weights)
        self.declared.settings.setdefault(name, {}).update(changes)
        if kept is not None:
            self._spec_max_of[name] = kept

    @property
    def settings(self) -> Mapping[str, Mapping[str, int]]:
        """The declared settings by queue, then by the setting's name."""
        return MappingProxyType(self.declared.settings)

    @property
    def queues(self) -> list[str]:
        """The queues that the code declares, by a task or by ``queue``."""
        return list(dict.fromkeys([*self.declared.queues, *self.declared.settings]))

    def declaration(self, calls: Operations, *queues: str) -> Plan[list[str]]:
        """Return a plan, a series of calls to Redis, that writes the declarations of ``queues`` to a server: settings,
        limits and tasks' policies (options and caps).

        The plan returns a sentence for each declaration that the server refused.
        """
        from rq_core.protocol.calls.caps import DECLARED_WHY

        refused: list[str] = []
        for queue in queues:
            if self.declared.settings.get(queue):
                yield from calls.admin.configure(
                    queue, self.declared.settings[queue], why=DECLARED_WHY
                )
            limits = self.declared.limits(queue)
            policies = self.declared.policies(queue)
            refused += map(str, (yield from calls.caps.declare(queue, limits, policies)))
        return refused

    def apply_settings(self) -> None:
        """Write to the server the settings, limits and task options that the code declares. A starting worker does the
        same.

        Raises ServerUnavailable, ServerUnsuitable.
        """
        client = self.client
        client.run(self.declaration(client.calls, *self.queues))

    async def apply_settings_async(self) -> None:
        """Write the code's declarations to the server without blocking the event loop. See apply_settings."""
        client = self.async_client()
        await client.run(self.declaration(client.calls, *self.queues))

    # Caps.

    def set_cap(
        self,
        queue: str,
        scope: str,
        limit: int | Limit | Literal["code"] | None,
        *,
        reason: str = "",
        by: str | None = None,
        version: int | None = None,
    ) -> CapChange:
        """Change a limit in the running system, at once and for every worker. Return the change.

        - ``scope``: ``queue``, ``task=NAME``, all keys of a cap, called a family (``send.tenant``, or the cap's name),
          or one key (``send.tenant=acme``). A limit for a family holds for each of its keys separately.
        - ``limit``: 0 stops the scope, and None removes the limit. A lower limit does not stop jobs that run. "code"
          restores the limit that code declares; for one key, it restores the family's limit. For a rate, a number is
          the number of claims per window, and the window does not change.
        - ``version``: the version of the limit that the caller has read. If the limit has another version now,
          CapConflict is raised. Without ``version``, the last change wins.

        Raises InvalidOption, UnknownScope or NothingDeclared.
        """
        client, declared = self.client, self.declared.families(queue)
        return client.run(
            client.calls.caps.change(
                queue, scope, limit, declared=declared, version=version, by=by, why=reason
            )
        )

    async def set_cap_async(
        self,
        queue: str,
        scope: str,
        limit: int | Limit | Literal["code"] | None,
        *,
        reason: str = "",
        by: str | None = None,
        version: int | None = None,
    ) -> CapChange:
        """Change a limit in the running system without blocking the event loop. See set_cap."""
        client, declared = self.async_client(), self.declared.families(queue)
        return await client.run(
            client.calls.caps.change(
                queue, scope, limit, declared=declared, version=version, by=by, why=reason
            )
        )

    def pause_scope(
        self,
        queue: str,
        scope: str,
        *,
        after: Duration | None = None,
        reason: str = "",
        by: str | None = None,
    ) -> PauseChange:
        """Let no job of a scope begin for a while. Jobs that already run are not stopped.

        - ``scope``: one key of a rate or a breaker, as App.caps names it: ``ask.host@60s:failures=h1``.
        - ``after``: how long the pause lasts, in seconds or a timedelta. With None, it lasts until resume_scope is
          called.

        If a pause in force ends later than the new pause would, nothing changes. After the pause, the jobs of a rate
        begin one after the other. The jobs of a breaker wait until one of them, the probe, has succeeded. Raises
        InvalidOption.
        """
        client, ms = self.client, None if after is None else max(1, ms_of("after", after))
        return client.run(client.calls.pauses.pause(queue, scope, for_ms=ms, by=by, why=reason))

    async def pause_scope_async(
        self,
        queue: str,
        scope: str,
        *,
        after: Duration | None = None,
        reason: str = "",
        by: str | None = None,
    ) -> PauseChange:
        """Pause the jobs of a scope without blocking the event loop. See pause_scope."""
        client, ms = self.async_client(), None if after is None else max(1, ms_of("after", after))
        plan = client.calls.pauses.pause(queue, scope, for_ms=ms, by=by, why=reason)
        return await client.run(plan)

    def resume_scope(
        self, queue: str, scope: str, *, reason: str = "", by: str | None = None
    ) -> PauseChange:
        """End any pause of a scope, a group of jobs that a rate or a breaker counts. The jobs of the scope may begin at
        once. Raises InvalidOption."""
        client = self.client
        return client.run(client.calls.pauses.resume(queue, scope, by=by, why=reason))

    async def resume_scope_async(
        self, queue: str, scope: str, *, reason: str = "", by: str | None = None
    ) -> PauseChange:
        """End any pause of a scope without blocking the event loop. See resume_scope."""
        client = self.async_client()
        return await client.run(client.calls.pauses.resume(queue, scope, by=by, why=reason))

    def caps(self, queue: str, *, limit: int = 100) -> list[ScopeStatus]:
        """Return the states of at most ``limit`` scopes of a queue. A scope is a group of jobs that a cap or a rate
        counts.

        The list begins with the scopes that have limits of their own. The scopes of keys that jobs use follow, and then
        the weights of a fair queue.
        """
        check_whole("limit", limit, 1, LIST_MAX)
        client = self.client
        return client.run(client.calls.reads.caps(queue, limit))

    async def caps_async(self, queue: str, *, limit: int = 100) -> list[ScopeStatus]:
        """Return the states of a queue's scopes without blocking the event loop. See caps."""
        check_whole("limit", limit, 1, LIST_MAX)
        client = self.async_client()
        return await client.run(client.calls.reads.caps(queue, limit))
