"""Write the Grafana dashboard ``deploy/grafana/holdfast.json`` from the panels below; ``--check`` compares instead.

A test holds every metric that a panel names against the metrics of the service.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

TARGET = Path(__file__).parent.parent / "deploy" / "grafana" / "holdfast.json"
WIDTH, HEIGHT, COLUMNS = 8, 8, 3


@dataclass(frozen=True)
class Panel:
    """One diagram: its title, its unit as Grafana names it, and its queries by legend."""

    title: str
    unit: str
    queries: dict[str, str]


def _p(quantile: str, histogram: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({quantile}, sum by ({labels}) (rate({histogram}_bucket[$__rate_interval])))"


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}[$__rate_interval]))"


ROWS: dict[str, list[Panel]] = {
    "Commits": [
        Panel("commits by outcome", "ops", {"{{outcome}}": _rate("holdfast_commits_total", "outcome")}),
        Panel("commit latency", "s", {f"p{q}": _p(f"0.{q}", "holdfast_commit_seconds") for q in ("50", "99", "999")}),
        Panel("leaders, leader changes", "none", {
            "processes that lead": "sum(holdfast_leading)", "epoch": "max(holdfast_epoch)",
        }),
        Panel("what waits in a stage", "none", {"{{stage}}": "sum by (stage) (holdfast_stage_depth)"}),
        Panel("p99 of a stage", "s", {"{{stage}}": _p("0.99", "holdfast_stage_seconds", "stage")}),
        Panel("processors", "none", {
            "{{stage}}": _rate("holdfast_stage_processor_seconds_total", "stage"),
            "{{process}}": _rate("holdfast_processor_seconds_total", "process"),
        }),
        Panel("not committed", "ops", {"{{stage}} {{code}}": _rate("holdfast_stage_refusals_total", "stage, code")}),
        Panel("share of time with a bound reached, or the store silent", "percentunit", {
            "bound": "rate(holdfast_backpressure_seconds_total[$__rate_interval])",
            "silent": "rate(holdfast_stalled_seconds_total[$__rate_interval])",
        }),
        Panel("memory of the stages", "bytes", {"{{stage}}": "sum by (stage) (holdfast_stage_bytes)"}),
        Panel("commits in flight", "none", {"commits": "holdfast_commits_in_flight"}),
        Panel("refused and limited", "ops", {
            "{{status}} {{route}}": 'sum by (route, status) (rate(holdfast_http_answers_total{status=~"4..|5.."}'
            "[$__rate_interval]))",
        }),
    ],
    "Object store": [
        Panel("requests", "reqps", {"{{kind}} {{outcome}}": _rate("holdfast_store_requests_total", "kind, outcome")}),
        Panel("p99 of requests", "s", {"{{kind}}": _p("0.99", "holdfast_store_seconds", "kind")}),
        Panel("PUTs of batches", "reqps", {"{{reason}}": _rate("holdfast_puts_total", "reason")}),
        Panel("bytes", "Bps", {"{{kind}}": _rate("holdfast_store_bytes_total", "kind")}),
        Panel("healthy", "none", {"{{instance}}": "holdfast_store_healthy"}),
        Panel("slots sent and not durable", "none", {"slots": "holdfast_watermark_lag_slots"}),
    ],
    "Readers": [
        Panel("subscribers", "none", {"open": "sum(holdfast_subscribers)"}),
        Panel("bytes of events", "Bps", {"bytes": "sum(rate(holdfast_subscription_bytes_total[$__rate_interval]))"}),
        Panel("versions that the view lags", "none", {"versions": "holdfast_view_lag_versions"}),
    ],
    "Log": [
        Panel("damaged places", "none", {"places": "max(holdfast_log_damaged_places)"}),
        Panel("bytes of batches", "Bps", {"bytes": "sum(rate(holdfast_batch_bytes_total[$__rate_interval]))"}),
        Panel("objects that retention removed", "ops", {
            "objects": "sum(rate(holdfast_retention_deleted_objects_total[$__rate_interval]))",
        }),
        Panel("age of the log by policy", "s", {"{{policy}}": "holdfast_retention_held_seconds"}),
        Panel("bytes of the log by policy", "bytes", {"{{policy}}": "holdfast_retention_held_bytes"}),
        Panel("objects that the scrub read", "ops", {
            "objects": "sum(rate(holdfast_scrub_objects_total[$__rate_interval]))",
        }),
        Panel("conflict window", "bytes", {"bytes": "holdfast_window_bytes"}),
        Panel("reach of the conflict window", "s", {"seconds": "holdfast_window_seconds"}),
    ],
    "Message stores": [
        Panel("published and confirmed", "ops", {
            "published {{store}}": _rate("holdfast_message_store_published_total", "store"),
            "confirmed {{store}}": _rate("holdfast_message_store_confirmed_total", "store"),
        }),
        Panel("p99 of publishing", "s", {"{{store}}": _p("0.99", "holdfast_message_store_publish_seconds", "store")}),
        Panel("delivered and acknowledged", "ops", {
            "delivered {{durable}}": _rate("holdfast_durable_delivered_total", "store, durable"),
            "acknowledged {{durable}}": _rate("holdfast_durable_acknowledged_total", "store, durable"),
        }),
        Panel("backlog", "none", {"{{store}}/{{durable}}": "holdfast_durable_backlog"}),
        Panel("dead letters, redeliveries", "ops", {
            "dead {{durable}}": _rate("holdfast_durable_dead_letters_total", "store, durable"),
            "again {{durable}}": _rate("holdfast_durable_redelivered_total", "store, durable"),
        }),
        Panel("disk", "bytes", {
            "used": "holdfast_message_stores_disk_used_bytes", "limit": "holdfast_message_stores_disk_limit_bytes",
        }),
    ],
    "Process": [
        Panel("processor seconds a second", "none", {
            "{{instance}}": "rate(process_cpu_seconds_total[$__rate_interval])",
        }),
        Panel("memory", "bytes", {"{{instance}}": "process_resident_memory_bytes"}),
        Panel("connections", "none", {"{{instance}}": "holdfast_connections"}),
    ],
}  # fmt: skip


def dashboard() -> dict[str, object]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, object]] = []
    top = 0
    source = {"type": "prometheus", "uid": "${source}"}
    for row, diagrams in ROWS.items():
        panels.append({"type": "row", "title": row, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}, "panels": []})
        top += 1
        for number, panel in enumerate(diagrams):
            place = {"x": number % COLUMNS * WIDTH, "y": top + number // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT}
            targets = [
                {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend, "datasource": source}
                for index, (legend, query) in enumerate(panel.queries.items())
            ]
            panels.append({
                "type": "timeseries", "title": panel.title, "gridPos": place, "datasource": source,
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []}, "targets": targets,
            })  # fmt: skip
        top += -(-len(diagrams) // COLUMNS) * HEIGHT
    for number, each in enumerate(panels, 1):
        each["id"] = number
    return {
        "title": "Holdfast", "uid": "holdfast", "schemaVersion": 39, "editable": True, "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"}, "tags": ["holdfast"], "panels": panels,
        "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus"}]},
    }  # fmt: skip


def main() -> int:
    """Write the file, or with ``--check`` say whether it is current."""
    text = json.dumps(dashboard(), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        if not TARGET.is_file() or TARGET.read_text(encoding="utf-8") != text:
            print(f"{TARGET} is not current: run python scripts/make_dashboard.py")
            return 1
        return 0
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
