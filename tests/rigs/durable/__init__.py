"""Proofs of durable jobs. Models show every order of calls, crashes, stale workers and failovers, without a server.

The module ``checker`` visits all states of a model (a world). ``waits`` has the worlds of steps, sleeps and signals.
``emptying`` has the world of a box that is emptied. ``worlds`` lists the worlds and their planted bugs. See
``scripts/prove/model --states``.

``kills`` runs a real durable job on a real server, and kills its workers between any two calls: see
``scripts/prove/model --kills``.
"""
