"""Proofs of the relay of an inbox: it is killed, suspended, or cut off from Redis at each point of its turn, and killed
many times."""
