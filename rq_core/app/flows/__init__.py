"""Flows: graphs of calls whose results are arguments of later calls. A flow is a durable job of the task
``rq_core.flow``. The jobs of its nodes are children of this job.

    with app.flow("monthly") as flow:
        rows = flow.add(fetch.call("2026-11"))
        pages = flow.map([render.call(n) for n in range(50)], after=rows, min_success=0.9)
        flow.add(merge.call(pages.values))
    run = flow.enqueue()

- ``declaring``: ``app.flow``, ``chain`` and ``group``, which declare a flow and enqueue it.
- ``placeholders``: the arguments of a declared call that the results of other nodes replace.
- ``declared_calls``: a declared call as JSON, and the placeholders in it.
- ``graph``: converts a flow's graph to the arguments of the flow's job, and back; no I/O.
- ``sweep``: derives the states of a flow's nodes from the ends of their children; no I/O.
- ``between_runs``: keeps the state of a flow in a process between two runs of the flow's job, so that a run reads less
  from Redis.
- ``filled_calls``: makes the children of a node. Their arguments have the results of other nodes.
- ``running``: one run of a flow's job, which enqueues the children of the nodes that are ready, and waits.
- ``built_in``: the task ``rq_core.flow``, which ``App.enable_flows`` adds to an app.
- ``node_states``: reads the states of a flow's nodes.
- ``flow_run``: the handle of a flow.
"""
