"""All families of calls to a queue. Each call is a plan without I/O.

A plan is a generator that returns a typed value. It yields :class:`~rq_core.protocol.engine.plan.Send` (commands for
one round trip) or :class:`~rq_core.protocol.engine.plan.Pause`. After a Send, the generator receives the replies, with
an exception in the place of each failed command's reply. A client runs the plan:

    client.run(client.calls.admin.cancel("mail", ["job-1"]))
    await async_client.run(async_client.calls.reads.counts("mail"))

Each attribute of :class:`Operations` is a family of calls. The calls of :mod:`rq_core.protocol.calls.claims` need no
client, so they are functions: ``client.run(claims.claim("mail", "w-1", 10))``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rq_core.model.lib.cached_property import cached_property
from rq_core.protocol.calls.admin import Admin, Deletion
from rq_core.protocol.calls.audit import Audit
from rq_core.protocol.calls.caps import Caps
from rq_core.protocol.calls.enqueue import Enqueue, Single
from rq_core.protocol.calls.unique import UniqueNames
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.reads.reads import Reads
from rq_core.protocol.reads.result_reads import Endings

if TYPE_CHECKING:
    from rq_core.protocol.calls.bulk import Bulk
    from rq_core.protocol.calls.families import Families
    from rq_core.protocol.calls.mail import Mail
    from rq_core.protocol.calls.pauses import Pauses
    from rq_core.protocol.calls.schedules import Schedules


class Operations:
    """The calls of one client. Each attribute is a family of calls."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.enqueue = Enqueue(delivery)
        self.single = Single(delivery, self.enqueue)
        self.admin = Admin(delivery)
        self.caps = Caps(delivery)
        self.audit = Audit(delivery)
        self.reads = Reads(delivery)
        self.deletion = Deletion(delivery, self.admin, self.reads)
        self.names = UniqueNames(delivery)
        self.endings = Endings(delivery)

    @cached_property
    def mail(self) -> Mail:
        """The calls about signals. The module is imported at the first use, because most clients do not need it."""
        from rq_core.protocol.calls.mail import Mail

        return Mail(self.delivery)

    @cached_property
    def families(self) -> Families:
        """The calls about durable jobs and their children: the jobs that a durable job has enqueued and waits for. The
        module is imported at the first use.
        """
        from rq_core.protocol.calls.families import Families

        return Families(self.admin, self.reads)

    @cached_property
    def pauses(self) -> Pauses:
        """The calls that pause and resume scopes, such as all jobs of one tenant. The module is imported at the first
        use.
        """
        from rq_core.protocol.calls.pauses import Pauses

        return Pauses(self.delivery)

    @cached_property
    def schedules(self) -> Schedules:
        """The calls about schedules. The module is imported at the first use, because most clients do not need it."""
        from rq_core.protocol.calls.schedules import Schedules

        return Schedules(self.delivery, self.caps, self.reads)

    @cached_property
    def bulk(self) -> Bulk:
        """The calls that change many jobs. The module is imported at the first use."""
        from rq_core.protocol.calls.bulk import Bulk

        return Bulk(self.delivery, self.admin, self.reads, self.families)
