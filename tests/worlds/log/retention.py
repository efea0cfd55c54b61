"""Retention in the worlds of the log: an operator, snapshots, and the judge of every deletion.

The leaders run the real ``Truncator``. The operator sets, moves and removes policies and holds at any node that
believes it leads, also at one that was deposed; a policy counts from its answer until its removal is asked for. The
judge sees each deletion at the moment it takes effect at the store.
"""

from __future__ import annotations

import asyncio
import builtins
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.worlds.harness import PromiseBroken

from holdfast.commit.format.batch import CLAIM_BYTES, PREFIX, Kind, slot_of
from holdfast.commit.reading.reader import follow
from holdfast.commit.reading.survey import walker_after
from holdfast.errors import HoldfastError, NotFound
from holdfast.objects.port import CreateAnswer, Listed, WithoutLeftovers
from holdfast.retention.policies import Change, Hold, Policy, release_hold, remove_policy, set_hold, set_policy
from holdfast.snapshots.manifest import FORMAT, Manifest, encode_manifest, manifest_key, version_of_manifest

if TYPE_CHECKING:
    from tests.worlds.log.node import Node
    from tests.worlds.log.world import World

__all__ = ["Operator", "read_afresh"]

NAMES = ("p1", "p2")
HOLDS = ("h1", "h2")
FOR_EVER_MS = 1 << 50


@dataclass(slots=True, eq=False)
class _Asked:
    """A change that was asked for. ``alone``: no other change of the same name was under way meanwhile."""

    node: Node
    incarnation: int
    alone: bool = True


