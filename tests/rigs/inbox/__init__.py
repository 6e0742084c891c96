"""Proofs of the relay of an inbox. The relay is killed, suspended, or cut off from Redis at each point of its turn. It
is also killed many times at random."""
