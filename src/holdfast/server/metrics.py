"""The metrics of a serving process, read at scrape time from plain integers.

A scrape never asks the store, never waits, and works whether or not this process leads.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from holdfast.commit.leadership.takeover import now
from holdfast.commit.metrics import LATENCY_BOUNDS_MS, LatencyBuckets
from holdfast.commit.reading.verify import FOUNDATIONS, Scrub
from holdfast.commit.service import CommitService
from holdfast.objects.budget import LATENCY_BOUNDS_MS as STORE_BOUNDS_MS
from holdfast.objects.budget import StoreMetrics
from holdfast.server.commit.retention_routes import RetentionHost
from holdfast.server.commit.sse import Subscriptions
from holdfast.server.gateway import Gateway
from holdfast.server.http.http_server import HttpServer
from holdfast.server.metric_catalogue import histogram, metric
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.store_metrics import store_metrics
from holdfast.server.view.embedded_view import EmbeddedView
from holdfast.wire.stores import Sample

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def view_lag(durable_version: int, shown: int, *, base: int, before: int) -> int:
    """How many versions a view lacks, without those that the newest change of leader left unused.

    ``base``: the version of this leader's claim. ``before``: that of the last transaction before it. The gaps between
    older leaderships count: a view that is older than they are is late by more than a moment.

    >>> view_lag(1_070, 1_050, base=1_000, before=40), view_lag(1_070, 30, base=1_000, before=40)
    (20, 80)
    """
    if shown >= base:
        return max(0, durable_version - shown)
    return durable_version - base + max(0, before - shown)


SCRAPING_PART: Final = 0.1


class Scrapes:
    """The text of one scrape. While scrapes have taken ``SCRAPING_PART`` of a second, the last text serves the others:
    one takes as long as hundreds of commits, and who may only read may ask for it on a thousand connections."""

    def __init__(self, scrape: Callable[[], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._scrape = scrape
        self._clock = clock
        self._since = -math.inf
        self._taken = 0.0
        self._text = b""

    def __call__(self) -> bytes:
        """The text, at most a second old."""
        began = self._clock()
        if began - self._since >= 1.0:
            self._since, self._taken = began, 0.0
        if self._taken < SCRAPING_PART:
            self._text = self._scrape()
            self._taken += self._clock() - began
        return self._text


class ServerMetrics(Collector):
    """Collects from the parts of one serving process."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.server: HttpServer | None = None
        self.subscriptions: Subscriptions | None = None
        self.store: StoreMetrics | None = None
        self.view: EmbeddedView | None = None
        self.stores: StoreHost | None = None
        self.scrub: Scrub | None = None
        self.retention: RetentionHost | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self.text: Final = Scrapes(lambda: generate_latest(self._registry))
        """The exposition in Prometheus' text format."""

    def samples(self) -> list[Sample]:
        """The same numbers, line by line."""
        return [Sample(one.name, one.labels, one.value) for family in self.collect() for one in family.samples]

    def collect(self) -> Iterator[Metric]:
        """All families, in a fixed order."""
        yield from self._process()
        yield from self._http()
        yield from self._streams()
        service = self._gateway.service
        yield self._refusals(service)
        yield metric("holdfast_leading", 0 if service is None else 1)
        reader = self._gateway.reader
        if reader is not None and service is None:
            yield metric("holdfast_followed_version", reader.local_version())
            written_s = reader.durable_header().time_ms / 1000.0
            yield metric("holdfast_followed_time_seconds", written_s)
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
        yield metric("process_cpu_seconds", cpu)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        processes = {"server": cpu, "ended": ended.ru_utime + ended.ru_stime}
        pid = None if self.view is None else self.view.pid
        if pid is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended
                processes["view"] = _seconds_of(pid)
        yield metric("holdfast_processor_seconds", processes)
        with contextlib.suppress(OSError):  # no descriptor is left
            yield metric("process_resident_memory_bytes", _resident_bytes())

    def _http(self) -> Iterator[Metric]:
        gateway = self._gateway
        counters = gateway.counters
        answers = sorted(counters.answers.items())
        yield metric("holdfast_http_answers", {(route, str(status)): count for (route, status), count in answers})
        yield metric("holdfast_rate_limited_commits", counters.rate_limited_commits)
        yield metric("holdfast_rate_slowed_items", counters.rate_slowed_items)
        if gateway.client_rates is not None:
            yield metric("holdfast_rate_clients", len(gateway.client_rates))
        yield metric("holdfast_stream_items", counters.stream_items)
        yield metric("holdfast_connections_refused", counters.refused_connections)
        yield metric("holdfast_requests_by_framework", counters.framework_requests)
        if self.server is not None:
            yield metric("holdfast_connections", self.server.context.connections)
            yield metric("holdfast_framework_requests", len(self.server.context.tasks))
        yield metric("holdfast_commits_in_flight", gateway.in_flight_commits)
        yield metric("holdfast_commit_bytes_in_flight", gateway.in_flight_bytes)

    def _streams(self) -> Iterator[Metric]:
        subscriptions = self.subscriptions
        if subscriptions is None:
            return
        yield metric("holdfast_subscribers", len(subscriptions.open))
        yield metric("holdfast_subscribers_lagged", subscriptions.lagged)
        yield metric("holdfast_subscription_bytes", subscriptions.bytes_sent)
        yield metric("holdfast_subscriber_unsent_bytes", subscriptions.unsent_bytes_max())

    def _refusals(self, service: CommitService | None) -> Metric:
        """Also while this process does not lead: then it refuses every commit."""
        at_admission = sorted(self._gateway.counters.refused_commits.items())
        in_stages = [] if service is None else sorted(service.metrics.refused.items())
        refusals = {("admission", code): count for code, count in at_admission}
        return metric("holdfast_stage_refusals", refusals | dict(in_stages))

    def _commits(self, service: CommitService) -> Iterator[Metric]:
        metrics = service.metrics
        outcomes = {
            "committed": metrics.committed,
            "conflict": metrics.conflicts,
            "rejected_otherwise": metrics.rejected - metrics.conflicts,
            "other": metrics.other,
        }
        yield metric("holdfast_commits", outcomes)
        yield histogram("holdfast_commit_seconds", _BOUNDS_SECONDS, {(): _in_seconds(metrics.latency)})
        yield metric("holdfast_ownership_checks", metrics.ownership_checks)
        now_ms = now().boot_ms
        service.admission()  # it notices whether the store answers
        yield metric("holdfast_backpressure_seconds", metrics.backpressure.total_ms(now_ms) / 1000)
        yield metric("holdfast_stalls", metrics.stalled.began)
        yield metric("holdfast_stalled_seconds", metrics.stalled.total_ms(now_ms) / 1000)
        decided = metrics.committed + metrics.rejected
        yield metric("holdfast_conflict_ratio", metrics.conflicts / decided if decided else 0.0)

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
        yield metric("holdfast_stage_commits", through)
        depth = {"sequence": pipeline.waiting, "persist": persist.waiting, "store": len(persist.in_flight)}
        yield metric("holdfast_stage_depth", depth)
        yield metric("holdfast_stage_bytes", pipeline.bytes_held())
        waited = {stage: _in_seconds(latency) for stage, latency in service.metrics.waited.items()}
        yield histogram("holdfast_stage_seconds", _BOUNDS_SECONDS, waited)
        yield metric("holdfast_stage_processor_seconds", pipeline.seconds)
        yield metric("holdfast_batches", counters.batches)
        yield metric("holdfast_batch_bytes", counters.bytes)
        first = counters.puts - counters.retries - counters.hedges
        puts = {"first": first, "retry": counters.retries, "hedge": counters.hedges}
        yield metric("holdfast_puts", puts)
        yield metric("holdfast_own_refusals", counters.own_successes)
        moment = service.moment()
        yield metric("holdfast_clock_step_seconds", moment.step_ms / 1000.0)
        yield metric("holdfast_clock_ahead_seconds", moment.ahead_s)
        yield metric("holdfast_assigned_version", pipeline.sequence.assigned)
        yield metric("holdfast_durable_version", release.durable_version)
        lag = persist.durable_slot - persist.head.slot
        yield metric("holdfast_watermark_lag_slots", max(0, lag))
        yield metric("holdfast_window_bytes", resolve.recent.bytes_used())
        yield metric("holdfast_window_seconds", resolve.window_ms(now().boot_ms) / 1000)
        yield metric("holdfast_window_floor_version", resolve.floor)
        damage = {met_by: service.damage.times[met_by] for met_by in ("stream", "status", "view", "scrub", FOUNDATIONS)}
        yield metric("holdfast_log_damage", damage)
        yield metric("holdfast_log_damaged_places", service.damage.places)
        if self.scrub is not None:
            yield metric("holdfast_scrub_objects", self.scrub.objects)
            yield metric("holdfast_scrub_bytes", self.scrub.bytes)
            yield metric("holdfast_scrub_passes", self.scrub.passes)
        yield metric("holdfast_epoch", service.claim.epoch)

    def _view(self, service: CommitService) -> Iterator[Metric]:
        view = self.view
        if view is None or not view.enabled:
            return
        yield metric("holdfast_view_version", view.version)
        yield metric("holdfast_view_retries", view.counts.retries)
        yield metric("holdfast_view_interruptions", view.counts.interruptions)
        base, before = service.claim.last_version, service.claim.prev_version
        lag = view_lag(service.pipeline.release.durable_version, view.version, base=base, before=before)
        yield metric("holdfast_view_lag_versions", lag)

    def _retention(self, service: CommitService) -> Iterator[Metric]:
        truncator = None if self.retention is None else self.retention.truncator
        if truncator is None:
            return
        state = truncator.state
        yield metric("holdfast_truncated_version", service.durable_header().truncated_through)
        yield metric("holdfast_retention_waits", int(state.warning is not None))
        yield metric("holdfast_retention_deleted_objects", state.swept.objects)
        yield metric("holdfast_retention_deleted_bytes", state.swept.bytes)
        for unit in ("seconds", "bytes"):
            held = {name: getattr(kept, unit) for name, kept in sorted(state.kept.items())}
            yield metric(f"holdfast_retention_held_{unit}", held)

    def _store(self, store: StoreMetrics) -> Iterator[Metric]:
        kinds = store.kinds()
        outcomes = {
            (kind, outcome): count
            for kind, counts in kinds.items()
            for outcome, count in sorted(counts.outcomes.items())
        }
        yield metric("holdfast_store_requests", outcomes)
        for name, of_counts in _OF_A_STORE.items():
            yield metric(f"holdfast_store_{name}", {kind: getattr(each, of_counts) for kind, each in kinds.items()})
        latencies = {kind: (each.latency_buckets, each.latency_ms_sum / 1000) for kind, each in kinds.items()}
        yield histogram("holdfast_store_seconds", [bound / 1000 for bound in STORE_BOUNDS_MS], latencies)
        yield metric("holdfast_store_healthy", int(store.is_healthy))


_OF_A_STORE: Final = {
    **{name: name for name in ("retries", "interruptions", "in_flight", "waiting")},
    "bytes": "bytes_moved",
}
"""Metrics of the object store, and the counts that they show."""


_BOUNDS_SECONDS: Final = [bound / 1000 for bound in LATENCY_BOUNDS_MS]


def _in_seconds(latency: LatencyBuckets) -> tuple[Sequence[int], float]:
    return latency.counts, latency.sum_ms / 1000


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * _PAGE_BYTES


def _seconds_of(pid: int) -> float:
    """The processor time of another process. Raises: OSError, ValueError."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        # The name, in parentheses, may hold spaces; the 12th and 13th field after it are ticks.
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
