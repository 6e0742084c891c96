"""Proofs of the relay of an inbox. At each point of its turn, the relay is killed or suspended, or Redis is flushed or
fails over. The relay is also killed many times at random."""
