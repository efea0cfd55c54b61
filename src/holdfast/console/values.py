"""Keys and values of the log on a page: written in a form that people read, and read back from an address."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from holdfast.client.protocol.messages import base64url
from holdfast.console import units
from holdfast.console.call import Form, Input, PageCall, link, whole
from holdfast.console.html import Content, Html, element
from holdfast.console.parts import anchor, choice, copied, hidden, name_shown, notice, onward
from holdfast.console.reading.backwards import BackwardPage
from holdfast.errors import InvalidRequest

CELL_CHARACTERS: Final = 80


def bytes_of(text: str) -> bytes:
    """A key that a person wrote: text, or hex after ``0x``. Raises: InvalidRequest.

    >>> bytes_of("seat/12A"), bytes_of("0x00ff")
    (b'seat/12A', b'\\x00\\xff')
    """
    if not text.startswith("0x"):
        return text.encode()
    try:
        return bytes.fromhex(text[2:])
    except ValueError:
        raise InvalidRequest("after 0x only hexadecimal digits are allowed") from None


def unpacked(text: str) -> bytes:
    """The bytes that ``base64url`` has put into an address. Raises: InvalidRequest."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("the address names no key: it is not base64url") from None


def key_link(key: bytes) -> Html:
    """A key that leads to its page."""
    return anchor(name_shown(units.key_text(key)), link("/key", key=base64url(key)))


def log_at(version: float) -> Html:
    """A version that leads to the log from there back; it need not be that of a transaction."""
    return anchor(units.version(version), link("/log", at=int(version)))


def transaction_link(version: int) -> Html:
    """The version of a transaction, which leads to it."""
    return anchor(str(version), link("/transaction", version=version))


def range_shown(begin: bytes, end: bytes | None) -> list[Content]:
    """A range of keys in words."""
    last = "the last key" if end is None else name_shown(units.key_text(end))
    return ["range ", name_shown(units.key_text(begin)), " to ", last]


def older(page: BackwardPage, href: str, what: str) -> Content:
    """Where a list of transactions goes on, or why it does not; ``href`` is its next page."""
    if page.truncated:
        return notice("none", "What is older was removed: see ", anchor("retention", "/retention"), ".")
    if page.older is None:
        return None
    return onward("Older →" if page.transactions else "Go on searching →", href, what)


def value_given(form: Mapping[str, str]) -> bytes:
    """The value that a person wrote into a form, as text or in hex. Raises: InvalidRequest."""
    text = form.get("value", "").replace("\r\n", "\n")
    if form.get("form") != "hex":
        return text.encode()
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidRequest("the value is not hexadecimal") from None


def time_given(text: str) -> int:
    """A time that a person wrote, in milliseconds since 1970; without a zone it is UTC. Raises: InvalidRequest."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest("the time is ISO 8601, such as 2026-11-27T09:30:00") from None
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)


def mark_of(*parts: bytes) -> str:
    """A mark of what a form shows: other parts have another one."""
    return hashlib.sha256(b"".join(b"%d:%b" % (len(each), each) for each in parts)).hexdigest()[:32]


def form_named(name: str) -> units.Form:
    """A form by its name. Raises: InvalidRequest."""
    for form in units.FORMS:
        if form == (name or "auto"):
            return form
    raise InvalidRequest(f"a form is one of {', '.join(units.FORMS)}")


def form_choice(call: PageCall, **carried: str | int) -> Html:
    """A field to choose in which form a value is shown. ``carried``: the rest of the page's address."""
    return choice(call.path, "Shown as", "form", units.FORMS, form_named(call.text("form")), hidden(carried))


def value_of(value: bytes, form: units.Form = "auto") -> Html:
    """A value in a form, with its size; in hex, and why, where it does not have the form."""
    chosen = units.form_of(value) if form == "auto" else form
    problem = ""
    try:
        shown = units.bytes_text(value, chosen)
    except ValueError:
        shown, problem = units.bytes_text(value, "hex"), f", not {chosen}: shown as hex"
    cut = f", the first {units.size(units.SHOWN_BYTES_MAX)}" if len(value) > units.SHOWN_BYTES_MAX else ""
    note = element(
        "small",
        f"{chosen if not problem else 'bytes'}, {units.size(len(value))}{problem}{cut} ",
        copied(shown, "Copy the shown part" if cut else "Copy"),
    )
    return element("div", note, element("pre", shown, tabindex="0"))


def value_start(value: bytes) -> Html:
    """The beginning of a value, for a cell of a table."""
    try:
        text = units.bytes_text(value, "text")
    except ValueError:
        text = units.bytes_text(value[:CELL_CHARACTERS], "hex")
    return element("code", text if len(text) <= CELL_CHARACTERS else f"{text[:CELL_CHARACTERS]}…")


def writing_form(effect: str, key: Input, old: bytes | None, counter: str, number: int, back: str) -> Form:
    """The first of two forms that write a value: it takes the key and the value, and the second one compares.

    ``counter`` names the ``number`` of the value that is shown: its version or its revision. Raises: InvalidRequest for
    a value that is too large for a form.
    """
    if old is not None and len(old) > units.SHOWN_BYTES_MAX:
        raise InvalidRequest("the value is too large to be edited here", bytes=len(old))
    try:
        text, form = units.bytes_text(old or b"", "text"), "text"
    except ValueError:
        text, form = (old or b"").hex(" "), "hex"
    value = Input("value", "Value", text, "area")
    kind = Input("form", "The value is written as", form, "choice", choices=("text", "hex"))
    inputs = (key, value, kind, Input(counter, "", str(number), "hidden"))
    return Form(element("p", effect), "Compare", back, inputs)


def comparing_form(
    call: PageCall, effect: Content, old: bytes | None, new: bytes, counter: str, number: int, button: str, mark: str
) -> Form:
    """The second form: the old value, if there is one, the new one, and what changed since the first form."""
    expected = whole(f"the {counter}", call.form.get(counter, "0"))
    since = f"The key has changed since {counter} {expected}" if expected else "The key exists by now"
    stays = f"The value stays as it is; only its {counter} changes."
    comparison = [
        notice("warn", f"{since}. This is what it has now, and what you give it.") if expected != number else None,
        effect,
        notice("warn", stays) if old == new else None,
        element("h3", "Old value"),
        element("p", "The key does not exist.", class_="empty") if old is None else value_of(old),
        element("h3", "New value"),
        value_of(new),
    ]
    carried = tuple(Input(name, "", call.form.get(name, ""), "hidden") for name in ("key", "value", "form", counter))
    return Form(comparison, button, link(call.path, **call.query), carried, seen=mark)
