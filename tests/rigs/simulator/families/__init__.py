"""A world of the simulator in which durable jobs run children in a queue of another server.

- `shards`: two servers with one queue each, and the transport to both.
- `calls`: the random calls of parents and children, by the id of the parent.
- `handlers`: the handlers of parents and of their children, and what each run got from its maps.
- `actors`: workers of both queues, a producer of parents, an operator, and the mirrors of both logs.
- `simulation`: the simulation of one seed, with failovers of either server or of both.
- `judge`: the verdict on a seed.
- ``scripts/prove/simulate --families`` runs seeds.
"""
