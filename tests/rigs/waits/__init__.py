"""The proof of waits: each wait ends soon after the end of its job, even if the messages about ends fail.

See scripts/prove/live waits.
"""
