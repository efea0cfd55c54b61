"""The Spark session and the log lines of one ``holdfast spark`` command.

Owns: what every such command presets, where its log lines go. Does not own: the session's own presets
(``spark_session``), what a command does and prints.

Failure model: as ``session``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

import structlog
from pyspark.sql import SparkSession

from holdfast.spark.runtime.spark_session import session
from holdfast.spark.source.source import HoldfastDataSource

__all__ = ["command_session"]


def command_session(name: str, master: str | None, remote: str | None, conf: Mapping[str, str]) -> SparkSession:
    """A session for the command ``name``; ``conf`` wins over what is preset. Raises: InvalidRequest.

    Log lines of this process go to the standard error from now on: the standard output belongs to ``--json``.
    """
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.LogfmtRenderer(
                key_order=("timestamp", "level", "event"), drop_missing=True, bool_as_flag=False
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    presets = {"spark.sql.session.timeZone": "UTC"}
    if remote is None:
        presets["spark.log.level"] = "ERROR"
    spark = session(f"holdfast {name}", master=master, remote=remote, conf={**presets, **conf})
    if remote is not None:
        # A server of Spark Connect may have been started without this package in sight of its driver.
        spark.dataSource.register(HoldfastDataSource)
    return spark
