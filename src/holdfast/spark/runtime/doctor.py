"""Check whether this machine can run Spark jobs on a log: each check has a verdict, what it found, and how to fix it.

A check that cannot run is a finding too: nothing is raised. Only the write check changes anything: it is
the probe of ``objects.probe``, whose objects under ``probe/`` are removed again.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.extras import install_command
from holdfast.objects.port import ObjectStore
from holdfast.objects.probe import clean_up, probe
from holdfast.spark.runtime.session import find_java, require_pandas
from holdfast.spark.runtime.store_thread import with_store

PYTHON_MIN: Final = (3, 11)
SPARK_MIN: Final = (4, 3)
ARROW_MIN: Final = (21,)
GRANT: Final = "grant the right to create and delete objects"
Verdict = Literal["good", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One check: its name, its verdict, what was found, and the next step where there is one."""

    check: str
    verdict: Verdict
    found: str
    mend: str = ""


def diagnose(url: str | None = None, *, writes: bool = False) -> list[Diagnosis]:
    """Check Java, Python, the packages, and with ``url`` the access to a log; ``writes`` also that one can be written.

    Cost: no session is started; with ``url`` a listing, with ``writes`` three more requests.

    >>> [each.check for each in diagnose()][:2]
    ['python', 'java']
    """
    checks = [
        _python(),
        _named("java", find_java),
        _package("pyspark", SPARK_MIN, install_command("spark")),
        _named("pandas", require_pandas),
        _package("pyarrow", ARROW_MIN, 'pip install "pyarrow>=21"'),
        _worker_python(),
    ]
    if url is not None:
        checks.append(_reads(url))
        if writes:
            checks.append(_writes(url))
    return checks


def _python() -> Diagnosis:
    text = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] >= PYTHON_MIN:
        return Diagnosis("python", "good", text)
    return Diagnosis("python", "bad", text, "use Python 3.11 or newer")


def _named(check: str, find: Callable[[], object]) -> Diagnosis:
    try:
        return Diagnosis(check, "good", str(find()))
    except InvalidRequest as error:
        return Diagnosis(check, "bad", error.statement(), error.hint)


def _package(name: str, at_least: tuple[int, ...], fix: str) -> Diagnosis:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Diagnosis(name, "bad", "not installed", fix)
    numbers = tuple(int(part) for part in version.split(".")[: len(at_least)] if part.isdigit())
    if numbers < at_least:
        return Diagnosis(name, "bad", f"{version} is older than {'.'.join(map(str, at_least))}", fix)
    return Diagnosis(name, "good", version)


def _worker_python() -> Diagnosis:
    """Tasks run what ``PYSPARK_PYTHON`` names: with another Python than the driver's Spark refuses every task."""
    named = os.environ.get("PYSPARK_PYTHON")
    if named is None or os.path.realpath(named) == os.path.realpath(sys.executable):
        return Diagnosis("worker python", "good", named or f"{sys.executable} (set by the session)")
    return Diagnosis(
        "worker python",
        "warning",
        f"PYSPARK_PYTHON is {named}, the driver is {sys.executable}",
        f"export PYSPARK_PYTHON={sys.executable}, or install the package there too",
    )


def _reads(url: str) -> Diagnosis:
    try:
        rows = with_store(url, lambda store: store.list("batches/", limit=1))
    except HoldfastError as error:
        fix = error.hint or "check the URL, the network, and the credentials in the environment"
        return Diagnosis("read access", "bad", error.statement(), fix)
    if not rows:
        return Diagnosis("read access", "warning", "the log is empty", f"holdfast log init {url}")
    return Diagnosis("read access", "good", f"newest object {rows[0].key}")


def _writes(url: str) -> Diagnosis:
    try:
        with_store(url, _probe)
    except HoldfastError as error:
        return Diagnosis("write access", "bad", error.statement(), error.hint or GRANT)
    return Diagnosis("write access", "good", "creates only what is absent")


async def _probe(store: ObjectStore) -> None:
    await clean_up(store, await probe(store))
