"""The names of spans and attributes.

Names that begin with ``messaging`` or ``error`` follow OpenTelemetry's semantic conventions. These conventions are not
stable yet for messaging, so a later version of rq-core may rename the attributes.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "1.44.0"
"""The version of the semantic conventions that the names follow."""
SCHEMA_URL: Final = f"https://opentelemetry.io/schemas/{VERSION}"

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"
ERROR_TYPE: Final = "error.type"

TASK: Final = "rq_core.task"
WAY: Final = "rq_core.way"
CLAIM: Final = "rq_core.claim"
ATTEMPT: Final = "rq_core.attempt"
FENCE: Final = "rq_core.fence"
SCHEDULE: Final = "rq_core.schedule"
ENDED_BY: Final = "rq_core.ended_by"

MEANING: Final = {
    SYSTEM: "always `rq_core`",
    OPERATION_NAME: "`enqueue` or `process`",
    OPERATION_TYPE: "`create` for an enqueue, `process` for a claim",
    DESTINATION: "the queue",
    MESSAGE_ID: "the job's id; not for calls and batches of several jobs",
    BATCH_COUNT: "number of jobs of a batch",
    CLIENT_ID: "the worker",
    ERROR_TYPE: "the class of the exception that failed the claim, never its text",
    TASK: "the task; for a call with many jobs, the task of the first",
    WAY: "`enqueue`, `enqueue_many`, `inbox`, `inbox_many`, `copy` or `children`",
    CLAIM: "number of the claim: 1 for the job's first",
    ATTEMPT: "number of the attempt: 1 plus the job's failures",
    FENCE: "the claim's fence, as in the log",
    SCHEDULE: "the schedule that enqueued the job",
    ENDED_BY: "why a claim ended without a failure: `Snooze`, `Parking`, `WorkerStopping` or `JobCancelled`",
}
"""The meaning of each attribute. docs/how-to/traces.md has this table."""
