"""The figures and the picture of a run: the printed tables, ``report.json`` and ``report.png``."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from examples.demo.comparisons import Comparison
from examples.demo.customers import Answered
from examples.demo.shop import Shipped
from rich.console import Console
from rich.table import Table

__all__ = ["Timeline", "draw", "market_figures", "percentile", "shop_figures", "show", "write_json"]

PICTURE_STEP_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Timeline:
    """Moments of the market on the machine's monotonic clock, in seconds."""

    began: float
    killed: float
    leading: float
    ended: float


def percentile(ordered: list[float], part: float) -> float:
    """The nearest rank."""
    return ordered[max(0, math.ceil(len(ordered) * part) - 1)] if ordered else math.nan


def market_figures(answered: list[Answered], timeline: Timeline) -> dict[str, float]:
    """Rates, latencies and what the crash cost."""
    committed = [each for each in answered if each.fate == "committed"]
    undisturbed = sorted((e.ended - e.began) * 1000 for e in committed if e.ended < timeline.killed)
    fates = Counter(each.fate for each in answered)
    decisions = sum(each.decisions for each in answered)
    began_after = [each.ended for each in committed if each.began > timeline.killed]
    quiet_until = min((each.ended for each in committed if each.ended > timeline.leading), default=math.nan)
    return {
        "transactions answered": len(answered),
        "committed": len(committed),
        "committed per second before the crash": round(len(undisturbed) / (timeline.killed - timeline.began)),
        "committed per second after recovery": round(
            sum(1 for each in committed if each.ended > timeline.leading) / (timeline.ended - timeline.leading)
        ),
        "nothing to do (sold out, no money)": fates["nothing to do"],
        "refused for good": fates["refused"],
        "outcome still unknown": fates["unknown"],
        "decided again after a conflict": decisions - len(answered),
        "decided again, % of decisions": round(100 * (decisions - len(answered)) / max(1, decisions), 1),
        "latency p50 ms": round(percentile(undisturbed, 0.5), 1),
        "latency p99 ms": round(percentile(undisturbed, 0.99), 1),
        "new leader leads, s after kill -9": round(timeline.leading - timeline.killed, 2),
        "first commit after kill -9, s": round(quiet_until - timeline.killed, 2),
        "first transaction begun and committed after it, s": round(
            min(began_after, default=math.nan) - timeline.killed, 2
        ),
    }


def shop_figures(shipped: Shipped, orders: int) -> dict[str, float]:
    """Of the shop: a step takes an order, writes a stock and makes an invoice."""
    return {
        "shop: steps per second, with the crash": round(orders / shipped.seconds),
        "shop: stores served elsewhere, s after kill -9": round(shipped.gap_seconds, 2),
    }


def show(console: Console, figures: dict[str, float], comparisons: list[Comparison]) -> None:
    """Print both tables."""
    table = Table(title="what happened", show_header=False, title_justify="left")
    for name, value in figures.items():
        table.add_row(name, f"{value:,}")
    console.print(table)
    table = Table(title="what was compared", title_justify="left")
    for heading in ("", "comparison", "detail"):
        table.add_column(heading)
    for each in comparisons:
        mark = "[green]equal[/]" if each.holds else "[bold red]WRONG[/]"
        table.add_row(mark, each.name, each.detail)
    console.print(table)


def write_json(path: Path, figures: dict[str, float], comparisons: list[Comparison]) -> None:
    """The same for programs."""
    known = {name: None if math.isnan(value) else value for name, value in figures.items()}
    path.write_text(json.dumps({"figures": known, "comparisons": [asdict(each) for each in comparisons]}, indent=2))


def draw(path: Path, answered: list[Answered], timeline: Timeline) -> None:
    """Throughput and response times from the first commit on; the time without a leader is marked."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    latencies: dict[int, list[float]] = {}
    for each in answered:
        if each.fate == "committed":
            step = int((each.ended - timeline.began) / PICTURE_STEP_SECONDS)
            latencies.setdefault(step, []).append((each.ended - each.began) * 1000)
    first = min(latencies, default=0)
    steps = range(first, int((timeline.ended - timeline.began) / PICTURE_STEP_SECONDS))
    seconds = [(step - first) * PICTURE_STEP_SECONDS for step in steps]
    rates = [len(latencies.get(step, ())) / PICTURE_STEP_SECONDS for step in steps]
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(9, 5), constrained_layout=True)
    above.fill_between(seconds, rates, step="post", color="#2a6f97", alpha=0.35, linewidth=0)
    above.step(seconds, rates, where="post", color="#2a6f97", linewidth=1.2)
    above.set_ylabel("committed per second")
    above.set_ylim(0, 1.25 * max(rates, default=1))  # room for the text above the steps
    for part, colour in ((0.5, "#2a6f97"), (0.99, "#c1121f")):
        shown = [percentile(sorted(latencies.get(step, ())), part) for step in steps]
        below.plot(seconds, shown, color=colour, linewidth=1.2, label=f"p{part * 100:.0f}")
    below.set_yscale("log")
    below.set_ylabel("response time, ms")
    below.set_xlabel("seconds")
    below.legend(loc="upper right", frameon=False)
    shown_from = timeline.began + first * PICTURE_STEP_SECONDS
    killed, leading = timeline.killed - shown_from, timeline.leading - shown_from
    for axes in (above, below):
        axes.axvspan(killed, leading, color="#c1121f", alpha=0.12, linewidth=0)
        axes.axvline(killed, color="#c1121f", linewidth=1)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    above.annotate(
        f"kill -9; a new leader after {leading - killed:.1f} s", (leading, above.get_ylim()[1] * 0.92),
        xytext=(6, 0), textcoords="offset points", color="#c1121f",
    )  # fmt: skip
    above.set_title("make demo: many clients buy seats; the leader is killed, and a standby takes over")
    figure.savefig(path, dpi=100)
    plt.close(figure)
