"""Start a Spark session that fits this package, and read our own errors out of Spark's.

The session sets presets, finds a Java that Spark runs on, and refuses an unsupported pandas before Spark fails in a
less clear way. Any other session reads ``format("holdfast")`` as well.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import signal
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from holdfast import errors
from holdfast.errors import HoldfastError
from holdfast.spark.runtime.processes import CORES_VARIABLE, cores, cores_of
from holdfast.spark.runtime.refusals import bad_configuration

JAVA_MAJORS: Final = (17, 21)
"""The Javas that Spark 4 runs on, best first."""
PANDAS_MAJOR_MAX: Final = 2
PANDAS_HINT: Final = 'pip install "pandas>=2.2,<3"'
SHUFFLE_PARTITIONS_MAX: Final = 64

_EVERYWHERE: Final[dict[str, str]] = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_LOCAL: Final[dict[str, str]] = {
    # Halves the cost of a small Python task against loopback TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    # A laptop's host name often resolves to an address that is not there.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(
    app_name: str = "holdfast",
    *,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running session, or a new one with this package's presets.

    ``master`` is a Spark master, by default every core of this machine; ``remote`` a Spark Connect address instead.
    ``conf`` is applied last and wins over the presets.

    Raises: InvalidRequest.

    >>> spark = session(master="local[2]")                                      # doctest: +SKIP
    >>> spark.read.format("holdfast").option("url", "file:///var/lib/log")      # doctest: +SKIP
    """
    require_pandas()
    if remote is not None and master is not None:
        raise bad_configuration("a session has a master or a remote address, not both")
    builder = SparkSession.builder.appName(app_name)
    presets = dict(_EVERYWHERE)
    if remote is not None:
        builder = builder.remote(remote)
        if remote.startswith("local"):  # then the server is a process of this machine, too
            _this_python_and_java()
    else:
        master = master if master is not None else "local[*]"
        builder = builder.master(master)
        own_cores = cores_of(master)
        if own_cores is None:
            os.environ.pop(CORES_VARIABLE, None)
        else:
            os.environ[CORES_VARIABLE] = str(own_cores)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            # Spark's 200 shuffle partitions cost seconds on a small machine: two a core instead.
            partitions = min(SHUFFLE_PARTITIONS_MAX, 2 * (own_cores or cores()))
            presets |= {**_LOCAL, "spark.sql.shuffle.partitions": str(partitions)}
        _this_python_and_java()
    for name, value in {**presets, **(conf or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _this_python_and_java() -> None:
    os.environ["JAVA_HOME"] = str(find_java())
    # Tasks must run the interpreter that has this package, not whatever ``python3`` the path names.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def require_pandas() -> str:
    """The version of pandas, when Spark supports it. Raises: InvalidRequest."""
    try:
        version = importlib.metadata.version("pandas")
    except importlib.metadata.PackageNotFoundError:
        raise bad_configuration("Spark's Arrow exchange needs pandas", hint=PANDAS_HINT) from None
    if int(version.split(".")[0]) > PANDAS_MAJOR_MAX:
        message = "Spark 4.3 does not support this pandas yet"
        raise bad_configuration(message, hint=PANDAS_HINT, pandas=version)
    return version


def find_java(environment: Mapping[str, str] | None = None, installed: Path = Path("/usr/lib/jvm")) -> Path:
    """The home of a Java that Spark runs on: from JAVA_HOME, the path, or the system's folder of Javas, in that order.

    Within one of these the first of the fitting majors wins. Raises: InvalidRequest that lists what was found.
    """
    seen: list[str] = []
    for homes in _java_homes(os.environ if environment is None else environment, installed):
        fitting: dict[int, Path] = {}
        for home in homes:
            major = _java_major(home)
            if major is not None:
                seen.append(f"{home} (Java {major})")
                fitting.setdefault(major, home)
        for major in JAVA_MAJORS:
            if major in fitting:
                return fitting[major]
    raise bad_configuration(
        "Spark needs Java 17 or 21 and none was found",
        hint="install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME to it",
        found=", ".join(seen) or "no Java at all",
    )


def _java_homes(environment: Mapping[str, str], installed: Path) -> Iterator[Iterable[Path]]:
    if environment.get("JAVA_HOME"):
        yield [Path(environment["JAVA_HOME"])]
    java = shutil.which("java", path=environment.get("PATH", ""))
    if java is not None:
        yield [Path(java).resolve().parent.parent]
    if installed.is_dir():
        yield sorted(home for home in installed.iterdir() if home.is_dir())


def _java_major(home: Path) -> int | None:
    """The major version that a Java home states in its ``release`` file, if it has a ``java`` to run."""
    release = home / "release"
    if not (home / "bin" / "java").exists() or not release.is_file():
        return None
    stated = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release.read_text(errors="replace"), re.MULTILINE)
    return int(stated[1]) if stated else None


_OURS: Final = re.compile(r"\bholdfast\.errors\.([A-Za-z]+): (.*)$", re.MULTILINE)


@contextmanager
def task_errors() -> Generator[None]:
    """Raise our own error where Spark's exception carries the text of one. Raises: HoldfastError."""
    try:
        yield
    except PySparkException as error:
        ours = _ours(str(error))
        if ours is None:
            raise
        raise ours from error


def _ours(text: str) -> HoldfastError | None:
    for name, message in reversed(_OURS.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, HoldfastError):
            return kind(message)
    return None


# -- a Java that a SIGTERM to the process group of a command does not end -------------------------------------------

_is_starting = False
_is_registered = False


@contextmanager
def java_without_sigterm() -> Generator[None]:
    """Java, if it is started meanwhile, ignores SIGTERM; this process does not.

    The command ends after its current step, and needs Java for the rest of that step. Java then ends with the command.
    A signal that is ignored when a program starts stays ignored, and Java leaves it so.
    """
    global _is_starting, _is_registered
    if not _is_registered:
        os.register_at_fork(after_in_child=_ignore_sigterm)
        _is_registered = True
    _is_starting = True
    try:
        yield
    finally:
        _is_starting = False


def _ignore_sigterm() -> None:
    """In the child, before it runs another program: PySpark starts Java with a ``preexec_fn``, so hooks run."""
    if _is_starting:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
