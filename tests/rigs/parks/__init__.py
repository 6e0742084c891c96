"""Proofs of parked jobs with real worker processes. The tests run them briefly, and `scripts/prove/live parks` for
long.

- `crowded`: very many signals to one job, half of them sent twice, while the job parks and wakes.
- `deploys`: workers that are replaced while very many jobs sleep.
- `families`: workers that are killed while jobs run children in another queue and wait for them.
- `kills`: workers that are killed while jobs park, wake and save steps.
- `stops`: workers that are suspended within a step for twice their lease.
- `log`: the log of a queue; `tasks`: the app of the workers; `commands`: the command line.
"""
