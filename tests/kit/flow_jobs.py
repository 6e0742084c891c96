"""The job of a flow, whose children a test moves by hand, without workers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rq_core.app.flows.graph import DRAIN, FLOW_TASK, FlowCall, Graph, GraphNode, graph_document
from rq_core.model.durable.boxes import StepEntry, entry_text, write_header
from rq_core.model.durable.children import child_id, item_name, launch_name, pack_queues
from rq_core.model.job import Claim
from tests.kit.seed import LIFE, Seed

SPEC_MAX = 2 * 1024 * 1024


def graph_by(
    nodes: Mapping[str, Iterable[str]], maps: Mapping[str, int] = {}, *, queue: str, on_failure: str = DRAIN
) -> Graph:  # fmt: skip
    """Return a graph. ``nodes`` has the nodes before each node. ``maps`` has the number of jobs of each map; other
    nodes have one job."""
    numbers = {name: number for number, name in enumerate(nodes)}
    call = FlowCall("t", queue, {})
    return Graph(
        "f",
        on_failure,
        tuple(
            GraphNode(
                name,
                tuple(numbers[each] for each in before),
                (call,) * maps.get(name, 1),
                name in maps,
                maps.get(name, 1),
            )
            for name, before in nodes.items()
        ),
    )


class FlowJob:
    """The job of a flow, which is claimed. Its box has the entries that the test saves."""

    def __init__(self, seed: Seed, graph: Graph, job_id: str = "flow") -> None:
        self.seed = seed
        self.id = job_id
        self.graph = graph
        self._entries = 0
        args = json.dumps({"graph": graph_document(graph)})
        seed.enqueue(
            seed.job(job_id, task=FLOW_TASK, args_json=args, spec_max=SPEC_MAX, priority="critical")
        )
        self.claim: Claim = seed.claim_one(job_id)

    def child(self, name: str, at: int = 0) -> str:
        """Return the id of a child."""
        return child_id(LIFE, name, at)

    def launch(self, *names: str) -> None:
        """Save that the children of these nodes are enqueued."""
        calls = {node.name: node.calls for node in self.graph.nodes}
        for name in names:
            self._save(launch_name(name), pack_queues([each.queue for each in calls[name]]))

    def done(self, name: str, *positions: int, value: str = "7") -> None:
        """Save the results of children that succeeded."""
        for at in positions or (0,):
            self._save(item_name(name, at), value)

    def _save(self, name: str, value: str) -> None:
        self._entries += 1
        self.seed.save(self.claim, entry=self._entries, name=name, value=value)

    def park(self) -> None:
        """Park the flow."""
        self._entries += 1
        self.seed.wait(self.claim, entry=self._entries)
        self.seed.park(self.claim, waits=str(self._entries))

    def die(self) -> None:
        """Let the flow die."""
        self.seed.fail(self.claim, verdict="final")

    def lay(self, entries: Mapping[str, str | None]) -> None:
        """Write a whole box, with these values by name, past the scripts: it has more than a test can save."""
        keys, control = self.seed.keys, self.control
        fence = self.claim.fence
        made = [StepEntry(name, True, 1, fence, "d", value) for name, value in entries.items()]
        size = sum(len(each.value or "") for each in made)
        fields = {f"{LIFE}|{n}": entry_text(each) for n, each in enumerate(made, 1)}
        control.hset(
            keys("boxes"), mapping={LIFE: write_header(self.id, len(made), size), **fields}
        )

    def show_box(self) -> None:
        """Name the box in the job's line, as a job does that has saved a step."""
        keys = self.seed.keys
        line = self.control.hget(keys("state"), self.id)
        self.control.hset(keys("state"), self.id, f"{line} life={LIFE}")

    @property
    def control(self) -> Any:
        """A plain client of the server."""
        return self.seed.control
