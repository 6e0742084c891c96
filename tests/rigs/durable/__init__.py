"""Proofs of durable jobs.

- `checker`: visits all states of a model (a world), to try every order of calls, crashes and failovers.
- `waits`: the worlds of steps, sleeps and signals; `emptying`: the world of a box that is deleted.
- `joins`: the worlds of a parent and its children, in two slots; `parent_runs`: the calls of the parent's worker;
  `family`: the states.
- `worlds`: the list of worlds and of their planted bugs: ``scripts/prove/model --states``.
- `kills`: real workers that are killed between any two calls: ``scripts/prove/model --kills``.
"""
