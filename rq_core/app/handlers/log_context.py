"""A log filter that adds the job to each record that is made inside a handler.

`rq-core worker` installs it. With a logging set-up of your own, add the filter to your log handlers:

    handler = logging.StreamHandler()
    handler.addFilter(JobLogFilter())
"""

from __future__ import annotations

import logging
from typing import Final

from rq_core.app.handlers.context import job_here

_FACTS: Final = (("job", "id"), ("queue", "queue"), ("task", "task"), ("claim", "claim"))
"""The fields of a record, each with the attribute of the job's context."""


class JobLogFilter(logging.Filter):
    """Adds ``job``, ``queue``, ``task`` and ``claim`` to each log record that is made inside a handler. Drops no
    record.

    In a batch handler, which runs several jobs, the filter adds only ``queue`` and ``task``. It does not change fields
    that a record already has. Add the filter to log handlers, not to loggers: a logger's filter does not see the
    records of the loggers below it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the running job's fields to the record, and return True."""
        job = job_here()
        if job is not None:
            facts = record.__dict__
            for name, attribute in _FACTS:
                # A batch has no id and no claim: its jobs have.
                if (value := getattr(job, attribute, None)) is not None:
                    facts.setdefault(name, value)
        return True
