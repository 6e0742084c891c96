"""Runs handlers: on the event loop, in threads or in processes, within their timeouts.

Read ``executor`` first.

- ``executor``, ``running``: running each job; one claim with its handler.
- ``threads``, ``process_pool``, ``isolated_process``: threads; the pool of processes; one such process, with its loop.
- ``time_limits``: timeouts.
"""
