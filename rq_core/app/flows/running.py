"""One run of a flow's job. The run reads how the children of all nodes have ended. It enqueues the children of the
nodes that are ready. Then it parks the job until a child ends.

Each node is a ``map`` of the flow's job, under the node's name. The nodes are not asyncio tasks that each wait for
their own children: a job may have only 64 waits and sleeps at once, and more nodes of a flow may run at the same time.
So one loop handles all nodes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rq_core.app.durable.children import LOOK_MAX_S, Place
from rq_core.app.durable.entry_names import numbered
from rq_core.app.durable.home import Home
from rq_core.app.durable.items import JobCall, children_failed
from rq_core.app.flows.between_runs import KeptRun, ResumedSteps
from rq_core.app.flows.filled_calls import child_call, placing_of
from rq_core.app.flows.graph import BYTES_MAX, CANCEL, FlowCall, Graph, GraphNode, filled
from rq_core.app.flows.sweep import (
    AGAIN,
    STOP,
    Children,
    Spot,
    children_of,
    counted_jobs,
    is_launched,
    launches_of,
    open_words,
    spots_of,
    stops_of,
    unsaved_of,
)
from rq_core.app.handlers.context import JobContext
from rq_core.errors import UsageError
from rq_core.model.durable.boxes import ENTRIES_MAX, OWN_PREFIX
from rq_core.model.durable.children import child_wait, item_name, launch_name
from rq_core.model.lib.newest_values import NewestValues
from rq_core.model.lib.text import counted
from rq_core.model.outcome import Cancelled, Gone, Outcome, reason_of
from rq_core.model.result_encoding import pack_result
from rq_core.signals import ChildrenFailed, StepsSpent

if TYPE_CHECKING:
    from rq_core.app.limits.lane_assignment import Placing
    from rq_core.app.producer import Producer
    from rq_core.app.task import Task
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations

LOOK: Final = f"{OWN_PREFIX}flow.look"
"""The name of a flow's sleeps. After each sleep, the flow reads its children's states again, in case the signal of a
child's end was lost."""
AT_ONCE: Final = 60
"""Maximum number of nodes for whose children a flow waits at once. If more nodes run, the flow reads the states of the
other nodes' children when it wakes the next time."""
LOOKS_SOON: Final = 500
"""Number of sleeps after which each further sleep of a flow lasts LOOK_MAX_S seconds. Each sleep takes one of the
limited number of records that Redis saves for the flow's job."""
LAUNCHES: Final = 50
"""Maximum number of nodes whose children are enqueued at the same time."""
YIELD: Final = 20
"""Number of calls of a node that a flow prepares before it lets other coroutines of the worker run."""
WHY: Final = "another node of the flow failed"
"""The reason that the audit log has for children that a flow has cancelled."""
SHOWN_MAX: Final = 10
"""Maximum number of nodes that the message of a failed flow names."""


class _Unfit(Exception):
    """Raised if the calls of a flow's node cannot be made, for example because a result that they need is not kept."""


class _NotKept:
    """Replaces the result of a flow if the result of the last node is not kept or cannot be read. This object has no
    JSON form, so a wait for the flow's result raises ResultUnavailable."""


