"""What pages are made of: tiles, tables, charts, bars, times, commands to copy, notices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from holdfast.console import units
from holdfast.console.call import Action, PageCall
from holdfast.console.html import Attribute, Content, Html, element, text_of
from holdfast.errors import Code, HoldfastError, NotFound, PermissionDenied

Row = TypeVar("Row")
Tone = Literal["good", "warn", "bad", "none"]
MARKS: Final[Mapping[Tone, str]] = {"good": "✓", "warn": "!", "bad": "✕", "none": "–"}
"""In addition to the colour, which some readers cannot see."""
PAGE_ROWS: Final = 50
LARGE_CHARACTERS: Final = 11
"""A longer value of a tile is written smaller, so that it stays on one line."""
CHART_WIDTH: Final = 300
CHART_HEIGHT: Final = 60


def live(name: str, *content: Content) -> Html:
    """A part of the page that the script replaces by a newer one."""
    return element("div", *content, id=name, data_live=True)


def section(title: str, *content: Content, actions: Iterable[Content] = ()) -> Html:
    """A part with a heading, and its actions next to it."""
    name = "h-" + "".join(letter if letter.isalnum() else "-" for letter in title.lower())
    head = element("div", element("h2", title, id=name), element("div", actions, class_="actions"), class_="head")
    return element("section", head, *content, aria_labelledby=name)


def anchor(content: Content, href: str, **attributes: str) -> Html:
    """A link."""
    return element("a", content, href=href, **attributes)


def badge(content: Content, tone: Tone = "none") -> Html:
    """A word with a colour and a mark."""
    return element("span", element("span", MARKS[tone], aria_hidden="true"), " ", content, class_=f"badge {tone}")


def notice(tone: Tone, *content: Content) -> Html:
    """A line that has to be read."""
    return element(
        "div", element("span", MARKS[tone], aria_hidden="true"), element("div", *content), class_=f"notice {tone}"
    )


def tile(
    label: str, value: Content, href: str = "", note: Content = "", *, chart: Content = "", tone: Tone | None = None
) -> Html:
    """One number with its meaning. ``href``: its detail, to which both lead."""
    mark = "" if tone is None else element("span", MARKS[tone], class_=f"mark {tone}", aria_hidden="true")
    shown = [
        element("span", element("span", label, class_="name"), mark, class_="label"),
        " ",
        element("span", value, class_="value" if len(str(value)) <= LARGE_CHARACTERS else "value long"),
    ]
    return element(
        "div",
        anchor(shown, href) if href else shown,
        element("div", note, class_="note"),
        chart,
        class_="tile" if tone is None else f"tile {tone}",
    )


def tiles(*content: Content, wide: bool = False) -> Html:
    """Tiles next to each other; ``wide`` ones have charts to be read."""
    return element("div", *content, class_="tiles wide" if wide else "tiles")


def moment(time_ms: float) -> Html:
    """A time; the script writes it in the viewer's zone, with UTC on hover."""
    if not time_ms:
        return text_of("–")
    text = units.utc(time_ms)
    return element("time", text.replace("T", " "), datetime=text, title=f"{text} (UTC)")


def copied(text: str, label: str = "Copy") -> Html:
    """A button that copies a text."""
    return element("button", label, type="button", class_="copy", data_copy=text, aria_label=f"{label} {text[:80]}")


def code(text: str, *, copy: bool = False) -> Html:
    """A name, a version or an id."""
    shown = element("code", text)
    return element("span", shown, copied(text), class_="code") if copy else shown


def name_shown(text: str) -> Html:
    """A key or another name that may be long and may have spaces at its ends."""
    short = units.shortened(text)
    return element("code", short, class_="key", title=text[:1_000] if short != text else None)


def whole_name(text: str) -> Html:
    """The same with a button to copy it; a long one can be opened."""
    if units.shortened(text) == text:
        return element("span", name_shown(text), copied(text), class_="code")
    said = f"{units.shortened(text)} ({len(text):,} characters)"
    opened = element("details", element("summary", said), element("pre", text, tabindex="0"), id="whole-name")
    return element("div", opened, copied(text))


def address_shown(url: str) -> Html:
    """An address that breaks, where it must, before its host and its port."""
    scheme, slashes, rest = url.rpartition("//")
    host, colon, port = rest.rpartition(":")
    parts = [scheme + slashes, host, colon + port]
    return Html(str(Html("<wbr>")).join(text_of(part) for part in parts if part))


def facts(items: Mapping[str, Content]) -> Html:
    """Names and values."""
    pairs = [element("div", element("dt", name), element("dd", value)) for name, value in items.items()]
    return element("dl", pairs, class_="facts")


def commands(call: PageCall, target: str, command: str) -> Html:
    """The same from a shell."""
    leading = call.watcher.leading
    url = call.service.urls[0] if leading is None else leading.url
    token = ' -H "Authorization: Bearer $HOLDFAST_TOKEN"' if call.service.has_token else ""
    curl = f"curl -s{token} '{url}{target}'"
    holdfast = f"{command} --url {url}" if command else ""
    lines = [element("div", element("code", line), copied(line), class_="command") for line in (curl, holdfast) if line]
    return element("details", element("summary", "The same from a shell"), lines, class_="commands", id="commands")


