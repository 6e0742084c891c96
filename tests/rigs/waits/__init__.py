"""The proof of waits. Each wait must end soon after its job, even if the messages about ends are lost.

See scripts/prove/live waits.
"""
