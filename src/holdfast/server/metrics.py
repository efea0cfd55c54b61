"""The metrics of a serving process, read at scrape time from plain integers.

A scrape never asks the store, never waits, and works whether or not this process leads.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.commit.metrics import LATENCY_BOUNDS_MS
from holdfast.commit.reading.verify import Scrub
from holdfast.commit.service import CommitService
from holdfast.objects.budget import LATENCY_BOUNDS_MS as STORE_BOUNDS_MS
from holdfast.objects.budget import StoreMetrics
from holdfast.server.commit.retention_routes import RetentionHost
from holdfast.server.commit.sse import Subscriptions
from holdfast.server.gateway import Gateway
from holdfast.server.http.http_server import HttpServer
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.store_metrics import cumulative_buckets, store_metrics
from holdfast.server.view.embedded_view import EmbeddedView

_counter: Final = CounterMetricFamily
_gauge: Final = GaugeMetricFamily
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class ServerMetrics(Collector):
    """Collects from the parts of one serving process. ``service`` is None while it does not lead."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.server: HttpServer | None = None
        self.subscriptions: Subscriptions | None = None
        self.service: CommitService | None = None
        self.store: StoreMetrics | None = None
        self.view: EmbeddedView | None = None
        self.stores: StoreHost | None = None
        self.scrub: Scrub | None = None
        self.retention: RetentionHost | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All families, in a fixed order."""
        yield from self._process()
        yield from self._http()
        yield from self._streams()
        service = self.service
        yield _gauge("holdfast_leading", "1 while this process leads the log", 0 if service is None else 1)
        reader = self._gateway.reader
        if reader is not None and service is None:
            yield _gauge("holdfast_followed_version", "The newest version of the followed log", reader.local_version())
            written_s = reader.durable_header().time_ms / 1000.0
            yield _gauge("holdfast_followed_time_seconds", "When the newest object of that log was written", written_s)
        if service is not None:
            yield from self._commits(service)
            yield from self._stages(service)
            yield from self._view(service)
            yield from self._retention(service)
        if self.store is not None:
            yield from self._store(self.store)
        if self.stores is not None:
            yield from store_metrics(self.stores)

    def _process(self) -> Iterator[Metric]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu = usage.ru_utime + usage.ru_stime
        yield _counter("process_cpu_seconds", "CPU time of this process in seconds", cpu)
        with contextlib.suppress(OSError):  # no descriptor is left
            yield _gauge("process_resident_memory_bytes", "Resident memory of this process", _resident_bytes())

    def _http(self) -> Iterator[Metric]:
        gateway = self._gateway
        counters = gateway.counters
        answers = CounterMetricFamily(
            "holdfast_http_answers", "Answers by route and status", labels=["route", "status"]
        )
        for (route, status), count in sorted(counters.answers.items()):
            answers.add_metric([route, str(status)], count)
        yield answers
        yield _counter(
            "holdfast_rate_limited_commits",
            "Commits refused: over their client's own limit",
            counters.rate_limited_commits,
        )
        yield _counter(
            "holdfast_rate_slowed_items", "Items of commit streams that waited for it", counters.rate_slowed_items
        )
        if gateway.client_rates is not None:
            yield _gauge("holdfast_rate_clients", "Clients whose rate is remembered", len(gateway.client_rates))
        yield _counter("holdfast_stream_items", "Items of commit streams taken in", counters.stream_items)
        yield _counter("holdfast_connections_refused", "Connections above the limit", counters.refused_connections)
        yield _counter(
            "holdfast_connections_handed_over", "Connections moved to the framework", counters.handed_over_connections
        )
        if self.server is not None:
            yield _gauge("holdfast_connections", "Open connections", self.server.context.connections)
            yield _gauge(
                "holdfast_framework_requests", "Requests the framework serves", self.server.framework.running()
            )
        yield _gauge("holdfast_commits_in_flight", "Commits taken in and not answered", gateway.in_flight_commits)
        yield _gauge("holdfast_commit_bytes_in_flight", "Their request bodies in bytes", gateway.in_flight_bytes)

    def _streams(self) -> Iterator[Metric]:
        subscriptions = self.subscriptions
        if subscriptions is None:
            return
        yield _gauge("holdfast_subscribers", "Open subscriptions", len(subscriptions.open))
        yield _counter("holdfast_subscribers_lagged", "Subscriptions closed for lagging", subscriptions.lagged)
        yield _counter("holdfast_subscription_bytes", "Bytes of events written", subscriptions.bytes_sent)
        yield _gauge(
            "holdfast_subscriber_unsent_bytes", "Unsent bytes of the slowest reader", subscriptions.unsent_bytes_max()
        )

    def _commits(self, service: CommitService) -> Iterator[Metric]:
        metrics = service.metrics
        outcomes = {
            "committed": metrics.committed,
            "conflict": metrics.conflicts,
            "rejected_otherwise": metrics.rejected - metrics.conflicts,
            "other": metrics.other,
        }
        yield _labelled(CounterMetricFamily, "holdfast_commits", "Commits by outcome", "outcome", outcomes)
        yield _histogram(
            "holdfast_commit_seconds",
            "From arrival in the pipeline to the answer",
            [bound / 1000 for bound in LATENCY_BOUNDS_MS],
            metrics.latency_counts,
            metrics.latency_sum_ms / 1000,
        )
        decided = metrics.committed + metrics.rejected
        yield _gauge(
            "holdfast_conflict_ratio", "Conflicts per decided commit", metrics.conflicts / decided if decided else 0.0
        )

    def _stages(self, service: CommitService) -> Iterator[Metric]:
        pipeline = service.pipeline
        resolve, persist, release = pipeline.resolve, pipeline.persist, pipeline.release
        counters = persist.counters
        through = {
            "sequence": pipeline.sequence.assigned - service.claim.last_version,
            "resolve": resolve.accepted + resolve.rejected,
            "persist": counters.transactions,
            "release": release.released,
        }
        yield _labelled(CounterMetricFamily, "holdfast_stage_commits", "Commits through a stage", "stage", through)
        depth = {"sequence": pipeline.waiting, "persist": persist.waiting, "store": len(persist.in_flight)}
        yield _labelled(GaugeMetricFamily, "holdfast_stage_depth", "What waits in a stage", "stage", depth)
        yield _counter("holdfast_batches", "Batches made", counters.batches)
        yield _counter("holdfast_batch_bytes", "Bytes of batches made", counters.bytes)
        first = counters.puts - counters.retries - counters.hedges
        puts = {"first": first, "retry": counters.retries, "hedge": counters.hedges}
        yield _labelled(CounterMetricFamily, "holdfast_puts", "PUTs of batches by reason", "reason", puts)
        yield _counter(
            "holdfast_own_refusals", "Refused PUTs that were this leader's own earlier ones", counters.own_successes
        )
        yield _gauge("holdfast_assigned_version", "The newest version handed out", pipeline.sequence.assigned)
        yield _gauge("holdfast_durable_version", "The newest durable version", release.durable_version)
        lag = persist.durable_slot - persist.head.slot
        yield _gauge("holdfast_watermark_lag_slots", "Slots sent and not durable", max(0, lag))
        yield _gauge("holdfast_window_bytes", "Memory of the conflict window", resolve.recent.bytes_used())
        yield _gauge("holdfast_window_floor_version", "The oldest version that can be judged", resolve.floor)
        damage = {met_by: service.damage.times[met_by] for met_by in ("stream", "status", "view", "scrub")}
        text = "Times that damage was met in the log, by what met it"
        yield _labelled(CounterMetricFamily, "holdfast_log_damage", text, "met_by", damage)
        yield _gauge("holdfast_log_damaged_places", "Damaged places of the log that are known", service.damage.places)
        if self.scrub is not None:
            yield _counter("holdfast_scrub_objects", "Objects of the log that were read again", self.scrub.objects)
            yield _counter("holdfast_scrub_bytes", "Their bytes", self.scrub.bytes)
            yield _counter("holdfast_scrub_passes", "Passes over the whole log", self.scrub.passes)
        yield _gauge("holdfast_epoch", "Leader changes of this log", service.claim.epoch)

    def _view(self, service: CommitService) -> Iterator[Metric]:
        view = self.view
        if view is None or not view.enabled:
            return
        lag = service.pipeline.release.durable_version - view.version
        yield _gauge("holdfast_view_version", "The embedded view shows everything up to here; 0, none", view.version)
        yield _gauge("holdfast_view_lag_versions", "Durable versions that the view does not show yet", max(0, lag))

    def _retention(self, service: CommitService) -> Iterator[Metric]:
        truncator = None if self.retention is None else self.retention.truncator
        if truncator is None:
            return
        state = truncator.state
        yield _gauge(
            "holdfast_truncated_version",
            "Versions at or below this one may have been removed; 0, none",
            service.durable_header().truncated_through,
        )
        yield _gauge("holdfast_retention_waits", "1 while no object may be removed", int(state.warning is not None))
        yield _counter("holdfast_retention_deleted_objects", "Objects that retention removed", state.swept.objects)
        yield _counter("holdfast_retention_deleted_bytes", "Their bytes", state.swept.bytes)
        held = {name: kept.seconds for name, kept in sorted(state.kept.items())}
        text = "Age of the log that a policy keeps"
        yield _labelled(GaugeMetricFamily, "holdfast_retention_held_seconds", text, "policy", held)

    def _store(self, store: StoreMetrics) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "holdfast_store_requests", "Requests to the object store", labels=["kind", "outcome"]
        )
        retries = CounterMetricFamily("holdfast_store_retries", "Reads and listings sent again", labels=["kind"])
        moved = CounterMetricFamily("holdfast_store_bytes", "Bytes sent and received", labels=["kind"])
        in_flight = GaugeMetricFamily("holdfast_store_in_flight", "Requests under way", labels=["kind"])
        waiting = GaugeMetricFamily("holdfast_store_waiting", "Requests that wait for a connection", labels=["kind"])
        seconds = HistogramMetricFamily("holdfast_store_seconds", "From sending to the answer", labels=["kind"])
        bounds = [bound / 1000 for bound in STORE_BOUNDS_MS]
        for kind, counts in store.kinds().items():
            for outcome, count in sorted(counts.outcomes.items()):
                requests.add_metric([kind, outcome], count)
            retries.add_metric([kind], counts.retries)
            moved.add_metric([kind], counts.bytes_moved)
            in_flight.add_metric([kind], counts.in_flight)
            waiting.add_metric([kind], counts.waiting)
            seconds.add_metric([kind], cumulative_buckets(bounds, counts.latency_buckets), counts.latency_ms_sum / 1000)
        yield from (requests, retries, moved, in_flight, waiting, seconds)
        yield _gauge("holdfast_store_healthy", "1 unless the last few requests all failed", int(store.is_healthy))


def _labelled(
    kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, text: str, label: str, values: Mapping[str, float]
) -> Metric:
    family = kind(name, text, labels=[label])
    for value_of_label, value in values.items():
        family.add_metric([value_of_label], value)
    return family


def _histogram(name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> Metric:
    family = HistogramMetricFamily(name, text)
    family.add_metric([], cumulative_buckets(bounds, counts), total)
    return family


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * _PAGE_BYTES
