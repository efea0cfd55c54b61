"""Which requests are not decided yet, by the number that Spark's checkpoint gives to a micro-batch.

Spark repeats the last micro-batch alone, with the same requests. Anything else is another checkpoint's, and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.spark.bulk.requests import ParsedRequest
from holdfast.spark.ingest.micro_batches import MicroBatches
from holdfast.spark.ingest.record import requests_digest
from holdfast.spark.ingest.refusals import older_checkpoint


class CheckpointedIngest:
    """The protocol of an ingest whose checkpoint belongs to its name."""

    def __init__(self, batches: MicroBatches) -> None:
        self._batches = batches
        self._last: tuple[int, str] | None = None  # the newest micro-batch of this process, and its requests' digest

    def decide(self, requests: Sequence[ParsedRequest], number: int, written: int) -> None:
        """Commit and report what this micro-batch still lacks.

        ``written``: how many micro-batches have their verdicts. Raises: InvalidRequest (another checkpoint), and as
        ``MicroBatches.commit``.
        """
        digest = requests_digest(requests)
        if self._last is not None and number <= self._last[0]:
            if self._last != (number, digest):
                raise older_checkpoint(number, self._last[0])
            return
        earlier = self._batches.earlier
        newest = earlier[0].batch if earlier else -1
        records = earlier if number == newest else ()
        covered = all(record.covers(requests) for record in records)
        if number < written:
            finished = sum(len(record.outcomes) for record in records) == len(requests)
            if number < written - 1 or not finished or not covered:
                raise older_checkpoint(number, written - 1)
            return
        if number < newest or not covered:
            raise older_checkpoint(number, newest)
        self._batches.commit(requests, number, records)
        self._last = number, digest
