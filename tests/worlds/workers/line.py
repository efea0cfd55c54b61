"""One connection between a worker and a server. It delays, in order; a held one delivers later; a cut one ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from holdfast.server.stores.socket import SubscribeSocket

if TYPE_CHECKING:
    from tests.worlds.workers.server import Server
    from tests.worlds.workers.worker import Worker

__all__ = ["Line"]


class _Transport:
    """The service's end, as far as the socket uses it."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._closing = False

    def set_write_buffer_limits(self, high: int) -> None:
        """Nothing is bounded here."""

    def get_extra_info(self, name: str) -> object:
        """An address."""
        return ("10.0.0.1", 4_000) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        """Everything is sent at once."""
        return 0

    def pause_reading(self) -> None:
        """What arrives meanwhile waits in the socket."""

    def resume_reading(self) -> None:
        """The socket has taken all."""

    def is_closing(self) -> bool:
        """Whether it ends."""
        return self._closing

    def write(self, data: bytes) -> None:
        """To the worker."""
        self._line.to_worker(data)

    def close(self) -> None:
        """End it, after what was written."""
        if not self._closing:
            self._closing = True
            self._line.to_worker(b"")
            self._line.lost_by_server()

    abort = close


class Line:
    """One connection."""

    def __init__(self, worker: Worker, server: Server) -> None:
        self.worker, self.server = worker, server
        self._agenda = worker.world.agenda
        self.delay_ms = worker.world.random.uniform(0.1, worker.world.shape.delay_ms)
        self.held_until = 0.0
        self.held_since = 0.0
        self.heard_ms = self._agenda.now
        """When bytes of the service arrived last."""
        self._to_server_ms = self._to_worker_ms = 0.0
        self.is_cut = False
        self.inbox: list[bytes] = []
        self._lost = False
        self.socket: SubscribeSocket | None = None
        server.lines.append(self)
        self._plan_at_server(self._accept)

    def _accept(self) -> None:
        self.socket = SubscribeSocket(self.server.gateway, self.server.host, lambda: None)
        self.socket.connection_made(cast("Any", _Transport(self)))

    def hold(self, ms: float) -> None:
        """Deliver nothing for so long, and not before an earlier hold ends: what it kept comes then."""
        self.held_since = self._agenda.now
        self.held_until = max(self.held_until, self.held_since + ms)

    @property
    def works(self) -> bool:
        """Whether both ends have it, and the service leads."""
        return self.server.leads and not (self.is_cut or self._lost or self.is_held)

    @property
    def is_held(self) -> bool:
        """Whether bytes wait."""
        return self.held_until > self._agenda.now

    def to_server(self, data: bytes) -> None:
        """Bytes of the worker."""
        self._plan_at_server(self._at_server, data)

    def _plan_at_server(self, action: Any, *arguments: object) -> None:
        self._to_server_ms = max(self._to_server_ms + 0.001, self._agenda.now + self.delay_ms, self.held_until)
        self._agenda.after(self._to_server_ms - self._agenda.now, self.server, self._turn, action, *arguments)

    def _turn(self, action: Any, *arguments: object) -> None:
        if not self.is_cut:
            self.server.loop.turn(action, *arguments)

    def _at_server(self, data: bytes) -> None:
        if self.socket is not None and not self._lost:
            self.socket.data_received(data)

    def to_worker(self, data: bytes) -> None:
        """Bytes of the service; none are its end."""
        self._to_worker_ms = max(self._to_worker_ms + 0.001, self._agenda.now + self.delay_ms, self.held_until)
        self._agenda.after(self._to_worker_ms - self._agenda.now, None, self._at_worker, data)

    def _at_worker(self, data: bytes) -> None:
        if not self.is_cut:
            self._arrive(data)

    def _arrive(self, data: bytes) -> None:
        self.heard_ms = self._agenda.now
        self.inbox.append(data)
        self._agenda.after(0.0, self.worker, self.worker.arrived, self)

    def lost_by_server(self) -> None:
        """The service's end is over."""
        if not self._lost and not self.server.loop.dead:
            self.server.loop.call_soon(self._connection_lost)

    def _connection_lost(self) -> None:
        if not self._lost:
            self._lost = True
            if self in self.server.lines:
                self.server.lines.remove(self)
            if self.socket is not None:
                self.socket.connection_lost(None)

    def hang_up(self) -> None:
        """The worker's end is over: the service hears of it."""
        self._plan_at_server(self._connection_lost)

    def cut(self) -> None:
        """It breaks: both ends hear of it."""
        if self.is_cut:
            return
        self.is_cut = True
        self._arrive(b"")
        if not self.server.loop.dead:
            self._agenda.after(0.0, self.server, self.server.loop.turn, self._connection_lost)
        elif self in self.server.lines:
            self.server.lines.remove(self)
