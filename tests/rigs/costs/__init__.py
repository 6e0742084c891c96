"""Proofs of rates that count a unit, with real worker processes, in a short form for the tests and a long form for
`scripts/prove/live costs`.

- `keys`: very many jobs of many keys. Some jobs cost more than the burst.
- `refusals`: a service that answers 429 while very many jobs of one key wait.
- `tasks`, `commands`: the app of the workers; the commands.

The judge of the handlers' own lines is tests/rigs/judge/costs.py.
"""