def button(label: str, href: str, *, danger: bool = False) -> Html:
    """A link to the form of an action."""
    return anchor(label, href, class_="button danger" if danger else "button")


def action(
    call: PageCall, of: Action, label: str, look: Literal["plain", "danger"] = "plain", /, **query: str | int | None
) -> Content:
    """A link to an action's form; nothing where the console only reads."""
    return button(label, of.link(**query), danger=look == "danger") if call.options.acts else None


def bar(
    used: float, maximum: float, label: str, text: Callable[[float], str] = units.size, *, is_good: bool = False
) -> Html:
    """How much of a maximum is used; "no limit" without one. ``is_good``: reaching the maximum is no danger."""
    if maximum <= 0:
        return element("small", "no limit")
    part = min(1.0, used / maximum)
    tone: Tone = "good" if is_good or part <= 0.75 else "bad" if part > 0.9 else "warn"
    drawn = element("rect", width=100, height=8, class_="track") + element(
        "rect", width=round(part * 100, 1), height=8, class_=tone
    )
    picture = element(
        "svg",
        Html(drawn),
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        class_="bar",
        role="img",
        aria_label=f"{label}: {part:.0%}" if is_good else f"{label}: {part:.0%} used",
    )
    return element("div", picture, element("small", f"{text(used)} of {text(maximum)} ({part:.0%})"))


