"""HTML as values: text is escaped unless it is ``Html`` already, so no page can forget it.

>>> element("a", "a < b", href="/log?x=1&y=2", class_="row", hidden=False)
'<a href="/log?x=1&amp;y=2" class="row">a &lt; b</a>'
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Final, TypeAlias, Union

VOID: Final = frozenset({"br", "hr", "input", "link", "meta", "rect", "polyline", "path", "line"})
"""Elements without content, also those of SVG as we use them."""


class Html(str):
    """Text that is HTML: it is not escaped again."""

    __slots__ = ()


Content: TypeAlias = Union[str, int, float, Iterable["Content"], None]  # noqa: UP007  # it names itself
Attribute: TypeAlias = str | int | float | bool | None


def text_of(content: Content) -> Html:
    """Content as HTML, escaped where it is not ``Html``; None is nothing, and the items of an iterable are joined."""
    if isinstance(content, Html):
        return content
    if content is None:
        return Html()
    if isinstance(content, str):
        return Html(html.escape(content))
    if isinstance(content, int | float):
        return Html(content)
    return Html("".join(text_of(item) for item in content))


def element(name: str, /, *content: Content, **attributes: Attribute) -> Html:
    """One element. An attribute that is None or False is left out, True has no value, ``_`` in a name is ``-``."""
    text = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{text}>" if name in ("br", "hr", "input", "link", "meta") else f"<{name}{text}/>")
    return Html(f"<{name}{text}>{text_of(content)}</{name}>")


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'


def join(parts: Iterable[Content], separator: str = " ") -> Html:
    """The parts with a separator between them."""
    return Html(html.escape(separator).join(text_of(part) for part in parts))
