"""Why an ingest refuses to begin or to continue: a micro-batch could be decided twice, or never."""

from __future__ import annotations

from holdfast.errors import Code, InvalidRequest
from holdfast.spark.ingest.numbered_source import NumberedSource, Relation


def older_checkpoint(number: int, newest: int) -> InvalidRequest:
    """For a checkpoint of Spark that is not the newest one of this name."""
    return InvalidRequest(
        "this stream's log is further than its checkpoint, or a micro-batch comes again with other requests",
        code=Code.BAD_CONFIGURATION,
        hint="restore the checkpoint. Without it, offer the requests that have no verdict under another name, with a "
        "new checkpoint: one with a request_id and a read_version is committed once in any case; look for any other "
        "in the log first. A micro-batch that is repeated needs the same requests, without values that are new each "
        "time",
        next_in_checkpoint=number,
        newest_in_log=newest,
    )


def table_ahead(batch: int, written: int) -> InvalidRequest:
    """For a log or a table of verdicts that was put back alone."""
    return InvalidRequest(
        "the table of verdicts has more micro-batches than the log: one of them was put back to an earlier state",
        code=Code.BAD_CONFIGURATION,
        hint="give --to the URL of a new table",
        next_in_log=batch,
        in_table=written,
    )


def another_source(name: str, first: str, given: str) -> InvalidRequest:
    """For a name whose records name another source."""
    return InvalidRequest(
        "the name of this ingest belongs to another source of requests",
        code=Code.BAD_CONFIGURATION,
        hint="if this source is that one under another identity, because a queue lost the file with its id: give "
        "--source-moved (is_moved=True) once, and no other name, which would commit its requests twice. Give a source "
        "with other requests a name of its own",
        name=name,
        source_of_name=first,
        source=given,
    )


def another_name(first: str, source: str) -> InvalidRequest:
    """For a source that belongs to another name, by the records of that name."""
    return InvalidRequest(
        f"the ingest {first!r} has taken requests from this source, so another name would commit them twice",
        code=Code.BAD_CONFIGURATION,
        hint=f"continue with --name {first}, which needs no checkpoint of its own; or give this ingest a source of "
        "its own",
        name=first,
        source=source,
    )


def other_messages(source: NumberedSource, name: str, through: int, time_ms: int, relation: Relation) -> InvalidRequest:
    """For a source that was made again or put back. Another name is safe for the first one only."""
    if relation is Relation.MADE_AGAIN:
        message = (
            "the source has other messages under the numbers that the log has decided: it was deleted and made again"
        )
        hint = "take another name for the new source, and a new checkpoint"
    else:
        message = (
            "the source lacks messages that the log has decided, and has older ones: it was put back to an earlier "
            "state, or lost power before they were on disk"
        )
        hint = (
            "publish the messages that are newer than decided_until_ms again, into a new store or queue, and take "
            "another name for that one. Never take another name for this source: its older messages would be committed "
            "twice"
        )
    return InvalidRequest(
        message,
        code=Code.STORE_REPLACED if relation is Relation.MADE_AGAIN else Code.LOG_MISMATCH,
        hint=hint,
        name=name,
        source=source.identity,
        decided_through=through,
        decided_until_ms=time_ms,
    )