class FlowSteps(ResumedSteps):
    """One run of a flow's job, which enqueues the children of the flow's nodes, and waits for the children."""

    def __init__(
        self,
        context: JobContext,
        home: Home,
        app: Producer,
        tasks: Mapping[str, Task[..., Any]],
        graph: Graph,
        kept: NewestValues[tuple[str, str], KeptRun],
    ) -> None:
        super().__init__(context, home, graph, kept)
        self._app = app
        self._tasks = tasks
        self._broken: dict[int, str] = {}
        """The reason why the calls of a node cannot be made, by the node's number."""

    async def result(self) -> Any:
        """Run the nodes that are not done, and return the result of the flow's last node. Raises ChildrenFailed if a
        node fails."""
        self._must_park("a flow")
        await self._may_begin()
        await self._load()
        while True:
            # Before anything else: a retry has said what it enqueues, and may have been killed before it did so.
            if again := self._not_launched_again():
                await self._launch(again)
            children = await self._see()
            words = open_words(self._graph, self._frontier.open, children, self._broken)
            failed = [number for number, word in words.items() if word == "failed"]
            ready = [number for number, word in words.items() if word == "ready"]
            self._show(children, len(failed))
            alive = [each.alive for each in children.values() if each.alive]
            if failed and self._graph.on_failure == CANCEL:
                if not alive:
                    raise self._failed(failed, children)
                await self._stop(alive)
                await self._wait(alive)
            elif ready:
                launches = [(number, *self._launches_of(number)[0]) for number in ready]
                for first in range(0, len(ready), LAUNCHES):
                    await self._launch(launches[first : first + LAUNCHES])
                if not self._broken.keys() & set(ready) and not self._stopped_of(children, failed):
                    # Their ends send signals, which wait in the box until the job waits for them.
                    await self._wait([*alive, *map(self._spots_of, ready)])
            elif stopped := self._stopped_of(children, failed):
                # After the nodes that are ready: if the calls of one cannot be made, the flow fails again.
                await self._begin_again(stopped)
            elif alive:
                await self._wait(alive)
            elif failed:
                raise self._failed(failed, children)
            else:
                return self._value(len(self._graph.nodes) - 1, is_last=True)
            await self._may_begin()

    # What the children do.

    async def _see(self) -> dict[int, Children]:
        """Read how the children of the running nodes have ended, and save the results of the children that succeeded.
        Return the children of each node that has begun and is not done."""
        spots: dict[int, list[Spot]] = {}
        unsaved: list[Spot] = []
        stops = stops_of(self._known)
        self._frontier.advance(stops, self._known)
        for number in self._frontier.open:
            node = self._graph.nodes[number]
            if is_launched(node.name, self._known):
                # What a retry enqueues again, and cannot, is left out: the node is broken.
                spots[number] = [
                    spot
                    for spot in spots_of(number, node, stops)
                    if is_launched(spot.launch, self._known)
                ]
                unsaved += unsaved_of(spots[number], self._known)
        # Backwards, so that no child seems alive that has ended in one call with a later one that seems ended.
        places = {spot: self._place(spot) for spot in reversed(unsaved)}
        found = await self._look([*places.values()])
        looked = {spot: found[job_id] for spot, (_, job_id) in places.items() if job_id in found}
        by_launch: dict[str, dict[int, Outcome[Any]]] = {}
        for spot, outcome in looked.items():
            by_launch.setdefault(spot.launch, {})[spot.at] = outcome
        for launch, ends in by_launch.items():
            await self._save_results(launch, ends)
        children: dict[int, Children] = {}
        for number, of_node in spots.items():
            of = children[number] = children_of(
                of_node, self._known, looked, is_stopped=number in stops.open
            )
            await self._close_node(number, of, of_node, looked)
        self._frontier.advance(stops, self._known)
        return {number: children[number] for number in self._frontier.open if number in children}

    async def _close_node(
        self,
        number: int,
        of: Children,
        spots: Sequence[Spot],
        looked: Mapping[Spot, Outcome[Any]],
    ) -> None:
        """If a node is done although some of its children did not succeed, save the outcomes of these children. Each
        later run then sees the same outcomes."""
        node = self._graph.nodes[number]
        is_over = not of.alive and not of.stopped and len(spots) == len(node.calls)
        if not of.failed or not is_over or len(of.failed) > len(node.calls) - node.needed:
            return
        current = {(spot.launch, spot.at): spot for spot in spots}
        for launch, positions in self._launches_of(number):
            ends: dict[int, Outcome[Any]] = {}
            for index in range(len(positions)):
                if self._known(item_name(launch, index)) is None:
                    spot = current.get((launch, index))
                    # A child in whose place another one was enqueued was cancelled.
                    ends[index] = Cancelled("") if spot is None else looked.get(spot, Gone(""))
            if ends:
                await self._close(launch, ends)

    def _spots_of(self, number: int) -> list[Spot]:
        return spots_of(number, self._graph.nodes[number], stops_of(self._known))

    def _launches_of(self, number: int) -> list[tuple[str, Sequence[int]]]:
        return launches_of(number, self._graph.nodes[number], stops_of(self._known))

    def _place(self, spot: Spot) -> Place:
        """Return the queue and the id of a child that was enqueued."""
        places = self._known_places.get(spot.launch)
        if places is None:
            launch = self._known(launch_name(spot.launch))
            assert launch is not None
            count = len(dict(self._launches_of(spot.node))[spot.launch])
            places = self._known_places[spot.launch] = self._places(spot.launch, launch, count)
        return places[spot.at]

    def _says_other_count(self, launch: str, before: int, count: int) -> str:
        return (
            f"node {launch}: an earlier run has enqueued {before:,} children, and the graph has {count:,} calls of it"
            " now. Do not change the arguments of a flow that has begun"
        )

    def _show(self, children: Mapping[int, Children], failed: int) -> None:
        """Show, as the progress of the flow's job, how many children of the nodes are done. ``failed``: number of nodes
        that have failed."""
        done = self._frontier.jobs
        for number, of in children.items():
            if number not in self._broken:
                node = self._graph.nodes[number]
                lost = len(of.alive) + len(of.stopped) + len(of.failed)
                done += counted_jobs(node, len(node.calls) - lost, len(of.failed))
        says = f"{counted(failed, 'node')} failed" if failed else ""
        self._context.progress(done, self._graph.jobs, says)

    # Nodes that are ready.

    async def _launch(self, launches: Sequence[tuple[int, str, Sequence[int]]]) -> None:
        """Enqueue children of several nodes. Each tuple has a node's number, a name for this group of children (the
        launch, see launches_of), and the positions of the children's calls in the node."""
        if len(launches) == 1:
            await self._launch_one(*launches[0])
            return
        # All at once: the worker sends what they save in few calls.
        ends = await asyncio.gather(
            *(self._launch_one(*each) for each in launches), return_exceptions=True
        )
        for error in ends:
            if error is not None:
                raise error

    async def _launch_one(self, number: int, launch: str, positions: Sequence[int]) -> None:
        try:
            calls = await self._calls_of(self._graph.nodes[number], positions)
            await self._launched(launch, calls)
        except (UsageError, _Unfit) as error:
            # The same in each run: the results from which the arguments are made are saved.
            self._broken[number] = str(error).removesuffix(".")

    async def _calls_of(self, node: GraphNode, positions: Sequence[int]) -> list[JobCall[Any]]:
        """Return the calls of a node at these positions. Raises _Unfit, or a UsageError."""
        taken = {fill.node for at in positions for fill in node.calls[at].fills}
        results = {number: self._value(number) for number in sorted(taken)}
        calls: list[JobCall[Any]] = []
        for at in positions:
            calls.append(await self._call_of(node.calls[at], results))
            if len(calls) % YIELD == 0:
                await asyncio.sleep(0)  # The heartbeat of the worker is on the same event loop.
        return calls

    async def _call_of(self, call: FlowCall, results: Mapping[int, Any]) -> JobCall[Any]:
        args = filled(call, results)
        if call.fills:
            size = len(json.dumps(args, ensure_ascii=False, separators=(",", ":")).encode())
            if size > BYTES_MAX:
                raise _Unfit(
                    f"inputs too large: they are {size:,} bytes of JSON with the results of other nodes, and may be"
                    f" {BYTES_MAX:,}. Let a node return a reference to what it has stored elsewhere"
                )
        known = self._tasks.get(call.task)
        placing = None if known is not None else await self._placing_of(call.queue, call.task)
        return child_call(self._app, known, call, args, placing)

    async def _placing_of(self, queue: str, task: str) -> Placing:
        """Return the Placing of a task that this worker lacks. A Placing chooses the lane (the waiting line) of each
        job. It is made from the policy that other workers have registered for the task."""
        policies = self._app.connections.policies
        found = policies.get(queue, task)
        if found is None:
            policy = await self.home.ask(partial(_ask_policy, queue, task))
            found = policies.put(placing_of(self._app, queue, task, policy))
        return found

    def _value(self, number: int, *, is_last: bool = False) -> Any:
        """Return the result of a node that is done, in the types of JSON. For a map, return the list of the results of
        the children that succeeded.

        Raises _Unfit if a result is not kept or cannot be read. If ``is_last`` is true, returns a _NotKept in place of
        this error.
        """
        node = self._graph.nodes[number]
        found: list[Any] = []
        for spot in self._spots_of(number):
            entry = self._known(item_name(spot.launch, spot.at))
            if entry is None:
                continue
            try:
                if entry.value is not None:
                    found.append(json.loads(entry.value))
                    continue
                why = f"is not kept: {reason_of(entry.note or '')}"
            except ValueError as error:  # Python reads no whole number of thousands of digits.
                why = f"cannot be read: {error}"
            if is_last:
                return _NotKept()
            raise _Unfit(f"the result of node {node.name} {why}")
        return found if node.is_map else found[0]

    # A flow that stops at the first failure.

    async def _stop(self, alive: Sequence[Sequence[Spot]]) -> None:
        """Cancel all children that are alive, because a node has failed. First save the numbers of the children's
        nodes, so that a retry knows which children the flow itself has cancelled."""
        stops = stops_of(self._known)
        numbers = [spots[0].node for spots in alive]
        if not stops.open.issuperset(numbers):
            await self._note(f"{STOP}-{stops.stops + 1}", numbers)
        by_queue: dict[str, list[str]] = {}
        for spot in (spot for spots in alive for spot in spots):
            queue, job_id = self._place(spot)
            by_queue.setdefault(queue, []).append(job_id)
        for queue, ids in by_queue.items():
            await self.home.ask(partial(_cancel, queue, ids, self._context.worker))

    def _stopped_of(
        self, children: Mapping[int, Children], failed: Sequence[int]
    ) -> dict[int, Sequence[int]]:
        """Return the positions of the calls whose children the flow has cancelled because another node failed, by the
        node's number. Return an empty mapping while a node counts as failed, or a child of a cancelled node is
        alive."""
        if failed:
            return {}
        nodes = stops_of(self._known).open
        if any(children[number].alive for number in nodes if number in children):
            return {}
        return {number: each.stopped for number, each in children.items() if each.stopped}

    async def _begin_again(self, stopped: Mapping[int, Sequence[int]]) -> None:
        """Save which calls this retry of the flow enqueues again: the calls whose children the flow has cancelled."""
        stops = stops_of(self._known)
        said = {"stops": stops.stops, "nodes": stopped}
        await self._note(f"{AGAIN}-{len(stops.again) + 1}", said)

    def _not_launched_again(self) -> list[tuple[int, str, Sequence[int]]]:
        """Return the groups of children that a retry has saved (see _begin_again) and not enqueued yet. Each tuple has
        a node's number, the name of the group, and the positions of the calls."""
        stops = stops_of(self._known)
        return [
            (number, launch, positions)
            for number in {number for each in stops.again for number in each}
            for launch, positions in launches_of(number, self._graph.nodes[number], stops)[1:]
            if not is_launched(launch, self._known)
        ]

    async def _note(self, name: str, value: Any) -> None:
        """Save a record that only the flow itself uses: the nodes that it has cancelled, or the calls that a retry
        enqueues again."""
        note_end = self.home.began()
        try:
            await self._write("save", name, pack_result(json.dumps(value), self.home.audit_result))
        finally:
            note_end()

    # The wait, and the end.

    async def _wait(self, alive: Sequence[Sequence[Spot]]) -> None:
        """Park the job until one of the awaited children ends, or until it is time to read the children's states again.
        The flow waits for one child of each node: the living child that was enqueued last. Return at once if the wait
        for one of them, or the sleep, is already over. ``alive`` has the living children of each node."""
        numbers: list[int] = []
        for spots in alive[:AT_ONCE]:
            # The child that was enqueued last is most likely to end last, so the flow looks seldom.
            last = spots[-1]
            name = child_wait(self._numbers[launch_name(last.launch)], last.at)
            if await self._add_wait("wait", name, "", numbers):
                return
        pause_ms = self._pause_ms(alive[-1][-1].launch)
        if self._known(numbered(LOOK, LOOKS_SOON)) is not None:
            pause_ms = round(LOOK_MAX_S * 1000)
        if await self._add_wait("sleep", LOOK, f"+{pause_ms}", numbers):
            return
        self._keep_run()
        # A job whose own asyncio task waits is parked at once; the others only say for what it waits.
        others = [asyncio.ensure_future(self.home.park(number)) for number in numbers[:-1]]
        try:
            await asyncio.sleep(0)
            await self.home.park(numbers[-1])
        finally:
            for other in others:
                other.cancel()

    async def _add_wait(self, kind: Any, name: str, about: str, numbers: list[int]) -> bool:
        """Send a wait or a sleep to Redis, and return whether the wait or sleep is over. If it is not over, add the
        number of its saved record to ``numbers``."""
        entry = self._open_name(name)
        if self._known(entry) is None and len(self._loaded) >= ENTRIES_MAX:
            raise StepsSpent("the flow has as many entries as a job may have")
        if await self._take(kind, entry, about):
            return True
        numbers.append(self._numbers[entry])
        return False

    def _failed(self, failed: Sequence[int], children: Mapping[int, Children]) -> ChildrenFailed:
        """Return the error of a flow with failed nodes."""
        said: list[str] = []
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
        rest = len(self._graph.nodes) - self._frontier.done - len(failed)
        left = f". {counted(rest, 'other node')} did not run, or not to the end" if rest else ""
        message = f"{'; '.join(said)}{more}{left}"
        return children_failed(message, self._context.id, self._app.connections.prefix)


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
