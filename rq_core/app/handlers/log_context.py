"""A log filter that adds the job to each record that is made inside a handler.

`rq-core worker` installs it. With a logging set-up of your own, add the filter to your log handlers:

    handler = logging.StreamHandler()
    handler.addFilter(JobLogFilter())
"""

from __future__ import annotations

import logging

from rq_core.app.handlers.context import job_here


class JobLogFilter(logging.Filter):
    """Adds ``job``, ``queue``, ``task`` and ``claim`` to each record that is made inside a handler; drops no record.

    Fields that a record already has are kept. Add the filter to log handlers, not to loggers: a logger's filter does
    not see the records of the loggers below it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging.Filter."""
        job = job_here()
        if job is not None:
            facts = record.__dict__
            facts.setdefault("job", job.id)
            facts.setdefault("queue", job.queue)
            facts.setdefault("task", job.task)
            facts.setdefault("claim", job.claim)
        return True
