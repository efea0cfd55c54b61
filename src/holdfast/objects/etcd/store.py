"""The object store on etcd: carries out the procedures at the members of a cluster."""

from __future__ import annotations

import asyncio
import builtins
import os
import secrets
from collections.abc import Mapping
from typing import TypeVar

from holdfast.errors import Unavailable
from holdfast.objects.etcd import procedures
from holdfast.objects.etcd.address import parse_url, read_credentials
from holdfast.objects.etcd.channel import EtcdChannel
from holdfast.objects.etcd.failures import CallFailed
from holdfast.objects.etcd.layout import EtcdPrefix
from holdfast.objects.etcd.members import Members
from holdfast.objects.etcd.procedures import Once, Procedure
from holdfast.objects.etcd.wire import Status
from holdfast.objects.port import CreateAnswer, Listed, require_key

T = TypeVar("T")


async def ask_members(url: str) -> list[tuple[str, Status | CallFailed]]:
    """What each endpoint of a URL says of itself, by HOST:PORT. Raises: InvalidRequest."""
    address, credentials = parse_url(url), read_credentials(os.environ)
    channels = [EtcdChannel(endpoint, credentials) for endpoint in address.endpoints]
    try:
        answers = await asyncio.gather(*(channel.status() for channel in channels), return_exceptions=True)
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))
    described: list[tuple[str, Status | CallFailed]] = []
    for endpoint, answer in zip(address.endpoints, answers, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, CallFailed):
            raise answer
        described.append((endpoint, answer))
    return described


class EtcdStore:
    """The port on one prefix of a cluster."""

    def __init__(self, members: Members, place: EtcdPrefix, url: str) -> None:
        self.url = url
        self._members = members
        self._place = place
        self._since: Mapping[str, float] = {}
        self._compacted = 0

    @classmethod
    def open(cls, url: str, *, spread: bool = False) -> EtcdStore:
        """The store that ``url`` names. Nothing is sent yet; the files of TLS and the password are read now.

        ``spread``: each request begins at the next endpoint. Raises: InvalidRequest, also without the extra ``etcd``.
        """
        address, credentials = parse_url(url), read_credentials(os.environ)
        place = EtcdPrefix(address.prefix)
        connections = [EtcdChannel(endpoint, credentials) for endpoint in address.endpoints]
        return cls(Members([*connections], address.url, place.heads, spread=spread), place, address.url)

    @property
    def cluster_id(self) -> str | None:
        """As the port says: that of the member that answered first. A reply of another cluster is none."""
        number = self._members.cluster_id
        return None if number is None else f"{number:016x}"

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """As the port says. Cost: one transaction up to 1.25 MiB, and above it one for each 1.25 MiB and one more."""
        require_key(key)
        return await self._run(procedures.create(self._place, key, data, secrets.token_hex(16)))

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """As the port says. Cost: two requests, and one more for each further 3.75 MiB. Also raises CorruptData."""
        return await self._run(procedures.read(self._place, require_key(key), start, length))

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        """As the port says. Cost: a request for each 1,000 keys. Also raises CorruptData."""
        return await self._run(procedures.list_objects(self._place, prefix, after, limit))

    async def delete(self, *keys: str) -> None:
        """As the port says. Cost: a request for each 120 keys, and one for each 120 heads and parts."""
        await self._run(procedures.delete(self._place, [require_key(key) for key in keys]))

    async def remove_leftovers(self, now_ms: float) -> None:
        """As the port says: parts of an upload, 15 minutes after a call first saw it without a head.

        Then the space of everything that was removed is free for other objects. Cost: three requests, and one for each
        upload that is removed, at most ``SWEPT_MAX``.
        """
        swept = await self._run(procedures.sweep(self._place, self._since, now_ms))
        self._since = swept.since
        self._compacted = await self._run(procedures.compact(self._place, self._compacted))
        if swept.damage is not None:
            raise swept.damage

    async def close(self) -> None:
        """As the port says."""
        await self._members.close()

    async def _run(self, procedure: Procedure[T]) -> T:
        """Carry out the effects of a procedure, one after the other."""
        try:
            effect = next(procedure)
            while True:
                if isinstance(effect, Once):
                    effect = procedure.send(await self._members.send(effect.txn))
                    continue
                try:
                    reply = await self._members.ask(effect.request)
                except Unavailable as error:
                    effect = procedure.throw(error)
                else:
                    effect = procedure.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
