"""The model of durable jobs: every order of their calls, crashes, stale workers and failovers, without a server.

``checker`` goes through the states of a world, ``waits`` has the worlds of steps, sleeps and signals, ``emptying`` the
one of a box that is emptied, ``worlds`` lists them and their planted bugs. See ``scripts/prove/model --states``.
"""
