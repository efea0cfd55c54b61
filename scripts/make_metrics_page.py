"""Write the page of metrics and log events, ``docs/reference/metrics.md``; ``--check`` compares instead.

The metrics come from ``server/metric_catalogue.py``. The events come from the calls in the source: ``EVENTS`` says what
each means, and an event without a sentence, or a sentence without an event, is an error.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import NamedTuple

from holdfast.server.metric_catalogue import COUNTER, HISTOGRAM, SECTIONS

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "reference" / "metrics.md"
SOURCE = ROOT / "src" / "holdfast"
LOGGERS = frozenset({"log", "_log"})
LEVELS = {name: name for name in ("debug", "info", "warning", "error")} | {"exception": "error"}

EVENTS = {
    "accepting_paused": "no descriptor is free; accepting connections pauses briefly",
    "audit": "an administrative act: a policy set or removed, a step-down, a log level, new tokens or certificates",
    "cannot_serve": "the service ends at its start",
    "clock_accepted": "the log's time follows the wall clock again, confirmed by the store's clock or an operator",
    "clock_contradicted": "at a start the wall clock differs from the store's by over a minute, and is not trusted",
    "clock_stepped": "the wall clock stepped; the log's time follows the boot clock",
    "clock_watch_waits": "the store did not answer whether a step of the clock is accepted; retried",
    "connections_limited": "the limit of open files allows fewer connections than configured",
    "console_ended": "the console of this service has ended; it is started again",
    "console_not_started": "the console could not be started; retried",
    "console_refused": "the options of the console are wrong; the service runs without one",
    "definition_changed": "a store or durable was created, changed or deleted",
    "delivery_stopped": "a durable has too many parked messages and delivers nothing",
    "disk_statistics": "the pages of the message stores on their disk",
    "drain_given_up": "at a stop, commits in flight were not durable in time; their clients ask for the outcome",
    "draining": "the service stops and makes durable what it accepted",
    "durable_statistics": "a durable's backlog and rates",
    "exit_at_once": "a second signal ends the process",
    "followed_leader_ended": "the leader that a standby or reader follows has ended; it looks for the next one",
    "foundation_is_damaged": "a snapshot or checkpoint is damaged or missing; the log may not have its state",
    "foundation_is_whole": "at a start: the last read of the newest snapshot found it whole",
    "foundation_scrub_waits": "the store did not answer the check of snapshots",
    "following": "a read-only service follows the log",
    "following_waits": "the store did not answer a standby or reader; retried",
    "hold_stays_until_it_expires": "the hold of a reader that loaded a snapshot could not be removed",
    "invariant_violated": "a bug: the process ends with exit code 70, nothing acknowledged is lost; please report it",
    "leading": "this process leads the log",
    "lineage_waits": "the ancestors of a forked log could not be read yet",
    "log_damaged": "the log breaks a rule at the named place",
    "log_job_cancelled": "a snapshot or verification was cancelled, or ended with the leadership",
    "log_job_failed": "a snapshot or verification failed",
    "log_verified": "a range of the log was read and is intact",
    "leftovers_stay": "the store did not remove what unfinished creates left; retried every minute",
    "log_truncated": "versions at or below `through` may be removed",
    "look_up_failed": "the log could not be read for the outcome of an old attempt",
    "messages_parked": "messages were delivered too often and wait for a decision",
    "messages_unreadable": "messages of a durable are damaged on the disk",
    "mirror_waits": "a store did not answer a mirror; retried",
    "pipeline_step_failed": "a step of a Spark pipeline failed; retried",
    "pipeline_vacuum_failed": "files that a table no longer names could not be removed",
    "policy_holds_back": "a policy that names a version keeps log older than `retention.warn_after_seconds`",
    "reign_ended": "the leadership ended; `kind` is resigned, deposed, gave_up, damaged or abandoned",
    "reign_over": "the service has stopped leading",
    "reload_refused": "a file of tokens or certificates is wrong; the old ones stay",
    "request failed": "a bug in the handler of a request, answered `internal`; please report it",
    "retention_failed": "a bug ended retention; commits go on",
    "retention_waits": "the store did not answer retention; retried",
    "retention_waits_for_whole_snapshot": "nothing is removed: what the log would begin with is damaged",
    "retention_waits_for_snapshot": "nothing is removed before the log has a verified snapshot",
    "scrub_failed": "a bug ended the scrub; commits go on",
    "scrub_waits": "the store did not answer the scrub; retried",
    "micro_batch_given_up": "a stream skips a micro-batch that was given up by its name",
    "peers_cannot_verify": "standbys will not verify this service's certificate and judge it by its signs",
    "secret_file_open": "other users can read or replace a file with tokens or the TLS key",
    "permissions_without_tokens": "the stores have permissions, and the routes of the log are open to all",
    "segment_unreadable": "a segment cannot be read; the log is read instead, if it goes back that far",
    "segments_not_read": "the table of segments does not answer",
    "segments_of_another_log": "the table of segments belongs to another log and is not used",
    "service_does_not_answer": "a sink waits for the service",
    "token_not_sent": "a job asked no leader to step down: `HOLDFAST_TRUSTED_HOSTS` does not allow its address",
    "no_durable_wants_rows": "rows of a sink were dropped, because no durable wants them",
    "rows_sent": "how many rows of a write a sink has sent",
    "stage_not_removed": "a finished write's staged objects could not be removed; a later write does it",
    "no_durable_wants_verdicts": "verdicts of an ingest were dropped, because no durable wants them",
    "snapshot_begins": "a snapshot is made, and why",
    "snapshot_failed": "no snapshot was made; retried",
    "snapshot_made": "a snapshot was made",
    "snapshots_ended": "a bug ended the schedule of snapshots; commits go on",
    "source_is_not_held": "a copier may not write at its source; it reports if what it needs is removed there",
    "standby_does_not_follow": "a standby cannot answer readers yet",
    "standing_by": "another process leads; this one waits",
    "stays_out": "the log is suspended; this process waits until it goes on",
    "suspended": "this leader resigns, because its log is suspended",
    "suspension_not_read": "the store did not say whether the log is suspended; the leader leads on and looks again",
    "stop_given_up": "the stop took too long and the process exits; nothing acknowledged is lost",
    "stopping": "a signal stops the service",
    "store_did_not_create": "the store did not create the file that protects a log's place",
    "statistics_not_published": "a message of the store `_statistics` was refused; the next one has newer numbers",
    "store_statistics": "a message store's messages and rates",
    "store_not_raced": "no race was run through this endpoint: `holdfast doctor --race`",
    "store_unavailable": "the store does not answer at the start; retried",
    "stores_failed": "the message stores ended; commits go on unless the process ends",
    "stores_held": "another process has the directory of the message stores open",
    "stores_open": "the message stores are open",
    "stores_begin_with_checkpoint": "the local copy of the message stores begins with the newest checkpoint",
    "stores_checkpoint_failed": "no checkpoint of the message stores was made; retried",
    "stores_checkpoint_made": "a checkpoint of the message stores is in the log's store",
    "stores_disk_full": "the disk of the stores' local files is full: publishes are refused, the rest continues",
    "stores_disk_has_room": "the local files are complete again, and publishing continues",
    "stores_do_not_follow": "a standby cannot keep its copy of the message stores up to date; retried",
    "stores_follow_the_log": "a new leader reads what its copy of the message stores lacks; again every five seconds",
    "stores_made_again": "the copy of the message stores is unusable; it is made again from the log",
    "stores_wait_for_disk": "the disk is full, so the message stores are not open yet; retried",
    "stores_up_to_date": "the copy of the message stores has all of the log",
    "subscribers_timed_out": "subscribers sent no heartbeat and were detached",
    "table_types_widen": "columns of a table get wider types",
    "view_has_no_place": "the view's directory is unusable, or its disk is full; the process is started again",
    "temporary_files_unusable": "no temporary directory can be used: snapshots fail, retention waits; set TMPDIR",
    "view_goes_on_in_the_log": "older history could not be read further; the view reads the log",
    "view_in_temporary_directory": "another process keeps the view of this directory; this one builds its own",
    "view_interrupted": "the store did not answer the view; it keeps what it has read and continues there",
    "view_passes_over_snapshot": "the newest snapshot cannot be read; the view reads the log from its beginning",
    "view_process_ended": "the view process ended; it is started again",
    "view_process_lost": "the connection to the view process was lost; it is started again",
    "view_process_not_ended": "the view process could not be ended",
    "view_reads_segments": "the view reads older history from segments",
    "view_reads_snapshot": "the view begins with a snapshot",
    "view_starts_over": "the view's file does not fit the log and is made again",
    "view_stops_at_damage": "the log is damaged after `view_version`; reads of later versions get the damage",
}  # fmt: skip
GIVEN_BY_CALLER = {"retention_failed": "error", "scrub_failed": "error", "snapshots_ended": "error"}
"""Events that ``server/run.py`` names in a variable."""

HEAD = """# Metrics and log events

