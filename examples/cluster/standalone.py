"""A standalone Spark cluster on this machine: a master and two workers, each a process of its own.

The programs come with PySpark, so nothing else is installed. Each worker has an address of its own,
``127.0.0.1`` and ``127.0.0.2``, because Spark starts no copy of a task on the host where the task already is. Linux has
both addresses without set-up.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread, main_thread

import pyspark

from holdfast.spark import find_java

WORKERS = {"one": "127.0.0.1", "two": "127.0.0.2"}
STOP_SECONDS = 30
POLL_SECONDS = 0.2
LINES_SHOWN = 30
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.memory": "512m",
    # Nothing runs before both workers are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}
"""What a session needs to find this cluster. On another one the addresses and the memory are its own."""


@contextmanager
def standalone_cluster(folder: Path, java_options: str = "") -> Iterator[str]:
    """Start a master and two workers with one core each, which keep their files in ``folder``; the master's URL.

    Their errors are shown. Raises: MemberDied when one of them ends by itself.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = Path(pyspark.__file__).parent
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "JAVA_HOME": str(find_java()),
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": java_options,
    }
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    worker = [f"{deploy}.worker.Worker", "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir"]
    commands = [
        ("master", "127.0.0.1", [f"{deploy}.master.Master", "--webui-port", "0", "--port", str(port)]),
        *((name, host, [*worker, str(folder / name), master]) for name, host in WORKERS.items()),
    ]
    with ExitStack() as stack:
        members = [
            Member(
                name,
                [str(home / "bin" / "spark-class"), *command, "--host", host],
                {**environment, "SPARK_LOCAL_IP": host},
                folder,
            )
            for name, host, command in commands
        ]
        stack.enter_context(watched(members))
        yield master


class MemberDied(RuntimeError):
    """A process of the cluster has ended by itself. The message has the last lines of its log."""


class Member:
    """A process of the cluster, started at once. What it prints is in ``folder / "{name}.log"``."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._shown = 0
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command, env=dict(environment), stdout=output, stderr=subprocess.STDOUT, cwd=folder
            )

    def show_errors(self) -> None:
        """Print the lines with ERROR that are new since the last call. A line that is not whole waits."""
        with self.log.open("rb") as log:
            log.seek(self._shown)
            lines = log.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._shown += len(line)
            if b" ERROR " in line:
                print(f"{self.name}: {line.decode(errors='replace').rstrip()}", file=sys.stderr)

    def last_lines(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LINES_SHOWN:])

    def stop(self) -> None:
        """End the process, and wait until it has ended."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def watched(members: Sequence[Member]) -> Iterator[None]:
    """Show the errors of these processes, and stop them at the end.

    Called in the main thread. Raises: MemberDied there, also out of a call that waits for the cluster, when a process
    ends by itself.
    """
    stopping = Event()
    dead: list[Member] = []

    def watch() -> None:
        while not stopping.wait(POLL_SECONDS):
            for member in members:
                member.show_errors()
                if member.process.poll() is not None and not stopping.is_set():
                    dead.append(member)
                    # A signal to the thread itself ends its wait for Java; Python's own interrupt would not.
                    signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
                    return

    watcher = Thread(target=watch, name="cluster-watch", daemon=True)
    watcher.start()
    try:
        yield
    except BaseException as error:
        if not dead:
            raise
        (member,) = dead
        raise MemberDied(
            f"{member.name} ended with exit code {member.process.returncode}; its log ends with:\n{member.last_lines()}"
        ) from error
    finally:
        stopping.set()
        watcher.join()
        for member in members:
            member.show_errors()  # before the end: a process that is stopped calls that an error
            member.stop()
