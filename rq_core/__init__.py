"""A Redis-backed distributed job queue whose whole history is in SQL."""