<!-- made by scripts/make_metrics_page.py -->

`GET /metrics` has every metric in Prometheus' text format. Where the service has tokens it needs the role `read`. A
scrape reads plain numbers in memory: it asks no store and waits for nothing. Counters begin at 0 with the process, or
with its leadership. Below, the parentheses have the kind and the labels. The [dashboard and the
alerts](../how-to/operate/README.md) use these names, which do not change.

"""
EVENTS_HEAD = """## Log events

The service writes its log to standard error, in logfmt or as JSON (`logging.format`). Each line has an event, a level,
a time and the fields in parentheses, and where they apply `error` (the cause), its `code`, and `hint` (the next step).
*Retried* means that the service tries again by itself. No line has a token.

"""
NOT_LISTED = frozenset({"exc_info", "error", "code", "hint"})
"""Fields that the introduction describes."""
MEANING_OF_LEVELS = {
    "error": "Errors: an operator must act",
    "warning": "Warnings: the service goes on",
    "info": "Information: a change of state",
}


class Written(NamedTuple):
    """Where an event is written: its levels and fields."""

    levels: set[str]
    fields: list[str]


def events_of_the_source() -> dict[str, Written]:
    """Every event that a module of the package writes."""
    found: dict[str, Written] = {name: Written({level}, ["exc_info"]) for name, level in GIVEN_BY_CALLER.items()}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=logger), attr=level),
                    args=[ast.Constant(value=str(event)), *_],
                    keywords=keywords,
                ) if logger in LOGGERS and level in LEVELS:
                    written = found.setdefault(event, Written(set(), []))
                    written.levels.add(LEVELS[level])
                    names = [each.arg for each in keywords if each.arg is not None]
                    written.fields.extend(name for name in names if name not in written.fields)
                case _:
                    pass
    return found


def page() -> str:
    """The whole page. Raises: SystemExit for an event without a sentence, and the other way round."""
    parts = [HEAD]
    for title, rows in SECTIONS.items():
        parts.append(f"## {title}\n\n")
        for row in rows:
            kind = "counter" if row.kind is COUNTER else "histogram" if row.kind is HISTOGRAM else "gauge"
            shown = ", ".join([kind, *(f"`{label}`" for label in row.labels)])
            parts.append(f"- `{row.exposed_name}` ({shown}): {row.text}\n")
        parts.append("\n")
    parts.append(EVENTS_HEAD)
    written = events_of_the_source()
    if missing := written.keys() ^ EVENTS.keys():
        sys.exit(f"events of the source and of this script differ: {', '.join(sorted(missing))}")
    if unlisted := [
        event for event, each in written.items() if each.levels not in [{level} for level in MEANING_OF_LEVELS]
    ]:
        sys.exit(f"events with several levels, or one without a list: {', '.join(sorted(unlisted))}")
    for level, meaning in MEANING_OF_LEVELS.items():
        parts.append(f"### {meaning}\n\n")
        for event in (each for each in sorted(EVENTS) if written[each].levels == {level}):
            shown = ", ".join(f"`{field}`" for field in written[event].fields if field not in NOT_LISTED)
            parts.append(f"- `{event}`{f' ({shown})' if shown else ''}: {EVENTS[event]}\n")
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


def main() -> int:
    """Write the page, or compare it."""
    made = page()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(made)
        return 0
    if TARGET.read_text() == made:
        return 0
    print(f"{TARGET.relative_to(ROOT)} is not what scripts/make_metrics_page.py makes", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
