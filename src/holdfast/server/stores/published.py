"""What was published in stores that live in the log, for the readers of its change stream.

The change stream has the records of the stores with their transactions; this module knows what they say, and who may
read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.errors import HoldfastError, NotFound
from holdfast.server.http.auth import HeldRight
from holdfast.server.http.rights_table import STORES, need_of
from holdfast.server.stores.commit_parts import not_in_log
from holdfast.server.stores.hosting import StoreHost
from holdfast.stores.storage.frames import decode_frame, removals_of, runs_of
from holdfast.wire.log import StreamMessage


class PublishedStores:
    """The stores of this process, as far as streams need them."""

    def __init__(self, host: StoreHost) -> None:
        self._host = host

    def watch(self, authorization: bytes | None, stores: Sequence[str]) -> WatchedStores:
        """The messages of these stores, for a caller that may subscribe to each.

        Raises: InvalidRequest (``stores_not_in_log``), PermissionDenied, NotFound (no such store), Fenced, Unavailable.
        """
        opened = self._host.opened()
        if not opened.service.lives_in_log:
            raise not_in_log()
        rights: list[HeldRight] = []
        needed = need_of("GET", "/v1/subscribe").right_of(STORES)
        for store in stores:
            right = opened.access.held(authorization, needed, store)
            if (problem := right.problem()) is not None:
                raise problem
            rights.append(right)
            if store not in opened.state.definition.stores or store in opened.state.definition.volatile_stores:
                raise NotFound("the log has no such store", store=store)
        return WatchedStores(frozenset(stores), rights)


class WatchedStores:
    """The stores that one stream shows."""

    def __init__(self, stores: frozenset[str], rights: Sequence[HeldRight]) -> None:
        self._stores = stores
        self._rights = rights

    def problem(self) -> HoldfastError | None:
        """Why the caller may not see them any more, or None."""
        return next((problem for right in self._rights if (problem := right.problem()) is not None), None)

    def messages(self, records: Iterable[bytes]) -> list[StreamMessage]:
        """What these records published in the stores, in order. Cost: each record is decoded. Raises: CorruptData."""
        found: list[StreamMessage] = []
        for record in records:
            frame = decode_frame(record, 0)
            removals = removals_of(frame)
            for run in runs_of(frame):
                if run.store in self._stores:
                    found += [
                        StreamMessage(
                            run.store, seq, run.published_ms,
                            None if (run.store, seq) in removals else message.body,
                            message.fields, message.key, message.publisher_seq, message.ttl_ms, message.deliver_at_ms,
                            message.origin,
                        )
                        for seq, message in enumerate(run.messages, run.first_seq)
                    ]  # fmt: skip
        return found
