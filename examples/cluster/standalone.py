"""A standalone Spark cluster on this machine: a master and two workers, each a process of its own.

The programs come with PySpark, so nothing else is installed. Each worker has an address of its own,
``127.0.0.1`` and ``127.0.0.2``, because Spark starts no copy of a task on the host where the task already is. Linux has
both addresses without set-up.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from holdfast.spark import find_java

WORKERS = {"one": "127.0.0.1", "two": "127.0.0.2"}
STOP_SECONDS = 30
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
    """Start a master and two workers with one core each, which keep their files in ``folder``; the master's URL."""
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
        ("127.0.0.1", [f"{deploy}.master.Master", "--webui-port", "0", "--port", str(port)]),
        *((host, [*worker, str(folder / name), master]) for name, host in WORKERS.items()),
    ]
    with ExitStack() as stack:
        for host, command in commands:
            process = subprocess.Popen(
                [home / "bin" / "spark-class", *command, "--host", host],
                env={**environment, "SPARK_LOCAL_IP": host},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
            )
            stack.callback(_stop, process)
        yield master


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
