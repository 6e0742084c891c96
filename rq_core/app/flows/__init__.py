"""Flows: graphs of calls whose results are arguments of later calls. A flow is a durable job of the task
``rq_core.flow``; its nodes are children of this job.

    with app.flow("monthly") as flow:
        rows = flow.add(fetch.call("2026-11"))
        pages = flow.map([render.call(n) for n in range(50)], after=rows, min_success=0.9)
        flow.add(merge.call(pages.values))
    run = flow.enqueue()

- ``declaring``: ``app.flow``, ``chain`` and ``group``, which declare a flow and enqueue it.
- ``placeholders``: stand in a declared call for the results of other nodes.
- ``declared_calls``: a declared call as JSON, and the placeholders in it.
- ``graph``: the graph as the flow's job has it in its arguments, both ways; no I/O.
- ``sweep``: what each node of a flow does, from how its children have ended; no I/O.
- ``between_runs``: what a process keeps of a flow between two runs of its job, so that a run reads little.
- ``filled_calls``: the children of a node, with the results of other nodes in their arguments.
- ``running``: one run of a flow's job, which enqueues the children of the nodes that are ready, and waits.
- ``built_in``: the task ``rq_core.flow``, which ``App.enable_flows`` adds to an app.
- ``flow_run``: the handle of a flow.
"""
