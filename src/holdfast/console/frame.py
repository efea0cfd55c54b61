"""What every page has around it: the head, the navigation, the state of the service, and the form of an action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast import __version__
from holdfast.console import units
from holdfast.console.call import (
    ANY_NUMBER,
    CONFIRM_FIELD,
    SECTIONS,
    SEEN_FIELD,
    Form,
    Input,
    Limit,
    PageCall,
    Section,
    link,
)
from holdfast.console.html import Attribute, Content, Html, element, join
from holdfast.console.parts import address_shown, anchor, badge, live, moment, notice, why
from holdfast.console.security import CSRF_FIELD

THEMES: Final = ("system", "light", "dark")
SILENT_SECONDS_MAX: Final = 3.0
"""A page says that the service is silent before the time limit of a request has passed."""


def document(title: str, theme: str, *body: Content) -> str:
    """A whole page."""
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} · Holdfast"),
        element("link", rel="icon", href="/static/icon.svg", type="image/svg+xml"),
        element("link", rel="stylesheet", href=f"/static/console.css?v={__version__}"),
        element("script", src=f"/static/console.js?v={__version__}", type="module"),
    ]
    return "<!doctype html>" + element(
        "html",
        element("head", head),
        element("body", *body),
        lang="en",
        data_theme=theme if theme in THEMES else "system",
    )


def page(call: PageCall, theme: str, title: str, section: Section, content: Content) -> str:
    """A page with its navigation."""
    said = [] if call.is_refresh else call.session.take_flashes()
    flashes = [notice("good" if kind == "good" else "bad", text) for kind, text in said]
    return document(
        title,
        theme,
        anchor("Skip to the content", "#main", class_="skip"),
        element("header", _brand(call), element("nav", _sections(section), aria_label="Pages", class_="sections")),
        element(
            "main",
            live("state", state_of(call)),
            element("div", flashes, role="status", class_="flashes"),
            element("h1", title),
            content,
            id="main",
            tabindex="-1",
        ),
        _foot(),
    )


def bare_page(theme: str, title: str, *content: Content) -> str:
    """A page without navigation: a refusal, the login."""
    return document(
        title,
        theme,
        element("header", element("div", element("span", "Holdfast", class_="name"), class_="brand")),
        element("main", element("h1", title), *content, id="main", class_="narrow"),
    )


def _brand(call: PageCall) -> Html:
    mode = badge("actions on", "warn") if call.options.acts else badge("read only")
    switch = element("button", "Theme", type="button", id="theme", aria_label="Theme: follow the system")
    leave = None
    if call.options.needs_login:
        leave = element(
            "form", csrf_of(call), element("button", "Log out", type="submit"), method="post", action="/logout"
        )
    return element(
        "div",
        anchor("Holdfast", "/", class_="name"),
        element("span", address_shown(call.service.urls[0]), class_="service"),
        mode,
        switch,
        leave,
        class_="brand",
    )


def _sections(current: Section) -> list[Html]:
    return [
        element("a", name, href=path, aria_current="page" if name == current else None)
        for name, path in SECTIONS.items()
    ]


def _foot() -> Html:
    return element(
        "footer",
        join([f"Holdfast {__version__}", anchor("Runbooks", "/runbooks")], " · "),
        element("span", id="live", class_="live-mark"),
    )


def state_of(call: PageCall) -> Content:
    """Whether the service answers."""
    watcher = call.watcher
    if watcher.away_since_ms is not None:
        problem = watcher.problem
        return notice(
            "bad",
            element("strong", "The service does not answer"),
            " since ",
            moment(watcher.away_since_ms),
            ". ",
            "This page shows what was last known. ",
            element("small", "" if problem is None else problem.statement()),
        )
    silent = watcher.silent_seconds
    if silent > SILENT_SECONDS_MAX:
        said = f"The service has not answered for {units.duration(silent)}."
        return notice("warn", element("strong", said), " This page shows what was last known.")
    if watcher.refused and watcher.problem is not None:
        return notice("warn", "The metrics are not shown: ", why(watcher.problem), ".")
    return None


def csrf_of(call: PageCall) -> Html:
    """The field without which nothing is done."""
    return element("input", type="hidden", name=CSRF_FIELD, value=call.session.csrf)


def form_of(call: PageCall, form: Form, problems: Sequence[str] = ()) -> Html:
    """The form of an action: what it does, what it needs to know, and what has to be typed."""
    confirm, look = None, "primary"
    if form.typed is not None:
        said, look = element("span", "Type ", element("code", form.typed), " to confirm"), "danger"
        field = element("input", type="text", name=CONFIRM_FIELD, autocomplete="off", spellcheck="false", required=True)
        confirm = element("label", said, field)
    submit = element("button", form.button, type="submit", class_=look)
    return element(
        "form",
        csrf_of(call),
        [notice("bad", problem) for problem in problems],
        element("div", form.effect, class_="effect"),
        [_field(call, each) for each in form.inputs],
        [_limit(each) for each in form.limits],
        element("input", type="hidden", name=SEEN_FIELD, value=form.seen) if form.seen else None,
        confirm,
        element("div", submit, anchor("Cancel", form.back, class_="button"), class_="actions"),
        method="post",
        action=link(call.path, **call.query),
        class_="act",
    )


def _limit(limit: Limit) -> Html:
    """The number that the page named. It is not kept from a form before: a person confirms the newest number."""
    note = (
        f"It is refused if there are more {limit.noun}s by then. Where new ones keep coming, write a larger number."
        if limit.is_exact
        else f"The service did not count further: {limit}. Type {ANY_NUMBER} to delete all of them."
    )
    field = element(
        "input",
        type="text",
        inputmode="numeric",
        name=limit.field,
        value=limit.number if limit.is_exact else "",
        required=True,
        autocomplete="off",
        aria_describedby=f"n-{limit.field}",
    )
    label = element("span", f"Delete at most this many {limit.noun}s")
    return element("label", label, field, element("small", note, id=f"n-{limit.field}"))


def _field(call: PageCall, of: Input) -> Html:
    value = call.form.get(of.name, of.value)
    if of.kind == "hidden":
        return element("input", type="hidden", name=of.name, value=value)
    described = f"n-{of.name}" if of.note else None
    note = element("small", of.note, id=described) if of.note else None
    about: dict[str, Attribute] = {"name": of.name, "aria_describedby": described}
    as_text: dict[str, Attribute] = {**about, "required": of.required, "spellcheck": "false"}
    match of.kind:
        case "area":
            field = element("textarea", ["\n", value], rows=8, **as_text)  # a browser drops a first newline
        case "choice":
            options = [element("option", each, value=each, selected=each == value) for each in of.choices]
            field = element("select", options, **about)
        case "check":
            box = element("input", type="checkbox", **about, value="1", checked=value == "1")
            return element("label", element("span", box, " ", of.label), note, class_="check")
        case _:
            mode = "numeric" if of.kind == "number" else None
            field = element("input", type="text", inputmode=mode, **as_text, value=value, autocomplete="off")
    return element("label", element("span", of.label), field, note)
