"""Proofs of durable jobs.

Models try every order of calls, crashes, late workers and failovers, without a server. Run ``scripts/prove/model
--states``. A model is called a world. ``checker`` visits all its states. ``waits`` has the worlds of steps, sleeps and
signals, and ``emptying`` the world of a box that is deleted. ``worlds`` lists the worlds and their planted bugs.

``kills`` runs durable jobs on a real server, and kills the workers between any two calls. Run ``scripts/prove/model
--kills``.
"""
