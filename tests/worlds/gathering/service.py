"""A model of one service: it takes attempts, makes them durable a moment later, answers, and may be killed at any time.

The log outlives the service. What is taken and not durable is lost with it. Status closes what has not committed.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.worlds.gathering.shape import NAMED, ONCE, SENT, TRUE, UNSENT
from tests.worlds.stores.promises import promise

from holdfast.client.protocol.effects import Request

if TYPE_CHECKING:
    from tests.worlds.gathering.world import World

__all__ = ["Answer", "Service"]

LOG_ID = "ab" * 16
Identity = tuple[str, int]
Answer = Callable[[int, bytes], None]
"""Gets the status and the body."""


def error(code: str, **fields: object) -> dict[str, Any]:
    """The body of an error."""
    return {"error": {"code": code, "message": code}, **fields}


class Service:
    """The log, and the process that serves it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.incarnation = 0
        self.paused_until = 0.0
        self.is_up = True
        self.version = 100
        self.committed: dict[Identity, int] = {}
        self.denied: set[Identity] = set()
        """Closed by a status, or refused for a conflict."""
        self.taken: set[Identity] = set()
        """Taken by any process of the service, ever."""
        self.history: dict[bytes, list[tuple[int, bytes]]] = {}
        self.markers: dict[int, bytes] = {}
        """Which caller's transaction is at a version."""

    # -- the process

    def kill(self) -> None:
        """What is not durable is gone, and every connection."""
        self.incarnation += 1
        self.is_up = False
        self._world.shell.cut_all()
        self._world.reads.cut_all()
        self._world.agenda.after(self._world.random.choice((5.0, 100.0, 800.0)), None, self._start)

    def _start(self) -> None:
        self.is_up = True

    def handle(self, request: Request, answer: Answer) -> None:
        """A request that is not a stream of commits."""
        parts = urlsplit(request.target)
        if self._world.strikes("refuses"):
            answer(503, json.dumps(error("overloaded")).encode())
        elif self._world.strikes("proxies"):
            if parts.path == "/v1/commit" and self._world.random.random() < 0.5:
                self._take(json.loads(request.body), lambda _: None)  # sent on, before it failed
            answer(502, b"<html>")
        elif parts.path == "/v1/version":
            body = {"version": self.version, "leader_id": "x", "log_id": LOG_ID}
            answer(200, json.dumps(body).encode())
        elif parts.path == "/v1/commit":
            self._take(json.loads(request.body), lambda result: answer(200, json.dumps(result).encode()))
        elif parts.path.startswith("/v1/status/"):
            at = int(parse_qs(parts.query)["min_version"][0].partition("@")[0])
            answer(200, json.dumps(self._status((unquote(parts.path.rpartition("/")[2]), at))).encode())
        elif parts.path == "/v1/read":
            self._read_several(json.loads(request.body), answer)
        else:
            self._read(parts.path, parts.query, answer)

    # -- commits

    def _take(self, body: dict[str, Any], done: Callable[[dict[str, Any]], None]) -> None:
        promise(body.get("request_id") and body.get("read_version") is not None, NAMED, body=body)
        identity = (str(body["request_id"]), int(body["read_version"]))
        promise(identity not in self.taken, SENT, attempt=identity)
        promise(identity not in self._world.withdrawn, UNSENT, attempt=identity)
        self.taken.add(identity)
        sync_ms = self._world.shape.sync_ms * self._world.random.uniform(0.5, 1.5)
        self._world.agenda.after(sync_ms, self, self._durable, identity, body, done)

    def _durable(self, identity: Identity, body: dict[str, Any], done: Callable[[dict[str, Any]], None]) -> None:
        name = {"version": self.version, "leader_id": "x", "request_id": identity[0]}
        if identity in self.denied:
            done({"status": "not_committed", "reason": "banned", **name})
            return
        for read in body.get("preconditions", ()):
            key = b64decode(read["key"])
            if any(version > read["version"] for version, _ in self.history.get(key, ())):
                self.denied.add(identity)
                done({"status": "not_committed", "reason": "conflict", **name})
                return
        self.version += 1
        written = {b64decode(each["key"]): b64decode(each["value"]) for each in body["operations"]}
        marker = written.pop(b"marker")
        promise(marker not in self.markers.values(), ONCE, marker=marker)
        promise(marker not in self._world.not_committed, TRUE, marker=marker)
        self.markers[self.version] = marker
        self.committed[identity] = self.version
        for key, value in written.items():
            self.history.setdefault(key, []).append((self.version, value))
        self._world.seen["committed"] += 1
        done({"status": "committed", **name, "version": self.version})

    def _status(self, identity: Identity) -> dict[str, Any]:
        self._world.seen["asked for an outcome"] += 1
        version = self.committed.get(identity)
        if version is not None:
            return {"status": "committed", "version": version}
        self.denied.add(identity)
        return {"status": "not_committed"}

    def stream(self, request: Request, write: Callable[[bytes], None], refuse: Answer, end: Callable[[], None]) -> None:
        """A stream of commits. Lines are written in order, as they are known."""
        world = self._world
        if world.strikes("refuses"):
            refuse(503, json.dumps(error("overloaded")).encode())
            return
        if world.strikes("proxies"):
            if world.random.random() < 0.5:
                world.seen["no such route"] += 1
                refuse(404, b"<html>")
                return
            for line in request.body.splitlines():
                self._take(json.loads(line), lambda _: None)
            refuse(502, b"<html>")
            return
        lines = request.body.splitlines()
        world.seen["shared"] += len(lines)
        due: list[bytes | None] = []

        def known(index: int, result: dict[str, Any]) -> None:
            due[index] = json.dumps(result).encode() + b"\n"
            ready: list[bytes] = []
            while due and written[0] < len(due) and (line := due[written[0]]) is not None:
                ready.append(line)
                written[0] += 1
            if len(ready) > 1 and world.strikes("mixes"):
                place = world.random.randrange(len(ready) - 1)
                ready[place], ready[place + 1] = ready[place + 1], ready[place]
            data = b"".join(ready)
            cut = world.random.randint(0, len(data))  # bytes arrive in any pieces
            for piece in (data[:cut], data[cut:]):
                if piece:
                    write(piece)
            if written[0] == len(due) and is_whole[0]:
                end()

        written, is_whole = [0], [False]
        for index, line in enumerate(lines):
            due.append(None)
            if world.strikes("ends"):
                code = world.random.choice(("closed", "too_large", "not_leader"))
                world.agenda.after(0.0, self, known, index, error(code, index=index, ends=True))
                break
            if world.strikes("refuses"):
                code = world.random.choice(("overloaded", "bad_range"))
                world.agenda.after(0.0, self, known, index, error(code, index=index))
                continue
            self._take(json.loads(line), lambda result, index=index: known(index, result))
        is_whole[0] = True

    # -- reads

    def value_at(self, key: bytes, version: int) -> bytes | None:
        """The value of a key at a version."""
        found = [value for at, value in self.history.get(key, ()) if at <= version]
        return found[-1] if found else None

    def _shown(self, at: int) -> int:
        late = int(self._world.random.random() * self._world.shape.lag_ms)
        return max(at, self.version - late)

    def _read_several(self, body: dict[str, Any], answer: Answer) -> None:
        self._world.seen["reads that travelled together"] += len(body["items"])
        shown = self._shown(int(str(body.get("at", 0)).partition("@")[0]))
        results: list[dict[str, Any]] = []
        for index, item in enumerate(body["items"]):
            if index and self._world.strikes("ends"):
                break  # the others did not fit
            found = [each for each in self.history.get(b64decode(item["key"]), ()) if each[0] <= shown]
            stored = {"value": b64encode(found[-1][1]).decode(), "version": found[-1][0]} if found else {}
            results.append({"index": index, **stored})
        answer(200, json.dumps({"version": shown, "items": results}).encode())

    def _read(self, path: str, query: str, answer: Answer) -> None:
        asked = parse_qs(query).get("at")
        at = 0 if asked is None else int(asked[0].partition("@")[0])
        text = path.rpartition("/")[2]
        key = b64decode(text + "=" * (-len(text) % 4), altchars=b"-_")
        shown = self._shown(at)
        found = [(version, value) for version, value in self.history.get(key, ()) if version <= shown]
        if not found:
            missing = error("not_found")
            missing["error"]["at"] = shown
            answer(404, json.dumps(missing).encode())
            return
        version, value = found[-1]
        body = {"key": b64encode(key).decode(), "value": b64encode(value).decode(), "version": version, "at": shown}
        answer(200, json.dumps(body).encode())
