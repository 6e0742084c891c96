"""Calls that change a queue. Each module has one family of calls.

- ``enqueue``: enqueues many jobs in chunks, or one job without a plan.
- ``claims``: claims, settlements, turns and the extension of leases.
- ``admin``: the changes of an operator: cancels, edits, requeues and prunes jobs; changes settings; deletes a queue.
- ``bulk``: changes all jobs that match a filter.
- ``caps``: changes limits of scopes, and stores the policies of tasks.
- ``pauses``: pauses and resumes scopes.
- ``unique``: lists and frees the names of unique jobs. A name allows one live job at a time.
- ``boxes``: saves the steps of durable jobs, and sends signals to these jobs. A job's *box* has its steps and signals.
- ``shows``: reports the progress of running jobs, and chunks of their streams.
- ``families``: changes durable jobs together with their children.
- ``mail``: sends one signal.
- ``schedules``: declares and changes schedules, and reports the times at which they must run.
- ``audit``: the calls of the mirror, of a restore and of the doctor.
"""
