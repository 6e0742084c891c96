"""One run of a flow's job. It looks how the children of all nodes have ended, enqueues the children of the nodes that
are ready, and parks until one of them ends.

Each node is a ``map`` of the flow's job, under the node's name. A job may wait for 64 entries at once, and a flow may
have more nodes at work, so the nodes are not asyncio tasks that wait each for itself: one loop looks at all of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rq_core.app.durable.children import PAUSE_MS, JobSteps, Place
from rq_core.app.durable.home import Home
from rq_core.app.durable.items import JobCall, child_of
from rq_core.app.flows.filled_calls import Policy, child_call
from rq_core.app.flows.graph import BYTES_MAX, CANCEL, FlowCall, Graph, Node, filled
from rq_core.app.flows.sweep import (
    AGAIN,
    STOP,
    Children,
    Word,
    ended,
    left_of,
    stopped_nodes,
    sweep,
)
from rq_core.app.handlers.context import JobContext
from rq_core.errors import UsageError
from rq_core.model.durable.boxes import ENTRIES_MAX, OWN_PREFIX
from rq_core.model.durable.children import child_wait, item_name, launch_name, parent_header
from rq_core.model.lib.text import counted
from rq_core.model.outcome import Outcome, reason_of
from rq_core.model.result_encoding import pack_result
from rq_core.signals import ChildrenFailed, StepsSpent

if TYPE_CHECKING:
    from rq_core.app.producer import Producer
    from rq_core.app.task import Task
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations

LOOK: Final = f"{OWN_PREFIX}flow.look"
"""The name of the sleeps after which a flow looks again at children whose ends no worker reports."""
AT_ONCE: Final = 60
"""Maximum number of nodes for whose ends a flow waits at once. It looks at the others every PAUSE_MS."""
LAUNCHES: Final = 50
"""Maximum number of nodes whose children are enqueued at the same time."""
WHY: Final = "another node of the flow failed"
"""The reason, in the log, for which a flow cancels children."""
SHOWN_MAX: Final = 10
"""Maximum number of nodes that the message of a failed flow names."""


class _Unfit(Exception):
    """A node whose calls cannot be made."""


class _NotKept:
    """The result of a flow whose last node's result is not kept. It has no JSON form, so that a wait for the result
    says so."""


class FlowSteps(JobSteps):
    """The nodes of one run of a flow's job."""

    def __init__(
        self,
        context: JobContext,
        home: Home,
        app: Producer,
        tasks: Mapping[str, Task[..., Any]],
        graph: Graph,
    ) -> None:
        super().__init__(context, home)
        self._app = app
        self._tasks = tasks
        self._graph = graph
        self._broken: dict[int, str] = {}
        """Why the calls of a node cannot be made, by its number."""
        self._policies: dict[tuple[str, str], Policy] = {}

    async def result(self) -> Any:
        """Run the nodes that are not done, and return the result of the last one. Raises ChildrenFailed if a node
        fails."""
        self._must_park("a flow")
        await self._may_begin()
        await self._load()
        while True:
            children, places = await self._see()
            words = sweep(self._graph, children, self._broken)
            self._show(words)
            alive = [
                (number, each.alive) for number, each in sorted(children.items()) if each.alive
            ]
            if "failed" in words and self._graph.on_failure == CANCEL:
                if not alive:
                    raise self._failed(words, children)
                await self._stop(alive, places)
                await self._wait(alive)
            elif stopped := self._stopped_of(children, words):
                if not await self._enqueue_again(stopped):
                    await self._wait(alive)
            elif ready := [number for number, word in enumerate(words) if word == "ready"]:
                for first in range(0, len(ready), LAUNCHES):
                    await self._launch(ready[first : first + LAUNCHES])
                if not self._broken.keys() & set(ready):
                    # Their ends send signals, which wait in the box until the job waits for them.
                    alive += [
                        (number, tuple(range(len(self._graph.nodes[number].calls))))
                        for number in ready
                    ]
                    await self._wait(alive)
            elif alive:
                await self._wait(alive)
            elif "failed" in words:
                raise self._failed(words, children)
            else:
                return self._value(len(self._graph.nodes) - 1, is_last=True)
            await self._may_begin()

    # What the children do.

    async def _see(self) -> tuple[dict[int, Children], dict[int, list[Place]]]:
        """Return the children of each node that was begun, and the places of those whose ends are not saved. Saves the
        results of those that have succeeded."""
        left: dict[int, list[int]] = {}
        places: dict[int, list[Place]] = {}
        for number, node in enumerate(self._graph.nodes):
            found = left_of(node, self._known)
            if found is None:
                continue
            left[number] = found
            launch = self._known(launch_name(node.name))
            if found and launch is not None:
                places[number] = self._places(node.name, launch, len(node.calls))
        # Backwards, so that no child seems alive that has ended in one call with a later one that seems ended.
        asked = [places[n][at] for n in reversed(places) for at in reversed(left[n])]
        looked = await self._look(asked)
        stopped, _, _ = stopped_nodes(self._known)
        children: dict[int, Children] = {}
        for number, positions in left.items():
            node = self._graph.nodes[number]
            ends: dict[int, Outcome[Any]] = {
                at: looked[places[number][at][1]]
                for at in positions
                if places[number][at][1] in looked
            }
            await self._save_results(node.name, ends)
            of = children[number] = ended(positions, ends, is_stopped=number in stopped)
            is_over = not of.alive and not of.stopped
            if of.failed and is_over and len(of.failed) <= len(node.calls) - node.needed:
                await self._close(node.name, of.failed)
        return children, places

    def _show(self, words: Sequence[Word]) -> None:
        """Show how many nodes are done, as the handler of any job shows its progress."""
        failed = words.count("failed")
        self._context.progress(
            words.count("done"), len(words), f"{failed} failed" if failed else ""
        )

    # Nodes that are ready.

    async def _launch(self, numbers: Sequence[int]) -> None:
        """Enqueue the children of several nodes."""
        if len(numbers) == 1:
            await self._launch_one(numbers[0])
            return
        # All at once: the worker sends what they save in few calls.
        ends = await asyncio.gather(*map(self._launch_one, numbers), return_exceptions=True)
        for error in ends:
            if error is not None:
                raise error

    async def _launch_one(self, number: int) -> None:
        node = self._graph.nodes[number]
        try:
            calls = await self._calls_of(node, range(len(node.calls)))
            await self._launched(node.name, calls)
        except (UsageError, _Unfit) as error:
            # The same in each run: the results from which the arguments are made are saved.
            self._broken[number] = str(error)

    async def _calls_of(self, node: Node, positions: Sequence[int]) -> list[JobCall[Any]]:
        """Return the calls of a node at these positions. Raises _Unfit, or a UsageError."""
        return [await self._call_of(node.calls[at]) for at in positions]

    async def _call_of(self, call: FlowCall) -> JobCall[Any]:
        results = {fill.node: self._value(fill.node) for fill in call.fills}
        args = filled(call, results)
        if results:
            size = len(json.dumps(args, ensure_ascii=False, separators=(",", ":")).encode())
            if size > BYTES_MAX:
                raise _Unfit(
                    f"inputs too large: they are {size:,} bytes of JSON with the results of other nodes, and may be"
                    f" {BYTES_MAX:,}. Let a node return a reference to what it has stored elsewhere"
                )
        known = self._tasks.get(call.task)
        policy = None if known is not None else await self._policy_of(call.queue, call.task)
        return child_call(self._app, known, call, args, policy)

    async def _policy_of(self, queue: str, task: str) -> Policy:
        if (queue, task) not in self._policies:
            found = await self.home.ask(partial(_ask_policy, queue, task))
            self._policies[queue, task] = (found,)
        return self._policies[queue, task]

    def _value(self, number: int, *, is_last: bool = False) -> Any:
        """Return the result of a node that is done, in the types of JSON; of a map, the results of the children that
        succeeded, as a list. Raises _Unfit if a result is not kept; for the last node, it returns a value without a
        JSON
        form instead."""
        node = self._graph.nodes[number]
        found: list[Any] = []
        for at in range(len(node.calls)):
            entry = self._known(item_name(node.name, at))
            if entry is None:
                continue
            if entry.value is None:
                if is_last:
                    return _NotKept()
                raise _Unfit(
                    f"the result of node {node.name} is not kept: {reason_of(entry.note or '')}"
                )
            found.append(json.loads(entry.value))
        return found if node.is_map else found[0]

    # A flow that stops at the first failure.

    async def _stop(
        self, alive: Sequence[tuple[int, Sequence[int]]], places: Mapping[int, Sequence[Place]]
    ) -> None:
        """Cancel all children that are alive. The nodes are saved before, so that a retry knows which children the flow
        itself has cancelled."""
        stopped, stops, _ = stopped_nodes(self._known)
        numbers = [number for number, _ in alive]
        if not stopped.issuperset(numbers):
            await self._note(f"{STOP}-{stops + 1}", numbers)
        by_queue: dict[str, list[str]] = {}
        for number, positions in alive:
            for at in positions:
                queue, job_id = places[number][at]
                by_queue.setdefault(queue, []).append(job_id)
        for queue, ids in by_queue.items():
            await self.home.ask(partial(_cancel, queue, ids, self._context.worker))

    def _stopped_of(
        self, children: Mapping[int, Children], words: Sequence[Word]
    ) -> list[tuple[int, Sequence[int]]]:
        """Return the children that a stop has cancelled, by node, once no child of these nodes is alive."""
        if "failed" in words:
            return []
        nodes, _, _ = stopped_nodes(self._known)
        if any(children[number].alive for number in nodes if number in children):
            return []
        return [(n, each.stopped) for n, each in children.items() if each.stopped]

    async def _enqueue_again(self, stopped: Sequence[tuple[int, Sequence[int]]]) -> bool:
        """Enqueue children again that a stop had cancelled, under their ids. Return False if a queue takes none now."""
        for number, positions in stopped:
            node = self._graph.nodes[number]
            entry = self._numbers[launch_name(node.name)]
            jobs = [
                child_of(
                    call,
                    self._child_id(node.name, at),
                    parent_header(self._context.queue, self._context.id, child_wait(entry, at)),
                )
                for at, call in zip(positions, await self._calls_of(node, positions), strict=True)
            ]
            if not await self._enqueue(node.name, jobs):
                return False
        _, stops, again = stopped_nodes(self._known)
        await self._note(f"{AGAIN}-{again + 1}", stops)
        return True

    async def _note(self, name: str, value: Any) -> None:
        """Save an entry of the flow's own."""
        note_end = self.home.began()
        try:
            await self._write("save", name, pack_result(json.dumps(value), self.home.audit_result))
        finally:
            note_end()

    # The wait, and the end.

    async def _wait(self, alive: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Park until a child of one of these nodes ends, or until it is time to look. Returns if that is so already."""
        numbers: list[int] = []
        for number, positions in alive[:AT_ONCE]:
            if not positions:
                continue
            launch = launch_name(self._graph.nodes[number].name)
            # The child that was enqueued last is most likely to end last, so the flow looks seldom.
            name = child_wait(self._numbers[launch], positions[-1])
            if await self._add_wait("wait", name, "", numbers):
                return
        pause_ms = PAUSE_MS
        if alive and len(alive) <= AT_ONCE:
            pause_ms = self._pause_ms(self._graph.nodes[alive[-1][0]].name)
        if await self._add_wait("sleep", LOOK, f"+{pause_ms}", numbers):
            return
        # A job whose own asyncio task waits is parked at once; the others only say for what it waits.
        others = [asyncio.ensure_future(self.home.park(number)) for number in numbers[:-1]]
        try:
            await asyncio.sleep(0)
            await self.home.park(numbers[-1])
        finally:
            for other in others:
                other.cancel()

    async def _add_wait(self, kind: Any, name: str, about: str, numbers: list[int]) -> bool:
        """Return whether a wait or a sleep is over. Otherwise add the number of its entry to ``numbers``."""
        entry = self._open_name(name)
        if self._known(entry) is None and len(self._loaded) >= ENTRIES_MAX:
            raise StepsSpent(f"the flow has {ENTRIES_MAX:,} entries, and may have no more")
        if await self._take(kind, entry, about):
            return True
        numbers.append(self._numbers[entry])
        return False

    def _failed(self, words: Sequence[Word], children: Mapping[int, Children]) -> ChildrenFailed:
        """Return the error of a flow with failed nodes."""
        said: list[str] = []
        failed = [number for number, word in enumerate(words) if word == "failed"]
        for number in failed[:SHOWN_MAX]:
            node = self._graph.nodes[number]
            why = self._broken.get(number)
            if why is None:
                of = children[number].failed
                first = next(iter(of.values()))
                count = (
                    f"{len(of):,} of {len(node.calls):,} children failed: " if node.is_map else ""
                )
                why = f"{count}{_words(first)}"
            said.append(f"node {node.name}: {why}")
        more = f"; and {len(failed) - SHOWN_MAX} more" if len(failed) > SHOWN_MAX else ""
        rest = len(words) - words.count("done") - len(failed)
        left = f". {counted(rest, 'other node')} did not run, or not to the end" if rest else ""
        return ChildrenFailed("; ".join(said) + more + left)


def _words(outcome: Outcome[Any]) -> str:
    try:
        outcome.value  # noqa: B018 - it raises
    except Exception as error:  # noqa: BLE001 - what it says
        return str(error).removesuffix(".")
    return "it succeeded"


def _ask_policy(queue: str, task: str, calls: Operations) -> Plan[str | None]:
    return calls.caps.policy(queue, task)


def _cancel(queue: str, ids: Sequence[str], worker: str, calls: Operations) -> Plan[dict[str, str]]:
    return calls.families.cancel(queue, ids, by=worker, why=WHY)
