"""The first page: is it healthy, who leads, what is slow, what is stuck. And the step-down of the leader."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.console import units
from holdfast.console.call import PageCall, Screen, link
from holdfast.console.html import Content, Html, element
from holdfast.console.pages.cluster import STEP_DOWN, lag_of_others
from holdfast.console.parts import (
    Column,
    Tone,
    action,
    address_shown,
    anchor,
    attempt,
    bar,
    chart,
    code,
    commands,
    figures,
    live,
    moment,
    notice,
    section,
    table,
    tile,
    tiles,
    why,
)
from holdfast.console.reading.alerts import alerts_of, are_closed, full_stores
from holdfast.console.reading.exposition import Scrape, quantile
from holdfast.console.reading.service import document, name_of
from holdfast.console.reading.watcher import Watcher
from holdfast.errors import HoldfastError

TONES_OF_STORES: Final[Mapping[str, Tone]] = {"open": "good", "held": "warn", "suspended": "bad"}
PLACES: Final[Mapping[str, str]] = {
    "HoldfastBacklogGrows": "/#h-what-is-stuck",
    "HoldfastConflicts": "/keys",
    "HoldfastDeadLetters": "/stores",
    "HoldfastLogDamaged": "/log",
    "HoldfastMessageStoresDiskFull": "/stores",
    "HoldfastNoLeader": "/cluster",
    "HoldfastClockStepped": "/retention",
    "HoldfastRetentionWaits": "/retention",
    "HoldfastStoresClosed": "/stores",
    "HoldfastStoresFull": "/stores",
    "HoldfastTwoLeaders": "/cluster",
    "HoldfastViewBehind": "/cluster",
}
"""The page that shows what an alert is about."""
STUCK_MAX: Final = 20
OLD_SECONDS: Final = 300.0
RECENT_SECONDS: Final = 30.0


async def _overview(call: PageCall) -> Content:
    leads = await attempt(_leader(call))
    return [
        live("health", _health(call.watcher), leads),
        element("div", action(call, STEP_DOWN, "Step down", "danger"), class_="actions spaced"),
        live("traffic", section("Traffic", _as_of(call.watcher), _traffic(call.watcher))),
        live("slow", section("What is slow", _slow(call))),
        section("What is stuck", _stuck(call, await _kinds(call))),
        live("room", section("Memory and disk", _room(call.watcher))),
        commands(call, "/metrics", "holdfast version"),
    ]


def _health(watcher: Watcher) -> Content:
    if watcher.away_since_ms is not None:
        return notice("bad", element("strong", "Not healthy."), " Nothing is known of a service that does not answer.")
    if watcher.newest is None and watcher.refused and watcher.problem is not None:
        said = " The service answers, but its figures are not shown to this token: "
        return notice("warn", element("strong", "Not known."), said, why(watcher.problem), ".")
    if watcher.newest is None:
        return notice("none", element("strong", "Looking…"), " The first figures come in a moment.")
    alerts = alerts_of(watcher)
    if not alerts:
        said = " The service leads, and none of the conditions of its alerts is met."
        return notice("good", element("strong", "Healthy."), said)
    lines = [
        element(
            "li",
            anchor(alert.name, f"/runbooks#{alert.name.lower()}"),
            f": {text}. ",
            anchor("See where", PLACES[alert.name]) if alert.name in PLACES else None,
        )
        for alert, text in alerts
    ]
    tone: Tone = "bad" if any(alert.is_urgent for alert, _ in alerts) else "warn"
    said = "Not healthy." if tone == "bad" else "It works, and needs attention."
    return notice(tone, element("strong", said), element("ul", lines))


async def _leader(call: PageCall) -> Html:
    watcher = call.watcher
    leading, newest = watcher.leading, watcher.newest
    leader = tile("Leader", "none", "/cluster", tone="bad")
    state, said, stores, version = "no leader", "no address says that it leads", "–", 0
    if leading is not None and (alive := leading.alive) is not None:
        leader = tile("Leader", address_shown(alive.address), "/cluster", code(alive.leader_id[:12]), tone="good")
        try:
            ready = await call.service.readiness(leading.url)
            state, said, stores, version = "ready", "accepts commits", ready.stores, ready.version
        except HoldfastError as error:
            state, said = "not ready", error.statement()
    answering = sum(member.alive is not None for member in watcher.members)
    silent = len(watcher.members) - answering
    others = "no standby at the given addresses"
    if silent:
        others = f"{silent} of {len(watcher.members)} do not answer"
    elif answering > 1:
        lag = await lag_of_others(call)
        late = "" if lag is None else f", at most {units.counted(lag, 'transaction')} late"
        others = f"one leads, {answering - 1} stand by or follow{late}"
    epoch = "–" if newest is None else units.count(newest.value("holdfast_epoch"))
    return tiles(
        leader,
        tile("State", state, "/cluster", said, tone="good" if state == "ready" else "bad"),
        tile("Epoch", epoch, "/log#leaderships", "leader changes of this log"),
        tile("Durable version", units.version(version) if version else "–", "/log", "newest"),
        tile("Processes", str(answering), "/cluster", others, tone="warn" if silent else None),
        tile("Message stores", stores, "/stores", tone=TONES_OF_STORES.get(stores, "none")),
    )


def _as_of(watcher: Watcher) -> Content:
    """That the figures are old, while the service does not answer."""
    if watcher.away_since_ms is None:
        return None
    return element("p", "The figures are those of before ", moment(watcher.away_since_ms), ".", class_="note")


def _traffic(watcher: Watcher) -> Html:
    def drawn(label: str, values: list[float], href: str, note: str, text: Callable[[float], str] = units.rate) -> Html:
        now = text(values[-1]) if values else "–"
        return tile(label, now, href, note, chart=chart(values, label, text, span=watcher.span))

    def latency(label: str, part: float, name: str, note: str) -> Html:
        return drawn(label, watcher.quantiles(part, name), "/#slow", note, units.duration)

    committed = watcher.rates("holdfast_commits_total", outcome="committed")
    conflicts = watcher.rates("holdfast_commits_total", outcome="conflict")
    published = watcher.rates("holdfast_message_store_published_total")
    busy = watcher.rates("holdfast_http_answers_total", status="503")
    above = watcher.rates("holdfast_connections_refused_total")
    return tiles(
        drawn("Commits", committed, "/log", "committed"),
        drawn("Conflicts", conflicts, "/keys#conflicts", "read what others changed"),
        drawn("Publishes", published, "/stores", "messages accepted"),
        drawn("Refused requests", busy, "/runbooks#holdfastoverloaded", "503, all routes"),
        latency("Commit latency, median", 0.5, "holdfast_commit_seconds", "arrival to answer"),
        latency("Commit latency, p99", 0.99, "holdfast_commit_seconds", "arrival to answer"),
        drawn("Connections refused", above, "/configuration", "above the limit"),
        latency("Object store, p99", 0.99, "holdfast_store_seconds", "request to answer"),
        wide=True,
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    """Latencies in seconds of ``count`` things, which the page ``of`` shows. ``runbook``: what to do if it is slow."""

    what: str
    of: str
    runbook: str
    median: float | None
    late: float | None
    count: float


def _slow(call: PageCall) -> Content:
    recent = call.watcher.recent(RECENT_SECONDS)
    if recent is None:
        return element("p", "Collecting…", class_="empty")
    before, now = recent

    def measured(what: str, of: str, runbook: str, name: str, **labels: str) -> _Measured:
        median, late = (quantile(part, before, now, name, **labels) for part in (0.5, 0.99))
        count = now.total(f"{name}_count", **labels) - before.total(f"{name}_count", **labels)
        return _Measured(what, of, f"/runbooks#{runbook}", median, late, count)

    slow, away = "holdfastcommitsslow", "holdfaststoreunhealthy"
    rows = [
        measured("Commit, arrival to answer", "/log", slow, "holdfast_commit_seconds"),
        measured("Stage resolve", "/keys#conflicts", slow, "holdfast_stage_seconds", stage="resolve"),
        measured("Stage persist", "/log#h-batches", slow, "holdfast_stage_seconds", stage="persist"),
    ]
    rows += [
        measured(f"Object store: {kind}", "/log#h-batches", away, "holdfast_store_seconds", kind=kind)
        for kind in sorted({labels["kind"] for labels, _ in now.labelled("holdfast_store_seconds_count")})
    ]
    span = max(1e-9, now.at - before.at)
    columns: list[Column[_Measured]] = [
        Column("What", lambda row: row.what, lambda row: row.what),
        figures("Rate", lambda row: row.count, lambda row: row.of, lambda count: units.rate(count / span)),
        figures("Median", lambda row: row.median, lambda row: row.runbook, units.duration),
        figures("p99", lambda row: row.late, lambda row: row.runbook, units.duration),
    ]
    stalled = now.rise(before, "holdfast_backpressure_seconds_total")
    waited = f"Commits waited for room for {units.duration(stalled)} of the last {units.duration(span)}."
    caption, empty = f"Latencies of the last {units.duration(span)}", "Nothing was measured."
    return [
        table(call, "slow", columns, rows, caption=caption, empty=empty, is_live=False),
        element("p", waited, class_="note"),
    ]


async def _kinds(call: PageCall) -> dict[tuple[str, str], str]:
    """The types of the durables, as far as the definition names them."""
    try:
        stores = await call.service.collection("/v1/stores", "stores")
    except HoldfastError:
        return {}
    return {
        (name_of(store), durable): str(document(parameters).get("type"))
        for store in stores
        for durable, parameters in document(store.get("durables")).items()
    }


def _stuck(call: PageCall, kinds: Mapping[tuple[str, str], str]) -> Content:
    now = call.watcher.newest
    if now is None:
        return element("p", "Collecting…", class_="empty", id="t-stuck", data_live=True)
    rows = _stuck_durables(now, kinds)
    more = f" The {STUCK_MAX} largest of {len(rows):,}."
    columns: list[Column[_Stuck]] = [
        Column("Durable", lambda row: row.name, lambda row: row.name, href=lambda row: row.place("/durable")),
        Column(
            "Why",
            lambda row: row.why,
            lambda row: row.why,
            href=lambda row: row.place("/messages", parked=1) if "parked" in row.why else "",
        ),
        figures("Backlog", lambda row: row.backlog, lambda row: row.place("/durable") + "#h-backlog-over-time"),
        Column(
            "Oldest",
            lambda row: _age(row.since),
            lambda row: -row.since,
            is_number=True,
            href=lambda row: row.place("/messages"),
        ),
    ]
    caption = "Durables whose messages do not go on"
    empty = "No durable: every waiting message has a subscriber, and none is parked."
    return [
        live("stuck-stores", _stuck_stores(now)),
        table(call, "stuck", columns, rows[:STUCK_MAX], caption=caption, empty=empty),
        element("p", more, class_="note") if len(rows) > STUCK_MAX else None,
    ]


@dataclass(frozen=True, slots=True)
class _Stuck:
    """A durable whose messages do not go on. ``since``: Unix time in seconds of its oldest message, 0 for none."""

    backlog: float
    store: str
    durable: str
    why: str
    since: float

    @property
    def name(self) -> str:
        return f"{self.store}/{self.durable}"

    def place(self, path: str, **more: int) -> str:
        return link(path, store=self.store, durable=self.durable, **more)


def _stuck_durables(now: Scrape, kinds: Mapping[tuple[str, str], str]) -> list[_Stuck]:
    """The largest backlog first."""
    subscribers = _of_durables(now, "holdfast_durable_subscribers")
    oldest = _of_durables(now, "holdfast_durable_oldest_timestamp_seconds")
    parked = _of_durables(now, "holdfast_durable_parked")
    rows: list[_Stuck] = []
    for (store, durable), backlog in _of_durables(now, "holdfast_durable_backlog").items():
        if kinds.get((store, durable)) in ("map", "last_value"):
            continue  # their values stay
        since = oldest.get((store, durable), 0.0)
        reasons: list[str] = []
        if parked.get((store, durable)):
            reasons.append(f"{units.count(parked[store, durable])} parked")
        if backlog and not subscribers.get((store, durable)):
            reasons.append("no subscriber")
        elif since and time.time() - since > OLD_SECONDS:
            reasons.append(f"oldest waits {units.duration(time.time() - since)}")
        if reasons:
            rows.append(_Stuck(backlog, store, durable, ", ".join(reasons), since))
    return sorted(rows, key=lambda row: (-row.backlog, row.name))


def _age(since: float) -> str:
    """How long ago a time in seconds was."""
    return units.duration(max(0.0, time.time() - since)) if since else "–"


def _stuck_stores(now: Scrape) -> list[Html]:
    """The stores that accept no message, or soon will not."""
    said: list[Html] = []
    if are_closed(now):
        runbook = anchor("The message stores", "/runbooks#holdfaststoresclosed")
        said.append(notice("bad", runbook, " are not served: no publisher and no subscriber goes on."))
    full = full_stores(now)
    for name, part in full[:STUCK_MAX]:
        where = anchor(name or "All stores together", link("/store", store=name) if name else "/stores")
        effect = "publishers wait until there is room" if part >= 1 else "publishers wait when it is reached"
        runbook = anchor("full", "/runbooks#holdfaststoresfull")
        said.append(
            notice(
                "bad", where, f": {part:.0%} of a limit is used; {effect}. What to do when a store is ", runbook, "."
            )
        )
    if len(full) > STUCK_MAX:
        said.append(notice("bad", f"{units.counted(len(full) - STUCK_MAX, 'more store')} near their limits."))
    return said


def _of_durables(scrape: Scrape, name: str) -> dict[tuple[str, str], float]:
    return {(labels["store"], labels["durable"]): value for labels, value in scrape.labelled(name)}


def _room(watcher: Watcher) -> Content:
    now = watcher.newest
    if now is None:
        return element("p", "Collecting…", class_="empty")
    stores = "holdfast_message_stores_"
    used, limit = now.value(f"{stores}disk_used_bytes"), now.value(f"{stores}disk_limit_bytes")
    pages, in_use = now.value(f"{stores}log_allocated_bytes"), now.value(f"{stores}log_in_use_bytes")
    processor = watcher.rates("process_cpu_seconds_total")
    resident = watcher.values("process_resident_memory_bytes")
    busy = f"{processor[-1]:.0%}" if processor else "–"
    window, back = now.value("holdfast_window_bytes"), units.duration(now.value("holdfast_window_seconds"))
    open_ones, subscribers = now.value("holdfast_connections"), units.count(now.value("holdfast_subscribers"))
    memory = chart(resident, "Memory", units.size, span=watcher.span)
    load = chart(processor, "Processor", lambda value: f"{value:.0%}", span=watcher.span)
    return tiles(
        tile("Memory", units.size(resident[-1]), "/cluster", "resident, of the service", chart=memory),
        tile("Processor", busy, "/cluster", "of one core", chart=load),
        tile("Disk of the stores", units.size(used), "/stores", bar(used, limit, "Disk of the stores")),
        tile("Pages of the stores", units.size(pages), "/stores", bar(in_use, pages, "Pages of the stores")),
        tile("Conflict window", units.size(window), "/keys#conflicts", f"reaches back {back}"),
        tile("Connections", units.count(open_ones), "/configuration", f"{subscribers} subscriptions"),
    )


PAGES: Final = (Screen("/", "Overview", "Overview", _overview),)
