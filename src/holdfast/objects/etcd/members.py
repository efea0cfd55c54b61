"""The members of one etcd cluster: which is asked, how long, and what their silence means.

A transaction of a create goes to one member, once. Before that the member's connection must be *proved*: a linearizable
read came back over it from the cluster that answered first. So a member that is down, cut off from the majority, or of
another cluster costs a read and at most one doubt, and nothing is written into another cluster. A connection that ends
must be proved again, and so must one on which a call failed.

Reads go to the preferred member, to the next one after a failure or ``HEDGE_SECONDS``, and the first reply counts.
Removals go to the next one after a failure. After a round over all members the call fails.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from holdfast.errors import Unavailable
from holdfast.objects.etcd.failures import CallFailed, Meaning
from holdfast.objects.etcd.procedures import NoReply
from holdfast.objects.etcd.wire import Compact, EtcdReply, GetKeys, Malformed, Request, Txn, decode_reply
from holdfast.objects.port import StoreDenies

HEDGE_SECONDS: Final = 0.3


class Connected(Protocol):
    """A connection to one endpoint, that connects again by itself."""

    endpoint: str

    @property
    def is_proved(self) -> bool:
        """Whether ``Members`` has set this since the connection began."""
        ...

    @is_proved.setter
    def is_proved(self, value: bool) -> None: ...

    async def call(self, request: Request) -> bytes:
        """Send a request once, and return the bytes of the answer. Raises: CallFailed."""
        ...

    async def close(self) -> None:
        """End the connection."""
        ...


class Members:
    """The members that ``connections`` lead to. ``probe_key``: a key that the user may read.

    ``spread``: each request begins at the next member; otherwise at the one that answered last. ``cluster_id``: of the
    first reply; a reply of another cluster does not count.
    """

    def __init__(self, connections: list[Connected], url: str, probe_key: bytes, *, spread: bool = False) -> None:
        assert connections, "a cluster has a member"
        self._members = connections
        self._url = url
        self._look = GetKeys(probe_key, limit=1)
        self._spread = spread
        self._preferred = 0
        self.cluster_id: int | None = None

    async def send(self, txn: Txn) -> EtcdReply | NoReply:
        """Send a transaction to the first member that can be proved, once."""
        failures: list[CallFailed] = []
        for member in self._in_order():
            try:
                await self._prove(member)
            except CallFailed as failure:
                failures.append(failure)
                if failure.meaning.is_final:
                    break
                continue
            try:
                return await self._exchange(member, txn)
            except CallFailed as failure:
                return NoReply(failure.detail, final=failure.meaning.is_final)
        return NoReply(_details(failures), final=_are_final(failures))

    async def ask(self, request: Request) -> EtcdReply:
        """Send a request until a member replies. Raises: Unavailable."""
        waiting, failures = self._in_order(), list[CallFailed]()
        running: set[asyncio.Task[EtcdReply | CallFailed]] = set()
        try:
            while waiting or running:
                if waiting:
                    running.add(asyncio.create_task(self._try(waiting.pop(0), request)))
                patience = HEDGE_SECONDS if waiting and isinstance(request, GetKeys) else None
                done, running = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if isinstance(result := task.result(), EtcdReply):
                        return result
                    failures.append(result)
                    if result.meaning.is_final:
                        waiting.clear()
        finally:
            for task in running:
                task.cancel()
        kind = StoreDenies if _are_final(failures) else Unavailable
        raise kind("etcd did not answer", url=self._url, cause=_details(failures))

    async def close(self) -> None:
        """End the connections."""
        await asyncio.gather(*(member.close() for member in self._members))

    def _in_order(self) -> list[Connected]:
        """The members, the first to ask first."""
        first = self._preferred
        if self._spread:
            self._preferred = (first + 1) % len(self._members)
        return self._members[first:] + self._members[:first]

    async def _try(self, member: Connected, request: Request) -> EtcdReply | CallFailed:
        try:
            if isinstance(request, Compact) or (isinstance(request, Txn) and request.writes):
                await self._prove(member)
            return await self._exchange(member, request)
        except CallFailed as failure:
            if failure.meaning is Meaning.COMPACTED:
                assert self.cluster_id is not None, "the member was proved"
                return EtcdReply(self.cluster_id, ())
            return failure

    async def _prove(self, member: Connected) -> None:
        if not member.is_proved:
            await self._exchange(member, self._look)
            member.is_proved = True

    async def _exchange(self, member: Connected, request: Request) -> EtcdReply:
        """The member's reply. Raises: CallFailed."""
        try:
            reply = decode_reply(request, await member.call(request))
            if self.cluster_id is None:
                self.cluster_id = reply.cluster_id
            if reply.cluster_id != self.cluster_id:
                wrong = f"{member.endpoint} belongs to the cluster {reply.cluster_id:x}, not to {self.cluster_id:x}"
                raise CallFailed(Meaning.ANOTHER_CLUSTER, wrong)
        except Malformed as error:
            self._leave(member)
            raise CallFailed(Meaning.NO_ANSWER, f"{member.endpoint}: {error}") from error
        except CallFailed:
            self._leave(member)
            raise
        if not self._spread:
            self._preferred = self._members.index(member)
        return reply

    def _leave(self, member: Connected) -> None:
        """Begin at the next member from now on, and trust this one again after a proof."""
        member.is_proved = False
        number = self._members.index(member)
        if not self._spread and number == self._preferred:
            self._preferred = (number + 1) % len(self._members)


def _are_final(failures: list[CallFailed]) -> bool:
    """Whether the same request fails again: one member speaks for all about rights and sizes, not about its cluster."""
    foreign = [failure.meaning is Meaning.ANOTHER_CLUSTER for failure in failures]
    return any(failure.meaning.is_final for failure in failures) or all(foreign)


def _details(failures: list[CallFailed]) -> str:
    return "; ".join(failure.detail for failure in failures)
