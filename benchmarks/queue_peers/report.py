"""Tables and the plot of ``queue_vs_peers.py``.

Owns: how results look. Does not own: the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from queue_peers.lanes import BATCH_SIZES, LEVELS, MESSAGE_SIZES, SIZES, Lanes
from queue_peers.targets import Target

__all__ = ["plot", "show"]

RATES = (
    ("batch", "append_many of 1,000, without sync"),
    ("single", "append one by one, without sync"),
    ("synced", "append one by one, synced each"),
    ("synced batch", "append_many of 1,000, synced"),
    ("tasks", "1,000 asyncio tasks, each append durable"),
    ("payloads", "sequential read of a batch-written log"),
    ("messages", "the same, each message with its place"),
    ("lazy", "lazy view of it"),
)
COLOURS = {"PASS": "green", "near": "yellow", "miss": "red"}


def show(console: Console, lanes: Lanes, found: Sequence[Target], lengths: Sequence[int]) -> None:
    for size in SIZES:
        _rates(console, lanes, size)
    _times(console, lanes, lengths)
    _growth(console, lanes)
    table = Table(title="targets, at 100 bytes; near: at least 0.8 of it", title_justify="left")
    for heading in ("target", "wanted", "measured", ""):
        table.add_column(heading)
    for target in found:
        colour = COLOURS[target.verdict]
        table.add_row(target.name, target.wanted, target.measured, f"[{colour}]{target.verdict}[/]")
    console.print(table)


def _rates(console: Console, lanes: Lanes, size: int) -> None:
    table = Table(title=f"messages of {size} bytes per second, medians of the rounds", title_justify="left")
    table.add_column("")
    for heading in ("messages/s", "min - max", "holdfast over it", "others' cores"):
        table.add_column(heading, justify="right")
    for lane, title in RATES:
        name = f"{lane} {size}"
        table.add_section()
        table.add_row(f"[bold]{title}[/]")
        for measured, system in lanes.found:
            if measured == name:
                each = lanes.lane(name, system)
                low, high = each.spread()
                ratio = "" if system == "holdfast" else f"{lanes.rate(name) / each.median():,.2f} x"
                others = f"{max(each.values['other_cores']):.2f}"
                table.add_row(f"  {system}", f"{each.median():,.0f}", f"{low:,.0f} - {high:,.0f}", ratio, others)
    console.print(table)


def _times(console: Console, lanes: Lanes, lengths: Sequence[int]) -> None:
    table = Table(title="reading since a time, messages of 100 bytes in batches of 100, warm", title_justify="left")
    for heading in ("", "seek, us", "seek and the first 100 messages, us"):
        table.add_column(heading, justify="left" if not heading else "right")
    for (measured, system), lane in lanes.found.items():
        if measured.startswith("since"):
            seek = f"{lane.median('seek_us'):,.1f}" if "seek_us" in lane.values else ""
            length, *how = measured.removeprefix("since ").split()
            told = f"{system}, {int(length):,} messages{', written one by one' if how else ''}"
            table.add_row(told, seek, f"{lane.median('first_us'):,.1f}")
    console.print(table)
    table = Table(title="milliseconds to open", title_justify="left")
    for heading in ("", "after a clean close", "after kill -9"):
        table.add_column(heading, justify="left" if not heading else "right")
    for (measured, system), lane in lanes.found.items():
        if measured.startswith("open clean "):
            count = int(measured.removeprefix("open clean "))
            killed = lanes.lane(f"open killed {count}", system)
            table.add_row(f"{system}, {count:,} messages", f"{lane.median('ms'):.2f}", f"{killed.median('ms'):.2f}")
    for each, title in ((1, "killed after appends one by one"), (1000, "killed after batches of 1,000")):
        table.add_row(f"holdfast, {title}", "", f"{lanes.lane(f'open killed, by {each}').median('ms'):.2f}")
    console.print(table)
    table = Table(title="work queues: get and ack, one by one", title_justify="left")
    for heading in ("", "messages/s"):
        table.add_column(heading, justify="left" if not heading else "right")
    for (measured, system), lane in lanes.found.items():
        if measured.startswith("work "):
            *synced, waiting = measured.removeprefix("work ").split()
            told = f"{system}, {int(waiting):,} waiting{', synced' if synced else ''}"
            table.add_row(told, f"{lane.median():,.0f}")
    console.print(table)


def _growth(console: Console, lanes: Lanes) -> None:
    table = Table(title="how cost grows: holdfast, by level, batch and message", title_justify="left")
    for heading in ("", "messages/s", "MB/s"):
        table.add_column(heading, justify="left" if not heading else "right")
    for level in LEVELS:
        rate = lanes.rate(f"level {level}")
        table.add_row(f"100 bytes, one by one, {level}", f"{rate:,.0f}", f"{rate * 100 / 1e6:,.0f}")
    for batch in BATCH_SIZES:
        rate = lanes.rate(f"batches of {batch}")
        table.add_row(f"100 bytes, batches of {batch:,}", f"{rate:,.0f}", f"{rate * 100 / 1e6:,.0f}")
    for size in MESSAGE_SIZES:
        rate = lanes.rate(f"messages of {size}")
        table.add_row(
            f"{size:,} bytes, batches of {max(1, min(1000, 1_000_000 // size)):,}",
            f"{rate:,.0f}",
            f"{rate * size / 1e6:,.0f}",
        )
    for size in SIZES:
        rate = lanes.rate(f"payloads {size} mixed")
        table.add_row(
            f"read, messages of {size // 2} to {size + size // 2} bytes", f"{rate:,.0f}", f"{rate * size / 1e6:,.0f}"
        )
    console.print(table)


def plot(path: Path, lanes: Lanes, text: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [each for each in RATES if each[0] not in ("tasks", "messages", "lazy")]
    figure, axes = plt.subplots(2, 3, figsize=(17, 9), constrained_layout=True)
    for panel, (lane, title) in zip(axes.flat, shown, strict=False):
        systems = [system for measured, system in lanes.found if measured == f"{lane} 100"][::-1]
        values = [lanes.rate(f"{lane} 100", system) for system in systems]
        colours = ["#2a6f97" if system.startswith("holdfast") else "#8d99ae" for system in systems]
        bars = panel.barh(systems, values, color=colours)
        panel.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=7)
        panel.set_xscale("log")
        panel.margins(x=0.25)
        panel.tick_params(axis="y", labelsize=7)
        panel.set_title(f"{title}, messages/s", fontsize=9)
    panel = axes.flat[-1]
    panel.plot(
        [str(each) for each in BATCH_SIZES], [lanes.rate(f"batches of {each}") for each in BATCH_SIZES], marker="o"
    )
    panel.set_yscale("log")
    panel.set_title("holdfast, messages/s by batch size", fontsize=9)
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"messages of 100 bytes; {text}", fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)
