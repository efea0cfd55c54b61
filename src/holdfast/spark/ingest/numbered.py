"""Which requests are not decided yet, by the numbers of their messages: the log's record says how far they are decided.

No checkpoint is needed. A message whose number is decided is left out, whatever micro-batch brings it.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.spark.bulk.requests import ParsedRequest
from holdfast.spark.ingest.message_requests import MessageRequest, lost_request
from holdfast.spark.ingest.micro_batches import MicroBatches
from holdfast.spark.ingest.numbered_source import NumberedSource, Relation
from holdfast.spark.ingest.record import GroupRecord
from holdfast.spark.ingest.refusals import other_messages, table_ahead


class Numbered:
    """The protocol of an ingest whose ``source`` belongs to its name."""

    def __init__(self, name: str, source: NumberedSource, batches: MicroBatches) -> None:
        self._name = name
        self._source = source
        self._batches = batches

    def decide(self, offered: Sequence[ParsedRequest], number: int, written: int) -> None:
        """Commit what is not decided, report its verdicts, and acknowledge all that were offered.

        The messages of the newest micro-batch that the log has are acknowledged after its verdicts are durable. So it
        may lack verdicts only if one of its messages comes again, or if Spark repeats it.
        ``written``: how many micro-batches have their verdicts. Raises: Closed (``store_replaced``), InvalidRequest
        (the source was put back, or the table is further than the log), and as ``MicroBatches.commit``.
        """
        batches = self._batches
        self._source.require_same()
        self._require_same_messages(offered)
        fresh = [each for each in offered if int(each.order) > batches.through]
        earlier = batches.earlier
        numbers = {each for record in earlier for each in record.numbers()}
        again = bool(earlier) and (number == earlier[0].batch or any(int(each.order) in numbers for each in offered))
        if fresh and batches.newest + 1 < written:
            raise table_ahead(batches.newest + 1, written)
        if again and earlier[0].batch >= written:
            self._report_again(earlier)
        if again or fresh:
            batches.earlier = ()
        if fresh:
            batches.commit(fresh, batches.newest + 1)
        else:
            batches.count(())
        if offered or again:
            # The verdicts of the newest micro-batch may be missing while only older messages have come.
            pending = batches.earlier[0].numbers() if batches.earlier else ()
            self._source.acknowledge(min(pending, default=batches.through + 1) - 1)

    def _require_same_messages(self, offered: Sequence[ParsedRequest]) -> None:
        """Raise InvalidRequest if a message has a number that was decided before the message was published."""
        through, time_ms = self._batches.through, self._batches.time_ms
        if time_ms and any(
            isinstance(each, MessageRequest) and int(each.order) <= through and each.time_ms > time_ms
            for each in offered
        ):
            raise self._put_back()

    def _report_again(self, records: Sequence[GroupRecord]) -> None:
        numbers = [each for record in records for each in record.numbers()]
        kept = self._source.kept(numbers[0], numbers[-1])
        requests: list[ParsedRequest] = [kept.get(each) or lost_request(each) for each in numbers]
        for record in records:
            if all(each in kept for each in record.numbers()) and not record.covers(requests):
                raise self._put_back()
        self._batches.report_again(requests, records)

    def _put_back(self) -> Exception:
        batches = self._batches
        return other_messages(self._source, self._name, batches.through, batches.time_ms, Relation.PUT_BACK)
