"""The proof of waits: each wait ends soon after its job, though the messages about ends fail.

See scripts/prove/live waits.
"""
