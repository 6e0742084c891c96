"""Runs handlers: on the event loop, in threads or in processes, within their timeouts.

Read ``executor`` first.

- ``executor``: starts handlers, and decides how their claims end.
- ``batches``: collects jobs of batch tasks, and runs each batch.
- ``running``: one claim with its handler.
- ``saver``: saves the steps of durable jobs.
- ``parked_boxes``: keeps the saved steps of parked jobs for their next claims.
- ``lost_entries``: saves entries again that Redis lost before the claims of their jobs could end.
- ``forks``: copies saved steps into a fork (a copy of a durable job that continues from one of its steps).
- ``shows``, ``isolated_shows``: send the progress of jobs, and the chunks of their streams.
- ``threads``: the threads of ``def`` handlers.
- ``process_pool``: the processes of isolated handlers.
- ``isolated_process``: the code that runs in one of these processes.
- ``isolated_steps``: the steps of a handler in such a process.
- ``time_limits``: timeouts.
"""
