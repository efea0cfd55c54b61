"""One request in a page's hands, and the two kinds of things that a request reaches: a page and an action."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlencode

from holdfast.console.html import Content
from holdfast.console.units import counted
from holdfast.errors import InvalidRequest
from holdfast.files.document_process import DocumentReader

if TYPE_CHECKING:
    from holdfast.console.options import ConsoleOptions
    from holdfast.console.reading.service import WatchedService
    from holdfast.console.reading.watcher import Watcher
    from holdfast.console.security import BrowserSession

Section = Literal[
    "Overview", "Log", "Keys", "Stores", "Messages", "Maps", "Retention", "Cluster", "Pipelines", "Configuration"
]
SECTIONS: Final[Mapping[Section, str]] = {
    "Overview": "/", "Log": "/log", "Keys": "/keys", "Stores": "/stores", "Messages": "/messages", "Maps": "/maps",
    "Retention": "/retention", "Cluster": "/cluster", "Pipelines": "/pipelines", "Configuration": "/configuration",
}  # fmt: skip


Role = Literal["write", "admin"]
CONFIRM_FIELD: Final = "confirm"
SEEN_FIELD: Final = "seen"
ANY_NUMBER: Final = "any number"
"""What a person types where the number of what would go is not known."""


def link(path: str, /, **query: str | int | None) -> str:
    """A path with a query; None is left out.

    >>> link("/durable", store="a b", durable=None)
    '/durable?store=a+b'
    """
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


@dataclass(frozen=True, slots=True)
class PageCall:
    """A request. ``query``: the last value of each parameter; all state of a view is in it."""

    path: str
    query: Mapping[str, str]
    session: BrowserSession
    service: WatchedService
    watcher: Watcher
    options: ConsoleOptions
    form: Mapping[str, str] = field(default_factory=dict[str, str])
    """The fields of a posted form."""
    documents: DocumentReader = field(default_factory=DocumentReader)
    is_refresh: bool = False
    """The script asks for the live parts of a page that is open; what is said once is not said to it."""

    def text(self, name: str, default: str = "") -> str:
        """A parameter of the query."""
        return self.query.get(name, default)

    def required(self, name: str) -> str:
        """A parameter that the page cannot do without. Raises: InvalidRequest."""
        value = self.text(name)
        if not value:
            raise InvalidRequest(f"this page needs the parameter {name}")
        return value

    def number(self, name: str, default: int = 0) -> int:
        """A parameter that is a whole number of at most 16 digits. Raises: InvalidRequest."""
        return whole(name, self.text(name)) if self.text(name) else default

    def here(self, /, **changes: str | int | None) -> str:
        """This view with other parameters; None removes one."""
        return link(self.path, **{**self.query, **changes})


def whole(name: str, text: str) -> int:
    """A whole number that a person wrote. Raises: InvalidRequest."""
    plain = text.strip().replace(",", "").replace("_", "")
    if not (plain.isascii() and plain.isdigit() and len(plain) <= 16):
        raise InvalidRequest(f"{name} is a whole number from 0, not {text[:40]!r}")
    return int(plain)


@dataclass(frozen=True, slots=True)
class Screen:
    """Something to look at."""

    path: str
    title: Callable[[PageCall], str] | str
    section: Section
    render: Callable[[PageCall], Awaitable[Content]]


@dataclass(frozen=True, slots=True)
class Input:
    """A field of a form. ``kind``: a type of ``<input>``, or ``area`` for several lines, or ``choice``.
    A ``hidden`` one carries what the form showed."""

    name: str
    label: str
    value: str = ""
    kind: Literal["text", "number", "area", "choice", "check", "hidden"] = "text"
    note: str = ""
    choices: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """How many things an action would delete now. The form carries it, and a person may change it there: the action is
    refused where it would delete more. ``noun``: in the singular. A number that is not exact is a lower bound: no
    number confirms it, only ``ANY_NUMBER``."""

    noun: str
    number: int
    is_exact: bool = True

    @property
    def field(self) -> str:
        """Its field of the form."""
        return f"at_most_{self.noun}"

    def __str__(self) -> str:
        if self.is_exact:
            return counted(self.number, self.noun)
        return f"at least {counted(self.number, self.noun)}" if self.number else f"an unknown number of {self.noun}s"

    def problem_with(self, given: str) -> str:
        """Why what a person wrote into its field does not allow it; empty where it does. Raises: InvalidRequest."""
        if given.strip().lower() == ANY_NUMBER:
            return ""
        if not self.is_exact:
            return (
                f"Nothing was done. This would now delete {self}, not counted further. Type {ANY_NUMBER} to allow it."
            )
        allowed = whole("the limit", given)
        if self.number <= allowed:
            return ""
        return f"Nothing was done. This would now delete {self}, and the form allows {allowed:,}. Confirm again."


@dataclass(frozen=True, slots=True)
class Form:
    """What an action asks before it acts. ``effect``: what it will do, with numbers. ``typed``: what a person has to
    type because the action deletes something, None for an action that does not. ``limits``: what it would delete.
    ``back``: where "Cancel" leads. ``seen``: what a person decides on, on one line, such as the version that would be
    replaced; an action that finds another one by then shows its form again."""

    effect: Content
    button: str
    back: str
    inputs: tuple[Input, ...] = ()
    typed: str | None = None
    limits: tuple[Limit, ...] = ()
    seen: str = ""

    def is_seen_in(self, fields: Mapping[str, str]) -> bool:
        """Whether a person sent this form, as it is now."""
        return fields.get(SEEN_FIELD) == self.seen

    def problems_with(self, fields: Mapping[str, str]) -> list[str]:
        """Why what a person sent does not confirm this form, as it is now."""
        problems: list[str] = []
        if self.typed is not None and fields.get(CONFIRM_FIELD, "") != self.typed:
            problems.append(f"Nothing was done. Type {self.typed} exactly as it is shown.")
        more = (limit.problem_with(fields.get(limit.field, "0")) for limit in self.limits)
        return problems + [problem for problem in more if problem]


@dataclass(frozen=True, slots=True)
class ActionDone:
    """What an action did, and which page shows it."""

    text: str
    to: str


@dataclass(frozen=True, slots=True)
class Action:
    """Something to do: GET shows its form, POST checks the form and acts.

    ``act`` returns a form, having done nothing, where a person has to confirm what only the service knew.
    """

    path: str
    title: str
    section: Section
    form: Callable[[PageCall], Awaitable[Form]]
    act: Callable[[PageCall], Awaitable[ActionDone | Form]]
    needs: Role = "admin"
    """The role that a token of the service needs for it; one of the stores' definition may allow it, too."""

    def link(self, /, **query: str | int | None) -> str:
        """Where its form is."""
        return link(self.path, **query)
