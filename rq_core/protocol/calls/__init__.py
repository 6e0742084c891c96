"""Calls that change a queue. Each module has one family of calls.

- ``enqueue``: enqueues in chunks, and the enqueue of one job without a plan.
- ``claims``: claim, turn, settlements and the extension of leases.
- ``admin``: cancel, edit, requeue, prune, configure and the deletion of a queue.
- ``bulk``: changes of all jobs that match a filter.
- ``caps``: limits of scopes, and policies of tasks.
- ``unique``: names of unique jobs.
- ``boxes``: saves what durable jobs have done, and sends signals to them.
- ``shows``: shows the progress of jobs, and chunks of their streams.
- ``families``: changes durable jobs together with their children.
- ``mail``: sends one signal.
- ``schedules``: declaring and changing schedules, and reporting their instants.
- ``audit``: the calls of the mirror, of a restore and of the doctor.
"""