def chart(
    values: Sequence[float], label: str, text: Callable[[float], str], *, span: str = "", tall: bool = False
) -> Html:
    """A line over time, oldest on the left, with its largest value."""
    if len(values) < 2:
        return element("div", element("small", "collecting…"), class_="chart empty")
    if len(values) > CHART_WIDTH:
        step = len(values) / CHART_WIDTH
        values = [max(values[int(at * step) : int((at + 1) * step) + 1]) for at in range(CHART_WIDTH)]
    top = max(values) or 1.0
    across = CHART_WIDTH / (len(values) - 1)
    points = [
        f"{at * across:.1f},{CHART_HEIGHT - 2 - value / top * (CHART_HEIGHT - 4):.1f}"
        for at, value in enumerate(values)
    ]
    area = f"0,{CHART_HEIGHT} {' '.join(points)} {CHART_WIDTH},{CHART_HEIGHT}"
    picture = element(
        "svg",
        element("polyline", points=area, class_="area"),
        element("polyline", points=" ".join(points), class_="line"),
        viewBox=f"0 0 {CHART_WIDTH} {CHART_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{label}{', ' + span if span else ''}: now {text(values[-1])}, at most {text(max(values))}",
    )
    scale = element("div", element("small", f"max {text(max(values))}"), element("small", span), class_="scale")
    return element("div", picture, scale, class_="chart tall" if tall else "chart")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table. ``key``: what to sort by, None for a column that is not sorted.

    ``href``: the page with the detail of what a cell shows, empty where there is none.
    """

    title: str
    cell: Callable[[Row], Content]
    key: Callable[[Row], Any] | None = None
    is_number: bool = False
    href: Callable[[Row], str] | None = None


def figures(
    title: str,
    value: Callable[[Row], float | None],
    href: Callable[[Row], str] | None = None,
    text: Callable[[float], Content] = units.count,
) -> Column[Row]:
    """A column of numbers, which sorts by them. A number that is not known is a dash."""

    def cell(row: Row) -> Content:
        figure = value(row)
        return "–" if figure is None else text(figure)

    return Column(title, cell, lambda row: value(row) or 0, is_number=True, href=href)


def table(
    call: PageCall,
    name: str,
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    *,
    caption: str,
    empty: Content,
    text: Callable[[Row], str] | None = None,
    is_live: bool = True,
) -> Html:
    """Rows that are sorted, filtered and cut into pages as the query says (``NAME.sort``, ``.find``, ``.page``).

    ``text``: what a row is found by, None for a table without a filter.
    """
    find = call.text(f"{name}.find").casefold()
    found = [row for row in rows if text is None or find in text(row).casefold()] if find else list(rows)
    chosen, descending = call.text(f"{name}.sort"), call.text(f"{name}.desc") == "1"
    for column in columns:
        if column.title == chosen and column.key is not None:
            found.sort(key=column.key, reverse=descending)
    page = min(max(call.number(f"{name}.page", 1), 1), max(1, -(-len(found) // PAGE_ROWS)))
    shown = found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]
    heads = [_head(call, name, column, chosen, descending) for column in columns]
    body = [element("tr", [_cell(column, row) for column in columns], role="row") for row in shown]
    if not rows:
        inner: Content = element("p", empty, class_="empty")
    else:
        inner = (
            element(
                "table",
                element("caption", caption, class_="hidden"),
                element("thead", element("tr", heads, role="row"), role="rowgroup"),
                element("tbody", body, role="rowgroup"),
                role="table",
            ),
            element("p", "Nothing matches the filter.", class_="empty") if not shown else None,
            _pages(call, name, page, len(found)),
        )
    content = live(f"t-{name}", inner) if is_live else inner
    many = text is not None and (len(rows) > 5 or bool(find))
    return text_of([_filter(call, name, caption) if many else None, content])


def _cell(column: Column[Row], row: Row) -> Html:
    shown, href = column.cell(row), "" if column.href is None else column.href(row)
    return element(
        "td",
        element("div", anchor(shown, href) if href and shown != "–" else shown),
        role="cell",
        data_label=column.title,
        class_="number" if column.is_number else None,
    )


def _head(call: PageCall, name: str, column: Column[Row], chosen: str, descending: bool) -> Html:
    kind = "number" if column.is_number else None
    if column.key is None:
        return element("th", column.title, scope="col", role="columnheader", class_=kind)
    is_chosen = column.title == chosen
    down = not descending if is_chosen else column.is_number
    href = call.here(**{f"{name}.sort": column.title, f"{name}.desc": 1 if down else None, f"{name}.page": None})
    mark = "" if not is_chosen else " ↓" if descending else " ↑"
    return element(
        "th",
        anchor([column.title, element("span", mark, aria_hidden="true")], href),
        scope="col",
        role="columnheader",
        class_=kind,
        aria_sort=("descending" if descending else "ascending") if is_chosen else None,
    )


def _filter(call: PageCall, name: str, caption: str) -> Html:
    find = f"{name}.find"
    label = f"Filter: {caption}"
    given = element("input", type="search", name=find, value=call.text(find), aria_label=label, placeholder="Filter")
    rest = hidden({key: value for key, value in call.query.items() if key not in (find, f"{name}.page")})
    return _view(call.path, "filter", rest, given, element("button", "Filter", type="submit"), role="search")


def _pages(call: PageCall, name: str, page: int, rows: int) -> Content:
    if rows <= PAGE_ROWS:
        return None
    last = -(-rows // PAGE_ROWS)
    first_row, last_row = (page - 1) * PAGE_ROWS + 1, min(page * PAGE_ROWS, rows)
    return element(
        "nav",
        anchor("← Previous", call.here(**{f"{name}.page": page - 1})) if page > 1 else None,
        element("span", f"{first_row:,} to {last_row:,} of {rows:,}"),
        anchor("Next →", call.here(**{f"{name}.page": page + 1})) if page < last else None,
        class_="pages",
        aria_label=f"Pages of {name}",
    )


def onward(label: str, href: str, what: str) -> Html:
    """A link to the next page of a list, which the service cuts."""
    return element("nav", anchor(label, href), class_="pages", aria_label=what)


def field(
    call: PageCall,
    name: str,
    label: str,
    placeholder: str | None = None,
    *,
    is_number: bool = False,
    grow: bool = False,
) -> Html:
    """A field of a ``search``: a parameter of the query."""
    mode: dict[str, str] = {"inputmode": "numeric"} if is_number else {"spellcheck": "false"}
    given = element("input", type="text", name=name, value=call.text(name), placeholder=placeholder, **mode)
    return element("label", label, given, class_="grow" if grow else None)


def hidden(fields: Mapping[str, str | int]) -> list[Html]:
    """What a form carries along."""
    return [element("input", type="hidden", name=name, value=value) for name, value in fields.items()]


def _view(path: str, class_: str, *content: Content, **attributes: Attribute) -> Html:
    """A form that leads to a view of a page: all that it says is in the query."""
    return element("form", *content, method="get", action=path, class_=class_, **attributes)


def search(path: str, label: str, *fields: Content, button: str = "Show", also: Content = None) -> Html:
    """A form that looks for something. ``also``: what follows its button."""
    submit = element("button", button, type="submit", class_="primary")
    return _view(path, "query", *fields, submit, also, role="search", aria_label=label)


def choice(path: str, label: str, name: str, values: Iterable[str], chosen: str, *fields: Content) -> Html:
    """A form that leads to another view as soon as a value is chosen."""
    options = [element("option", each, value=each, selected=each == chosen) for each in values]
    chooser = element("label", label, element("select", options, name=name))
    return _view(path, "query", *fields, chooser, element("button", "Show", type="submit"), data_auto=True)


def why(error: HoldfastError) -> str:
    """The reason of a refusal in words for a person who has a console and no command line."""
    if error.code is Code.UNAUTHENTICATED:
        return (
            f"the service needs a token ({error.statement()}); give the console one with --token-file, or log in again"
        )
    return error.statement()


def refusal(error: HoldfastError) -> Html:
    """An error of the service in the place of what it did not give."""
    if isinstance(error, PermissionDenied):
        return notice("warn", "Not shown: ", why(error), ".")
    if isinstance(error, NotFound):
        return notice("warn", "Not found: ", str(error), ".")
    return notice("bad", str(error), " ", element("code", error.code.value))


async def attempt(part: Awaitable[Content]) -> Content:
    """A part of a page, or why it is not there."""
    try:
        return await part
    except HoldfastError as error:
        return refusal(error)