class Operator:
    """Changes policies and holds, makes snapshots, and judges deletions. ``needs``: what was answered and is in force,
    as the lowest version that it needs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.needs: dict[str, int] = {}
        self._under_way: dict[str, list[_Asked]] = {}

    def begin(self) -> None:
        """Work from now until the end of the world."""
        after, random = self._world.agenda.after, self._world.random
        after(50.0, None, self._snapshot)
        after(20.0 + 100.0 * random.random(), None, self._act)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def _snapshot(self) -> None:
        """A maker anywhere writes the manifest of a version of the true log."""
        world = self._world
        head = world.promises.walker.head
        if head is not None:
            # The parts do not matter here: a snapshot of no keys has none.
            version = head.last_version
            manifest = Manifest(
                format=FORMAT,
                log_id=head.log_id.hex(),
                version=version,
                last_transaction=0,
                slot="",
                rows=0,
                parts=[],
                jobs=[],
            )
            world.store.others[manifest_key(version)] = encode_manifest(manifest)
            world.seen["snapshot_made"] += 1
        world.agenda.after(10.0 + 150.0 * world.random.random(), None, self._snapshot)

    def _snapshots(self) -> list[int]:
        found = (version_of_manifest(key) for key in self._world.store.others)
        return [version for version in found if version is not None]

    # -- policies and holds -------------------------------------------------------------------------------------------

    def _act(self) -> None:
        world = self._world
        random = world.random
        nodes = [node for node in world.nodes if node.truncator is not None]
        if nodes:
            self._ask(random.choice(nodes))
        world.agenda.after(10.0 + 150.0 * random.random(), None, self._act)

    def _ask(self, node: Node) -> None:
        random, truncator = self._world.random, node.truncator
        assert truncator is not None, "the node has begun to lead"
        head = self._world.promises.end_version()
        version = max(1, head - random.choice((0, 0, 3, 30, 300)))
        if random.random() < 0.75:
            name = random.choice(NAMES)
            if random.random() < 0.15:
                self.needs.pop(name, None)
                self._change(node, name, remove_policy(name), None)
            elif random.random() < 0.2:
                # What is removed is known by its bytes alone: nothing is promised about versions.
                self.needs.pop(name, None)
                self._change(node, name, set_policy(name, Policy(max_bytes=1), head=head), None)
            else:
                change = set_policy(name, Policy(keep_from_version=version), head=head)
                self._replace(node, name, change, version)
            return
        name = random.choice(HOLDS)
        if random.random() < 0.5:
            self.needs.pop(name, None)
            self._change(node, name, release_hold(name), None)
        else:
            hold = Hold(from_version=version, lasts_ms=FOR_EVER_MS)
            self._replace(node, name, set_hold(name, hold), version + 1)

    def _replace(self, node: Node, name: str, change: Change, version: int) -> None:
        # Until the answer either the old or the new one may be in force: only what both need is promised.
        if name in self.needs:
            self.needs[name] = max(self.needs[name], version)
        self._change(node, name, change, version)

    def _change(self, node: Node, name: str, change: Change, version: int | None) -> None:
        self._world.seen["retention_asked"] += 1
        asked = _Asked(node, node.incarnation)
        for other in self._under_way.setdefault(name, []):
            if other.node.incarnation == other.incarnation:
                # Either of the two may be in force in the end: nothing is promised until one is alone.
                other.alone = asked.alone = False
        if not asked.alone:
            self.needs.pop(name, None)
        self._under_way[name].append(asked)
        node.run(self._changed(asked, name, change, version))

    async def _changed(self, asked: _Asked, name: str, change: Change, version: int | None) -> None:
        world, truncator = self._world, asked.node.truncator
        assert truncator is not None, "the node has begun to lead"
        try:
            await truncator.change(change, asked.node.address)
        except HoldfastError as error:
            world.seen[f"retention_{error.code}"] += 1
        else:
            world.seen["retention_answered"] += 1
            if asked.alone and version is not None:
                self.needs[name] = version
        under_way = self._under_way[name]
        if asked in under_way:
            under_way.remove(asked)

    # -- the judge ----------------------------------------------------------------------------------------------------

    def deleted(self, slot: int) -> None:
        """An object is about to go. Raises: PromiseBroken."""
        world = self._world
        promises, data = world.promises, world.store.objects[slot]
        head = promises.walker.head
        assert head is not None, "something has landed"
        if len(data) == CLAIM_BYTES:
            promises.break_("a claim is never deleted", f"slot {slot}")
        if slot <= head.slot + world.shape.span:
            promises.break_("nothing within W of the watermark is deleted", f"slot {slot}, head {head.slot}")
        world.seen["retention_removed"] += 1
        header = promises.headers.get(slot)
        if header is None or header.kind is Kind.CLAIM:
            world.seen["retention_removed_dead"] += 1
            return
        last = header.last_version
        if last > head.truncated_through:
            promises.break_("only what the durable log says was truncated is deleted", f"version {last}")
        for name, needed in self.needs.items():
            if last >= needed:
                promises.break_("what a policy or a hold needs is kept", f"{name} needs {needed}, deleted {last}")
        if not any(version >= last for version in self._snapshots()):
            promises.break_("a snapshot has what was deleted", f"version {last}")


class _Plain(WithoutLeftovers):
    """The store without a network."""

    url = "s3://world/log"

    def __init__(self, world: World) -> None:
        self._store = world.store

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        raise AssertionError(f"the last reader writes nothing: {key} {len(data)}")

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        slot = slot_of(key)
        data = None if slot is None else self._store.objects.get(slot)
        if data is None:
            raise NotFound("no such object", key=key)
        return data if length is None else data[start : start + length]

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        assert prefix == PREFIX, "the log alone is read"
        rows = self._store.page(limit, int(after[-20:]) if after else -1)
        return [Listed(key, size) for key, size in rows]

    async def delete(self, *keys: str) -> None:
        raise AssertionError(f"the last reader deletes nothing: {keys}")

    async def close(self) -> None:
        pass


def read_afresh(world: World) -> None:
    """A new reader gets every transaction after each version that was not truncated, and an error below it."""
    promises = world.promises
    head = promises.walker.head
    assert head is not None, "the world has a log"
    through = head.truncated_through
    versions = {through, *world.random.sample(promises.versions, min(5, len(promises.versions)))}
    for version in sorted(versions):
        wanted = [other for other in promises.versions if other > version]
        try:
            got: list[int] | None = asyncio.run(_read(world, version))
        except NotFound as error:
            got = None
            if version >= through:
                raise PromiseBroken(f"what was not truncated can be read: {version}, {through}") from error
        if version >= through and got != wanted:
            raise PromiseBroken(f"a new reader gets every transaction: after {version}")
        if version < through and got is not None:
            raise PromiseBroken(f"a reader below the truncation is refused: {version}, {through}")


async def _read(world: World, version: int) -> list[int]:
    store = _Plain(world)
    walker, newest = await walker_after(store, version)
    found: list[int] = []
    async with aclosing(follow(store, walker, until=newest.slot)) as batches:
        async for batch in batches:
            found += [txn.version for txn in batch.transactions() if txn.version > version]
    return found
