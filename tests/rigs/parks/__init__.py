"""Proofs of parked jobs with real worker processes, in a short form for the tests and a long form for
`scripts/prove/live parks`.

- `crowded`: very many signals to one job, half of them sent twice, while the job parks and wakes.
- `deploys`: workers that are stopped and started again during the sleeps of very many jobs.
- `families`: workers that are killed while jobs run children in another queue and wait for them.
- `kills`: workers that are killed while jobs park, wake and save.
- `stops`: workers that are suspended within a step for twice their lease.
- `log`: reads of a queue's log; `tasks`, `commands`: the app of the workers; the commands.
"""
