"""The metrics of a serving process, read at scrape time from plain integers.

A scrape never asks the store, never waits, and works whether or not this process leads.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import time
from collections.abc import Callable, Iterator
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
from holdfast.server.metric_catalogue import by_label, counter, cumulative_buckets, gauge, histogram, labelled
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
        yield gauge("holdfast_leading", 0 if service is None else 1)
        reader = self._gateway.reader
        if reader is not None and service is None:
            yield gauge("holdfast_followed_version", reader.local_version())
            written_s = reader.durable_header().time_ms / 1000.0
            yield gauge("holdfast_followed_time_seconds", written_s)
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
        yield counter("process_cpu_seconds", cpu)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        processes = {"server": cpu, "ended": ended.ru_utime + ended.ru_stime}
        pid = None if self.view is None else self.view.pid
        if pid is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended
                processes["view"] = _seconds_of(pid)
        yield by_label("holdfast_processor_seconds", processes)
        with contextlib.suppress(OSError):  # no descriptor is left
            yield gauge("process_resident_memory_bytes", _resident_bytes())

    def _http(self) -> Iterator[Metric]:
        gateway = self._gateway
        counters = gateway.counters
        answers = labelled("holdfast_http_answers")
        for (route, status), count in sorted(counters.answers.items()):
            answers.add_metric([route, str(status)], count)
        yield answers
        yield counter("holdfast_rate_limited_commits", counters.rate_limited_commits)
        yield counter("holdfast_rate_slowed_items", counters.rate_slowed_items)
        if gateway.client_rates is not None:
            yield gauge("holdfast_rate_clients", len(gateway.client_rates))
        yield counter("holdfast_stream_items", counters.stream_items)
        yield counter("holdfast_connections_refused", counters.refused_connections)
        yield counter("holdfast_requests_by_framework", counters.framework_requests)
        if self.server is not None:
            yield gauge("holdfast_connections", self.server.context.connections)
            yield gauge("holdfast_framework_requests", len(self.server.context.tasks))
        yield gauge("holdfast_commits_in_flight", gateway.in_flight_commits)
        yield gauge("holdfast_commit_bytes_in_flight", gateway.in_flight_bytes)

    def _streams(self) -> Iterator[Metric]:
        subscriptions = self.subscriptions
        if subscriptions is None:
            return
        yield gauge("holdfast_subscribers", len(subscriptions.open))
        yield counter("holdfast_subscribers_lagged", subscriptions.lagged)
        yield counter("holdfast_subscription_bytes", subscriptions.bytes_sent)
        yield gauge("holdfast_subscriber_unsent_bytes", subscriptions.unsent_bytes_max())

    def _refusals(self, service: CommitService | None) -> Metric:
        """Also while this process does not lead: then it refuses every commit."""
        refusals = labelled("holdfast_stage_refusals")
        for code, count in sorted(self._gateway.counters.refused_commits.items()):
            refusals.add_metric(["admission", code], count)
        for (stage, code), count in [] if service is None else sorted(service.metrics.refused.items()):
            refusals.add_metric([stage, code], count)
        return refusals

    def _commits(self, service: CommitService) -> Iterator[Metric]:
        metrics = service.metrics
        outcomes = {
            "committed": metrics.committed,
            "conflict": metrics.conflicts,
            "rejected_otherwise": metrics.rejected - metrics.conflicts,
            "other": metrics.other,
        }
        yield by_label("holdfast_commits", outcomes)
        seconds = histogram("holdfast_commit_seconds")
        seconds.add_metric([], *_buckets(metrics.latency))
        yield seconds
        yield by_label("holdfast_ownership_checks", metrics.ownership_checks)
        now_ms = now().boot_ms
        service.admission()  # it notices whether the store answers
        yield counter("holdfast_backpressure_seconds", metrics.backpressure.total_ms(now_ms) / 1000)
        yield counter("holdfast_stalls", metrics.stalled.began)
        yield counter("holdfast_stalled_seconds", metrics.stalled.total_ms(now_ms) / 1000)
        decided = metrics.committed + metrics.rejected
        yield gauge("holdfast_conflict_ratio", metrics.conflicts / decided if decided else 0.0)

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
        yield by_label("holdfast_stage_commits", through)
        depth = {"sequence": pipeline.waiting, "persist": persist.waiting, "store": len(persist.in_flight)}
        yield by_label("holdfast_stage_depth", depth)
        yield by_label("holdfast_stage_bytes", pipeline.bytes_held())
        waited = histogram("holdfast_stage_seconds")
        for stage, latency in service.metrics.waited.items():
            waited.add_metric([stage], *_buckets(latency))
        yield waited
        yield by_label("holdfast_stage_processor_seconds", pipeline.seconds)
        yield counter("holdfast_batches", counters.batches)
        yield counter("holdfast_batch_bytes", counters.bytes)
        first = counters.puts - counters.retries - counters.hedges
        puts = {"first": first, "retry": counters.retries, "hedge": counters.hedges}
        yield by_label("holdfast_puts", puts)
        yield counter("holdfast_own_refusals", counters.own_successes)
        moment = service.moment()
        yield gauge("holdfast_clock_step_seconds", moment.step_ms / 1000.0)
        yield gauge("holdfast_clock_ahead_seconds", moment.ahead_s)
        yield gauge("holdfast_assigned_version", pipeline.sequence.assigned)
        yield gauge("holdfast_durable_version", release.durable_version)
        lag = persist.durable_slot - persist.head.slot
        yield gauge("holdfast_watermark_lag_slots", max(0, lag))
        yield gauge("holdfast_window_bytes", resolve.recent.bytes_used())
        yield gauge("holdfast_window_seconds", resolve.window_ms(now().boot_ms) / 1000)
        yield gauge("holdfast_window_floor_version", resolve.floor)
        damage = {met_by: service.damage.times[met_by] for met_by in ("stream", "status", "view", "scrub", FOUNDATIONS)}
        yield by_label("holdfast_log_damage", damage)
        yield gauge("holdfast_log_damaged_places", service.damage.places)
        if self.scrub is not None:
            yield counter("holdfast_scrub_objects", self.scrub.objects)
            yield counter("holdfast_scrub_bytes", self.scrub.bytes)
            yield counter("holdfast_scrub_passes", self.scrub.passes)
        yield gauge("holdfast_epoch", service.claim.epoch)

    def _view(self, service: CommitService) -> Iterator[Metric]:
        view = self.view
        if view is None or not view.enabled:
            return
        yield gauge("holdfast_view_version", view.version)
        yield counter("holdfast_view_retries", view.counts.retries)
        yield counter("holdfast_view_interruptions", view.counts.interruptions)
        base, before = service.claim.last_version, service.claim.prev_version
        lag = view_lag(service.pipeline.release.durable_version, view.version, base=base, before=before)
        yield gauge("holdfast_view_lag_versions", lag)

    def _retention(self, service: CommitService) -> Iterator[Metric]:
        truncator = None if self.retention is None else self.retention.truncator
        if truncator is None:
            return
        state = truncator.state
        yield gauge("holdfast_truncated_version", service.durable_header().truncated_through)
        yield gauge("holdfast_retention_waits", int(state.warning is not None))
        yield counter("holdfast_retention_deleted_objects", state.swept.objects)
        yield counter("holdfast_retention_deleted_bytes", state.swept.bytes)
        for unit in ("seconds", "bytes"):
            held = {name: getattr(kept, unit) for name, kept in sorted(state.kept.items())}
            yield by_label(f"holdfast_retention_held_{unit}", held)

    def _store(self, store: StoreMetrics) -> Iterator[Metric]:
        requests = labelled("holdfast_store_requests")
        plain = {name: labelled(f"holdfast_store_{name}") for name in _OF_A_STORE}
        seconds = histogram("holdfast_store_seconds")
        bounds = [bound / 1000 for bound in STORE_BOUNDS_MS]
        for kind, counts in store.kinds().items():
            for outcome, count in sorted(counts.outcomes.items()):
                requests.add_metric([kind, outcome], count)
            for name, family in plain.items():
                family.add_metric([kind], getattr(counts, _OF_A_STORE[name]))
            seconds.add_metric([kind], cumulative_buckets(bounds, counts.latency_buckets), counts.latency_ms_sum / 1000)
        yield from (requests, *plain.values(), seconds)
        yield gauge("holdfast_store_healthy", int(store.is_healthy))


_OF_A_STORE: Final = {
    **{name: name for name in ("retries", "interruptions", "in_flight", "waiting")},
    "bytes": "bytes_moved",
}
"""Metrics of the object store, and the counts that they show."""


def _buckets(latency: LatencyBuckets) -> tuple[list[tuple[str, float]], float]:
    """Of a histogram in seconds: its buckets and its sum."""
    bounds = [bound / 1000 for bound in LATENCY_BOUNDS_MS]
    return cumulative_buckets(bounds, latency.counts), latency.sum_ms / 1000


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * _PAGE_BYTES


def _seconds_of(pid: int) -> float:
    """The processor time of another process. Raises: OSError, ValueError."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        # The name, in parentheses, may hold spaces; the 12th and 13th field after it are ticks.
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
