"""A world of the stores: publishers, subscribers and administrators, with crashes at any command.

In the end everything that is owed is delivered and acknowledged: nothing may be left, and nothing may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace
from tests.worlds.harness import WorldReport
from tests.worlds.stores.consumed_model import ConsumedModel
from tests.worlds.stores.keyed_model import LastValueModel, MapModel
from tests.worlds.stores.machine import Machine
from tests.worlds.stores.promises import promise
from tests.worlds.stores.shape import DEAD, FOLLOWED_KEYS, KEYS, KINDS, MEMORY, STORE
from tests.worlds.stores.stage import EXPIRES_MAX, CrashedError, Stage

from holdfast.errors import HoldfastError
from holdfast.stores.values import commands
from holdfast.wire.parts import FieldValue, Message

__all__ = ["World", "run_world"]

PUBLISHERS: Final = ("p1", "p2", "")
SUBSCRIBERS: Final = ("ann", "bob", "cid")
SESSIONS: Final = ("", "one", "two")
AUDITOR: Final = "auditor"
OWNERS: Final = ("ann", "bob")
RETENTION_STEP_MS: Final = 1_001


def run_world(seed: int, **focus: object) -> WorldReport:
    """Run one world to its end. ``focus`` replaces fields of its ``Shape``, to look where something is expected.

    Raises: ``PromiseBroken``, or whatever the state machine raises that it should not.
    """
    return World(seed, **focus).run()


class World(Stage):
    """See the module."""

    def __init__(self, seed: int, **focus: object) -> None:
        super().__init__(seed, **focus)
        self.serial = 0
        self.sent: dict[str, list[list[Message]]] = {name: [] for name in PUBLISHERS}
        """Numbered batches of each publisher, to be sent again."""
        self._crowd_at = self.random.randrange(self.shape.steps) if self.shape.crowd else -1

    def run(self) -> WorldReport:
        """Live, then deliver everything that is owed."""
        for step in range(-1, self.shape.steps):
            try:
                if step < 0:
                    self._define(self.shape.definition)
                else:
                    self._step(step)
            except CrashedError:
                self._come_back()
        self._deliver_everything()
        for data in self.machine.log:
            self.digest.update(data)
        return self.report()

    def _bury(self) -> None:
        dying = self.model.dying()
        for (store, durable, seq), effect in dying.items():
            if self.random.random() < 0.5:
                item = self.model.stores[store].durables[durable].items[seq]  # type: ignore[union-attr]
                fields: dict[str, FieldValue] = {
                    "cause": effect.cause,
                    "from": durable,
                    "seq": seq,
                    "count": effect.delivery_count,
                }
                letter = Message(body=item.message.body, fields=fields)
                self.submit(commands.DeadLetter(self.now_ms, store, durable, seq, letter, effect.dead_letter_store))

    # ---- what people do ---------------------------------------------------------------------------------------------

    def _step(self, step: int) -> None:
        random = self.random
        if random.random() < 0.5:
            self._tick()
        action = random.choices(
            (self._publish, self._attach, self._detach, self._deliver, self._acknowledge, self._bury, self._on_map),
            (25, 12, 4, 25, 20, 8, 14),
        )[0]
        if random.random() < 0.06:
            action = random.choice(
                (
                    *(self._purge, self._drop, self._rewind, self._unsubscribe, self._redefine),
                    *(self._redeliver, self._redeliver, self._resend, self._resend),
                )
            )
        if not (self.shape.lax and action in (self._deliver, self._acknowledge)):
            self._expire()
        if step == self._crowd_at:
            self._expire()
            self._publish_batch("", [self._message() for _ in range(self.shape.crowd)])
        action()
        if MEMORY in self.shape.definition["stores"]:  # type: ignore[operator]
            self._in_memory()

    def _in_memory(self) -> None:
        """Something happens in the store that lives in memory only. Nobody judges it; nothing of it may reach the log,
        the state of the other stores, or their time."""
        apart, subscriber = self.apart, self.apart.choice(SUBSCRIBERS)
        at_ms = self.now_ms + apart.choice((0, 0, 0, 7))
        command = apart.choice(
            (
                commands.Publish(at_ms, MEMORY, "", [Message(body=b"m", key=apart.choice(KEYS))]),
                commands.Attach(at_ms, MEMORY, "work", subscriber, take_over=True),
                commands.Deliver(at_ms, MEMORY, "work", subscriber, 3),
                commands.Acknowledge(at_ms, MEMORY, "work", subscriber, [(1, 1_000)]),
                commands.Expire(at_ms, volatile=True),
                commands.Purge(at_ms, MEMORY, "work"),
            )
        )
        with suppress(HoldfastError):
            self.machine.apply(command)
            self.seen["in memory"] += 1
        self._note_fingerprint(command)
        self.now_ms = at_ms

    def _message(self, number: int = 0) -> Message:
        random = self.random
        self.serial += 1
        fields: dict[str, str | int | bool] = {}
        if random.random() < 0.8:
            fields["kind"] = random.choice(KINDS)
        if random.random() < 0.3:
            fields["n"] = random.randint(0, 4)
        timed = random.random() < 0.25
        return Message(
            body=b"%d" % self.serial * random.randint(0, 3),
            fields=fields,
            key=random.choice((None, *KEYS)),
            publisher_seq=number,
            ttl_ms=random.choice((0, 400, 5_000)) if timed else 0,
            deliver_at_ms=self.now_ms + random.choice((0, 200, 3_000, 50_000))
            if timed and random.random() < 0.7
            else 0,
        )

    def _publish(self) -> None:
        random = self.random
        publisher = random.choice(PUBLISHERS)
        known = self.model.stores[STORE].publishers.get(publisher)
        following = max(known.seqs) + 1 if known is not None else 1
        if publisher and self.sent[publisher] and random.random() < 0.25:
            batch = random.choice(self.sent[publisher][-4:])
            if random.random() < 0.3:
                last = batch[-1].publisher_seq
                batch = [*batch, self._message(last + 1)]
            self.seen["sent again"] += 1
            if batch[0].publisher_seq == 1 or known is not None or publisher in self.model.stores[STORE].forgotten:
                self._publish_batch(publisher, batch)
                return
        if publisher and known is not None and random.random() < 0.08:
            following += random.randint(1, 3)
            self.seen["sent with a gap"] += 1
            self._publish_batch(publisher, [self._message(following)])
            return
        count = random.choice((1, 1, 2, 5))
        batch = [self._message(following + place if publisher else 0) for place in range(count)]
        if publisher:
            self.sent[publisher].append(batch)
        self._publish_batch(publisher, batch)

    def _publish_batch(self, publisher: str, batch: list[Message]) -> None:
        self.submit(commands.Publish(self.now_ms, STORE, publisher, batch))

    def _some(self, kind: type[ConsumedModel | LastValueModel | MapModel]) -> str | None:
        durables = self.model.stores[STORE].durables
        names = [name for name, durable in durables.items() if isinstance(durable, kind)]
        return self.random.choice(names) if names else None

    def _attach(self) -> None:
        random = self.random
        subscriber = random.choice(SUBSCRIBERS)
        if random.random() < 0.15:
            name = random.choice(("dyn-1", "dyn-2", "dyn-3"))
            self.submit(commands.Attach(self.now_ms, STORE, name, subscriber, "made"))
            return
        found = self._some(random.choice((ConsumedModel, ConsumedModel, LastValueModel, MapModel)))
        if found is not None:
            is_keyed = isinstance(self.model.stores[STORE].durables[found], LastValueModel)
            key = random.choice((*FOLLOWED_KEYS, "a")) if is_keyed else None
            polls = random.random() < 0.3
            takes_over = self.apart.random() < 0.7
            attach = commands.Attach(self.now_ms, STORE, found, subscriber, "", b"", key, polls, take_over=takes_over)
            session = self.apart.choice(SESSIONS)
            self.submit(replace(attach, session=session, keep=self._works_on(found, subscriber, session)))

    def _works_on(self, name: str, subscriber: str, session: str) -> list[tuple[int, int]]:
        """Some of what a subscriber holds, and a number that it does not."""
        durable = self.model.stores[STORE].durables[name]
        held: list[int] = []
        if isinstance(durable, ConsumedModel):
            held = [item.seq for item in durable.held(subscriber)]
            self.seen["a session comes back"] += bool(held) and durable.sessions.get(subscriber) == session != ""
        chosen = sorted({*(seq for seq in held if self.apart.random() < 0.5), self.apart.randint(1, 40)})
        return [(seq, seq) for seq in chosen]

    def _pick_subscriber(self, kind: type[LastValueModel | MapModel] = LastValueModel) -> tuple[str, str] | None:
        """A durable and one of its subscribers, mostly; sometimes one that is not attached."""
        name = self._some(self.random.choice((ConsumedModel, ConsumedModel, ConsumedModel, kind)))
        if name is None:
            return None
        durable = self.model.stores[STORE].durables[name]
        attached = list(durable.seen) if isinstance(durable, LastValueModel) else []
        attached = durable.subscribers if isinstance(durable, ConsumedModel) else attached
        attached = list(durable.sessions) if isinstance(durable, MapModel) else attached
        if not attached or self.random.random() < 0.05:
            return name, self.random.choice(SUBSCRIBERS)
        return name, self.random.choice(attached)

    def _detach(self) -> None:
        picked = self._pick_subscriber(self.random.choice((LastValueModel, MapModel)))
        if picked is not None:
            self.submit(commands.Detach(self.now_ms, STORE, *picked))

    def _deliver(self) -> None:
        picked = self._pick_subscriber()
        if picked is not None:
            self.submit(commands.Deliver(self.now_ms, STORE, *picked, self.random.choice((1, 2, 10, 1000))))

    def _acknowledge(self) -> None:
        random = self.random
        picked = self._pick_subscriber()
        if picked is None:
            return
        name, subscriber = picked
        durable = self.model.stores[STORE].durables[name]
        if not isinstance(durable, ConsumedModel):
            return
        held = sorted(item.seq for item in durable.held(subscriber))
        chosen = random.sample(held, random.randint(0, len(held)))
        if random.random() < 0.1:
            chosen = [*chosen, random.randint(1, self.model.stores[STORE].next_seq)]
        removed = [item.seq for item in durable.gone.values() if item.worked_by == subscriber]
        if removed and self.apart.random() < 0.3:
            chosen = [self.apart.choice(removed)]
            self.seen["what was removed is acknowledged"] += 1
        parts: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
        for seq in dict.fromkeys(chosen):
            parts[random.choice((0, 0, 0, 0, 1, 1, 2, 3))].append(seq)
        ack, nack, reject, extend = parts
        self.submit(
            commands.Acknowledge(
                self.now_ms,
                STORE,
                name,
                subscriber,
                _ranges(ack),
                [(seq, random.choice((0, 0, 100, 5_000))) for seq in nack],
                reject,
                _ranges(extend),
                self._started(held) if random.random() < 0.3 else None,
                self._unsent(held),
            )
        )

    def _unsent(self, held: Sequence[int]) -> list[tuple[int, int]]:
        """What was not sent to the subscriber, sometimes with a message that it does not hold."""
        if not held or self.apart.random() < 0.8:
            return []
        chosen = self.apart.sample(held, self.apart.randint(1, len(held)))
        return _ranges([*sorted(chosen), *([held[-1] + 1] if self.apart.random() < 0.2 else [])])

    def _started(self, held: Sequence[int]) -> list[tuple[int, int, int]]:
        """What a subscriber reports, sometimes with a message that it does not hold."""
        chosen = self.random.sample(held, self.random.randint(0, min(2, len(held))))
        if self.random.random() < 0.1:
            chosen = [*chosen, self.random.randint(1, self.model.stores[STORE].next_seq)]
        at_ms = self.now_ms - self.random.choice((0, 0, 10, 400))
        return [(first, last, at_ms) for first, last in _ranges(sorted(chosen))]

    def _on_map(self) -> None:
        random = self.random
        name = self._some(MapModel)
        if name is None:
            return
        found = self.model.stores[STORE].durables[name]
        assert isinstance(found, MapModel)
        key, owner = random.choice(("", *KEYS)), random.choice(OWNERS)
        what = random.random()
        if what < 0.25:
            ttl_ms = random.choice((10, 1_000, 60_000))
            self.submit(commands.MapLock(self.now_ms, STORE, name, key, owner, ttl_ms, random.random() < 0.2))
            return
        if what < 0.35:
            fence = random.randint(max(1, found.fence - 1), found.fence + 1)
            held = [key for key, lock in found.locks.items() if lock.fence == fence]
            self.submit(commands.MapUnlock(self.now_ms, STORE, name, held[0] if held else key, owner, fence))
            return
        fence = random.randint(max(0, found.fence - 1), found.fence) if random.random() < 0.4 else 0
        if what < 0.45:
            self.submit(commands.MapChange(self.now_ms, STORE, name, [], fence, remove_all=True))
            if random.random() < 0.5:
                return  # else a change comes before the keys are given back
        changes: list[tuple[str, bytes | None, int | None]] = []
        for key in random.sample(KEYS, random.randint(1, 3)):
            revision = found.values[key].revision if key in found.values else 0
            condition = random.choice((None, None, None, revision, revision, max(0, revision - 1)))
            changes.append((key, random.choice((None, b"x", b"value")), condition))
        self.submit(commands.MapChange(self.now_ms, STORE, name, changes, fence))

    # ---- what administrators do -------------------------------------------------------------------------------------

    def _purge(self) -> None:
        name = self._some(self.random.choice((ConsumedModel, LastValueModel, MapModel)))
        if name is not None:
            self.submit(commands.Purge(self.now_ms, STORE, name))

    def _drop(self) -> None:
        name = self._some(ConsumedModel)
        if name is None:
            return
        durable = self.model.stores[STORE].durables[name]
        assert isinstance(durable, ConsumedModel)
        seqs = [item.seq for item in durable.items.values() if item.place != "acknowledged"]
        if seqs:
            self.submit(commands.Drop(self.now_ms, STORE, name, self.random.choice(seqs)))

    def _rewind(self) -> None:
        """Retention is released in steps: one is let pass, so that what is retained is what is young enough."""
        names = [
            name
            for store, name, durable in self.model.consumed()
            if store == STORE and durable.definition.retention_time_ms
        ]
        if not names:
            return
        self.now_ms += RETENTION_STEP_MS
        self._expire()
        seq = self.random.choice((0, self.random.randint(1, self.model.stores[STORE].next_seq)))
        name = self.random.choice(names)
        if name in self.model.stores[STORE].durables:
            self.submit(commands.Rewind(self.now_ms, STORE, name, seq))

    def _redeliver(self) -> None:
        name = self._some(ConsumedModel)
        if name is None:
            return
        random = self.random
        messages = [(1, random.randint(1, self.model.stores[STORE].next_seq))] if random.random() < 0.3 else []
        match = b'{"kind": ["a", "b"]}' if random.random() < 0.2 else b""
        count = random.choice((1, 2, 1_000))
        self.submit(commands.Redeliver(self.now_ms, STORE, name, messages, match, count))

    def _resend(self) -> None:
        """A dead letter goes back to where it came from."""
        letters = self.model.stores[DEAD].durables["grave"]
        assert isinstance(letters, ConsumedModel)
        for item in letters.items.values():
            name = str(item.message.fields["from"])
            durable = self.model.stores[STORE].durables.get(name)
            found = durable.gone.get(int(item.message.fields["seq"])) if isinstance(durable, ConsumedModel) else None
            if found is not None and isinstance(durable, ConsumedModel):
                fields = found.message.fields
                if not durable.definition.matcher.matches(fields):
                    continue
                letter = Message(body=found.message.body, fields=fields, key=found.message.key)
                self.submit(commands.Resend(self.now_ms, DEAD, "grave", item.seq, letter, STORE, name))
                return

    def _unsubscribe(self) -> None:
        durables = self.model.stores[STORE].durables
        names = [name for name, durable in durables.items() if durable.definition.dynamic]
        if names:
            self.submit(commands.Unsubscribe(self.now_ms, STORE, self.random.choice(names)))

    def _redefine(self) -> None:
        """Parameters of the static durables change while everything goes on."""
        document = self.model.definition.document()
        durables = document["stores"][STORE]["durables"]  # type: ignore[index]
        for durable in durables.values():
            if durable["type"] in ("standard", "shared"):
                durable["prefetch"] = self.random.choice((1, 3, 40))
                durable["ack_wait"] = self.random.choice((0.5, 3, 30))
                durable["max_delivery"] = self.random.choice((0, 1, 3))
                if durable["retention_time"] and self.random.random() < 0.2:
                    durable["retention_time"] = 0
                if self.random.random() < 0.3:
                    durable["dead_letter_store"] = self.random.choice(("", DEAD))
                if durable["message_limit"]:
                    durable["message_limit"] = self.random.choice((2, 6))
        self._define(document)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _deliver_everything(self) -> None:
        """After a last crash, take and acknowledge all that is owed: the judge sees whether anything is missing."""
        self._ending = True
        self._sync()
        self._become(Machine(self.machine.log, self.image))
        self._come_back()
        for store, name, durable in self.model.consumed():
            for subscriber in list(durable.subscribers):
                self.submit(commands.Detach(self.now_ms, store, name, subscriber))
        for _ in range(EXPIRES_MAX):
            if not any(durable.pending() for _, _, durable in self.model.consumed()):
                break
            self._expire()
            for name in (STORE, DEAD):
                self._take_all(name)
            self._bury()
            for store, name, durable in self.model.consumed():
                if durable.parks and any(item.place == "dying" for item in durable.items.values()):
                    self.submit(commands.Redeliver(self.now_ms, store, name))
            self.now_ms = max(self.now_ms + 1, self._next_wait_ms())
        owed = [item for _, _, durable in self.model.consumed() for item in durable.pending()]
        promise(not owed, "nothing confirmed is lost", owed=owed)
        self._expire()

    def _take_all(self, store: str) -> None:
        for _, name, durable in [found for found in self.model.consumed() if found[0] == store]:
            if AUDITOR not in durable.subscribers:
                self.submit(commands.Attach(self.now_ms, store, name, AUDITOR))
            while durable.deliverable(self.now_ms, AUDITOR):
                self.submit(commands.Deliver(self.now_ms, store, name, AUDITOR, 1_000))
                held = sorted(item.seq for item in durable.held(AUDITOR))
                self.submit(commands.Acknowledge(self.now_ms, store, name, AUDITOR, _ranges(held)))

    def _next_wait_ms(self) -> int:
        """When the next message that waits for its time may be delivered."""
        waits = [
            item.message.deliver_at_ms if item.place == "waiting" else item.not_before_ms
            for _, _, durable in self.model.consumed()
            for item in durable.pending()
        ]
        return min((at_ms for at_ms in waits if at_ms > self.now_ms), default=0)


def _ranges(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbours as ranges, in the order given."""
    found: list[tuple[int, int]] = []
    for seq in seqs:
        if found and found[-1][1] == seq - 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return found
