"""Proofs of the relay of an inbox.

The relay is killed or suspended at each point of its turn. Redis is flushed, or fails over, at each of these points.
The relay is also killed many times at random moments.
"""
