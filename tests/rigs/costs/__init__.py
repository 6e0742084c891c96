"""Proofs of rates that count a unit, and of breakers, with real worker processes, in a short form for the tests and a
long form for `scripts/prove/live costs`.

- `keys`: very many jobs of many keys. Some jobs cost more than the burst.
- `refusals`: a service that answers 429 while very many jobs of one key wait.
- `breaker`: services that fail and heal while workers and Redis end at random.
- `tasks`, `hosts`: the apps of the workers, of rates and of breakers.
- `commands`: the commands.

The judges of the handlers' own lines are tests/rigs/judge/costs.py and tests/rigs/judge/breakers.py.
"""
