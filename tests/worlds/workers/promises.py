"""What is true of each hand-over. The world feeds it with every command that a leader has applied."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from tests.worlds.stores.promises import promise
from tests.worlds.workers.shape import STORE, WORK

from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.values import commands

if TYPE_CHECKING:
    from tests.worlds.workers.server import Server
    from tests.worlds.workers.worker import Worker
    from tests.worlds.workers.world import World

    from holdfast.wire.parts import Delivery

__all__ = ["Promises", "consumption"]

HELD: Final = "what is handed out is held"
SILENT: Final = "a silent connection hands out nothing"
OWN_TIME: Final = "its own time is not over"
MARKED: Final = "what was seen is marked"
CAUSE: Final = "nothing comes twice without a cause"
WORK_STAYS: Final = "a new connection takes no work away"
ORDER: Final = "order holds"
WINDOW: Final = "a window is not exceeded"
PENDING: Final = "what is about to be acknowledged is not handed over"
CONFIRMED: Final = "what is confirmed does not come again"
CREDIT: Final = "credit comes back once"
DONE: Final = "everything is done in the end"


def consumption(server: Server) -> Consumption:
    """The durable in the state of a server."""
    durable = server.state.stores[STORE].durables[WORK]
    assert isinstance(durable, Consumption)
    return durable


class Promises:
    """Who held what until when, and what the applications have seen."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held: dict[int, set[tuple[str, int]]] = defaultdict(set)
        """By server: pairs of subscriber and number."""
        self.lost_ms: dict[tuple[str, int], float] = {}
        """When a hold ended last."""
        self._seen: dict[int, tuple[str, float]] = {}
        """Who was handed a number last, and when it had come."""
        self._confirmed: dict[int, float] = {}
        self._withdrawn: Counter[str] = Counter()
        """By subscriber, on this connection: withdrawals that an acknowledgement of the same message may meet."""
        self._commits: set[tuple[str, int]] = set()
        """Subscriber and number of each acknowledgement in a commit."""

    # ---- the service ------------------------------------------------------------------------------------------------

    def begins(self, server: Server) -> None:
        """A server begins with what its log has. What another one had given and not logged is not held."""
        held = self._of(server)
        for place in self._held.get(server.number - 1, set()) - held:
            self.lost_ms[place] = self._world.agenda.now
        self._held[server.number] = held

    @staticmethod
    def _of(server: Server) -> set[tuple[str, int]]:
        if STORE not in server.state.stores:
            return set()
        return {
            (name, seq)
            for name, holder in consumption(server).leases.of.items()
            for first, last, *_ in holder.runs
            for seq in range(first, last + 1)
        }

    def applied(self, server: Server, command: commands.Command) -> None:
        """A command was applied, or refused."""
        before, now = self._held[server.number], self._of(server)
        if before == now:
            return
        self._held[server.number] = now
        gone = before - now
        lost_before = {place: self.lost_ms.get(place, 0.0) for place in gone}
        for place in gone:
            self.lost_ms[place] = self._world.agenda.now
            if not isinstance(command, commands.Acknowledge | commands.Attach | commands.Detach):
                self._withdrawn[place[0]] += 1
        if isinstance(command, commands.Attach) and command.session:
            worker = self._world.worker_of(command.session)
            if worker is not None and server.state.stores[STORE].durables:
                # It has held them all the time since they came, as far as the worker knows.
                mine = {
                    (worker.name, seq)
                    for seq, job in worker.jobs.items()
                    if not job.is_withdrawn and lost_before.get((worker.name, seq), job.came_ms + 1) <= job.came_ms
                }
                holder = consumption(server).leases.of[worker.name]
                if self._world.sessions.get(worker.name) == command.session == holder.session:
                    self._world.seen["work is kept"] += bool(holder.held)
                    promise(not mine, WORK_STAYS, worker=worker.name, lost=mine, command=command)
        if isinstance(command, commands.Detach) and command.cause == "stopping":
            promise(not gone, WORK_STAYS, lost=gone, command=command)
        if isinstance(command, commands.Attach):
            self._withdrawn[command.subscriber] = 0
            self._world.sessions[command.subscriber] = command.session
        self._check_window(server)

    def commits(self, name: str, seq: int) -> None:
        """A commit acknowledges: a withdrawal says so to the subscriber."""
        self._commits.add((name, seq))

    def settles(self, name: str, seq: int) -> None:
        """A connection settles. The message may have come again before the commit that acknowledges it has landed."""
        self._withdrawn[name] += (name, seq) in self._commits

    def _check_window(self, server: Server) -> None:
        shape = self._world.shape
        most = min(shape.own_prefetch or shape.prefetch, shape.prefetch)
        if shape.own_prefetch is None:
            return
        for name, holder in consumption(server).leases.of.items():
            # A withdrawal gives its credit back, and may meet the credit that an acknowledgement of it gave.
            over = self._withdrawn[name]
            promise(holder.held <= most + over, WINDOW, worker=name, held=holder.held, most=most, over=over)

    # ---- the applications -------------------------------------------------------------------------------------------

    def handed_over(self, worker: Worker, message: Delivery) -> None:
        """An application gets a message."""
        world, seq = self._world, message.seq
        now, place = world.agenda.now, (worker.name, seq)
        line = worker.line
        facts = {"worker": worker.session, "seq": seq, "now": now}
        came_ms, wait_ms = worker.arrivals[seq]
        promise(not wait_ms or now <= came_ms + wait_ms, OWN_TIME, **facts, came=came_ms, wait=wait_ms)
        promise(line is not None, HELD, **facts, line=None)
        assert line is not None
        silence = now - line.heard_ms
        promise(silence < world.shape.timeout_ms + 1, SILENT, **facts, silence=silence)
        leader = world.leader
        reachable = leader is not None and line.server is leader and leader.answers and not line.is_held
        held_now = leader is not None and place in self._held[leader.number]
        if reachable and not held_now:
            lost = self.lost_ms.get(place, -1.0)
            since = max(lost, line.held_until, leader.ran_since if leader is not None else 0.0)
            late = now - since
            promise(late <= world.slack_ms, HELD, **facts, lost=lost, late=late, slack=world.slack_ms)
        before = self._seen.get(seq)
        if before is not None and held_now:  # what is not held is a little late, as judged above, and was here before
            promise(message.redelivered or message.replayed, MARKED, **facts, before=before)
            ended = self.lost_ms.get((before[0], seq), -1.0)
            promise(ended >= before[1] - world.slack_ms, CAUSE, **facts, before=before, ended=ended)
        if seq in self._confirmed:
            late = now - max(self._confirmed[seq], line.held_until)
            promise(late <= world.slack_ms or not reachable, CONFIRMED, **facts, late=late)
        pending = worker.machine._acks._pairs  # pyright: ignore[reportPrivateUsage]
        promise(not any(first <= seq <= last for first, last in pending), PENDING, **facts)
        older = worker.older_than(message)
        promise(not older, ORDER, **facts, older=older)
        if reachable and held_now:
            self._check_order(worker, message)
        # What a held line brings may be an older delivery of what is held.
        is_known = held_now and now - line.held_until > world.slack_ms
        self._seen[seq] = worker.name, came_ms if is_known else 0.0

    def _check_order(self, worker: Worker, message: Delivery) -> None:
        """Nothing of the durable, or of its key, that is older waits for an application."""
        world = self._world
        if world.shape.kind == "shared" or (world.shape.kind == "keyed" and message.key is None):
            return
        leader = world.leader
        assert leader is not None
        durable = consumption(leader)
        delayed = {seq for _, seq, _ in durable.redelivery.later} | set(durable.dying)
        others = self._world.workers.values()
        for seq, _ in durable.browse(0, message.seq):
            if seq >= message.seq or seq in delayed or seq in world.put_back:
                continue
            if world.shape.kind == "keyed" and world.keys.get(seq) != message.key:
                continue
            if seq in worker.had and (worker.name, seq) in self._held[leader.number]:
                continue  # it works on it, or its acknowledgement is on its way
            recently = world.agenda.now - max(
                (self.lost_ms.get((other.name, seq), -1e9) for other in others), default=-1e9
            )
            promise(
                recently <= world.slack_ms,
                ORDER,
                worker=worker.session,
                seq=message.seq,
                older=seq,
                now=world.agenda.now,
            )

    def confirmed(self, seq: int) -> None:
        """An application knows that its acknowledgement counts."""
        self._confirmed[seq] = self._world.agenda.now

    def was_seen(self, seq: int) -> bool:
        """Whether an application was handed it."""
        return seq in self._seen
