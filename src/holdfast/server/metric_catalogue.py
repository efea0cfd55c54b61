"""Every metric of the service, in one table: ``/metrics`` takes kind, text and labels from it, and so does the page of
metrics in the reference. A name is written here once, without the ``_total`` of counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

Labels = TypeVar("Labels", bound=str | tuple[str, ...])
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
GAUGE: Final = GaugeMetricFamily
COUNTER: Final = CounterMetricFamily
HISTOGRAM: Final = HistogramMetricFamily


@dataclass(frozen=True, slots=True)
class Described:
    """One metric. ``kind`` is the class of its family."""

    name: str
    kind: type[Family]
    text: str
    labels: tuple[str, ...] = ()

    @property
    def exposed_name(self) -> str:
        """The name as it is scraped."""
        return self.name + "_total" if self.kind is COUNTER else self.name


def _of_stores() -> tuple[Described, ...]:
    label = ("store",)
    rows = (
        ("messages", GAUGE, "Messages kept"),
        ("bytes", GAUGE, "Bytes of keys, fields and bodies kept"),
        ("durables", GAUGE, "Durables"),
        ("publishers", GAUGE, "Publishers remembered"),
        ("published", COUNTER, "Messages accepted"),
        ("unmatched", COUNTER, "Messages that no durable wanted"),
        ("swapped_messages", GAUGE, "Messages swapped to disk"),
        ("swapped_bytes", GAUGE, "Bytes of their bodies"),
        ("publish_seconds", HISTOGRAM, "From the request to its confirmation"),
        ("confirmed", COUNTER, "Messages confirmed to publishers"),
        ("publishes_refused", COUNTER, "Publishes refused"),
        ("used_fraction", GAUGE, "Used of its nearest limit of messages or bytes; 1 is full, 0 without a limit"),
    )
    return tuple(Described(f"holdfast_message_store_{name}", kind, text, label) for name, kind, text in rows)


def _of_durables() -> tuple[Described, ...]:
    labels = ("store", "durable")
    rows = (
        ("messages", GAUGE, "Messages kept that are not acknowledged"),
        ("bytes", GAUGE, "Their bytes"),
        ("backlog", GAUGE, "Messages that nobody holds"),
        ("unacknowledged", GAUGE, "Messages that subscribers hold"),
        ("parked", GAUGE, "Messages that were delivered too often and wait to be put back"),
        ("subscribers", GAUGE, "Subscribers attached"),
        ("oldest_timestamp_seconds", GAUGE, "When the oldest waiting message was published; 0 for none"),
        ("delivered", COUNTER, "Messages delivered, again ones too"),
        ("redelivered", COUNTER, "Messages delivered again"),
        ("acknowledged", COUNTER, "Messages acknowledged"),
        ("ack_wait_lapsed", COUNTER, "Messages taken back because nobody acknowledged them in time"),
        ("dead_letters", COUNTER, "Messages moved to the dead-letter store"),
        ("unreadable", COUNTER, "Deliveries ended by a message that cannot be read"),
    )
    return (
        *(Described(f"holdfast_durable_{name}", kind, text, labels) for name, kind, text in rows),
        Described("holdfast_durable_expired", COUNTER, "Messages lost, by cause", (*labels, "cause")),
        Described("holdfast_durables_without_metrics", GAUGE, "Durables without lines of their own"),
    )


def _of_the_store_cluster() -> tuple[Described, ...]:
    rows = (
        ("open", GAUGE, "1 while this process serves stores; 0 also while they are suspended"),
        ("used_fraction", GAUGE, "Used of the nearest limit of all stores together; 1 is full, 0 without a limit"),
        ("log_allocated_bytes", GAUGE, "Bytes of the pages of the log"),
        ("log_in_use_bytes", GAUGE, "About what kept messages take of it"),
        ("log_pages", GAUGE, "Pages of the log"),
        ("written_bytes", COUNTER, "Bytes of records written to the log"),
        ("clock_behind_seconds", GAUGE,
         "The machine's time of day less the stores' time, by which deadlines end"),
        ("disk_used_bytes", GAUGE, "Used of the file system, by everybody"),
        ("disk_capacity_bytes", GAUGE, "What can be used of it"),
        ("disk_limit_bytes", GAUGE, "Above it publishes are refused; 0 for off"),
        ("kept_back_bytes", GAUGE, "What the log has and the local files lack: their disk is full, or they are copied"),
    )  # fmt: skip
    return (
        *(Described(f"holdfast_message_stores_{name}", kind, text) for name, kind, text in rows),
        Described("holdfast_message_store_sockets", GAUGE, "WebSockets of subscribers"),
    )


SECTIONS: Final[Mapping[str, Sequence[Described]]] = {
    "The process": (
        Described("process_cpu_seconds", COUNTER, "CPU time of this process in seconds"),
        Described("process_resident_memory_bytes", GAUGE, "Resident memory of this process"),
        Described(
            "holdfast_processor_seconds",
            COUNTER,
            "Processor time: of the server, of its view process, and of its processes that have ended",
            ("process",),
        ),
    ),
    "HTTP": (
        Described("holdfast_http_answers", COUNTER, "Answers by route and status", ("route", "status")),
        Described("holdfast_rate_limited_commits", COUNTER, "Commits refused: over their client's own limit"),
        Described("holdfast_rate_slowed_items", COUNTER, "Items of commit streams that waited for it"),
        Described("holdfast_rate_clients", GAUGE, "Clients whose rate is remembered"),
        Described("holdfast_stream_items", COUNTER, "Items of commit streams taken in"),
        Described("holdfast_connections_refused", COUNTER, "Connections above the limit"),
        Described("holdfast_requests_by_framework", COUNTER, "Requests that the framework has served"),
        Described("holdfast_connections", GAUGE, "Open connections"),
        Described("holdfast_framework_requests", GAUGE, "Requests the framework serves"),
        Described("holdfast_commits_in_flight", GAUGE, "Commits taken in and not answered"),
        Described("holdfast_commit_bytes_in_flight", GAUGE, "Their request bodies in bytes"),
    ),
    "Streams": (
        Described("holdfast_subscribers", GAUGE, "Open subscriptions"),
        Described("holdfast_subscribers_lagged", COUNTER, "Subscriptions closed for lagging"),
        Described("holdfast_subscription_bytes", COUNTER, "Bytes of events written"),
        Described("holdfast_subscriber_unsent_bytes", GAUGE, "Unsent bytes of the slowest reader"),
    ),
    "Leadership": (
        Described("holdfast_leading", GAUGE, "1 while this process leads the log"),
        Described("holdfast_epoch", GAUGE, "Leader changes of this log"),
        Described("holdfast_ownership_checks", COUNTER, "Times that the store was asked who leads", ("outcome",)),
        Described("holdfast_followed_version", GAUGE, "The newest version of the followed log"),
        Described("holdfast_followed_time_seconds", GAUGE, "When the newest object of that log was written"),
    ),
    "Commits and stages": (
        Described("holdfast_commits", COUNTER, "Commits by outcome", ("outcome",)),
        Described("holdfast_commit_seconds", HISTOGRAM, "From arrival in the pipeline to the answer"),
        Described("holdfast_conflict_ratio", GAUGE, "Conflicts per decided commit"),
        Described(
            "holdfast_stage_refusals",
            COUNTER,
            "Commits that were not committed, by the stage that refused them and by reason; `admission` stands before "
            "the stages",
            ("stage", "code"),
        ),
        Described("holdfast_stage_commits", COUNTER, "Commits through a stage", ("stage",)),
        Described("holdfast_stage_depth", GAUGE, "What waits in a stage", ("stage",)),
        Described("holdfast_stage_bytes", GAUGE, "Memory of what a stage holds and remembers", ("stage",)),
        Described(
            "holdfast_stage_seconds",
            HISTOGRAM,
            "resolve: from the arrival of a step's oldest commit to the decision; persist: from the forming of a batch "
            "until it is durable",
            ("stage",),
        ),
        Described("holdfast_stage_processor_seconds", COUNTER, "Time that a stage has computed", ("stage",)),
        Described("holdfast_backpressure_seconds", COUNTER, "Time in which commits waited because a bound was reached"),
        Described("holdfast_stalls", COUNTER, "Times that the store did not answer for `commit.stalled_after_seconds`"),
        Described("holdfast_stalled_seconds", COUNTER, "How long it did not, after that"),
        Described("holdfast_batches", COUNTER, "Batches made"),
        Described("holdfast_batch_bytes", COUNTER, "Bytes of batches made"),
        Described("holdfast_puts", COUNTER, "PUTs of batches by reason", ("reason",)),
        Described("holdfast_own_refusals", COUNTER, "Refused PUTs that were this leader's own earlier ones"),
        Described(
            "holdfast_clock_step_seconds",
            GAUGE,
            "By how much the wall clock has stepped and is not followed; 0, it is believed",
        ),
        Described("holdfast_clock_ahead_seconds", GAUGE, "The wall clock less the log's time"),
        Described("holdfast_assigned_version", GAUGE, "The newest version handed out"),
        Described("holdfast_durable_version", GAUGE, "The newest durable version"),
        Described("holdfast_watermark_lag_slots", GAUGE, "Slots sent and not durable"),
        Described("holdfast_window_bytes", GAUGE, "Memory of the conflict window"),
        Described("holdfast_window_seconds", GAUGE, "How far back the conflict window reaches"),
        Described("holdfast_window_floor_version", GAUGE, "The oldest version that can be judged"),
    ),
    "The log": (
        Described("holdfast_log_damage", COUNTER, "Times that damage was met in the log, by what met it", ("met_by",)),
        Described("holdfast_log_damaged_places", GAUGE, "Damaged places of the log that are known"),
        Described("holdfast_scrub_objects", COUNTER, "Objects of the log that were read again"),
        Described("holdfast_scrub_bytes", COUNTER, "Their bytes"),
        Described("holdfast_scrub_passes", COUNTER, "Passes over the whole log"),
        Described("holdfast_truncated_version", GAUGE, "Versions at or below this one may have been removed; 0, none"),
        Described("holdfast_retention_waits", GAUGE, "1 while no object may be removed"),
        Described("holdfast_retention_deleted_objects", COUNTER, "Objects that retention removed"),
        Described("holdfast_retention_deleted_bytes", COUNTER, "Their bytes"),
        Described("holdfast_retention_held_seconds", GAUGE, "Age of the log that a policy keeps", ("policy",)),
        Described("holdfast_retention_held_bytes", GAUGE, "Bytes of the log that a policy keeps", ("policy",)),
    ),
    "The view": (
        Described("holdfast_view_version", GAUGE, "The embedded view shows everything up to here; 0, none"),
        Described(
            "holdfast_view_lag_versions",
            GAUGE,
            "Durable versions that the view lacks; not those a new leader left unused",
        ),
        Described("holdfast_view_retries", COUNTER, "Reads of the view's process sent again"),
        Described(
            "holdfast_view_interruptions",
            COUNTER,
            "Reads of the view's process that failed after their last attempt; it keeps what it has read",
        ),
    ),
    "The object store": (
        Described("holdfast_store_requests", COUNTER, "Requests to the object store", ("kind", "outcome")),
        Described("holdfast_store_retries", COUNTER, "Reads, listings and deletes sent again", ("kind",)),
        Described(
            "holdfast_store_interruptions",
            COUNTER,
            "Reads, listings and deletes that failed after their last attempt",
            ("kind",),
        ),
        Described("holdfast_store_bytes", COUNTER, "Bytes sent and received", ("kind",)),
        Described("holdfast_store_in_flight", GAUGE, "Requests under way", ("kind",)),
        Described("holdfast_store_waiting", GAUGE, "Requests that wait for a connection", ("kind",)),
        Described("holdfast_store_seconds", HISTOGRAM, "From sending to the answer", ("kind",)),
        Described("holdfast_store_healthy", GAUGE, "1 unless the last few requests all failed"),
    ),
    "Message stores": _of_the_store_cluster(),
    "Each message store": _of_stores(),
    "Each durable": _of_durables(),
}

BY_NAME: Final = {each.name: each for rows in SECTIONS.values() for each in rows}


def metric(name: str, values: float | Mapping[Labels, float]) -> Family:
    """A counter or gauge: its value, or its values by its one label, or by all of its labels in their order."""
    described = BY_NAME[name]
    assert described.kind is not HISTOGRAM, name
    family = described.kind(name, described.text, labels=described.labels)
    for labels, value in values.items() if isinstance(values, Mapping) else (((), values),):
        family.add_metric([labels] if isinstance(labels, str) else labels, value)  # type: ignore[arg-type, call-arg]
    return family


def histogram(
    name: str, bounds: Sequence[float], values: Mapping[Labels, tuple[Sequence[int], float]]
) -> HistogramMetricFamily:
    """A histogram, by its labels: the plain count up to each bound and above the last one, and the sum."""
    described = BY_NAME[name]
    assert described.kind is HISTOGRAM, name
    family = HistogramMetricFamily(name, described.text, labels=described.labels)
    names = [*map(repr, bounds), "+Inf"]
    for labels, (counts, total) in values.items():
        buckets: list[tuple[str, float]] = list(zip(names, accumulate(counts), strict=True))
        family.add_metric([labels] if isinstance(labels, str) else labels, buckets, total)
    return family
