"""A job: a message and which delivery of it this is.

Owns: the value, and what a worker is told who has lost it. Does not own: what happens to it (``work_queue``).

Failure model: a pure value.
"""

from __future__ import annotations

from operator import itemgetter

from holdfast.errors import Code, Fenced
from holdfast.queue.log.messages import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

__all__ = ["Job", "lease_lost"]


class Job(Message):
    """One delivery of a message to a worker: what a ``Message`` has, and ``deliveries``, 1 at the first.

    A tuple of the four, and the proof of the delivery: a later one of the same message is another job.

    >>> job = Job((7, 0, b"hello", 2))
    >>> job.seq, job.payload, job.deliveries
    (7, b'hello', 2)
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __new__(cls, fields: tuple[int, int, bytes, int]) -> Self:
            """From message number, arrival, payload, deliveries."""
            ...

        @property
        def deliveries(self) -> int:
            """How often the message was handed out, this time included."""
            ...
    else:
        deliveries = property(itemgetter(3), doc="How often the message was handed out, this time included.")

    def __repr__(self) -> str:
        return f"Job(seq={self.seq}, deliveries={self.deliveries}, payload={self.payload!r})"


def lease_lost(job: Job) -> Fenced:
    """The error for whoever finishes a job that is not theirs any more."""
    facts = {"seq": job.seq, "deliveries": job.deliveries}
    hint = "its lease ended or it was finished: a longer visibility, or extend()"
    return Fenced("this job is not yours any more", code=Code.LEASE_LOST, hint=hint, facts=facts)
